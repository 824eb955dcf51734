// A watchdog thread for the calls that NCCL has under way, because no host waits for them.
//
// A kernel of NCCL waits on the device for the kernels of other ranks, possibly forever. So an event is recorded in the
// stream before every call, and a second event after it. Between the two events the call is under way. If that lasts
// longer than the timeout, if NCCL reports an error, or if another rank of the node has died or given up, all
// communicators are aborted: their kernels end, and the streams continue. Every later call throws the error. While no
// call is under way, the thread sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "../../base/error.hpp"
#include "../../compute/cuda/owned.hpp"
#include "../../transport/nccl/nccl_communicator.hpp"
#include "../../transport/node/node.hpp"
#include "../../transport/signature.hpp"

namespace gradientflow::collective {

class NcclWatch {
 public:
  NcclWatch(transport::Node& node, int rank, double timeout);
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;
  // Waits only for the thread.
  ~NcclWatch();

  // Adds a communicator to watch, and to abort with all others.
  void add(std::shared_ptr<transport::NcclCommunicator> communicator);

  // Mark a call, before and after it is put into a stream, in one thread. begin() throws as check() does.
  void begin(const transport::Signature& signature, compute::cuda::Stream stream);
  void end(compute::cuda::Stream stream);

  // Throws the error, if there was one.
  void check() const;

  // Aborts the communicators, and tells peers of the node not to wait for this rank, unless the reason is that the
  // communicator was closed. The first reason counts.
  void fail(const Error& reason) noexcept;

  // Waits until no call is under way. Calls that cannot end are aborted meanwhile.
  void drain() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  struct Events {
    compute::cuda::OwnedEvent before;
    compute::cuda::OwnedEvent behind;
  };
  struct Watched {
    transport::Signature signature;
    Events events;
    bool is_starting;                        // end() was not called yet
    std::optional<Clock::time_point> began;  // time at which the device was seen to begin; set by begin() at first
  };

  void run();
  void forget_finished();
  [[nodiscard]] std::optional<Error> find_error();
  [[nodiscard]] Events take_events();

  transport::Node& node_;
  const int rank_;
  const double timeout_;
  const int device_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Watched> under_way_;  // calls in their order, in which they also end
  std::vector<Events> spare_;
  std::optional<Clock::time_point> lost_;  // time at which the loss of a rank was noticed
  bool sleeps_ = false;
  bool ends_ = false;
  std::unique_ptr<const Error> failure_;
  std::atomic<bool> failed_{false};
  std::vector<std::shared_ptr<transport::NcclCommunicator>> communicators_;
  std::thread thread_;  // started with the first call
};

}  // namespace gradientflow::collective
