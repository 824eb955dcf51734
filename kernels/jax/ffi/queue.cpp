#include "queue.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "../../base/error.hpp"
#include "../../engine/calls/request.hpp"

namespace gradientflow::jax {

void Queue::put(CallFrame& frame) {
  Buffers buffers = frame.buffers();
  const std::uint32_t state = token_of(buffers.operands.front()).state;
  const std::int64_t run = frame.run();
  const std::lock_guard lock(mutex_);
  if (!served_) {
    std::thread([self = shared_from_this()] { self->serve(); }).detach();
    served_ = true;
  }
  calls_.push_back({state, run, std::move(buffers), frame.answer_later()});
  changed_.notify_all();
}

bool Queue::has_calls() {
  const std::lock_guard lock(mutex_);
  served_ = !calls_.empty();
  return served_;
}

void Queue::serve() {
  while (has_calls()) {
    std::exception_ptr failure;
    std::optional<Call> call;
    try {
      call = take(agree_on_state());
    } catch (...) {
      failure = std::current_exception();
      call = take_first();
    }
    call->answer.give([&] {
      if (failure) {
        std::rethrow_exception(failure);
      }
      channel_.run(call->buffers, call->run);
    });
  }
}

// Returns the order, made at the first call: then collective over ranks that have a call.
const ExchangeSet::Order& Queue::order() {
  if (!order_) {
    order_ = meet_();
  }
  return *order_;
}

// Returns rank 0's first state. Collective over ranks that have a call.
std::uint32_t Queue::agree_on_state() {
  engine::Communicator& communicator = *order().communicator;
  std::uint32_t state = 0;
  {
    const std::lock_guard lock(mutex_);
    state = calls_.front().state;
  }
  const engine::Array told{reinterpret_cast<std::byte*>(&state), sizeof(state), DType::uint8};
  communicator.run(engine::make_call(communicator, {.kind = transport::CallKind::broadcast,
                                                    .label = engine::Label{"the number of a state of average"},
                                                    .input = told,
                                                    .output = told}));
  return state;
}

Queue::Call Queue::take(std::uint32_t state) {
  const ExchangeSet::Order& order = this->order();
  std::unique_lock lock(mutex_);
  auto found = calls_.end();
  const bool is_here = changed_.wait_for(lock, std::chrono::duration<double>(order.timeout), [&] {
    found = std::find_if(calls_.begin(), calls_.end(), [&](const Call& call) { return call.state == state; });
    return found != calls_.end();
  });
  if (!is_here) {
    throw Error(ErrorKind::timeout,
                "rank 0 averages gradients with the state of init() number " + std::to_string(state) + ", and rank " +
                    std::to_string(order.communicator->rank()) + " has come with that of number " +
                    std::to_string(calls_.front().state) +
                    " only: call init() of average equally often, and in the same order, on all ranks");
  }
  Call call = std::move(*found);
  calls_.erase(found);
  return call;
}

Queue::Call Queue::take_first() {
  const std::lock_guard lock(mutex_);
  Call call = std::move(calls_.front());
  calls_.pop_front();
  return call;
}

}  // namespace gradientflow::jax
