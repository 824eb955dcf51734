// The ranks of one node and the memory they share: announcements of calls, progress flags, staging slots, segments.
//
// Every rank owns a part of one shared mapping, the control block, which only it writes:
//   state          open, closed or failed: tells its peers not to wait for it any more
//   progress       a counter that orders the steps inside a call
//   tasks          the parts of a shared piece of work that are taken and done
//   announcements  two, used in turn: the call it makes, where its tensors lie, and a small payload
//   staging        two slots for pieces of ordinary arrays
// Two announcements are enough: a rank writes announcement n + 2 over announcement n only after every rank has made
// announcement n + 1, for which the rank must be done with all ranks' announcements n.
//
// Waiting: poll `spin` times (not at all with more ranks than cores: the awaited rank needs the core), yield the core
// `yields` times, then sleep on a futex. A sleeping rank checks every few milliseconds that its peers are alive and
// that time is left. If a check fails, it throws and marks itself failed; then its peers, wherever they wait, throw
// too.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/config.hpp"
#include "../endpoint.hpp"
#include "../process.hpp"
#include "../signature.hpp"
#include "../topology.hpp"
#include "memory_map.hpp"

namespace gradientflow::transport {

// Location of a rank's tensor: its address in that rank's process, and, unless segment is 0, the offset in its part of
// that segment of node memory.
struct Location {
  std::uint64_t address = 0;
  std::uint64_t offset : 40 = 0;
  std::uint64_t segment : 24 = 0;
};

// One cache line, followed in memory by the payload. In calls without tensors to locate, a payload that fits takes the
// place of the locations: other ranks read one line, not two.
struct alignas(64) Announcement {
  std::atomic<std::uint32_t> sequence;
  bool has_payload_inside;
  Signature signature;
  Location input;
  Location output;

  static constexpr std::size_t inside_bytes = 2 * sizeof(Location);
  [[nodiscard]] std::byte* inside() noexcept { return reinterpret_cast<std::byte*>(&input); }
  [[nodiscard]] const std::byte* inside() const noexcept { return reinterpret_cast<const std::byte*>(&input); }
};
static_assert(sizeof(Announcement) == 64 && offsetof(Announcement, output) == offsetof(Announcement, input) + 16);

// Mapping of node memory in this rank. Every rank has a part of equal size.
class Segment {
 public:
  Segment(MemoryMap memory, std::size_t stride, int rank, std::uint32_t id)
      : memory_(std::move(memory)), stride_(stride), rank_(rank), id_(id) {}

  [[nodiscard]] std::byte* part(int local_rank) const noexcept {
    return memory_.data() + static_cast<std::size_t>(local_rank) * stride_;
  }
  [[nodiscard]] std::byte* mine() const noexcept { return part(rank_); }
  [[nodiscard]] std::size_t stride() const noexcept { return stride_; }
  [[nodiscard]] std::size_t parts() const noexcept { return memory_.size() / stride_; }
  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }

  // Has the system provide the pages of a stretch of memory that was allocated with Pages::on_demand, rounded outward
  // to huge pages (2 MiB). Does nothing in a small segment, which gets pages as they are written to. Throws
  // Error(memory).
  void provide(const std::byte* begin, std::size_t bytes) const;

 private:
  MemoryMap memory_;
  std::size_t stride_;
  int rank_;
  std::uint32_t id_;
};

// Time when the system provides the pages of a segment: as it is allocated, or as they are written to or asked for.
enum class Pages : std::uint8_t { now, on_demand };

class Node {
 public:
  // Makes the control block and has every rank of the node map it. Collective over `endpoint`. Returns nothing, on
  // every rank alike, if some rank could not map it; `reason` then tells why.
  static std::unique_ptr<Node> join(const Endpoint& endpoint, const Topology& topology, const Config& config,
                                    std::string& reason);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  // Returns the numbers of the cores that its ranks may use, all together.
  [[nodiscard]] const std::vector<int>& cores() const noexcept { return cores_.numbers; }
  // Names ranks that have to share cores; empty where none have to.
  [[nodiscard]] const std::string& cores_remark() const noexcept { return cores_.remark; }
  [[nodiscard]] int world_rank(int local) const { return world_ranks_[static_cast<std::size_t>(local)]; }
  [[nodiscard]] int local_rank_of(int world_rank) const;  // -1 where the rank is not of this node
  // Any thread may call the next two functions, even after release().
  [[nodiscard]] bool is_alive(int local) const;
  [[nodiscard]] bool has_closed(int local) const;  // true if it closed with no error before
  // Copies memory of rank `local`'s process. Throws Error(peer) if that process has died, Error(system) if the kernel
  // refuses.
  void read(int local, void* destination, const void* address, std::size_t bytes) const;
  [[nodiscard]] std::size_t payload_bytes() const noexcept { return layout_.payload_bytes; }
  [[nodiscard]] std::size_t staging_bytes() const noexcept { return layout_.staging_bytes; }
  [[nodiscard]] std::byte* staging(int local, std::size_t slot) const noexcept;

