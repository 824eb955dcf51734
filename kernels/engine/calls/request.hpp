// The one place where calls are made: a request from an interface of the library (Python, C) is checked here and
// becomes a Call. An interface converts its caller's values, and checks only what cannot occur in the other one.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "../../collective/call/call.hpp"
#include "communicator.hpp"

namespace gradientflow::engine {

// A tensor of this rank, as flat memory.
struct Array {
  std::byte* data = nullptr;  // only read if it is an input
  std::size_t count = 0;      // elements
  DType dtype = DType::uint8;
  std::optional<collective::Placement> placement = {};  // on a device
};

// The caller's name for a tensor, so that different tensors of equal size are not mistaken for each other: all ranks
// must give the same name and, except in scatter and allgatherv, the same shape.
struct Label {
  std::string_view name;
  std::optional<std::span<const std::size_t>> shape = {};
};

struct Request {
  transport::CallKind kind;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  transport::Algorithm algorithm = transport::Algorithm::automatic;
  std::optional<Wire> wire = {};
  std::vector<std::size_t> counts = {};  // allgatherv: by rank
  std::optional<Label> label = {};
  Array input = {};   // as in collective::Call; ignored if the rank has none
  Array output = {};  // in broadcast, the input too
};

// Throws Error(value) where no memory can hold `count` elements of `element` bytes.
void check_fits(std::size_t count, std::size_t element);

// The checked call, with its path chosen if it is on host memory. Throws Error(value) or Error(type) if it cannot be
// served.
[[nodiscard]] collective::Call make_call(const Communicator& communicator, const Request& request);

}  // namespace gradientflow::engine
