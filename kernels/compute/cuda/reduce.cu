#include <algorithm>
#include <type_traits>

#include "../../base/error.hpp"
#include "kernels.hpp"
#include "launch.cuh"
#include "work.cuh"

namespace gradientflow::compute::cuda {
namespace {

// Addresses, in the order of the operands.
struct Tensors {
  const void* sources[most_tensors];
  void* destinations[most_tensors];
  unsigned source_count;
  unsigned destination_count;
};

// An element type that is computed in its stored form.
template <class T>
struct Plain {
  using Stored = T;
  __device__ static T to_scalar(T stored) { return stored; }
  __device__ static T from_scalar(T value) { return value; }
  __device__ static T chosen(T stored) { return stored; }
};

// An element type that is computed as float32. max and min choose a source's element; a NaN of float16 becomes quiet,
// as by the processor's conversion to float32.
template <class Element>
struct Narrow {
  using Stored = typename Element::Stored;
  __device__ static float to_scalar(Stored stored) { return Element::to_float(stored); }
  __device__ static Stored from_scalar(float value) { return Element::from_float(value); }
  __device__ static Stored chosen(Stored stored) {
    constexpr unsigned quiet = std::is_same_v<Element, Float16> ? 0x200U : 0U;
    return to_scalar(stored) != to_scalar(stored) ? static_cast<Stored>(stored | quiet) : stored;
  }
};

// Integers wrap around.
template <class T>
__device__ T sum_of(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  } else {
    return a + b;
  }
}
template <class T>
__device__ T product_of(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b)));
  } else {
    return a * b;
  }
}

// Replaces a NaN by the CPU's only NaN of arithmetic.
template <class T>
__device__ T canonical(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return canonical_nan(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return value != value ? __longlong_as_double(0x7ff8000000000000LL) : value;
  } else {
    return value;
  }
}

// Computes sum, mean or prod of n elements from element i on.
template <class Element, int n>
__device__ void combine(const Tensors& tensors, std::size_t i, ReduceOp op, int divisor) {
  using Stored = typename Element::Stored;
  using Scalar = decltype(Element::to_scalar(Stored{}));
  Scalar result[n];
  for (unsigned s = 0; s < tensors.source_count; ++s) {
    const Pack<Stored, n> operand = load<n>(static_cast<const Stored*>(tensors.sources[s]) + i);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const Scalar value = Element::to_scalar(operand[k]);
      result[k] = s == 0 ? value : op == ReduceOp::prod ? product_of(result[k], value) : sum_of(result[k], value);
    }
  }
  Pack<Stored, n> finished;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if constexpr (std::is_floating_point_v<Scalar>) {
      if (divisor != 1) {
        result[k] /= static_cast<Scalar>(divisor);
      }
    }
    finished[k] = Element::from_scalar(canonical(result[k]));
  }
#pragma unroll 1
  for (unsigned d = 0; d < tensors.destination_count; ++d) {
    store<n>(static_cast<Stored*>(tensors.destinations[d]) + i, finished);
  }
}

// max and min: chooses the earlier operand if it is NaN, or at least as large (small) as the later operand; otherwise
// the later one.
template <class Element, int n>
__device__ void choose(const Tensors& tensors, std::size_t i, ReduceOp op) {
  using Stored = typename Element::Stored;
  Pack<Stored, n> result = load<n>(static_cast<const Stored*>(tensors.sources[0]) + i);
  for (unsigned s = 1; s < tensors.source_count; ++s) {
    const Pack<Stored, n> operand = load<n>(static_cast<const Stored*>(tensors.sources[s]) + i);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const auto a = Element::to_scalar(result[k]);
      const auto b = Element::to_scalar(operand[k]);
      const bool stays = (op == ReduceOp::max ? a >= b : a <= b) || a != a;
      result[k] = stays ? result[k] : operand[k];
    }
  }
