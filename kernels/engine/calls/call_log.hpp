// CallLog: the last calls of this process, of all its communicators, for a report after an error.
//
// Recording a call takes some nanoseconds: a slot of a ring is claimed by one atomic addition and filled without a
// lock. Slots are overwritten in turn; a reader leaves out slots that change while it reads them.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../transport/signature.hpp"

namespace gradientflow::engine {

// Place in the caller's program, in terms of the interface that knows it: an object that stands for code, and an offset
// inside it. The object must live as long as the process.
struct CallSite {
  const void* code = nullptr;
  std::int32_t offset = 0;
};

// Returns the site of this thread's calls. An interface sets it before a call.
[[nodiscard]] CallSite& call_site() noexcept;

// Form of a call.
enum class CallForm : std::uint8_t { blocking, background, prepared, send, receive, pool_ready, pool_wait };
inline constexpr int call_form_count = 7;
[[nodiscard]] std::string_view name_of(CallForm form);

class CallLog {
 public:
  static constexpr std::size_t capacity = 1024;

  enum class State : std::uint32_t { under_way, ended, failed };

  // A communicator whose calls are recorded.
  struct Source {
    int number = 0;
    std::string name = {};          // purpose
    std::string identity = {};      // the same on all its ranks
    std::uint64_t job = 0;          // the same on all ranks of the job; 0 if unknown
    int rank = 0;                   // rank in the communicator
    int size = 1;                   // number of ranks
    int job_rank = 0;               // rank in the job
    std::vector<int> members = {};  // ranks in the job, by rank
    std::vector<pid_t> pids = {};   // processes, by rank; 0 on other hosts
    bool is_gone = false;
  };

  struct Entry {
    std::uint64_t number = 0;    // counts the calls of the process, from 1
    std::uint32_t sequence = 0;  // counts the collective calls of the communicator, from 1; 0: not collective
    int source = 0;
    CallForm form = CallForm::blocking;
    transport::Signature signature = {};  // root: the peer, of send and receive
    std::int64_t began = 0;               // nanoseconds of CLOCK_MONOTONIC
    State state = State::under_way;
    CallSite site = {};
  };

  // Returns the log of this process, which is never destroyed: threads may end after the static objects.
  [[nodiscard]] static CallLog& of_process() noexcept;

  // True once there is a communicator whose calls are recorded.
  [[nodiscard]] static bool is_on() noexcept { return is_on_.load(std::memory_order_relaxed); }

  // Returns the number of the source; its number is ignored. A source that is gone is kept until there are many.
  int add(Source source);
  void remove(int number) noexcept;
  [[nodiscard]] std::vector<Source> sources() const;

  // Returns the entry's number, for end().
  std::uint64_t begin(int source, std::uint32_t sequence, CallForm form,
                      const transport::Signature& signature) noexcept;
  void end(std::uint64_t number, State state) noexcept;

  // Returns the last entries, the oldest first.
  [[nodiscard]] std::vector<Entry> entries() const;

  // Count errors that have broken a communicator because of another rank: all, and those after a wait in vain.
  void note_break(bool is_timeout) noexcept {
    breaks_.fetch_add(1);
    timeouts_.fetch_add(is_timeout ? 1 : 0);
  }
  [[nodiscard]] std::uint64_t breaks() const noexcept { return breaks_.load(); }
  [[nodiscard]] std::uint64_t timeouts() const noexcept { return timeouts_.load(); }

 private:
  // Words of an entry. `number` is 0 while the remaining words are written.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> number;
    std::atomic<std::int64_t> began;
    std::atomic<const void*> code;
    std::atomic<std::uint32_t> sequence;
    std::atomic<std::uint32_t> source_and_form;
    std::array<std::atomic<std::uint64_t>, 3> signature;
    std::atomic<std::int32_t> offset;
    std::atomic<State> state;
  };
  static_assert(sizeof(Slot) == 64);

  std::array<Slot, capacity> slots_;
  std::atomic<std::uint64_t> last_{0};
  std::atomic<std::uint64_t> breaks_{0};
  std::atomic<std::uint64_t> timeouts_{0};
  static std::atomic<bool> is_on_;
  mutable std::mutex mutex_;  // guards sources
  std::deque<Source> sources_;
  int source_count_ = 0;
};

// The calls of one communicator in the log.
class LoggedCalls {
 public:
  // Records nothing if `is_on` is false.
  LoggedCalls(CallLog::Source source, bool is_on);
  LoggedCalls(const LoggedCalls&) = delete;
  LoggedCalls& operator=(const LoggedCalls&) = delete;
  ~LoggedCalls();

  // Return an entry's number, for end(); 0 if nothing is recorded.
  std::uint64_t begin(CallForm form, const transport::Signature& signature) noexcept {
    return source_ < 0 ? 0
                       : log_.begin(source_, sequence_.fetch_add(1, std::memory_order_relaxed) + 1, form, signature);
  }
  std::uint64_t begin(CallForm form, const transport::Signature& signature, std::uint32_t sequence) noexcept {
    return source_ < 0 ? 0 : log_.begin(source_, sequence, form, signature);
  }
  void end(std::uint64_t entry, CallLog::State state = CallLog::State::ended) noexcept {
    if (entry != 0) {
      log_.end(entry, state);
    }
  }

  // Does the work of a recorded call.
  template <class Work>
  auto during(std::uint64_t entry, Work work) -> decltype(work()) {
    const Guard guard{*this, entry};
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      guard.state = CallLog::State::ended;
    } else {
      auto result = work();
      guard.state = CallLog::State::ended;
      return result;
    }
  }

  // Return an identity of the next communicator made from this one, and of the next communicator of its own.
  [[nodiscard]] std::string next_identity() const;
  [[nodiscard]] static std::string first_identity();

 private:
  struct Guard {
    LoggedCalls& calls;
    std::uint64_t entry;
    mutable CallLog::State state = CallLog::State::failed;
    Guard(LoggedCalls& of, std::uint64_t number) : calls(of), entry(number) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() { calls.end(entry, state); }
  };

  CallLog& log_ = CallLog::of_process();
  int source_ = -1;
  std::string identity_;
  std::atomic<std::uint32_t> sequence_{0};
  mutable std::atomic<int> made_{0};
};

}  // namespace gradientflow::engine
