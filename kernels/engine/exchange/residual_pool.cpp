#include "residual_pool.hpp"

#include <cmath>
#include <utility>

#include "../../base/text.hpp"
#include "../../compute/kernels.hpp"
#include "../calls/same_on_all_ranks.hpp"

namespace gradientflow::engine {

Error nonfinite_error(const NonfinitePlace& place) {
  const std::string which = place.first == place.last ? "the gradient of tensor " + std::to_string(place.first)
                                                      : "a gradient of the tensors " + std::to_string(place.first) +
                                                            " to " + std::to_string(place.last);
  const std::string where = place.rank >= 0 ? "on rank " + std::to_string(place.rank)
                                            : "once averaged, as it is too large for what it travels as";
  return {ErrorKind::nonfinite,
          which + " is not finite " + where + ": the iteration is dropped, and residuals are as before"};
}

void check_gradients(DType dtype, std::string_view pool) {
  if (dtype != DType::float16 && dtype != DType::bfloat16 && dtype != DType::float32) {
    throw Error(ErrorKind::type, std::string(pool) + " is for gradients of float16, bfloat16 and float32, not " +
                                     std::string(name_of(dtype)));
  }
}

float inverse_of_loss_scale(double scale) {
  int exponent = 0;
  if (!(scale > 0.0) || !std::isfinite(scale) || std::frexp(scale, &exponent) != 0.5 || std::abs(exponent) > 100) {
    throw Error(ErrorKind::value, "a loss scale is a power of two, not " + format_number(scale));
  }
  return static_cast<float>(1.0 / scale);
}

void check_kept(std::span<const float> numbers, std::size_t elements, const char* what) {
  if (numbers.size() != elements) {
    throw Error(ErrorKind::value, "the state is that of a pool of another size");
  }
  if (compute::count_nonfinite(numbers.data(), DType::float32, numbers.size()) > 0) {
    throw Error(ErrorKind::value, std::string(what) + " have numbers that are not finite");
  }
}

ResidualPool::ResidualPool(std::string name, DType dtype, std::vector<std::size_t> offsets, std::size_t extra,
                           bool skip_nonfinite)
    : name_(std::move(name)),
      dtype_(dtype),
      offsets_(std::move(offsets)),
      extra_(extra, 0.0),
      skip_nonfinite_(skip_nonfinite),
      ready_(offsets_.size()) {}

void ResidualPool::check_open() const {
  if (closed()) {
    throw Error(ErrorKind::closed, "the " + name_ + " is closed");
  }
  communicator_->check_open();
}

void ResidualPool::check_between_iterations(const char* what) const {
  const std::lock_guard lock(mutex_);
  if (ready_.count() > 0) {
    check_open();
    throw Error(ErrorKind::value, std::string(what) + " between iterations, not after a tensor is ready: wait first");
  }
}

void ResidualPool::copy_residuals(std::span<float> destination) const {
  check_between_iterations("residuals are read");
  residual_.read(destination);
}

void ResidualPool::refuse_state(const std::string& why) {
  check_open();
  try {
    check_same_on_all_ranks(*communicator_, "states of " + name_ + "s", why);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::mismatch) {
      throw;
    }
  }
}

std::size_t ResidualPool::ready_count() const {
  const std::lock_guard lock(mutex_);
  return ready_.count();
}

bool ResidualPool::is_ready(std::size_t tensor) const {
  const std::lock_guard lock(mutex_);
  return ready_.has(tensor);
}

Means ResidualPool::means() const {
  const std::lock_guard lock(mutex_);
  return ready_.count() > 0 ? no_means : means_;
}

std::uint64_t ResidualPool::iteration() const {
  const std::lock_guard lock(mutex_);
  return iteration_;
}

bool ResidualPool::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

std::optional<NonfinitePlace> ResidualPool::nonfinite() const {
  const std::lock_guard lock(mutex_);
  return overflowed_ ? nonfinite_ : std::nullopt;
}

double ResidualPool::bookkeeping_seconds() const {
  const std::lock_guard lock(mutex_);
  return last_bookkeeping_;
}

std::vector<GradientPool::Report> ResidualPool::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

}  // namespace gradientflow::engine
