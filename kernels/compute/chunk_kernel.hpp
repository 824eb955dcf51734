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
      store<keeping == Keeping::streaming>(next_held + i * float_size, same_nan(x * momentum));
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
};

template <class Element, bool is_held>
struct GatherPass {
  const std::byte* gradient;
  const std::byte* held;
  std::byte* buffer;
  float scale;
  float inverse;

  [[gnu::always_inline]] Floats at(std::size_t i) const {
    const Floats x = corrected<Element, is_held>(gradient, held, i, scale);
    Element::store_ordered(buffer + i * Element::size, same_nan(x * inverse));
    return magnitude(x);
  }

  [[gnu::always_inline]] void rest(std::size_t i, std::size_t count, Sums& sums) const {
    const PaddedRow<Element::size> from(gradient, i, count);
    const PaddedRow<float_size> before(held, i, count);
    PaddedRow<Element::size> to;
    add_row(GatherPass{from.bytes, before.bytes, to.bytes, scale, inverse}, 0, sums);
    to.save(buffer, i, count);
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
};

inline std::byte* bytes_at(void* pointer) { return static_cast<std::byte*>(pointer); }
inline const std::byte* bytes_at(const void* pointer) { return static_cast<const std::byte*>(pointer); }

template <class Element, bool is_held>
double hold_back_of(const HoldBack& call) {
  const auto run = [&]<Keeping keeping>() {
    const HoldBackPass<Element, is_held, keeping> pass{bytes_at(call.gradient), bytes_at(call.held),
                                                       bytes_at(call.next_held), call.scale, call.momentum};
    return add_up(pass, call.count);
  };
  if (call.next_held == nullptr) {
    return run.template operator()<Keeping::nothing>();
  }
  return run.template operator()<Keeping::cached>();
}

template <class Element>
double hold_back(const HoldBack& call) {
  return call.held == nullptr ? hold_back_of<Element, false>(call) : hold_back_of<Element, true>(call);
}

template <class Element, bool is_held>
double gather_of(const Gather& call) {
  const GatherPass<Element, is_held> pass{bytes_at(call.gradient), bytes_at(call.held), bytes_at(call.buffer),
                                          call.scale, 1 / call.scale};
  return add_up(pass, call.count);
}

template <class Element>
double gather(const Gather& call) {
  return call.held == nullptr ? gather_of<Element, false>(call) : gather_of<Element, true>(call);
}

template <class Element>
double scatter(const Scatter& call) {
  return add_up(ScatterPass<Element>{bytes_at(call.gradient), bytes_at(call.buffer), call.scale}, call.count);
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE
