#include "dense_exchange.hpp"

#include <algorithm>
#include <cstdint>

#include "../../base/error.hpp"
#include "../../engine/calls/request.hpp"
#include "token.hpp"

namespace gradientflow::jax {

DenseExchange::DenseExchange(std::shared_ptr<engine::Communicator> communicator, transport::Algorithm algorithm,
                             std::vector<std::shared_ptr<engine::GradientPool>> pools,
                             std::vector<GradientPlacement> places)
    : communicator_(std::move(communicator)),
      algorithm_(algorithm),
      pools_(std::move(pools)),
      places_(std::move(places)) {}

// Begins the exchange of the small gradients: wait() ends it.
void DenseExchange::average_small(const Buffers& buffers, std::uint32_t call, bool refused) {
  if (!pools_.empty()) {
    write_marks(call, refused, pools_.front()->extra());
  }
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (const GradientPlacement& place = places_[i]; place.pool) {
      engine::GradientPool& pool = *pools_[*place.pool];
      const Buffer& gradient = buffers.operands[i + 1];
      std::copy_n(gradient.data, gradient.bytes(), pool.data() + pool.offset(place.tensor));
      pool.ready(place.tensor);
    }
  }
  for (const auto& pool : pools_) {
    pool->ready_all();
  }
}

void DenseExchange::average_large(const Buffers& buffers, std::uint32_t call, bool refused) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const GradientPlacement& place = places_[i];
    if (place.pool) {
      continue;
    }
    const Buffer& gradient = buffers.operands[i + 1];
    const Buffer& mean = buffers.results[i + 1];
    const std::string name =
        (refused ? "refused gradient " : "gradient ") + place.name + " in call " + std::to_string(call);
    communicator_->run(engine::make_call(*communicator_, {.kind = transport::CallKind::allreduce,
                                                          .op = ReduceOp::mean,
                                                          .algorithm = algorithm_,
                                                          .wire = place.wire,
                                                          .label = engine::Label{name},
                                                          .input = {gradient.data, gradient.count, gradient.dtype()},
                                                          .output = {mean.data, mean.count, mean.dtype()}}));
  }
}

void DenseExchange::wait(std::uint32_t call) {
  for (const auto& pool : pools_) {
    pool->wait();
  }
  if (!pools_.empty()) {
    check_marks(call, pools_.front()->extra());
  }
}

// Rolls back, so that other ranks can end their iterations.
void DenseExchange::give_up() noexcept {
  for (const auto& pool : pools_) {
    try {
      pool->rollback();
    } catch (const Error&) {  // run() throws the first error
    }
  }
}

void DenseExchange::run(const Buffers& buffers, bool refused) {
  Token token = token_of(buffers.operands.front());
  try {
    average_small(buffers, token.count, refused);
    average_large(buffers, token.count, refused);
    wait(token.count);
  } catch (const Error&) {
    give_up();
    throw;
  }
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (const GradientPlacement& place = places_[i]; place.pool) {
      const engine::GradientPool& pool = *pools_[*place.pool];
      const Buffer& mean = buffers.results[i + 1];
      std::copy_n(pool.data() + pool.offset(place.tensor), mean.bytes(), mean.data);
    }
  }
  ++token.count;
  write_token(token, buffers.results.front());
}

}  // namespace gradientflow::jax
