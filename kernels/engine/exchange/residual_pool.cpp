#include "residual_pool.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "../../base/text.hpp"
#include "../../compute/kernels.hpp"

namespace gradientflow::engine {

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

ResidualPool::ResidualPool(const std::string& name, DType dtype, const std::vector<std::size_t>& offsets,
                           std::size_t extra, bool skip_nonfinite)
    : Pool(name, dtype, offsets.size() - 1, offsets, extra), skip_nonfinite_(skip_nonfinite) {}

// ---- the end of an iteration ----------------------------------------------------------------------------------------

void ResidualPool::rollback(Stream stream) {
  if (ready_count() > 0) {
    try {
      give_up(stream);
    } catch (const Error& error) {  // these errors concern only ranks that have not given the iteration up
      if (error.kind() != ErrorKind::nonfinite && error.kind() != ErrorKind::mismatch) {
        throw;
      }
    }
  }
  if (settle("an iteration is rolled back", {Fate::kept, Fate::failed, Fate::given_up})) {
    rollback_residuals();
    drop_gradients(stream);
  }
}

std::unique_lock<std::mutex> ResidualPool::stop_work() {
  std::unique_lock lock(mutex_);
  workers_.wait_for_all(lock);
  if (!finishing_ && !ready_.has(tensors())) {
    std::fill(extra_.begin(), extra_.end(), 0.0);
  }
  begin_finishing();
  return lock;
}

void ResidualPool::conclude(Stream stream) {
  snapshot_residuals();
  noting_failure([&] { decide(); });
  if (fate() != Fate::kept) {
    drop_gradients(stream);
  }
}

void ResidualPool::drop_gradients(Stream stream) {
  memory_->clear(data(), bytes(), stream);
  const std::lock_guard lock(mutex_);
  means_ = no_means;
}

void ResidualPool::reset() {
  nonfinite_ = last_ == Fate::dropped ? found_nonfinite_ : std::nullopt;
  found_nonfinite_.reset();
  selection_seconds_ = static_cast<double>(selection_time_.exchange(0)) * 1e-9;
}

// ---- gradients that are not finite ----------------------------------------------------------------------------------

Error ResidualPool::nonfinite_error(const NonfiniteTensorRange& place) {
  const std::string which = place.first == place.last ? "the gradient of tensor " + std::to_string(place.first)
                                                      : "a gradient of the tensors " + std::to_string(place.first) +
                                                            " to " + std::to_string(place.last);
  const std::string where = place.rank >= 0 ? "on rank " + std::to_string(place.rank)
                                            : "once averaged, as it is too large for what it travels as";
  return {ErrorKind::nonfinite,
          which + " is not finite " + where + ": the iteration is dropped, and residuals are as before"};
}

ResidualPool::NonfiniteTensors ResidualPool::nonfinite_tensors() const {
  if (!found_nonfinite_) {
    return {};
  }
  return {static_cast<std::int64_t>(found_nonfinite_->first), static_cast<std::int64_t>(found_nonfinite_->last)};
}

std::optional<NonfiniteTensorRange> ResidualPool::first_place(std::span<const NonfiniteTensors> of_ranks) {
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank].first >= 0) {
      return NonfiniteTensorRange{static_cast<int>(rank), static_cast<std::size_t>(of_ranks[rank].first),
                                  static_cast<std::size_t>(of_ranks[rank].last)};
    }
  }
  return {};
}

// ---- residuals ------------------------------------------------------------------------------------------------------

void ResidualPool::copy_residuals(std::span<float> destination) const {
  check_between_iterations("residuals are read");
  residual_.read(destination);
}

void ResidualPool::check_residuals(std::span<const float> residual) const {
  check_between_iterations("residuals are replaced");
  check_kept(residual, elements(), "residuals");
}

void ResidualPool::set_residuals(std::span<const float> residual, Stream stream) {
  check_open();
  check_residuals(residual);
  residual_.write(residual);
  drop_gradients(stream);
  const std::lock_guard lock(mutex_);
  last_ = Fate::settled;
}

void ResidualPool::refuse_state(const std::string& why) {
  check_open();
  try {
    check_same("states of " + name_ + "s", why);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::mismatch) {
      throw;
    }
  }
}

}  // namespace gradientflow::engine
