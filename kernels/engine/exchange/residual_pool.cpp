#include "residual_pool.hpp"

#include <cmath>

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

void refuse_state(Communicator& communicator, const std::string& things, const std::string& why) {
  try {
    check_same_on_all_ranks(communicator, things, why);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::mismatch) {
      throw;
    }
  }
}

}  // namespace gradientflow::engine
