// Reduction over all ranks from partial results, each over some of the ranks.
//
// A mean is divided at the end. But a mean of 16-bit floats is divided at the beginning, because its partial results
// are 16-bit floats too, and an undivided sum could overflow.
#pragma once

#include "../../base/dtype.hpp"
#include "../../compute/kernels.hpp"

namespace gradientflow::collective {

struct PartialReduction {
  DType dtype;
  ReduceOp op;
  int ranks;  // number of ranks of the communicator

  [[nodiscard]] bool divides_first() const { return op == ReduceOp::mean && size_of(dtype) == 2; }

  // Makes a partial result of the values of single ranks.
  [[nodiscard]] compute::Reduction begin() const { return divides_first() ? mean() : join(); }
  // Joins several partial results to one.
  [[nodiscard]] compute::Reduction join() const { return {dtype, op == ReduceOp::mean ? ReduceOp::sum : op}; }
  // Makes the result of all partial results.
  [[nodiscard]] compute::Reduction finish() const { return op == ReduceOp::mean && !divides_first() ? mean() : join(); }

 private:
  [[nodiscard]] compute::Reduction mean() const { return {dtype, ReduceOp::mean, ranks}; }
};

}  // namespace gradientflow::collective
