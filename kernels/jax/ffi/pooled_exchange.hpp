// The exchange of all gradients in pools: without Python, which may be busy in another thread.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "../../engine/exchange/gradient_pool.hpp"
#include "slots.hpp"

namespace gradientflow::jax {

class PooledExchange final : public Exchange {
 public:
  struct Place {
    std::size_t pool;
    std::size_t tensor;
  };

  // `places`: of the gradients, in the order of the operands. The first pool has `marks_needed()` extra numbers, the
  // others have at least one.
  PooledExchange(std::vector<std::shared_ptr<engine::GradientPool>> pools, std::vector<Place> places);

  void run(const CallFrame& frame) override;

 private:
  void average();

  std::vector<std::shared_ptr<engine::GradientPool>> pools_;
  std::vector<Place> places_;
  std::mutex mutex_;
};

}  // namespace gradientflow::jax
