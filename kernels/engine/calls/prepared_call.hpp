// A call that is checked once, and its way chosen, and then made as often as one likes on the same tensors: the
// persistent collectives of MPI 4. It is served in turn with all other calls of its communicator, in the order in which
// they were started, and is the same call to the other ranks as one that is not prepared.
//
// A small call inside a node is begun by start(): the others then need nothing more of this rank, and whoever first has
// to wait for the turn that it keeps (wait(), the next call, the progress thread) finishes it. Other calls go to the
// progress thread.
#pragma once

#include <memory>
#include <optional>

#include "../../collective/group.hpp"
#include "communicator.hpp"
#include "handle.hpp"

namespace gradientflow::engine {

class PreparedCall {
 public:
  // `call` is one that make_call has made. The tensors must live as long as this.
  PreparedCall(std::shared_ptr<Communicator> communicator, collective::Call call);
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;
  ~PreparedCall();  // waits for the call, if it is under way

  // One thread at a time. From start() to wait() the tensors must be left alone. start() throws Error(value) where the
  // call is under way already, wait() where it is not; both throw as Communicator::submit and Handle::wait do. After a
  // wait that has thrown anything but the end of its own timeout the call is not under way any more.
  void start(const Communicator::LetGo& let_go = {});
  void wait(std::optional<double> timeout = {}, const Communicator::LetGo& let_go = {});
  [[nodiscard]] bool under_way() const { return under_way_; }
  // Whether wait() would return at once: nothing is under way, or it has ended.
  [[nodiscard]] bool done();

  // What the last call that was waited for came to.
  [[nodiscard]] const collective::Outcome& outcome() const { return outcome_; }
  // On a device, of the call that was started last: for the streams that shall see its result.
  [[nodiscard]] const std::shared_ptr<Handle>& handle() const { return handle_; }

  [[nodiscard]] Communicator& communicator() const { return *communicator_; }
  [[nodiscard]] const collective::Call& call() const { return call_; }
  void set_stream(compute::cuda::Stream stream);  // of tensors on a device, for the next start

 private:
  friend class Communicator;

  std::shared_ptr<Communicator> communicator_;
  collective::Call call_;
  bool under_way_ = false;
  std::shared_ptr<Handle> handle_;  // of the call under way, where others may end it; guarded by the communicator
  collective::Outcome outcome_{};
};

}  // namespace gradientflow::engine