  // Announces this rank's call and waits until all ranks have announced their calls. Throws Error(mismatch), on every
  // rank and before any data moved, if the signatures differ; the error has the labels of all ranks. Afterwards
  // announcement(p) and payload(p) may be read until this rank's next exchange.
  void exchange(const Signature& signature, const Location& input, const Location& output,
                std::span<const std::byte> payload, std::string_view label = {});
  // An exchange() in two parts: announce() announces this rank's call and does not wait, confirm() waits until all
  // ranks have announced their calls.
  void announce(const Signature& signature, const Location& input, const Location& output,
                std::span<const std::byte> payload);
  // If the signatures differ and a call has a label, every rank announces its label. Before this second exchange
  // confirm() calls `before_more`, because a rank may take long to make that announcement.
  void confirm(std::string_view label = {}, const std::function<void()>& before_more = {});
  [[nodiscard]] bool is_confirmed() const noexcept;       // all ranks have announced their calls
  [[nodiscard]] bool is_confirmed_soon() const noexcept;  // the same, after the polls that come before yielding
  // Tells the peers that this rank's next announcement is about to come. Waits, for about `patience`, until every rank
  // has told the same or made its announcement. Returns true if all ranks have: then no call waits long.
  [[nodiscard]] bool meet(std::chrono::microseconds patience) noexcept;
  // Does an exchange() without the comparison. Returns true if all signatures are alike.
  [[nodiscard]] bool try_exchange(const Signature& signature, const Location& input, const Location& output,
                                  std::span<const std::byte> payload);
  [[nodiscard]] const Announcement& announcement(int local) const noexcept {
    return *announcement_at(local, sequence_);
  }
  [[nodiscard]] const std::byte* payload(int local) const noexcept;
  [[nodiscard]] bool all_idle() const noexcept { return all_idle_; }  // in the last exchange

  // One step inside a call. advance() announces that this rank has done it and returns its number, wait_all() waits
  // until all ranks have done it. All ranks take the same number of steps in a call.
  std::uint32_t advance();
  void wait_all(std::uint32_t step) { wait_for_all(Event::step, step); }
  void synchronize() { wait_all(advance()); }

  // Numbers that this rank publishes about the call under way, one for each topic. Other ranks read them after the next
  // step and before this rank's next exchange.
  enum class Topic : std::size_t { agreement, result };
  void tell(Topic topic, std::uint64_t word) noexcept {
    flags(rank_).words[static_cast<std::size_t>(topic)].store(word, std::memory_order_release);
  }
  [[nodiscard]] std::uint64_t told(Topic topic, int local) const noexcept {
    return flags(local).words[static_cast<std::size_t>(topic)].load(std::memory_order_acquire);
  }