#pragma unroll
  for (int k = 0; k < n; ++k) {
    result[k] = Element::chosen(result[k]);
  }
#pragma unroll 1
  for (unsigned d = 0; d < tensors.destination_count; ++d) {
    store<n>(static_cast<Stored*>(tensors.destinations[d]) + i, result);
  }
}

template <class Element, int n>
__device__ void reduce_elements(const Tensors& tensors, std::size_t i, ReduceOp op, int divisor) {
  if (op == ReduceOp::max || op == ReduceOp::min) {
    choose<Element, n>(tensors, i, op);
  } else {
    combine<Element, n>(tensors, i, op, divisor);
  }
}

template <class Element>
constexpr int width = 16 / sizeof(typename Element::Stored);

// The grid's first threads reduce `packs` packs, one each; further threads a remaining element each.
template <class Element>
__global__ void __launch_bounds__(threads)
    reduce_all(Tensors tensors, std::size_t count, std::size_t packs, ReduceOp op, int divisor) {
  const std::size_t thread = static_cast<std::size_t>(blockIdx.x) * threads + threadIdx.x;
  if (thread < packs) {
    reduce_elements<Element, width<Element>>(tensors, thread * width<Element>, op, divisor);
  } else if (const std::size_t i = packs * width<Element> + (thread - packs); i < count) {
    reduce_elements<Element, 1>(tensors, i, op, divisor);
  }
}

bool are_aligned(const Tensors& tensors) {
  const auto fits = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  return std::all_of(tensors.sources, tensors.sources + tensors.source_count, fits) &&
         std::all_of(tensors.destinations, tensors.destinations + tensors.destination_count, fits);
}

template <class Element>
void reduce_with(const Tensors& tensors, std::size_t count, const Reduction& reduction, Stream stream) {
  const std::size_t packs = are_aligned(tensors) ? count / width<Element> : 0;
  const std::size_t all = packs + (count - packs * width<Element>);
  launch(reduce_all<Element>, (all + threads - 1) / threads, threads, stream, tensors, count, packs, reduction.op,
         reduction.divisor);
}

}  // namespace

void reduce(std::span<void* const> destinations, std::span<const void* const> sources, std::size_t count,
            const Reduction& reduction, Stream stream) {
  compute::reduce(destinations, sources, 0, reduction);  // checks the remaining arguments
  if (sources.size() > most_tensors || destinations.size() > most_tensors) {
    throw Error(ErrorKind::value, "a reduction on a CUDA device has at most " + std::to_string(most_tensors) +
                                      " sources and as many destinations, not " + std::to_string(sources.size()) +
                                      " and " + std::to_string(destinations.size()));
  }
  Tensors tensors{};
  std::copy(sources.begin(), sources.end(), tensors.sources);
  std::copy(destinations.begin(), destinations.end(), tensors.destinations);
  tensors.source_count = static_cast<unsigned>(sources.size());
  tensors.destination_count = static_cast<unsigned>(destinations.size());
  switch (reduction.dtype) {
    case DType::float16:
      return reduce_with<Narrow<Float16>>(tensors, count, reduction, stream);
    case DType::bfloat16:
      return reduce_with<Narrow<BFloat16>>(tensors, count, reduction, stream);
    case DType::float32:
      return reduce_with<Plain<float>>(tensors, count, reduction, stream);
    case DType::float64:
      return reduce_with<Plain<double>>(tensors, count, reduction, stream);
    case DType::int8:
      return reduce_with<Plain<std::int8_t>>(tensors, count, reduction, stream);
    case DType::uint8:
    case DType::boolean:
      return reduce_with<Plain<std::uint8_t>>(tensors, count, reduction, stream);
    case DType::int32:
      return reduce_with<Plain<std::int32_t>>(tensors, count, reduction, stream);
    case DType::int64:
      return reduce_with<Plain<std::int64_t>>(tensors, count, reduction, stream);
  }
}

}  // namespace gradientflow::compute::cuda
