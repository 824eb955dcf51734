// Description of a collective call, by which ranks check that all make the same call.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "../base/dtype.hpp"
#include "../base/error.hpp"
#include "../base/wire.hpp"

namespace gradientflow::transport {

enum class CallKind : std::uint8_t {
  barrier,
  allreduce,
  broadcast,
  reduce,
  allgather,
  reduce_scatter,
  alltoall,
  gather,
  scatter,
  allgatherv
};
inline constexpr int call_kind_count = 10;

enum class Algorithm : std::uint8_t {
  automatic,
  ring,
  hierarchical,
  hierarchical_lanes,
  recursive_doubling,
  shared,
  mpi,
  nccl
};
inline constexpr int algorithm_count = 8;

// Location of a tensor: in memory of the host, or on a CUDA device.
enum class Memory : std::uint8_t { host, device };

// The ranks that have an operand of a call: a tensor, one block of a tensor, or the blocks of all ranks.
enum class Holder : std::uint8_t { none, all, root, others };
struct Operand {
  Holder holder = Holder::none;
  bool has_all_blocks = false;

  [[nodiscard]] constexpr bool is_held(bool by_root) const {
    return holder == Holder::all || holder == (by_root ? Holder::root : Holder::others);
  }
};

// Properties of a kind of call. call_kinds is their only list.
struct KindTraits {
  std::string_view name;
  Operand input = {};
  Operand output = {};
  bool has_op = false;
  bool has_root = false;
  bool is_in_place = false;        // the output may be the input
  bool counts_all_blocks = false;  // the signature counts all blocks together, which may differ in size

  // Report whether a rank gives an input, and whether it gets a result. In place, the tensor is the input on every
  // rank.
  [[nodiscard]] constexpr bool has_input(bool is_root) const { return input.is_held(is_root) || is_in_place; }
  [[nodiscard]] constexpr bool has_result(bool is_root) const { return output.is_held(is_root); }
};

inline constexpr Operand everywhere{Holder::all};
inline constexpr Operand blocks_everywhere{Holder::all, true};
inline constexpr Operand on_root{Holder::root};
inline constexpr Operand blocks_on_root{Holder::root, true};

// In the order of enum class CallKind.
inline constexpr std::array<KindTraits, call_kind_count> call_kinds = {{
    {.name = "barrier"},
    {.name = "allreduce", .input = everywhere, .output = everywhere, .has_op = true, .is_in_place = true},
    {.name = "broadcast", .input = on_root, .output = {Holder::others}, .has_root = true, .is_in_place = true},
    {.name = "reduce", .input = everywhere, .output = on_root, .has_op = true, .has_root = true, .is_in_place = true},
    {.name = "allgather", .input = everywhere, .output = blocks_everywhere},
    {.name = "reduce_scatter",
     .input = blocks_everywhere,
     .output = everywhere,
     .has_op = true,
     .counts_all_blocks = true},
    {.name = "alltoall", .input = blocks_everywhere, .output = blocks_everywhere},
    {.name = "gather", .input = everywhere, .output = blocks_on_root, .has_root = true},
    {.name = "scatter", .input = blocks_on_root, .output = everywhere, .has_root = true},
    {.name = "allgatherv", .input = everywhere, .output = blocks_everywhere, .counts_all_blocks = true},
}};

[[nodiscard]] constexpr const KindTraits& traits_of(CallKind kind) {
  return call_kinds[static_cast<std::size_t>(kind)];
}
[[nodiscard]] std::string_view name_of(CallKind kind);
[[nodiscard]] std::string_view name_of(Algorithm algorithm);
[[nodiscard]] CallKind kind_from_name(std::string_view name);        // throws Error(value)
[[nodiscard]] Algorithm algorithm_from_name(std::string_view name);  // throws Error(value)

// The part of a call on which all ranks must agree.
struct Signature {
  std::uint64_t count = 0;  // elements, see collective::Call
  std::int32_t root = 0;
  CallKind kind = CallKind::barrier;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  std::uint32_t detail = 0;                 // further settings on which the ranks must agree, see below
  std::optional<Wire> wire = std::nullopt;  // rounding of values on their way between nodes; empty: not rounded
  Memory memory = Memory::host;
  bool idle : 1 = false;     // this rank adds only zeros; ranks may differ in this, and all learn whether all are idle
  bool labeled : 1 = false;  // the detail is a hash of the call's label
  bool allocates : 1 = false;  // not a call: memory for every rank of a node, `count` bytes
  bool splits : 1 = false;     // not a call: communicators of some of the ranks

  friend bool operator==(const Signature& a, const Signature& b) {
    return a.count == b.count && a.root == b.root && a.allocates == b.allocates && a.splits == b.splits &&
           a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.algorithm == b.algorithm &&
           a.detail == b.detail && a.wire == b.wire && a.memory == b.memory && a.labeled == b.labeled;
  }
};
static_assert(sizeof(Signature) == 24);

// Detail of a gradient pool's allreduce, or of the barrier at which its ranks meet. For an allgatherv, the detail is a
// hash of the counts; for an allgather or a barrier of a top-k pool, a hash of its settings.
[[nodiscard]] constexpr std::uint32_t pool_detail(std::size_t range) { return static_cast<std::uint32_t>(range) + 1; }
inline constexpr std::uint32_t norms_detail = UINT32_MAX;  // detail of the allreduce of a sparse pool's norms

// Detail of a split: the purpose of the communicator.
enum class MadeFor : std::uint32_t { user, gradient_pool, sparse_pool, top_k_pool, parameter_server };
inline constexpr int made_for_count = 5;

// Describes a call: "allreduce of 1024 float32, op sum"; with its label "allreduce of 'fc1.weight' (32, 32), 1024
// float32, op sum".
[[nodiscard]] std::string describe(const Signature& signature, std::string_view label = {});

// Describes, for errors, a rank that has closed an object that the call needs: "has closed its communicator", or its
// gradient pool.
[[nodiscard]] const char* closing_of(const Signature& signature);

// Returns "rank 3" or "ranks 1, 2, 5".
[[nodiscard]] std::string name_ranks(std::span<const int> ranks);

// Returns an Error of kind mismatch: "the ranks made different WHAT: ranks 0, 2: this; rank 1: that".
[[nodiscard]] Error difference_error(std::string_view what, std::span<const std::string> of_each,
                                     std::span<const int> ranks);

// Call of one rank, sent to all ranks once the calls are known to differ.
struct CallReport {
  CallReport() = default;
  CallReport(const Signature& of_call, std::string_view its_label);
  Signature signature;
  std::array<char, 192> label{};  // text that ends with a zero
};
inline constexpr std::size_t longest_label = sizeof(CallReport::label) - 1;

// Returns difference_error() for calls: reports[i] belongs to ranks[i].
[[nodiscard]] Error mismatch_error(std::span<const CallReport> reports, std::span<const int> ranks);

}  // namespace gradientflow::transport
