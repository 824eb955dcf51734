// The reduction of P sources into D destinations.
//
// A block is a few vectors of consecutive elements. For each block, the sources are read in their order and combined
// in registers, the result is finished (divided, for a mean), and stored to every destination; only then does the next
// block start. So each byte of a source is read once and each byte of a destination written once, whatever P and D
// are, and a destination may be one of the sources. What is left at the end is done vector by vector, and the last
// elements, fewer than a vector, through a padded copy on the stack: by the same code, so with the same bits.
#pragma once

#include "element.hpp"
#include "table.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

// How two values are combined. a is the earlier operand.
struct Sum {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a + b;
  }
};

struct Product {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a * b;
  }
};

// As numpy.maximum: a where it is NaN or not the smaller one, else b (which may be NaN). Of integers a != a is false.
struct Maximum {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return ((a >= b) | (a != a)) ? a : b;
  }
};

struct Minimum {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return ((a <= b) | (a != a)) ? a : b;
  }
};

// How the combined value becomes the result.
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

[[gnu::always_inline]] inline const std::byte* source_at(const ReduceCall& call, std::size_t s, std::size_t offset) {
  return static_cast<const std::byte*>(call.sources[s]) + offset;
}

[[gnu::always_inline]] inline std::byte* destination_at(const ReduceCall& call, std::size_t d, std::size_t offset) {
  return static_cast<std::byte*>(call.destinations[d]) + offset;
}

// Reduces whole blocks of `width` vectors from byte offset `begin` on, as long as they end by `end`. Returns where it
// stopped.
template <class Element, class Op, std::size_t width, bool streaming, class Finish>
inline std::size_t reduce_blocks(const ReduceCall call, std::size_t begin, std::size_t end, Finish finish) {
  constexpr std::size_t block = width * Element::bytes;
  std::size_t offset = begin;
  for (; end - offset >= block; offset += block) {
    typename Element::Value sum[width];
    const std::byte* source = source_at(call, 0, offset);
    for (std::size_t v = 0; v < width; ++v) {
      sum[v] = Element::load(source + v * Element::bytes);
    }
    for (std::size_t s = 1; s < call.source_count; ++s) {
      source = source_at(call, s, offset);
      for (std::size_t v = 0; v < width; ++v) {
        sum[v] = Op::combine(sum[v], Element::load(source + v * Element::bytes));
      }
    }
    for (std::size_t v = 0; v < width; ++v) {
      sum[v] = finish.finish(sum[v]);
    }
    for (std::size_t d = 0; d < call.destination_count; ++d) {
      std::byte* const destination = destination_at(call, d, offset);
      for (std::size_t v = 0; v < width; ++v) {
        Element::template store<streaming>(destination + v * Element::bytes, sum[v]);
      }
    }
  }
  return offset;
}

// Reduces the bytes from `begin` to `end`, fewer than a vector of elements.
template <class Element, class Op, class Finish>
inline void reduce_rest(const ReduceCall& call, std::size_t begin, std::size_t end, Finish finish) {
  std::byte padded[Element::bytes] = {};
  const std::size_t bytes = end - begin;
  std::memcpy(padded, source_at(call, 0, begin), bytes);
  typename Element::Value sum = Element::load(padded);
  for (std::size_t s = 1; s < call.source_count; ++s) {
    std::memcpy(padded, source_at(call, s, begin), bytes);
    sum = Op::combine(sum, Element::load(padded));
  }
  Element::template store<false>(padded, finish.finish(sum));
  for (std::size_t d = 0; d < call.destination_count; ++d) {
    std::memcpy(destination_at(call, d, begin), padded, bytes);
  }
}

template <class Element, class Op, class Finish>
inline void reduce_cached(const ReduceCall& call, std::size_t begin, std::size_t end, Finish finish) {
  std::size_t offset = reduce_blocks<Element, Op, 16, false>(call, begin, end, finish);
  offset = reduce_blocks<Element, Op, 1, false>(call, offset, end, finish);
  if (offset < end) {
    reduce_rest<Element, Op>(call, offset, end, finish);
  }
}

// The bytes up to the first cache line boundary of the destinations, or `all` if they do not share one.
inline std::size_t bytes_to_line(const ReduceCall& call, std::size_t all) {
  const auto misalignment = [&](std::size_t d) {
    return reinterpret_cast<std::uintptr_t>(call.destinations[d]) % cache_line;
  };
  for (std::size_t d = 1; d < call.destination_count; ++d) {
    if (misalignment(d) != misalignment(0)) {
      return all;
    }
  }
  const std::size_t head = (cache_line - misalignment(0)) % cache_line;
  return head < all ? head : all;
}

template <class Element, class Op, class Finish>
inline void reduce_bytes(const ReduceCall& call, Finish finish) {
  const std::size_t end = call.count * Element::size;
  std::size_t begin = 0;
  if (call.streaming) {
    const std::size_t head = bytes_to_line(call, end);
    reduce_cached<Element, Op>(call, 0, head, finish);
    begin = reduce_blocks<Element, Op, 16, true>(call, head, end, finish);
    streaming_fence();
  }
  reduce_cached<Element, Op>(call, begin, end, finish);
}

template <class Element, class Op>
void reduce(const ReduceCall& call) {
  reduce_bytes<Element, Op>(call, Keep{});
}

// A division costs many times a multiplication, but only the reciprocal of a power of two is exact.
template <class Element, class Scalar>
void reduce_mean(const ReduceCall& call) {
  const auto divisor = static_cast<Scalar>(call.divisor);
  if ((call.divisor & (call.divisor - 1)) == 0) {
    reduce_bytes<Element, Sum>(call, Multiply<Scalar>{1 / divisor});
  } else {
    reduce_bytes<Element, Sum>(call, Divide<Scalar>{divisor});
  }
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE
