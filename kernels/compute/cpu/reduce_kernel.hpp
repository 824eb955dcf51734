// Reduction of P sources into D destinations.
//
// A block is a few vectors of consecutive elements. For each block, the sources are read in their order and combined in
// registers, the result is finished (divided, for a mean), and stored to every destination; only then does the next
// block start. So each byte of a source is read once and each byte of a destination is written once, for any P and D,
// and a source may also be a destination. Elements after the last whole block are reduced vector by vector, and the
// last elements, fewer than a vector, through a padded copy on the stack: by the same code, so with the same bits.
#pragma once

#include "element.hpp"
#include "table.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

template <class V>
[[gnu::always_inline]] inline V arithmetic_result(V value) {
  if constexpr (is_float<V>) {
    return canonical_nan(value);
  } else {
    return value;
  }
}

// Operators: combine(a, b) of two values, of which a is the earlier; canonical() of the last result.
struct Sum {
  static constexpr bool is_frequent = true;

  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a + b;
  }
  template <class V>
  [[gnu::always_inline]] static V canonical(V value) {
    return arithmetic_result(value);
  }
};

struct Product {
  static constexpr bool is_frequent = false;

  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a * b;
  }
  template <class V>
  [[gnu::always_inline]] static V canonical(V value) {
    return arithmetic_result(value);
  }
};

// Maximum as in numpy.maximum: a if a is NaN or not smaller than b, otherwise b (which may be NaN). For integers a != a
// is false.
struct Maximum {
  static constexpr bool is_frequent = false;

  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return ((a >= b) | (a != a)) ? a : b;
  }
  template <class V>
  [[gnu::always_inline]] static V canonical(V value) {
    return value;
  }
};

struct Minimum {
  static constexpr bool is_frequent = false;

  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return ((a <= b) | (a != a)) ? a : b;
  }
  template <class V>
  [[gnu::always_inline]] static V canonical(V value) {
    return value;
  }
};

// Ways to finish a sum.
struct Keep {
  template <class V>
  [[gnu::always_inline]] V finish(V value) const {
    return value;
  }
};

template <class T>
struct Multiply {
  T factor;
  template <class V>
  [[gnu::always_inline]] V finish(V value) const {
    return value * factor;
  }
};

template <class T>
struct Divide {
  T divisor;
  template <class V>
  [[gnu::always_inline]] V finish(V value) const {
    return value / divisor;
  }
};

// Addresses of all sources or all destinations. If the compiler knows their number, they fit in registers, which makes
// up to 1.5 times the speed on data in the caches. With a `number` of 0 the call gives the number.
template <class Pointer, std::size_t number>
struct Addresses {
  Pointer addresses[number];

  Addresses(const Pointer* list, std::size_t /*count*/) {
    for (std::size_t i = 0; i < number; ++i) {
      addresses[i] = list[i];
    }
  }
  [[gnu::always_inline]] static constexpr std::size_t count() { return number; }
  [[gnu::always_inline]] Pointer operator[](std::size_t i) const { return addresses[i]; }
};

template <class Pointer>
struct Addresses<Pointer, 0> {
  const Pointer* addresses;
  std::size_t length;

  Addresses(const Pointer* list, std::size_t count) : addresses(list), length(count) {}
  [[gnu::always_inline]] std::size_t count() const { return length; }
  [[gnu::always_inline]] Pointer operator[](std::size_t i) const { return addresses[i]; }
};

// One kernel: all its properties that are known at compile time.
template <class ElementType, class OpType, class FinishType>
struct Kernel {
  using Element = ElementType;
  using Finish = FinishType;
  using Values = typename Element::Values;
  static constexpr bool is_frequent = OpType::is_frequent;
  static constexpr std::size_t width = 4;  // groups of values in a block

  [[gnu::always_inline]] static Values combine(const Values& a, const Values& b) {
    Values result;
    for (std::size_t p = 0; p < Values::parts; ++p) {
      result.part[p] = OpType::combine(a.part[p], b.part[p]);
    }
    return result;
  }

  [[gnu::always_inline]] static Values finish(const Values& values, Finish finish) {
    Values result;
    for (std::size_t p = 0; p < Values::parts; ++p) {
      result.part[p] = OpType::canonical(finish.finish(values.part[p]));
    }
    return result;
  }
};

// Reduces whole blocks of `width` vectors from byte offset `begin` on, up to `end`. Returns the offset of the first
// byte left.
template <class K, std::size_t width, bool streaming, std::size_t P = 0, std::size_t D = 0>
inline std::size_t reduce_blocks(const ReduceCall& call, std::size_t begin, std::size_t end,
                                 typename K::Finish finish) {
  constexpr std::size_t block = width * vector_bytes;
  const Addresses<const void*, P> sources(call.sources, call.source_count);
  const Addresses<void*, D> destinations(call.destinations, call.destination_count);
  std::size_t offset = begin;
  for (; end - offset >= block; offset += block) {
    typename K::Values result[width];
    const std::byte* source = static_cast<const std::byte*>(sources[0]) + offset;
    for (std::size_t v = 0; v < width; ++v) {
      result[v] = K::Element::load_group(source + v * vector_bytes);
    }
    for (std::size_t s = 1; s < sources.count(); ++s) {
      source = static_cast<const std::byte*>(sources[s]) + offset;
      for (std::size_t v = 0; v < width; ++v) {
        result[v] = K::combine(result[v], K::Element::load_group(source + v * vector_bytes));
      }
    }
    for (std::size_t v = 0; v < width; ++v) {
      result[v] = K::finish(result[v], finish);
    }
    for (std::size_t d = 0; d < destinations.count(); ++d) {
      std::byte* const destination = static_cast<std::byte*>(destinations[d]) + offset;
      for (std::size_t v = 0; v < width; ++v) {
        K::Element::template store_group<streaming>(destination + v * vector_bytes, result[v]);
      }
    }
  }
  return offset;
}

