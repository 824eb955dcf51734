// Common base of all gradient pools: the memory of the tensors, and the states of an iteration.
//
// An iteration begins with the first ready tensor. `wait` or `rollback` finishes it, in four steps, and begins the next
// iteration: remaining tensors are completed; the rest is exchanged; the pool decides on the result; the state is
// reset. If the timeout of a `wait` passes, the iteration stays in the second step, and the next call continues there.
// Each kind of pool defines the steps, and the effect of `ready`; errors of an iteration are thrown once it has ended.
//
// Until the next iteration begins, a finished iteration can be rolled back. An iteration that has failed on this rank,
// although its peers have finished it, can be committed.
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
  using Stream = compute::cuda::Stream;  // stream of the device; unused on the host
  using Clock = Times::Clock;

  // Fate of an iteration.
  enum class Fate : std::uint8_t {
    open,      // not ended
    kept,      // ended, and counts
    dropped,   // ended, and counts on no rank: a gradient is not finite, and the means are zeros
    failed,    // ended by an error on this rank
    given_up,  // ended by this rank without its result
    settled,   // committed or rolled back after its end
  };

  // Report on a message of the last iteration.
  struct Report {
    std::size_t bytes;
    collective::CallResult outcome;
    Clock::time_point ready;  // time at which the last of its tensors was ready
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

  // Returns the extra numbers, in memory of the host. They count as a tensor after the last one: write them before
  // making that tensor ready, and read their means after `wait`.
  [[nodiscard]] std::vector<double>& extra() { return extra_; }
  // Returns the number of tensors that can be made ready, including the one for the extra numbers.
  [[nodiscard]] std::size_t places() const { return tensors_ + (extra_.empty() ? 0 : 1); }

  [[nodiscard]] std::size_t ready_count() const;
  [[nodiscard]] bool is_ready(std::size_t tensor) const;

  // Zeroes the gradients, between iterations: the last iteration can then be neither committed nor rolled back.
  void zero(Stream stream = nullptr);

  // Rolls back the iteration under way: this rank ends it without a result, and peers get zeros for tensors not ready.
  // If no iteration is under way, rolls back the last finished one, unless it was zeroed or committed since. Residuals
  // are then as before that iteration; there are no means.
  virtual void rollback(Stream stream = nullptr);

  // Commits the last iteration, which has failed on this rank but which its peers have finished, so that their means
  // include all data that this rank had to send. Throws Error(value) if the last iteration has not failed.
  void commit();

  // True if the last iteration has failed on this rank, and was neither committed nor rolled back.
  [[nodiscard]] bool has_failed() const { return locked(last_) == Fate::failed; }

  // Describe the last finished iteration.
  [[nodiscard]] std::vector<Report> reports() const { return locked(reports_); }
  [[nodiscard]] std::uint64_t iteration() const { return locked(iteration_); }  // number of finished iterations

  // Returns the number that identifies the means in the pool; no_means once a tensor is ready, or after an iteration
  // that failed or was rolled back. A dropped iteration has means, which are zeros.
  [[nodiscard]] Means means() const;
  void take_over_means(const Pool& other);  // call it after copying the tensors here

  // Closes the pool; the memory stays as long as the segment is held. Closing twice is harmless.
  virtual void close(bool drain) noexcept;
  [[nodiscard]] bool closed() const { return closed_ || communicator_->closed(); }

  // Throws Error(closed) in a process forked from the pool's.
  void check_process() const { communicator_->check_process(); }

 protected:
  // `name`: for error messages. `offsets`: as returned by lay_out(); further offsets may follow those for the tensors.
  Pool(std::string name, DType dtype, std::size_t tensors, std::vector<std::size_t> offsets, std::size_t extra);
  virtual ~Pool() = default;

  // Waits for the end of the iteration, at most `timeout` seconds. On a broken communicator the iteration ends with its
  // error. The thread that ends the iteration calls `prepare` before the steps below.
  void wait_within(std::optional<double> timeout, Stream stream, const std::function<void()>& prepare = {});
  void wait_until(Deadline deadline, Stream stream, const std::function<void()>& prepare = {});  // throws TimeOver

  template <class T>
  [[nodiscard]] T locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  void check_open() const;
  void log_beginning();  // records the beginning of an iteration, unless a tensor is ready; mutex_ held
  void check_between_iterations(const char* what) const;
  void check_none_ready(const char* what) const;  // the same; mutex_ held
  void check_can_end() const;                     // lets an iteration end on a broken communicator
  void check_begun(bool begun) const;             // throws the error of the communicator if a call could not begin
  void check_same(const std::string& things, const std::string& description) const;
  [[nodiscard]] std::byte* at(std::size_t element) const { return data() + element * size_of(dtype_); }
  void clear_tensor(std::size_t tensor, Stream stream) const;
  [[nodiscard]] Update update_of(std::vector<Update::Span> spans) const;

  // Completes the iteration's tensors: zeroes those not ready, and marks them as ready. If the iteration is given up,
  // incomplete data need not be sent. This and the next steps of the end run in one thread at a time.
  virtual void complete_remaining(Stream stream) = 0;
  // Waits until everything is exchanged. Throws TimeOver; the caller then calls this step again.
  virtual void exchange(Deadline deadline, Stream stream) = 0;
  // Makes the result, or discards it if the exchange has failed.
  virtual void conclude(Stream stream) = 0;
  virtual void start_next_iteration();
  // Resets the state of an iteration, with mutex_ held. At this time failure_ and fate_ still belong to the ended
  // iteration, and last_ is already its fate.
  virtual void reset() = 0;
  virtual void commit_residuals() {}  // keeps the residuals of an iteration that failed here and ended elsewhere

  // Returns the fate of the iteration that ends, once it is concluded.
  [[nodiscard]] Fate fate() const;
  // Settles the last iteration, between iterations, if its fate is in `fates`; returns true if it was.
  bool settle(const char* what, std::initializer_list<Fate> fates);
  void give_up(Stream stream);  // ends the iteration under way without its result

  // Zeroes the last iteration's gradients in the memory.
  virtual void clear_gradients(Stream stream);

  void begin_finishing();  // mutex_ held; harmless when repeated

  // Keeps the first error of an iteration.
  template <class Work>
  void noting_failure(Work work) {
    try {
      work();
    } catch (const Error& error) {
      failure_ = failure_.value_or(error);
    }
  }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes): for derived pools
  std::string name_;
  DType dtype_;
  std::size_t tensors_;
  std::vector<std::size_t> offsets_;  // bytes
  std::vector<double> extra_;
  std::shared_ptr<Communicator> communicator_;  // the pool's duplicate
  std::unique_ptr<PoolMemory> memory_;

  std::timed_mutex waiting_;      // held by the thread that waits
  std::optional<Error> failure_;  // error of this iteration; only for the waiting thread
  Fate fate_ = Fate::open;        // fate of this iteration; likewise; dropped and given_up as soon as known

  mutable std::mutex mutex_;
  ReadyTensors ready_;
  bool finishing_ = false;         // true once this iteration is waited for
  std::atomic<bool> idle_{false};  // no tensor was ready before the wait
  std::vector<Report> current_;    // reports of this iteration

  // Results of the last iteration.
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
