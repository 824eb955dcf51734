// Non-blocking communicator of NCCL: its calls return at once, and their state is polled while they are under way. So
// every wait can be ended, and nothing hangs.
//
// NCCL demands that one thread at a time uses a communicator. Here, every use of it is under a lock that is never held
// during a wait for another rank; so abort() and asynchronous_error() may be called from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "../../base/error.hpp"
#include "../endpoint.hpp"
#include "nccl_library.hpp"

namespace gradientflow::transport {

class NcclCommunicator {
 public:
  // Makes a communicator on the current device, of `members`: ranks of `endpoint`, this rank among them. A rank that
  // joins none passes no members and gets nullptr. One call can make several communicators that share no member.
  // Collective over `endpoint`. Throws the same Error on all ranks if one rank fails: Error(mismatch) if the ranks have
  // different versions of NCCL, Error(system) with NCCL's reason, Error(timeout) after `timeout` seconds, Error(closed)
  // if `endpoint` is interrupted.
  static std::unique_ptr<NcclCommunicator> make(std::shared_ptr<const NcclLibrary> library, const Endpoint& endpoint,
                                                std::span<const int> members, double timeout);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Takes part in ending the communicator, for a few seconds at most. The device should have finished all calls.
  ~NcclCommunicator();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Calls `call(functions, comm)`, which puts work into a stream and returns NCCL's result. Returns when the work is in
  // the stream. Throws Error(system) with NCCL's reason; Error(closed) after abort(), even during the wait. One thread
  // only.
  template <class Call>
  void launch(Call call) {
    nccl::Result result = nccl::Result::success;
    {
      const std::lock_guard lock(mutex_);
      check_not_aborted();
      result = call(library_->functions(), comm_);
    }
    if (result != nccl::Result::success) {
      finish(result);
    }
  }

  // The same for several calls that run together.
  template <class Calls>
  void launch_group(Calls calls) {
    launch([&](const nccl::Functions& functions, nccl::Comm* comm) {
      nccl::Result result = functions.group_start();
      if (result != nccl::Result::success) {
        return result;
      }
      result = calls(functions, comm);
      const nccl::Result end = functions.group_end();
      return is_failure(result) ? result : end;
    });
  }

  static bool is_failure(nccl::Result result) {
    return result != nccl::Result::success && result != nccl::Result::in_progress;
  }

  // Returns the error that NCCL has found by now, if any. Returns nothing while another thread uses the communicator.
  [[nodiscard]] std::optional<Error> asynchronous_error();

  // Ends all that is under way, also on the device. Nothing can be launched any more.
  void abort() noexcept;

 private:
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, int rank, int size)
      : library_(std::move(library)), rank_(rank), size_(size) {}

  void start(const nccl::UniqueId& id, const Endpoint& endpoint, double timeout);
  void check_not_aborted() const;
  [[nodiscard]] nccl::Result state();  // called under the lock
  [[nodiscard]] bool finished_within(double seconds) noexcept;
  void finish(nccl::Result result);

  std::shared_ptr<const NcclLibrary> library_;
  int rank_;
  int size_;
  std::mutex mutex_;
  nccl::Comm* comm_ = nullptr;  // nullptr after abort()
};

}  // namespace gradientflow::transport
