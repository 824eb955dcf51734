// Conversion of the arguments of a C function to a call of the engine, with all possible checks.
#pragma once

#include <cstddef>
#include <vector>

#include "../collective/call/call.hpp"
#include "../engine/calls/communicator.hpp"
#include "../engine/exchange/gradient_pool.hpp"
#include "../engine/exchange/sparse_pool.hpp"
#include "../engine/exchange/top_k_pool.hpp"
#include "gradientflow.h"

namespace gradientflow::c {

[[nodiscard]] DType dtype_of(int dtype);                              // a gf_dtype; throws Error(type)
[[nodiscard]] std::optional<Wire> given_wire(const gf_dtype& field);  // throws Error(type), Error(value)

// Arguments of a collective function of gradientflow.h. allgatherv has `counts` instead of `count`. Enums are stored as
// numbers: in C an enum may hold any value, in C++ only its own values.
struct Arguments {
  transport::CallKind kind = transport::CallKind::barrier;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  int dtype = GF_UINT8;
  int op = GF_SUM;
  int root = 0;
  const gf_call_options* options = nullptr;
  const std::size_t* counts = nullptr;
};

// Returns the number of elements of each tensor. Throws Error(value) if they exceed the address space.
[[nodiscard]] std::vector<std::size_t> tensor_counts(const std::size_t* counts, std::size_t tensors,
                                                     std::size_t element);

[[nodiscard]] engine::GradientPool::Options make_pool_options(const gf_pool_options* given);
[[nodiscard]] engine::SparsePool::Options make_sparse_pool_options(const gf_sparse_pool_options* given);
[[nodiscard]] engine::TopKPool::Options make_top_k_pool_options(const gf_top_k_pool_options* given);

[[nodiscard]] collective::Call make_call(const engine::Communicator& communicator, const Arguments& given);

}  // namespace gradientflow::c
