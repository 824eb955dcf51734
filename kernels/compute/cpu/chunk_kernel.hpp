// Kernels of a chunk, see chunks.hpp: update of its residual, gather and scatter.
#pragma once

#include "norm_kernel.hpp"

namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE {
namespace {

constexpr std::size_t float_size = sizeof(float);

// A vector of elements of `size` bytes, of any type.
template <std::size_t size>
using Raw = Vector<std::uint8_t, lanes * size>;

// Returns gradient * scale, plus the residual if there is one.
template <class Element, bool has_residual>
[[gnu::always_inline]] inline Floats corrected(const std::byte* gradient, const std::byte* residual, std::size_t i,
                                               float scale) {
  const Floats fresh = Element::load_ordered(gradient + i * Element::size) * scale;
  if constexpr (has_residual) {
    return fresh + load<Floats>(residual + i * float_size);
  } else {
    return fresh;
  }
}

enum class Keeping { nothing, cached, streaming };

template <class Element, bool has_residual, Keeping keeping>
struct UpdateResidualPass {
  std::byte* gradient;
  const std::byte* residual;
  std::byte* next_residual;
  float scale;
  float momentum;

  [[gnu::always_inline]] Floats at(std::size_t i) const {
    const Floats x = corrected<Element, has_residual>(gradient, residual, i, scale);
    if constexpr (keeping != Keeping::nothing) {
      store<keeping == Keeping::streaming>(next_residual + i * float_size, x * momentum);
    }
    store<false>(gradient + i * Element::size, Raw<Element::size>{});
    return magnitude(x);
  }

  [[gnu::always_inline]] void rest(std::size_t i, std::size_t count, Sums& sums) const {
    PaddedRow<Element::size> from(gradient, i, count);
    const PaddedRow<float_size> before(residual, i, count);
    PaddedRow<float_size> after;
    constexpr Keeping cached = keeping == Keeping::nothing ? keeping : Keeping::cached;
    add_row(UpdateResidualPass<Element, has_residual, cached>{from.bytes, before.bytes, after.bytes, scale, momentum},
            0, sums);
    from.save(gradient, i, count);
    after.save(next_residual, i, count);
  }

  void canonicalize_nans(std::size_t begin, std::size_t end) const {
    if constexpr (keeping != Keeping::nothing) {
      for (std::size_t i = begin; i < end; ++i) {
        float value = 0;
        std::memcpy(&value, next_residual + i * float_size, float_size);
        value = canonical_nan(value);
        std::memcpy(next_residual + i * float_size, &value, float_size);
      }
    }
  }
};

// `is_finite`: assumes that there is no NaN. A block with a NaN is gathered again, without this assumption.
template <class Element, bool has_residual, bool is_finite>
struct GatherPass {
  const std::byte* gradient;
  const std::byte* residual;
  std::byte* buffer;
  float scale;
  float inverse;

  [[gnu::always_inline]] Floats at(std::size_t i) const {
    const Floats x = corrected<Element, has_residual>(gradient, residual, i, scale);
    const Floats sent = x * inverse;
    Element::store_ordered(buffer + i * Element::size, is_finite ? sent : canonical_nan(sent));
    return magnitude(x);
  }

  [[gnu::always_inline]] void rest(std::size_t i, std::size_t count, Sums& sums) const {
    const PaddedRow<Element::size> from(gradient, i, count);
    const PaddedRow<float_size> before(residual, i, count);
    PaddedRow<Element::size> to;
    add_row(GatherPass{from.bytes, before.bytes, to.bytes, scale, inverse}, 0, sums);
    to.save(buffer, i, count);
  }

  void canonicalize_nans(std::size_t begin, std::size_t end) const {
    Sums sums = {};
    add_block(GatherPass<Element, has_residual, false>{gradient, residual, buffer, scale, inverse}, begin, end, sums);
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
  void canonicalize_nans(std::size_t /*begin*/, std::size_t /*end*/) const {}
};

inline std::byte* bytes_of(void* pointer) { return static_cast<std::byte*>(pointer); }
inline const std::byte* bytes_of(const void* pointer) { return static_cast<const std::byte*>(pointer); }

template <class Element, bool has_residual, Keeping keeping>
double update_residual_as(const UpdateResidual& call) {
  const UpdateResidualPass<Element, has_residual, keeping> pass{
      bytes_of(call.gradient), bytes_of(call.residual), bytes_of(call.next_residual), call.scale, call.momentum};
  return add_up(pass, call.count);
}

template <class Element, bool has_residual>
double update_residual_of(const UpdateResidual& call) {
  if (call.next_residual == nullptr) {
    return update_residual_as<Element, has_residual, Keeping::nothing>(call);
  }
  if (call.store == Store::streaming && bytes_to_line(call.next_residual, cache_line) == 0) {
    const double norm = update_residual_as<Element, has_residual, Keeping::streaming>(call);
    streaming_fence();
    return norm;
  }
  return update_residual_as<Element, has_residual, Keeping::cached>(call);
}

template <class Element>
double update_residual(const UpdateResidual& call) {
  return call.residual == nullptr ? update_residual_of<Element, false>(call) : update_residual_of<Element, true>(call);
}

template <class Element, bool has_residual>
double gather_of(const Gather& call) {
  const GatherPass<Element, has_residual, true> pass{bytes_of(call.gradient), bytes_of(call.residual),
                                                     bytes_of(call.buffer), call.scale, 1 / call.scale};
  return add_up(pass, call.count);
}

template <class Element>
double gather(const Gather& call) {
  return call.residual == nullptr ? gather_of<Element, false>(call) : gather_of<Element, true>(call);
}

template <class Element>
double scatter(const Scatter& call) {
  return add_up(ScatterPass<Element>{bytes_of(call.gradient), bytes_of(call.buffer), call.scale}, call.count);
}

}  // namespace
}  // namespace gradientflow::compute::GRADIENTFLOW_SIMD_NAMESPACE
