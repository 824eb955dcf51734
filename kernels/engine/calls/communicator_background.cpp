// Calls in the background, in the progress thread.
#include <string>
#include <utility>

#include "../../base/thread.hpp"
#include "turns.hpp"

namespace gradientflow::engine {

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
    take_device(placement_of(call).device);
    const auto after = std::make_shared<StreamMarks>(placement_of(call).device);
    after->mark(placement_of(call).stream);
    return enqueue([this, call, after, queued = Times::Clock::now()](Served& served) {
      serve_in_background(call, *after, queued, served);
    });
  }
  if (sends_messages(call)) {
    check_threads("asynchronous calls between nodes");
  }
  return enqueue([this, call, queued = Times::Clock::now()](Served& served) { served = serve(call, queued); });
}

std::shared_ptr<Handle> Communicator::submit(const collective::Call& call, const StreamMarks& after) {
  admit(call);
  return enqueue([this, call, &after, queued = Times::Clock::now()](Served& served) {
    serve_in_background(call, after, queued, served);
  });
}

// A call that fails may have left work in the stream: its tensors are in use until that has ended, too.
void Communicator::serve_in_background(collective::Call call, const StreamMarks& after, Times::Clock::time_point queued,
                                       Served& served) {
  const int device = placement_of(call).device;
  const compute::cuda::UseDevice use(device);
  const compute::cuda::Stream stream = device_group(device, call).stream();
  call.placement = collective::Placement{device, stream};
  after.hold(stream);
  const auto end = std::make_shared<OnDevice>(device, compute::cuda::OwnedEvent(), device_group_);
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
  return enqueue([this, work = std::move(work), queued = Times::Clock::now()](Served& served) {
    served.times = {queued, Times::Clock::now(), {}};
    work(*group_);
    served.times.ended = Times::Clock::now();
  });
}

std::shared_ptr<Handle> Communicator::enqueue(const std::function<void(Served&)>& work) {
  auto handle = std::make_shared<Handle>();
  const std::lock_guard lock(mutex_);
  check_usable();
  if (!progress_thread_.joinable()) {
    progress_thread_ = start_thread("the progress thread of a communicator", [this] { progress(); });
  }
  pending_.push_back({0, work, handle});
  pending_.back().ticket = next_ticket_.fetch_add(1);  // drawn when nothing can fail any more: each has to be served
  turn_.notify_all();
  return handle;
}

void Communicator::progress() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto is_next = [&] { return !pending_.empty() && pending_.front().ticket == serving_.load(); };
    while (!is_next()) {
      if (pending_.empty() && closed_) {
        return;
      }
      if (pending_.empty() || !finish_open(lock)) {
        turn_.wait(lock);
      }
    }
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    Served served{};
    std::shared_ptr<Failure> failure = attempt(lock, [&] { next.work(served); });
    ++serving_;
    turn_.notify_all();
    next.handle->finish(served.outcome, served.times, std::move(served.end), std::move(failure));
  }
}

}  // namespace gradientflow::engine
