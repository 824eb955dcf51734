// Entry points of sum_of_squares.hpp.
#include "../sum_of_squares.hpp"

#include <cmath>
#include <limits>

#include "select.hpp"

namespace gradientflow::compute {
namespace {

double squares_with(const KernelTable& table, const void* source, DType dtype, std::size_t count, float scale) {
  const auto kernel =
      table.sum_of_squares[index_among_floats(dtype, "sum_of_squares is for float16, bfloat16 and float32")];
  const double sum = kernel(source, count, scale);
  return std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN() : sum;
}

}  // namespace

double sum_of_squares(const void* source, DType dtype, std::size_t count, float scale) {
  return squares_with(active_table(), source, dtype, count, scale);
}

double sum_of_squares_at(SimdLevel level, const void* source, DType dtype, std::size_t count, float scale) {
  return squares_with(table_at(level), source, dtype, count, scale);
}

}  // namespace gradientflow::compute
