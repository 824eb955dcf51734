// What a rank says about a collective call it makes, so that every rank can see that all ranks make the same one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "../base/dtype.hpp"
#include "../base/error.hpp"

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
  allgatherv,
  allocate,
  split
};
inline constexpr int call_kind_count = 12;

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

// Where a tensor is: in memory of the host, or on a CUDA device.
enum class Memory : std::uint8_t { host, device };

[[nodiscard]] std::string_view name_of(CallKind kind);
[[nodiscard]] std::string_view name_of(Algorithm algorithm);
[[nodiscard]] CallKind kind_from_name(std::string_view name);        // throws Error(value)
[[nodiscard]] Algorithm algorithm_from_name(std::string_view name);  // throws Error(value)

[[nodiscard]] bool has_op(CallKind kind);
[[nodiscard]] bool has_root(CallKind kind);

// The part of a call on which all ranks must agree.
struct Signature {
  std::uint64_t count = 0;  // elements, see collective::Call; bytes for allocate
  std::int32_t root = 0;
  CallKind kind = CallKind::barrier;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  std::uint32_t detail = 0;                  // what else they must agree on, see below
  std::optional<DType> wire = std::nullopt;  // what values are rounded to on their way between nodes; empty: not at all
  Memory memory = Memory::host;
  bool idle : 1 = false;      // this rank adds zeros only: ranks may differ here, and all hear whether all are idle
  bool labelled : 1 = false;  // the detail is a hash of the call's label

  friend bool operator==(const Signature& a, const Signature& b) {
    return a.count == b.count && a.root == b.root && a.kind == b.kind && a.dtype == b.dtype && a.op == b.op &&
           a.algorithm == b.algorithm && a.detail == b.detail && a.wire == b.wire && a.memory == b.memory &&
           a.labelled == b.labelled;
  }
};
static_assert(sizeof(Signature) == 24);

// The detail of a gradient pool's allreduce, or of the barrier at which its ranks meet. Of an allgatherv it is a hash
// of the counts, of an allgather or a barrier of a top-k pool a hash of its settings.
[[nodiscard]] constexpr std::uint32_t pool_detail(std::size_t range) { return static_cast<std::uint32_t>(range) + 1; }
inline constexpr std::uint32_t norms_detail = UINT32_MAX;  // of the allreduce of norms of a sparse pool

// The detail of a split: what the communicator is for.
enum class MadeFor : std::uint32_t { user, gradient_pool, sparse_pool, top_k_pool, parameter_server };
inline constexpr int made_for_count = 5;

// "allreduce of 1024 float32, op sum"; with its label "allreduce of 'fc1.weight' (32, 32), 1024 float32, op sum".
[[nodiscard]] std::string describe(const Signature& signature, std::string_view label = {});

// How errors describe a rank that has closed what a call needs: "has closed its communicator", or its gradient pool.
[[nodiscard]] const char* closing_of(const Signature& signature);

// "rank 3" or "ranks 1, 2, 5"
[[nodiscard]] std::string name_ranks(std::span<const int> ranks);

// An Error of kind mismatch: "the ranks made different WHAT: ranks 0, 2: this; rank 1: that".
[[nodiscard]] Error difference_error(std::string_view what, std::span<const std::string> of_each,
                                     std::span<const int> ranks);

// What each rank tells the others about its call once the calls are known to differ.
struct CallReport {
  CallReport() = default;
  CallReport(const Signature& of_call, std::string_view its_label);
  Signature signature;
  std::array<char, 192> label{};  // ends with a zero
};
inline constexpr std::size_t longest_label = sizeof(CallReport::label) - 1;

// difference_error() for calls: reports[i] is that of ranks[i].
[[nodiscard]] Error mismatch_error(std::span<const CallReport> reports, std::span<const int> ranks);

}  // namespace gradientflow::transport