// Reduces the bytes from `begin` to `end`, fewer than a vector.
template <class K>
inline void reduce_rest(const ReduceCall& call, std::size_t begin, std::size_t end, typename K::Finish finish) {
  const std::size_t bytes = end - begin;
  std::byte padded[vector_bytes] = {};
  const auto load_rest = [&](std::size_t s) {
    std::memcpy(padded, static_cast<const std::byte*>(call.sources[s]) + begin, bytes);
    return K::Element::load_group(padded);
  };
  auto result = load_rest(0);
  for (std::size_t s = 1; s < call.source_count; ++s) {
    result = K::combine(result, load_rest(s));
  }
  K::Element::template store_group<false>(padded, K::finish(result, finish));
  for (std::size_t d = 0; d < call.destination_count; ++d) {
    std::memcpy(static_cast<std::byte*>(call.destinations[d]) + begin, padded, bytes);
  }
}

// Has loops for the most frequent numbers of sources and destinations of sums (two or four ranks on a node, the result
// for one or all).
template <class K>
inline std::size_t reduce_most(const ReduceCall& call, std::size_t begin, std::size_t end, typename K::Finish finish) {
  if constexpr (K::is_frequent) {
    if (call.source_count == 2 && call.destination_count == 1) {
      return reduce_blocks<K, K::width, false, 2, 1>(call, begin, end, finish);
    }
    if (call.source_count == 2 && call.destination_count == 2) {
      return reduce_blocks<K, K::width, false, 2, 2>(call, begin, end, finish);
    }
    if (call.source_count == 4 && call.destination_count == 1) {
      return reduce_blocks<K, K::width, false, 4, 1>(call, begin, end, finish);
    }
    if (call.source_count == 4 && call.destination_count == 4) {
      return reduce_blocks<K, K::width, false, 4, 4>(call, begin, end, finish);
    }
  }
  return reduce_blocks<K, K::width, false>(call, begin, end, finish);
}

template <class K>
inline void reduce_cached(const ReduceCall& call, std::size_t begin, std::size_t end, typename K::Finish finish) {
  std::size_t offset = reduce_most<K>(call, begin, end, finish);
  offset = reduce_blocks<K, 1, false>(call, offset, end, finish);
  if (offset < end) {
    reduce_rest<K>(call, offset, end, finish);
  }
}

// Tells if streaming stores help. They write whole cache lines, so all destinations must reach a line's boundary at the
// same offset. They save reading a destination first. But a destination that is also a source is read anyway, and a
// streaming store would only remove it from the cache.
inline bool can_stream(const ReduceCall& call) {
  const auto misalignment = [&](std::size_t d) {
    return reinterpret_cast<std::uintptr_t>(call.destinations[d]) % cache_line;
  };
  for (std::size_t d = 0; d < call.destination_count; ++d) {
    if (misalignment(d) != misalignment(0)) {
      return false;
    }
    for (std::size_t s = 0; s < call.source_count; ++s) {
      if (call.destinations[d] == call.sources[s]) {
        return false;
      }
    }
  }
  return true;
}

template <class K>
inline void reduce_bytes(const ReduceCall& call, typename K::Finish finish) {
  const std::size_t end = call.count * K::Element::size;
  std::size_t begin = 0;
  if (call.streaming && can_stream(call)) {
    const std::size_t head = bytes_to_line(call.destinations[0], end);
    reduce_cached<K>(call, 0, head, finish);
    begin = reduce_blocks<K, K::width, true>(call, head, end, finish);
    streaming_fence();
  }
  reduce_cached<K>(call, begin, end, finish);
}

template <class Element, class Op>
void reduce(const ReduceCall& call) {
  reduce_bytes<Kernel<Element, Op, Keep>>(call, {});
}

// Divides only if necessary: a division costs as much as many multiplications, but only the reciprocal of a power of
// two is exact.
template <class Element>
void reduce_mean(const ReduceCall& call) {
  using Scalar = typename Element::Scalar;
  const auto divisor = static_cast<Scalar>(call.divisor);
  if ((call.divisor & (call.divisor - 1)) == 0) {
    reduce_bytes<Kernel<Element, Sum, Multiply<Scalar>>>(call, {1 / divisor});
  } else {
    reduce_bytes<Kernel<Element, Sum, Divide<Scalar>>>(call, {divisor});
  }
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE
