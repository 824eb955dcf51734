// How a result over all ranks is put together from parts, each of which is a result over some of them.
//
// A mean is divided at the end. A mean of 16-bit floats is divided at the beginning: its parts are stored as 16-bit
// floats, too, and a sum of many values would leave their range.
#pragma once

#include "../../base/dtype.hpp"
#include "../../compute/kernels.hpp"

namespace gradientflow::collective {

struct PartialReduction {
  DType dtype;
  ReduceOp op;
  int ranks;  // of the communicator

  [[nodiscard]] bool divides_first() const { return op == ReduceOp::mean && size_of(dtype) == 2; }

  // A part from the values of single ranks.
  [[nodiscard]] compute::Reduction begin() const { return divides_first() ? mean() : join(); }
  // One part from several.
  [[nodiscard]] compute::Reduction join() const { return {dtype, op == ReduceOp::mean ? ReduceOp::sum : op}; }
  // The result from all parts.
  [[nodiscard]] compute::Reduction finish() const { return op == ReduceOp::mean && !divides_first() ? mean() : join(); }

 private:
  [[nodiscard]] compute::Reduction mean() const { return {dtype, ReduceOp::mean, ranks}; }
};

}  // namespace gradientflow::collective
