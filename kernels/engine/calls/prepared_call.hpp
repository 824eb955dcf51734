// Prepared call: checked once, its path chosen once, then made any number of times on the same tensors, like the
// persistent collectives of MPI 4. It is served in turn with all other calls of its communicator, in the order of their
// start; peers may make the same call without preparing it.
//
// For a small call inside a node, start() itself begins the call: peers then need nothing more of this rank. The call
// keeps the turn until wait(), or the first thread that waits for the turn, finishes the call. Other calls go to the
// progress thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "../../collective/group.hpp"
#include "communicator.hpp"
#include "handle.hpp"

namespace gradientflow::engine {

class PreparedCall {
 public:
  // `call`: made by make_call. The tensors must live as long as this.
  PreparedCall(std::shared_ptr<Communicator> communicator, collective::Call call);
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;
  ~PreparedCall();  // waits for the call, if it is under way

  // Start the call and wait for it, in one thread at a time. The tensors must not be used in between. start() throws
  // Error(value) if the call is under way; wait() throws it if no call is under way. They also throw as
  // Communicator::submit and Handle::wait do. After any error of wait() except its own timeout the call is no longer
  // under way.
  void start(const Communicator::Release& release = {});
  void wait(std::optional<double> timeout = {}, const Communicator::Release& release = {});
  [[nodiscard]] bool under_way() const { return under_way_; }
  // True if wait() would return at once: no call is under way, or the call has ended.
  [[nodiscard]] bool done();

  // Returns the outcome of the last call that was waited for.
  [[nodiscard]] const collective::CallResult& outcome() const { return outcome_; }
  // Returns the handle of the last started call on a device, to order streams behind its result.
  [[nodiscard]] const std::shared_ptr<Handle>& handle() const { return handle_; }

  [[nodiscard]] Communicator& communicator() const { return *communicator_; }
  [[nodiscard]] const collective::Call& call() const { return call_; }
  void set_stream(compute::cuda::Stream stream);  // stream of the next start, for tensors on a device

 private:
  friend class Communicator;
  friend class Turns;

  std::shared_ptr<Communicator> communicator_;
  collective::Call call_;
  bool under_way_ = false;
  std::shared_ptr<Handle> handle_;  // handle of the call under way, if other threads may end it; guarded by the turns
  collective::CallResult outcome_{};
  std::uint64_t entry_ = 0;  // entry in the log, if the communicator's thread does not end it
};

}  // namespace gradientflow::engine
