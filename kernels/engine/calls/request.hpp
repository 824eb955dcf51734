// Checked requests: a request from an interface of the library (Python, C) becomes a Call here, and only here it is
// checked. An interface converts its caller's values, and checks only for errors that no other interface can have.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "../../collective/call/call.hpp"
#include "communicator.hpp"

namespace gradientflow::engine {

// Tensor of this rank, as flat memory.
struct Array {
  std::byte* data = nullptr;  // read-only if an input
  std::size_t count = 0;      // elements
  DType dtype = DType::uint8;
  std::optional<collective::Placement> placement = {};  // device and stream; none: host memory
};

// Caller's name for a tensor, so that different tensors of equal size are not confused: all ranks must give the same
// name and, except in scatter and allgatherv, the same shape.
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
  Array input = {};   // input as in collective::Call; ignored if the rank has none
  Array output = {};  // output as in collective::Call; in broadcast, the input too
};

// Throws Error(value) if no memory can hold `count` elements of `element` bytes.
void check_fits(std::size_t count, std::size_t element);

// Returns the checked call; for host memory its path is chosen too. Throws Error(value) or Error(type) if the call
// cannot be served.
[[nodiscard]] collective::Call make_call(const Communicator& communicator, const Request& request);

}  // namespace gradientflow::engine