  // Shows that this rank makes progress outside of the node: ranks that wait for it extend their deadlines.
  void pulse() noexcept {
    if (size_ > 1) {
      flags(rank_).pulse.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // Does work on memory that every rank maps: `tasks` tasks for each rank. Calls task(owner, index) for every task that
  // this rank takes, and returns once all tasks are done. A rank begins with its own tasks and continues with tasks of
  // other ranks that are not taken yet, so a rank suspended by the system delays no rank. Call it once after an
  // exchange; it counts as one step.
  template <class Task>
  void share(std::uint32_t tasks, Task task) {
    for (int i = 0; i < size_; ++i) {
      const int owner = (rank_ + i) % size_;
      for (std::uint32_t index = take_task(owner, tasks); index < tasks; index = take_task(owner, tasks)) {
        task(owner, index);
        finish_task(owner, tasks);
      }
    }
    wait_for_all(Event::tasks, tasks);
    advance();
  }

  // Throws Error(peer) where a rank has failed. Call it after the last step of a call that reads memory of other ranks:
  // a failed rank may have changed it.
  void check_no_rank_failed() const;

  // Returns an Error(peer) about a rank that `during` waits for in vain, because it has died or given up; nothing if
  // there is none. Any thread may call.
  [[nodiscard]] std::optional<Error> find_loss(const Signature& during) const;

  // Allocates `bytes` bytes for every rank, zero-filled. Collective over the node. While this rank works on a large
  // allocation, `attend` is called several times a second and may throw, after which the caller must call fail().
  // Throws Error(memory), on every rank alike, if some rank cannot have its memory.
  std::shared_ptr<Segment> allocate(std::size_t bytes, Pages pages = Pages::now,
                                    const std::function<void()>& attend = {});

  // Returns the location of this rank's memory at `address`, and the segment that holds it, if one does.
  [[nodiscard]] std::pair<Location, std::shared_ptr<Segment>> locate(const void* address, std::size_t bytes) const;

  // Marks this rank closed. After close() or fail(), no rank waits for it.
  void close() noexcept { leave(RankState::closed); }
  // Marks this rank failed. Any thread may call; the first reason counts.
  void fail(const Error& reason) noexcept;
  // Lets go of the control block and of descriptors. Call it after close(), once no call is under way.
  void release() noexcept;
  // Makes a call that waits right now, in another thread, throw Error(closed).
  void interrupt() noexcept { interrupted_.store(true); }

 private:
  enum class RankState : std::uint32_t { open, closed, failed };

  // Event that a rank waits for: selects the word of its peers to look at.
  enum class Event { announcement, step, tasks };

  struct Cores {
    std::vector<int> numbers;  // cores that the ranks of the node may use, all together
    std::string remark;        // names ranks that have to share cores
  };

  // Time limit of a wait, counted from its first sleep, and again from each change found in the ranks' pulse.
  struct Deadline {
    std::chrono::steady_clock::time_point at{};
    std::uint64_t pulse = 0;
  };

  struct Tasks {
    alignas(64) std::atomic<std::uint32_t> taken;
    std::atomic<std::uint32_t> done;
  };

  struct Flags {
    alignas(64) std::atomic<std::uint32_t> progress;
    alignas(64) std::atomic<std::uint32_t> coming;    // number of the announcement that is about to come
    alignas(64) std::atomic<std::uint32_t> sleepers;  // number of ranks that sleep on a word of this rank
    alignas(64) std::atomic<RankState> state;
    ErrorKind reason_kind;  // kind of a failed rank's error
    std::array<char, 500> reason;
    alignas(64) std::atomic<std::uint64_t> pulse;
    std::atomic<std::uint64_t> words[2];  // published numbers, by topic
    std::uint64_t token;                  // random; the leader's value shows that the right memory was opened
    Tasks tasks[2];                       // two, for the same reason as announcements
  };

  // Offsets inside a rank's part of the control block.
  struct Layout {
    Layout(const Config& config, std::size_t ranks);
    std::size_t payload_bytes;
    std::size_t staging_bytes;
    std::size_t announcement_stride;
    std::size_t staging_offset;
    std::size_t rank_stride;
  };

  [[nodiscard]] bool await_announcements();
  Node(MemoryMap control, const Topology& topology, const Config& config, Cores cores);

  [[nodiscard]] Flags& flags(int local) const noexcept;
  [[nodiscard]] Announcement* announcement_at(int local, std::uint32_t sequence) const noexcept;
  [[nodiscard]] Tasks& tasks(int owner) const noexcept { return flags(owner).tasks[sequence_ % 2]; }
  [[nodiscard]] std::uint32_t take_task(int owner, std::uint32_t tasks_each) noexcept;
  void finish_task(int owner, std::uint32_t tasks_each) noexcept;
  [[nodiscard]] std::atomic<std::uint32_t>& awaited(int local, Event event) const noexcept;
  [[nodiscard]] bool has_come(int local, std::uint32_t sequence) const noexcept;
  [[nodiscard]] bool arrived(int local, Event event, std::uint32_t target) const noexcept;
  void publish(std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept;
  void wait_for_all(Event event, std::uint32_t target);
  void sleep_until_arrived(int local, Event event, std::uint32_t target, Deadline& deadline);
  void check_not_interrupted() const;
  void check_peers(Event event, std::uint32_t target) const;
  void leave(RankState state) noexcept;
  [[nodiscard]] Error death_of(int local, const Signature& during) const;
  [[nodiscard]] Error loss_of(int local, const char* how, const Signature& during) const;
  [[nodiscard]] Error failure_of(int local, const Signature& during) const;
  [[nodiscard]] std::uint64_t pulse_of_all() const noexcept;
  [[noreturn]] void raise_timeout(Event event, std::uint32_t target) const;

  Layout layout_;
  MemoryMap control_;
  int rank_;
  int size_;
  std::vector<int> world_ranks_;
  std::vector<Process> processes_;
  bool waits_outside_;  // some rank waits for other nodes
  double timeout_;
  Cores cores_;
  std::int64_t spin_;
  std::int64_t yields_;
  std::uint32_t sequence_ = 0;      // number of the last announcement
  std::size_t payload_behind_ = 0;  // bytes of payload behind the announcement
  std::uint32_t step_ = 0;          // number of the last advance()
  Signature signature_;             // signature of the call under way
  bool all_idle_ = false;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> gives_up_{false};
  mutable std::mutex release_mutex_;  // guards release() against calls of other threads
  bool is_released_ = false;
  std::vector<char> has_closed_;  // closed ranks, as of release()
  std::uint32_t segment_count_ = 0;
  mutable std::mutex segments_mutex_;
  std::map<const std::byte*, std::weak_ptr<Segment>> segments_;  // keyed by the start of this rank's part
};

}  // namespace gradientflow::transport
