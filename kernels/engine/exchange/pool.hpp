// What all pools of gradients have: the memory of the tensors, and the states of an iteration.
//
// An iteration begins with the first tensor that is ready. `wait` or `rollback` finishes it, in four steps, and begins
// the next one: tensors that are not ready are completed; what is left is exchanged; the pool concludes what the result
// is; everything is reset. Where the timeout of a `wait` passes, the iteration stays in the second step, and another
// call goes on from there. Each kind of pool defines the steps, and what `ready` does; errors of an iteration are
// thrown once it has ended.
//
// Until the next one begins, an iteration that has ended can be rolled back; and one that has failed here, though other
// ranks have finished it, can be committed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../calls/communicator.hpp"
#include "../calls/waiting.hpp"
#include "../memory/pool_memory.hpp"
#include "../update/update.hpp"
#include "ready_tensors.hpp"

namespace gradientflow::engine {

class Pool {
 public:
  using Stream = compute::cuda::Stream;  // of the device; unused on the host
  using Clock = Times::Clock;

  // The fate of an iteration.
  enum class Fate : std::uint8_t {
    open,      // it has not ended
    kept,      // it counts
    dropped,   // it does not count on any rank: a gradient is not finite, and the means are zeros
    failed,    // an error has ended it on this rank
    given_up,  // this rank has ended it without its result
    settled,   // it was committed or rolled back after its end
  };

  // How a message was sent in the last iteration.
  struct Report {
    std::size_t bytes;
    collective::Outcome outcome;
    Clock::time_point ready;  // when the last of its tensors was
    Times times;
  };

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  [[nodiscard]] std::size_t tensors() const { return tensors_; }
  [[nodiscard]] std::size_t bytes() const { return offsets_[tensors_]; }
  [[nodiscard]] std::size_t elements() const { return bytes() / size_of(dtype_); }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::byte* data() const { return memory_->data(); }
  [[nodiscard]] std::size_t offset(std::size_t tensor) const { return offsets_[tensor]; }  // bytes
  [[nodiscard]] const PoolMemory& memory() const { return *memory_; }

  // The extra numbers, in memory of the host. They count as a tensor behind the last one: write them before that one is
  // made ready, and read their means after `wait`.
  [[nodiscard]] std::vector<double>& extra() { return extra_; }
  // How many tensors can be made ready, the one that stands for the extra numbers included.
  [[nodiscard]] std::size_t places() const { return tensors_ + (extra_.empty() ? 0 : 1); }

  [[nodiscard]] std::size_t ready_count() const;
  [[nodiscard]] bool is_ready(std::size_t tensor) const;

  // Zeroes the gradients, between iterations: the last one counts from then on.
  void zero(Stream stream = nullptr);

  // Rolls back the iteration under way, which this rank ends without its result: the other ranks get zeros for tensors
  // that are not ready. Else rolls back the last one that has ended, if it was not zeroed or committed since. Residuals
  // are as before it; there are no means.
  virtual void rollback(Stream stream = nullptr);

  // Commits the last iteration, which has failed on this rank, since other ranks have finished it: so all that this
  // rank had to send is in their means. Throws Error(value) if the last iteration has not failed.
  void commit();

  // Whether the last iteration has failed on this rank, and was neither committed nor rolled back.
  [[nodiscard]] bool has_failed() const { return locked(last_) == Fate::failed; }

  // Of the last iteration that has ended.
  [[nodiscard]] std::vector<Report> reports() const { return locked(reports_); }
  [[nodiscard]] std::uint64_t iteration() const { return locked(iteration_); }  // how many have ended

  // The number of the means in the pool; no_means once a tensor is ready, or after an iteration that failed or was
  // rolled back. An iteration that was dropped has means, which are zeros.
  [[nodiscard]] Means means() const;
  void take_over_means(const Pool& other);  // after the tensors have been copied here

  // Ends the pool; the memory stays as long as the segment is held. Closing twice is harmless.
  virtual void close(bool drain) noexcept;
  [[nodiscard]] bool closed() const { return closed_ || communicator_->closed(); }

