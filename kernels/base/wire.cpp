#include "wire.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "error.hpp"

namespace gradientflow {
namespace {

// "float32, float16 or bfloat16": the names from wire `first` on that `takes` keeps.
template <class Takes>
std::string names(std::size_t first, const char* last_comma, const Takes& takes) {
  std::vector<std::string_view> kept;
  for (std::size_t i = first; i < wires.size(); ++i) {
    if (takes(wires[i])) {
      kept.push_back(wires[i].name);
    }
  }
  std::string text;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == kept.size() ? last_comma : ", ") + std::string(kept[i]);
  }
  return text;
}

constexpr auto all = [](const WireTraits&) { return true; };

}  // namespace

Wire wire_from_name(std::string_view name) {
  const auto* const found = std::ranges::find(wires, name, &WireTraits::name);
  if (found == wires.end()) {
    throw Error(ErrorKind::value, "wire is one of " + names(0, ", ", all) + ", not '" + std::string(name) + "'");
  }
  return static_cast<Wire>(found - wires.begin());
}

Wire wire_of(DType dtype) { return wire_from_name(name_of(dtype)); }

DType dtype_of(Wire wire, std::string_view who) {
  const WireTraits& traits = traits_of(wire);
  if (!traits.dtype) {
    throw Error(ErrorKind::value, std::string(who) + " sends values one by one, and those of " +
                                      std::string(traits.name) + " share a scale: take " +
                                      names(0, " or ", [](const WireTraits& each) { return each.dtype.has_value(); }));
  }
  return *traits.dtype;
}

std::optional<Wire> rounding_wire(std::optional<Wire> wire, DType dtype) {
  if (!wire || traits_of(*wire).dtype == dtype ||
      (*wire == Wire::float32 && is_floating(dtype) && size_of(dtype) < traits_of(*wire).element)) {
    return std::nullopt;
  }
  if (dtype != DType::float32) {
    throw Error(ErrorKind::type, "a tensor of " + std::string(name_of(dtype)) + " cannot travel as " +
                                     std::string(traits_of(*wire).name) + ": float32 can, as " + names(1, " or ", all));
  }
  return wire;
}

std::size_t segment_bytes(std::optional<Wire> wire, DType dtype, std::size_t count) {
  if (!wire) {
    return count * size_of(dtype);
  }
  return count == 0 ? 0 : traits_of(*wire).header + count * traits_of(*wire).element;
}

std::size_t segment_values(std::optional<Wire> wire, DType dtype, std::size_t bytes) {
  return wire ? (bytes - traits_of(*wire).header) / traits_of(*wire).element : bytes / size_of(dtype);
}

}  // namespace gradientflow
