#include "exchanges.hpp"

#include <utility>

#include "queue.hpp"

namespace gradientflow::jax {

void Channel::run(const Buffers& buffers, std::int64_t run) {
  const std::lock_guard lock(mutex_);
  const Token token = token_of(buffers.operands.front());
  const Buffer& after = buffers.results.front();
  const auto found = given_.find(token.state);
  const bool refused = found != given_.end() && found->second.run == run && found->second.token != token &&
                       found->second.place != after.data;
  exchange_->run(buffers, refused);
  if (refused) {
    refuse();
  }
  given_[token.state] = {run, after.data, token_of(after)};
}

ExchangeSet::ExchangeSet(std::shared_ptr<GradientExchange> first, std::shared_ptr<GradientExchange> others, Meet meet)
    : first_(std::move(first)), others_(std::make_shared<Queue>(std::move(others), std::move(meet))) {}

void ExchangeSet::run(CallFrame& frame) {
  if (token_of(frame.operand(0)).state == 1) {
    first_.run(frame.buffers(), frame.run());
  } else {
    others_->put(frame);
  }
}

}  // namespace gradientflow::jax