  // Throws Error(closed) in a process that was forked off the pool's.
  void check_process() const { communicator_->check_process(); }

 protected:
  // `name`: for error messages. `offsets`: as those of lay_out(); they may go on behind the tensors.
  Pool(std::string name, DType dtype, std::size_t tensors, std::vector<std::size_t> offsets, std::size_t extra);
  virtual ~Pool() = default;

  // Waits for the end of the iteration, at most `timeout` seconds. An iteration on a communicator that is broken ends
  // with its error. `prepare` is called by the thread that ends it,
  // before the steps below.
  void wait_within(std::optional<double> timeout, Stream stream, const std::function<void()>& prepare = {});
  void wait_until(Deadline deadline, Stream stream, const std::function<void()>& prepare = {});  // throws TimeOver

  template <class T>
  [[nodiscard]] T locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  void check_open() const;
  void check_between_iterations(const char* what) const;
  void check_none_ready(const char* what) const;  // the same, with mutex_ held
  void check_can_end() const;                     // lets an iteration end on a communicator that is broken
  void check_begun(bool begun) const;             // throws the error of the communicator if a call could not begin
  void check_same(const std::string& things, const std::string& description) const;
  [[nodiscard]] std::byte* at(std::size_t element) const { return data() + element * size_of(dtype_); }
  void clear_tensor(std::size_t tensor, Stream stream) const;
  [[nodiscard]] Update update_of(std::vector<Update::Span> spans) const;

  // The steps of the end of an iteration, one thread at a time. Zeroes tensors that are not ready, and marks them as
  // ready; if the iteration is abandoned, what is not complete need not be sent.
  virtual void complete_remaining(Stream stream) = 0;
  // Waits until everything is exchanged. Throws TimeOver, and then is called again.
  virtual void exchange(Deadline deadline, Stream stream) = 0;
  // Makes the result, or discards it if the exchange has failed.
  virtual void conclude(Stream stream) = 0;
  virtual void start_next_iteration();
  // Makes what belongs to one iteration as new; with mutex_ held, while failure_ and fate_ are still those of the
  // iteration that ends, and last_ is its fate already.
  virtual void reset() = 0;
  virtual void commit_residuals() {}  // makes residuals those of an iteration that failed here, and ended elsewhere

  // The fate of the iteration that ends, once it is concluded.
  [[nodiscard]] Fate fate() const;
  // Makes the last iteration a settled one, between iterations, if its fate is one of these; returns whether.
  bool settle(const char* what, std::initializer_list<Fate> fates);
  void give_up(Stream stream);  // ends the iteration under way without its result

  // What the last iteration left in the memory is zeroed.
  virtual void clear_gradients(Stream stream);

  void begin_finishing();  // with mutex_ held; harmless when repeated

  // Keeps the first error of an iteration.
  template <class Work>
  void noting_failure(Work work) {
    try {
      work();
    } catch (const Error& error) {
      failure_ = failure_.value_or(error);
    }
  }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes): of those that derive from it
  std::string name_;
  DType dtype_;
  std::size_t tensors_;
  std::vector<std::size_t> offsets_;  // in bytes
  std::vector<double> extra_;
  std::shared_ptr<Communicator> communicator_;  // its own
  std::unique_ptr<PoolMemory> memory_;

  std::timed_mutex waiting_;      // one thread waits at a time
  std::optional<Error> failure_;  // of this iteration; of the thread that waits
  Fate fate_ = Fate::open;        // likewise; dropped and given_up as soon as that is known

  mutable std::mutex mutex_;
  ReadyTensors ready_;
  bool finishing_ = false;         // whether this iteration is waited for
  std::atomic<bool> idle_{false};  // no tensor was ready before that
  std::vector<Report> current_;    // of this iteration

  // Of the last iteration.
  std::uint64_t iteration_ = 0;
  Fate last_ = Fate::settled;
  Means means_ = no_means;
  std::vector<Report> reports_;
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)

 private:
  void end_iteration(Deadline deadline, Stream stream);

  std::atomic<bool> closed_{false};
};

}  // namespace gradientflow::engine
