// Code shared by the functions of all pools. `Object` is gf_pool, gf_sparse_pool or gf_top_k_pool.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "arguments.hpp"
#include "objects.hpp"
#include "status.hpp"

namespace gradientflow::c {

// Creates a pool. `make_options` converts the program's `options`.
template <class Object, class Options, class MakeOptions>
gf_status create_pool(gf_communicator* communicator, const std::size_t* counts, std::size_t tensors, int dtype,
                      const Options* options, MakeOptions make_options, Object** pool) {
  return guarded([&] {
    Object*& result = result_of(pool, "pool");
    const gf_communicator& owner = given(communicator, "communicator");
    const DType type = dtype_of(dtype);
    const auto of_each = tensor_counts(counts, tensors, size_of(type));
    using Engine = decltype(Object::engine);
    result = new Object{Engine(*owner.engine, of_each, type, make_options(options))};
  });
}

template <class Object>
void* tensor_of(const Object* pool, std::size_t tensor) {
  return pool != nullptr && tensor < pool->engine.tensors() ? pool->engine.data() + pool->engine.offset(tensor)
                                                            : nullptr;
}

template <class Object>
std::size_t tensors_of(const Object* pool) {
  return pool == nullptr ? 0 : pool->engine.tensors();
}

template <class Object>
std::size_t bytes_of(const Object* pool) {
  return pool == nullptr ? 0 : pool->engine.bytes();
}

inline std::optional<double> seconds_of(double timeout) { return timeout < 0 ? std::nullopt : std::optional(timeout); }

// Functions for pools with residuals.
template <class Object>
double* extra_of(Object* pool) {
  return pool == nullptr || pool->engine.extra().empty() ? nullptr : pool->engine.extra().data();
}

template <class Object>
int overflowed(const Object* pool) {
  int result = -1;
  quietly([&] { result = given(pool, "pool").engine.dropped() ? 1 : 0; });
  return result;
}

// Returns `data`, a number per element of the pool. NULL is Error(value) unless the pool is empty.
template <class Number>
std::span<Number> numbers_of(const engine::ResidualPool& pool, Number* data, const char* name) {
  return {pool.elements() > 0 ? &given(data, name) : nullptr, pool.elements()};
}

}  // namespace gradientflow::c
