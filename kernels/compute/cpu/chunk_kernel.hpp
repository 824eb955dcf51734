// What is held back of a chunk, what is sent of it, and what comes back: see chunks.hpp.
#pragma once

#include "norm_kernel.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

constexpr std::size_t float_size = sizeof(float);

// A vector of elements of `size` bytes, whatever they are.
template <std::size_t size>
using Raw = Vector<std::uint8_t, lanes * size>;

// gradient * scale, with what is held added where something is.
template <class Element, bool is_held>
[[gnu::always_inline]] inline Floats corrected(const std::byte* gradient, const std::byte* held, std::size_t i,
                                               float scale) {
  const Floats fresh = Element::load_ordered(gradient + i * Element::size) * scale;
  if constexpr (is_held) {
    return fresh + load<Floats>(held + i * float_size);
  } else {
    return fresh;
  }
}

enum class Keeping { nothing, cached, streaming };

template <class Element, bool is_held, Keeping keeping>
struct HoldBackPass {
  std::byte* gradient;
  const std::byte* held;
  std::byte* next_held;
  float scale;
  float momentum;

  [[gnu::always_inline]] Floats at(std::size_t i) const {
    const Floats x = corrected<Element, is_held>(gradient, held, i, scale);
    if constexpr (keeping != Keeping::nothing) {
      store<keeping == Keeping::streaming>(next_held + i * float_size, x * momentum);
    }
    store<false>(gradient + i * Element::size, Raw<Element::size>{});
    return magnitude(x);
  }

  [[gnu::always_inline]] void rest(std::size_t i, std::size_t count, Sums& sums) const {
    PaddedRow<Element::size> from(gradient, i, count);
    const PaddedRow<float_size> before(held, i, count);
    PaddedRow<float_size> after;
    constexpr Keeping cached = keeping == Keeping::nothing ? keeping : Keeping::cached;
    add_row(HoldBackPass<Element, is_held, cached>{from.bytes, before.bytes, after.bytes, scale, momentum}, 0, sums);
    from.save(gradient, i, count);
    after.save(next_held, i, count);
  }

  void settle(std::size_t begin, std::size_t end) const {
    if constexpr (keeping != Keeping::nothing) {
      for (std::size_t i = begin; i < end; ++i) {
        float value = 0;
        std::memcpy(&value, next_held + i * float_size, float_size);
        value = same_nan(value);
        std::memcpy(next_held + i * float_size, &value, float_size);
      }
    }
  }
};

// `is_finite`: no NaN is expected. Where there is one after all, its block is gathered again, without this.
template <class Element, bool is_held, bool is_finite>
struct GatherPass {
  const std::byte* gradient;
  const std::byte* held;
  std::byte* buffer;
  float scale;
  float inverse;

  [[gnu::always_inline]] Floats at(std::size_t i) const {
    const Floats x = corrected<Element, is_held>(gradient, held, i, scale);
    const Floats sent = x * inverse;
    Element::store_ordered(buffer + i * Element::size, is_finite ? sent : same_nan(sent));
    return magnitude(x);
  }

  [[gnu::always_inline]] void rest(std::size_t i, std::size_t count, Sums& sums) const {
    const PaddedRow<Element::size> from(gradient, i, count);
    const PaddedRow<float_size> before(held, i, count);
    PaddedRow<Element::size> to;
    add_row(GatherPass{from.bytes, before.bytes, to.bytes, scale, inverse}, 0, sums);
    to.save(buffer, i, count);
  }

  void settle(std::size_t begin, std::size_t end) const {
    Sums sums = {};
    add_block(GatherPass<Element, is_held, false>{gradient, held, buffer, scale, inverse}, begin, end, sums);
  }
};

template <class Element>
struct ScatterPass {
  std::byte* gradient;
  const std::byte* buffer;
  float scale;

  [[gnu::always_inline]] Floats at(std::size_t i) const {
    const std::byte* const from = buffer + i * Element::size;
    store<false>(gradient + i * Element::size, load<Raw<Element::size>>(from));
    return magnitude(Element::load_ordered(from) * scale);
  }

  [[gnu::always_inline]] void rest(std::size_t i, std::size_t count, Sums& sums) const {
    const PaddedRow<Element::size> from(buffer, i, count);
    PaddedRow<Element::size> to;
    add_row(ScatterPass{to.bytes, from.bytes, scale}, 0, sums);
    to.save(gradient, i, count);
  }
  void settle(std::size_t /*begin*/, std::size_t /*end*/) const {}
};

inline std::byte* bytes_of(void* pointer) { return static_cast<std::byte*>(pointer); }
inline const std::byte* bytes_of(const void* pointer) { return static_cast<const std::byte*>(pointer); }

template <class Element, bool is_held, Keeping keeping>
double hold_back_as(const HoldBack& call) {
  const HoldBackPass<Element, is_held, keeping> pass{bytes_of(call.gradient), bytes_of(call.held),
                                                     bytes_of(call.next_held), call.scale, call.momentum};
  return add_up(pass, call.count);
}

template <class Element, bool is_held>
double hold_back_of(const HoldBack& call) {
  if (call.next_held == nullptr) {
    return hold_back_as<Element, is_held, Keeping::nothing>(call);
  }
  if (call.store == Store::streaming && bytes_to_line(call.next_held, cache_line) == 0) {
    const double norm = hold_back_as<Element, is_held, Keeping::streaming>(call);
    streaming_fence();
    return norm;
  }
  return hold_back_as<Element, is_held, Keeping::cached>(call);
}

template <class Element>
double hold_back(const HoldBack& call) {
  return call.held == nullptr ? hold_back_of<Element, false>(call) : hold_back_of<Element, true>(call);
}

template <class Element, bool is_held>
double gather_of(const Gather& call) {
  const GatherPass<Element, is_held, true> pass{bytes_of(call.gradient), bytes_of(call.held), bytes_of(call.buffer),
                                                call.scale, 1 / call.scale};
  return add_up(pass, call.count);
}

template <class Element>
double gather(const Gather& call) {
  return call.held == nullptr ? gather_of<Element, false>(call) : gather_of<Element, true>(call);
}

template <class Element>
double scatter(const Scatter& call) {
  return add_up(ScatterPass<Element>{bytes_of(call.gradient), bytes_of(call.buffer), call.scale}, call.count);
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE
