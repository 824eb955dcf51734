// Entry points of kernels.hpp: they check the arguments and call the kernel of the right level.
#include <algorithm>
#include <cstdint>
#include <string>

#include "../../base/error.hpp"
#include "../kernels.hpp"
#include "rep_movsb.hpp"
#include "select.hpp"

namespace gradientflow::compute {
namespace {

// These numbers are indices of the tables.
static_assert(dtype_count == 9 && reduce_op_count == 5);
static_assert(static_cast<int>(DType::float16) == 0 && static_cast<int>(DType::bfloat16) == 1 &&
              static_cast<int>(DType::float32) == 2 && static_cast<int>(DType::float64) == 3 &&
              static_cast<int>(DType::int8) == 4 && static_cast<int>(DType::uint8) == 5 &&
              static_cast<int>(DType::int32) == 6 && static_cast<int>(DType::int64) == 7 &&
              static_cast<int>(DType::boolean) == 8);
static_assert(static_cast<int>(ReduceOp::sum) == 0 && static_cast<int>(ReduceOp::mean) == 1 &&
              static_cast<int>(ReduceOp::max) == 2 && static_cast<int>(ReduceOp::min) == 3 &&
              static_cast<int>(ReduceOp::prod) == 4);
static_assert(static_cast<int>(Store::cached) == 0 && static_cast<int>(Store::streaming) == 1);

void check_divisor(const Reduction& reduction) {
  if (reduction.divisor < 1) {
    throw Error(ErrorKind::value,
                "the divisor of a reduction must be at least 1, not " + std::to_string(reduction.divisor));
  }
  if (reduction.divisor != 1 && reduction.op != ReduceOp::mean) {
    throw Error(ErrorKind::value, "only op 'mean' has a divisor, not '" + std::string(name_of(reduction.op)) + "'");
  }
}

void reduce_with(const KernelTable& table, std::span<void* const> destinations, std::span<const void* const> sources,
                 std::size_t count, const Reduction& reduction) {
  check_reducible(reduction.dtype, reduction.op);
  check_divisor(reduction);
  if (destinations.empty() || sources.empty()) {
    throw Error(ErrorKind::value, "a reduction needs at least one source and one destination");
  }
  if (count == 0) {
    return;
  }
  // Streaming begins at a cache line, so a whole number of elements must precede it.
  const bool whole_elements = std::all_of(destinations.begin(), destinations.end(), [&](const void* destination) {
    return reinterpret_cast<std::uintptr_t>(destination) % size_of(reduction.dtype) == 0;
  });
  const auto kernel = table.reduce[static_cast<std::size_t>(reduction.dtype)][static_cast<std::size_t>(reduction.op)];
  kernel({.destinations = destinations.data(),
          .destination_count = destinations.size(),
          .sources = sources.data(),
          .source_count = sources.size(),
          .count = count,
          .divisor = reduction.divisor,
          .streaming = reduction.store == Store::streaming && whole_elements});
}

std::size_t cast_index(DType dtype) {
  return index_among_floats(dtype, "cast is between float16, bfloat16 and float32");
}

void cast_with(const KernelTable& table, void* destination, DType destination_dtype, const void* source,
               DType source_dtype, std::size_t count, float scale) {
  const auto kernel = table.cast[cast_index(destination_dtype)][cast_index(source_dtype)];
  if (count != 0) {
    kernel(destination, source, count, scale);
  }
}

void copy_with(const KernelTable& table, void* destination, const void* source, std::size_t bytes, Store store) {
  table.copy[static_cast<std::size_t>(store)](destination, source, bytes);
}

std::size_t count_with(const KernelTable& table, const void* source, DType dtype, std::size_t count) {
  const auto kernel =
      table.count_nonfinite[index_among_floats(dtype, "count_nonfinite is for float16, bfloat16 and float32")];
  return count == 0 ? 0 : kernel(source, count);
}

}  // namespace

void reduce(std::span<void* const> destinations, std::span<const void* const> sources, std::size_t count,
            const Reduction& reduction) {
  reduce_with(active_table(), destinations, sources, count, reduction);
}

void cast(void* destination, DType destination_dtype, const void* source, DType source_dtype, std::size_t count,
          float scale) {
  cast_with(active_table(), destination, destination_dtype, source, source_dtype, count, scale);
}

std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count) {
  return count_with(active_table(), source, dtype, count);
}

void copy(void* destination, const void* source, std::size_t bytes, Store store) {
  if (store == Store::cached && bytes >= rep_movsb_bytes && rep_movsb_is_fast()) {
    copy_rep_movsb(destination, source, bytes);
  } else {
    copy_with(active_table(), destination, source, bytes, store);
  }
}

void reduce_at(SimdLevel level, std::span<void* const> destinations, std::span<const void* const> sources,
               std::size_t count, const Reduction& reduction) {
  reduce_with(table_at(level), destinations, sources, count, reduction);
}

void cast_at(SimdLevel level, void* destination, DType destination_dtype, const void* source, DType source_dtype,
             std::size_t count, float scale) {
  cast_with(table_at(level), destination, destination_dtype, source, source_dtype, count, scale);
}

std::size_t count_nonfinite_at(SimdLevel level, const void* source, DType dtype, std::size_t count) {
  return count_with(table_at(level), source, dtype, count);
}

void copy_at(SimdLevel level, void* destination, const void* source, std::size_t bytes, Store store) {
  copy_with(table_at(level), destination, source, bytes, store);
}

}  // namespace gradientflow::compute
