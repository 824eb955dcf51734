// A thread that looks after what NCCL has under way, for no host waits for it.
//
// A kernel of NCCL's waits on the device for those of the other ranks, for ever if need be. So an event is put into the
// stream before every call and one behind it. When the first has happened and the second has not, the call is under
// way; if that lasts longer than the timeout, if NCCL reports an error, or if another rank of the node has died or
// given up, then all communicators are aborted: their kernels end, and the streams go on. What went wrong is
// remembered, and said by every later call. While nothing is under way, the thread sleeps.
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
  // Waits for nothing but the thread.
  ~NcclWatch();

  // A communicator that is to be looked after, and aborted with the others.
  void add(std::shared_ptr<transport::NcclCommunicator> communicator);

  // To be called around what puts a call into a stream, by one thread. begin() throws as check() does.
  void begin(const transport::Signature& signature, compute::cuda::Stream stream);
  void end(compute::cuda::Stream stream);

  // Throws what went wrong, if something has.
  void check() const;

  // Something has gone wrong: aborts the communicators, and tells the other ranks of the node not to wait for this one,
  // unless it was closed. The first reason counts.
  void fail(const Error& reason) noexcept;

  // Waits until nothing is under way. What can end no more is aborted meanwhile.
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
    bool is_starting;                        // between begin() and end()
    std::optional<Clock::time_point> began;  // on the device, as far as has been seen; what starts begins at once
  };

  void run();
  void forget_finished();
  [[nodiscard]] std::optional<Error> find_trouble();
  [[nodiscard]] Events take_events();

  transport::Node& node_;
  const int rank_;
  const double timeout_;
  const int device_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Watched> under_way_;  // in the order of the calls, which is also that in which they end
  std::vector<Events> spare_;
  std::optional<Clock::time_point> lost_;  // when the loss of a rank was noticed
  bool sleeps_ = false;
  bool ends_ = false;
  std::unique_ptr<const Error> failure_;
  std::atomic<bool> failed_{false};
  std::vector<std::shared_ptr<transport::NcclCommunicator>> communicators_;
  std::thread thread_;  // started with the first call
};

}  // namespace gradientflow::collective
