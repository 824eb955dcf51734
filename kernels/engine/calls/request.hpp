// The one place where a call is made: what a door of the library (Python, C) is asked for is checked here, and becomes
// a Call. A door converts its caller's values, and checks only what no other door can be given.
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
  std::byte* data = nullptr;  // only read where it is an input
  std::size_t count = 0;      // elements
  DType dtype = DType::uint8;
  std::optional<collective::Placement> placement = {};  // on a device
};

// What the caller calls a tensor, so that calls of equal size do not pass for each other: all ranks must give the same
// name and, where all have a tensor of one shape (not in scatter and allgatherv), the same shape.
struct Label {
  std::string_view name;
  std::optional<std::span<const std::size_t>> shape = {};
};

struct Request {
  transport::CallKind kind;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  transport::Algorithm algorithm = transport::Algorithm::automatic;
  std::optional<DType> wire = {};
  std::vector<std::size_t> counts = {};  // allgatherv: by rank
  std::optional<Label> label = {};
  Array input = {};   // as collective::Call says; not looked at where the rank has none
  Array output = {};  // in broadcast the input
};

// Whether a rank, or the root, puts a tensor in; whether it gets a result; whether the two may be the same memory.
[[nodiscard]] bool has_input(transport::CallKind kind, bool is_root);
[[nodiscard]] bool has_result(transport::CallKind kind, bool is_root);
[[nodiscard]] bool works_in_place(transport::CallKind kind);

// Throws Error(value) where no memory can hold `count` elements of `element` bytes.
void check_fits(std::size_t count, std::size_t element);

// The call, with the way that it goes. Throws Error(value) or Error(type) where it cannot be served.
[[nodiscard]] collective::Call make_call(const Communicator& communicator, const Request& request);

}  // namespace gradientflow::engine
