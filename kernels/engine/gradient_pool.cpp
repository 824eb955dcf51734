#include "gradient_pool.hpp"

#include <string>
#include <utility>

namespace gradientflow::engine {
namespace {

constexpr std::size_t alignment = 64;

}  // namespace

GradientPool::GradientPool(std::shared_ptr<Communicator> communicator, const std::vector<std::size_t>& counts,
                           DType dtype)
    : communicator_(std::move(communicator)), dtype_(dtype), ready_(counts.size(), false) {
  check_reducible(dtype, ReduceOp::mean);
  constexpr std::size_t largest = std::size_t{1} << 40;  // as for any memory of the node
  for (const std::size_t count : counts) {
    if (count > largest || bytes_ > largest) {
      throw Error(ErrorKind::value, "a pool of more than 1 TiB a rank is not possible");
    }
    offsets_.push_back(bytes_);
    bytes_ += (count * size_of(dtype) + alignment - 1) / alignment * alignment;
  }
  segment_ = communicator_->allocate(bytes_);
}

void GradientPool::ready(std::size_t tensor) {
  if (tensor >= offsets_.size()) {
    throw Error(ErrorKind::value, "tensor " + std::to_string(tensor) + " is not in the pool, which has " +
                                      std::to_string(offsets_.size()));
  }
  const std::lock_guard lock(mutex_);
  if (ready_[tensor]) {
    throw Error(ErrorKind::value, "tensor " + std::to_string(tensor) + " was already ready in this iteration");
  }
  ready_[tensor] = true;
  ++ready_count_;
}

std::size_t GradientPool::ready_count() const {
  const std::lock_guard lock(mutex_);
  return ready_count_;
}

void GradientPool::wait() {
  const transport::Signature signature{
      .count = bytes_ / size_of(dtype_), .kind = transport::CallKind::allreduce, .dtype = dtype_, .op = ReduceOp::mean};
  communicator_->run({signature, data(), data()});
  const std::lock_guard lock(mutex_);
  ready_.assign(ready_.size(), false);
  ready_count_ = 0;
}

}  // namespace gradientflow::engine
