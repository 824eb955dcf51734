// The public entry points: they check the arguments and call the kernel of the right level.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "../base/error.hpp"
#include "kernels.hpp"
#include "table.hpp"

namespace gradientflow::compute {
namespace {

// The tables are indexed by these numbers.
static_assert(dtype_count == 9 && reduce_op_count == 5);
static_assert(static_cast<int>(DType::float16) == 0 && static_cast<int>(DType::bfloat16) == 1 &&
              static_cast<int>(DType::float32) == 2 && static_cast<int>(DType::float64) == 3 &&
              static_cast<int>(DType::int8) == 4 && static_cast<int>(DType::uint8) == 5 &&
              static_cast<int>(DType::int32) == 6 && static_cast<int>(DType::int64) == 7 &&
              static_cast<int>(DType::boolean) == 8);
static_assert(static_cast<int>(ReduceOp::sum) == 0 && static_cast<int>(ReduceOp::mean) == 1 &&
              static_cast<int>(ReduceOp::max) == 2 && static_cast<int>(ReduceOp::min) == 3 &&
              static_cast<int>(ReduceOp::prod) == 4);

const KernelTable& table_at(SimdLevel level) {
  if (level > best_simd()) {
    throw Error(ErrorKind::value, "SIMD level " + std::string(name_of(level)) +
                                      " cannot run here; this processor and build offer " +
                                      std::string(name_of(best_simd())) + " at most");
  }
#if defined(__x86_64__)
  switch (level) {
    case SimdLevel::baseline:
      return baseline::kernels;
    case SimdLevel::avx2:
      return avx2::kernels;
    case SimdLevel::avx512:
      return avx512::kernels;
  }
#endif
  return baseline::kernels;
}

const KernelTable& active_table() {
  static const KernelTable& table = table_at(active_simd());
  return table;
}

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
  // Streaming begins at a cache line, so a whole number of elements must lie before it.
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

// The row or column of a dtype in the table of casts.
std::size_t cast_index(DType dtype) {
  if (dtype != DType::float16 && dtype != DType::bfloat16 && dtype != DType::float32) {
    throw Error(ErrorKind::type, "cast is between float16, bfloat16 and float32, not " + std::string(name_of(dtype)));
  }
  return static_cast<std::size_t>(dtype);
}

void cast_with(const KernelTable& table, void* destination, DType destination_dtype, const void* source,
               DType source_dtype, std::size_t count, float scale) {
  const auto kernel = table.cast[cast_index(destination_dtype)][cast_index(source_dtype)];
  if (count != 0) {
    kernel(destination, source, count, scale);
  }
}

void copy_with(const KernelTable& table, void* destination, const void* source, std::size_t bytes, Store store) {
  if (bytes == 0) {
    return;
  }
  if (store == Store::streaming) {
    table.copy_streaming(destination, source, bytes);
  } else {
    std::memcpy(destination, source, bytes);
  }
}

std::size_t count_with(const KernelTable& table, const void* source, std::size_t count) {
  return count == 0 ? 0 : table.count_nonfinite(source, count);
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

std::size_t count_nonfinite(const void* source, std::size_t count) { return count_with(active_table(), source, count); }

void copy(void* destination, const void* source, std::size_t bytes, Store store) {
  copy_with(active_table(), destination, source, bytes, store);
}

void reduce_at(SimdLevel level, std::span<void* const> destinations, std::span<const void* const> sources,
               std::size_t count, const Reduction& reduction) {
  reduce_with(table_at(level), destinations, sources, count, reduction);
}

void cast_at(SimdLevel level, void* destination, DType destination_dtype, const void* source, DType source_dtype,
             std::size_t count, float scale) {
  cast_with(table_at(level), destination, destination_dtype, source, source_dtype, count, scale);
}

std::size_t count_nonfinite_at(SimdLevel level, const void* source, std::size_t count) {
  return count_with(table_at(level), source, count);
}

void copy_at(SimdLevel level, void* destination, const void* source, std::size_t bytes, Store store) {
  copy_with(table_at(level), destination, source, bytes, store);
}

}  // namespace gradientflow::compute
