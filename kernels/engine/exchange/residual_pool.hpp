// What pools with residuals have in common.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "../calls/communicator.hpp"

namespace gradientflow::engine {

struct NonfinitePlace {  // where the first gradient that was not finite was found: it is of one of these tensors
  int rank;              // -1: each rank's was finite, but not their mean
  std::size_t first;
  std::size_t last;
};
[[nodiscard]] Error nonfinite_error(const NonfinitePlace& place);

// Throws Error(type) unless gradients are float16, bfloat16 or float32; `pool` is what is for these.
void check_gradients(DType dtype, std::string_view pool);

// What gradients are multiplied by that are `scale` times too large. Throws Error(value) unless it is a power of two.
[[nodiscard]] float inverse_of_loss_scale(double scale);

// Of a pool with so many elements. Throws Error(value) where there are others, or some are not finite.
void check_kept(std::span<const float> numbers, std::size_t elements, const char* what);

// In place of going on from a state, on a rank that cannot: the others, which compare theirs, are told why.
void refuse_state(Communicator& communicator, const std::string& things, const std::string& why);

}  // namespace gradientflow::engine
