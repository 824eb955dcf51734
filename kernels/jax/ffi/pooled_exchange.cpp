#include "pooled_exchange.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "../../base/error.hpp"
#include "token.hpp"

namespace gradientflow::jax {

PooledExchange::PooledExchange(std::vector<std::shared_ptr<engine::GradientPool>> pools, std::vector<Place> places)
    : pools_(std::move(pools)), places_(std::move(places)) {}

// The first error is thrown, and the pools behind it are given up, so that the other ranks can end.
void PooledExchange::average() {
  std::optional<Error> failure;
  for (const auto& pool : pools_) {
    try {
      if (failure) {
        pool->abandon();
      } else {
        pool->wait();
      }
    } catch (const Error& error) {
      failure = failure.value_or(error);
    }
  }
  if (failure) {
    throw Error(*failure);
  }
}

void PooledExchange::run(const CallFrame& frame) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t call = count_of(frame.operand(0));
  std::vector<double>& marks = pools_.front()->extra();
  write_marks(call, marks);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const auto [pool, tensor] = places_[i];
    const Buffer gradient = frame.operand(i + 1);
    std::copy_n(gradient.data, gradient.bytes(), pools_[pool]->data() + pools_[pool]->offset(tensor));
    pools_[pool]->ready(tensor);
  }
  for (const auto& pool : pools_) {
    pool->ready_all();
  }
  average();
  check_marks(call, marks);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const auto [pool, tensor] = places_[i];
    const Buffer result = frame.result(i + 1);
    std::copy_n(pools_[pool]->data() + pools_[pool]->offset(tensor), result.bytes(), result.data);
  }
  write_token(frame.operand(0), call + 1, frame.result(0));
}

}  // namespace gradientflow::jax
