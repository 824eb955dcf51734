// Asynchronous calls of a communicator.
#include <chrono>
#include <string>
#include <utility>

#include "communicator.hpp"

namespace gradientflow::engine {
namespace {

constexpr std::chrono::milliseconds patience{2};  // wait for peers before the progress thread takes over

// Call in the log that is served later. It has failed if it is never served.
class LaterCall {
 public:
  LaterCall(LoggedCalls& log, const transport::Signature& signature)
      : log_(log), entry_(log.begin(CallForm::background, signature)) {}
  LaterCall(const LaterCall&) = delete;
  LaterCall& operator=(const LaterCall&) = delete;
  ~LaterCall() { log_.end(entry_, CallLog::State::failed); }

  template <class Work>
  auto during(Work work) {
    return log_.during(std::exchange(entry_, 0), std::move(work));
  }

 private:
  LoggedCalls& log_;
  std::uint64_t entry_;
};

}  // namespace

void Communicator::check_threads(const char* what) const {
  if (const transport::Limits limits = group_->endpoint().limits(); !limits.threads) {
    throw Error(ErrorKind::value, std::string(what) + " need MPI_THREAD_MULTIPLE" + limits.thread_advice);
  }
}

std::shared_ptr<Handle> Communicator::submit(const collective::Call& call) {
  admit(call);
  if (call.placement) {
    if (size() > 1) {
      check_threads("asynchronous calls on CUDA tensors");
    }
    devices_.bind(placement_of(call).device);
    const auto after = std::make_shared<StreamMarks>(placement_of(call).device);
    after->mark(placement_of(call).stream);
    return turns_.enqueue([this, call, after, later = std::make_shared<LaterCall>(log_, call.signature),
                           queued = Times::Clock::now()](Served& served) {
      later->during([&] { serve_in_background(call, *after, queued, served); });
    });
  }
  if (call.sends_messages()) {
    check_threads("asynchronous calls between nodes");
  }
  return turns_.enqueue(
      [this, call, later = std::make_shared<LaterCall>(log_, call.signature),
       queued = Times::Clock::now()](Served& served) { served = later->during([&] { return serve(call, queued); }); });
}

bool Communicator::has_cores_for_threads() const {
  const std::string& choice = group_->config().progress;
  const std::size_t enough = 2 * static_cast<std::size_t>(local_size());
  return choice == "thread" || (choice == "auto" && group_->node().cores().size() >= enough);
}

// Hands the call to the progress thread if a peer is late, because that peer may be waiting for this rank's next call.
std::shared_ptr<Handle> Communicator::submit(const collective::Call& call, const Release& release) {
  if (call.placement || nodes() > 1 || has_cores_for_threads()) {
    return submit(call);
  }
  admit(call);
  if (release) {
    release();
  }
  return turns_.run_or_enqueue(
      [this, call, later = std::make_shared<LaterCall>(log_, call.signature),
       queued = Times::Clock::now()](Served& served) { served = later->during([&] { return serve(call, queued); }); },
      [this] { return group_->node().meet(patience); });
}

std::shared_ptr<Handle> Communicator::submit(const collective::Call& call, const StreamMarks& after) {
  admit(call);
  return turns_.enqueue([this, call, &after, queued = Times::Clock::now()](Served& served) {
    serve_in_background(call, after, queued, served);
  });
}

// Records the end of the stream's work even if the call fails: until that end the call's tensors may be in use.
void Communicator::serve_in_background(collective::Call call, const StreamMarks& after, Times::Clock::time_point queued,
                                       Served& served) {
  const int device = placement_of(call).device;
  const compute::cuda::UseDevice use(device);
  const std::shared_ptr<collective::DeviceGroup>& devices = devices_.group(device, call);
  const compute::cuda::Stream stream = devices->stream();
  call.placement = collective::Placement{device, stream};
  after.hold(stream);
  const auto end = std::make_shared<OnDevice>(device, compute::cuda::OwnedEvent(), devices);
  try {
    served = serve(call, queued);
  } catch (const Error&) {
    compute::cuda::runtime().record(end->event.get(), stream);
    served.end = end;
    throw;
  }
  compute::cuda::runtime().record(end->event.get(), stream);
  served.end = end;
}

std::shared_ptr<Handle> Communicator::submit(std::function<void(collective::Group&)> work) {
  check_process();
  return turns_.enqueue([this, work = std::move(work), queued = Times::Clock::now()](Served& served) {
    served.times = {queued, Times::Clock::now(), {}};
    work(*group_);
    served.times.ended = Times::Clock::now();
  });
}

}  // namespace gradientflow::engine
