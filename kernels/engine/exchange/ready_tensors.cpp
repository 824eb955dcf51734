#include "ready_tensors.hpp"

#include <string>

#include "../../base/error.hpp"

namespace gradientflow::engine {

void ReadyTensors::check_new(std::size_t tensor, std::size_t tensors) const {
  if (tensor >= tensors) {
    throw Error(ErrorKind::value, "tensor " + std::to_string(static_cast<std::ptrdiff_t>(tensor)) +
                                      " is not in the pool, which has " + std::to_string(tensors));
  }
  if (ready_[tensor]) {
    throw Error(ErrorKind::value, "tensor " + std::to_string(tensor) +
                                      " was already ready in this iteration: wait ends it, and begins the next one");
  }
}

void ReadyTensors::add(std::size_t tensor) {
  ready_[tensor] = true;
  ++count_;
}

void ReadyTensors::forget() {
  ready_.assign(ready_.size(), false);
  count_ = 0;
}

Workers::Leave::~Leave() {
  const std::lock_guard lock(workers_.mutex_);
  if (--workers_.number_ == 0) {
    workers_.none_.notify_all();
  }
}

}  // namespace gradientflow::engine
