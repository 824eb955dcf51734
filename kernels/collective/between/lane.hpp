// A lane: the ranks that exchange messages in one algorithm, and the operands of each.
//
// The algorithms between nodes know nothing about nodes. A lane has either all ranks, each with its own tensor, or one
// rank of each node. The operands of such a rank are the tensors of all ranks of its node that are mapped here.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "../../base/dtype.hpp"
#include "../../compute/kernels.hpp"
#include "../../compute/wire.hpp"
#include "../../transport/messages/messages.hpp"
#include "../call/partial_reduction.hpp"
#include "../call/partition.hpp"

namespace gradientflow::collective {

// Largest size of a message in bytes, and the number of messages of one stream that are under way at once.
struct Segments {
  std::size_t bytes;
  std::size_t window;
};

struct Lane {
  transport::Messages& messages;
  std::vector<int> ranks;  // members, in the order of the ring
  std::size_t index;       // index of this rank in `ranks`
  Segments segments;

  [[nodiscard]] std::size_t size() const { return ranks.size(); }
  [[nodiscard]] int right() const { return ranks[(index + 1) % ranks.size()]; }
  [[nodiscard]] int left() const { return ranks[(index + ranks.size() - 1) % ranks.size()]; }
};

// Buffers for segments, kept from call to call.
class Scratch {
 public:
  // Returns buffer `index` with at least `bytes` bytes, aligned to a cache line. A larger size than before invalidates
  // earlier addresses of this buffer.
  [[nodiscard]] std::byte* at(std::size_t index, std::size_t bytes);

 private:
  std::vector<std::vector<std::byte>> buffers_;
};

// Operands of one member of a lane in an allreduce: the tensors of its node, `count` elements each.
class Operands {
 public:
  struct How {
    PartialReduction parts;
    std::optional<Wire> wire;  // none: values are not rounded
  };

  // `outputs.front()` is this rank's own output, and holds partial results. inputs[i] may be outputs[i].
  Operands(std::vector<const std::byte*> inputs, std::vector<std::byte*> outputs, std::size_t count, const How& how);

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t element() const { return element_; }
  [[nodiscard]] bool cast() const { return how_.wire.has_value(); }
  [[nodiscard]] std::size_t segment_bytes(std::size_t count) const {
    return gradientflow::segment_bytes(how_.wire, how_.parts.dtype, count);
  }
  [[nodiscard]] std::size_t segment_values(std::size_t bytes) const {
    return gradientflow::segment_values(how_.wire, how_.parts.dtype, bytes);
  }

  // Computes this member's contribution for elements `range`: its only input, or the reduced inputs, in its output.
  // own() is the address of the contribution, until a function below overwrites it.
  const std::byte* contribute(const Range& range);
  [[nodiscard]] const std::byte* own(const Range& range) const;

  // Computes the contribution in `buffer`, and leaves the output unchanged.
  const std::byte* contribute_into(const Range& range, std::byte* buffer);

  // Returns this rank's output, from which partial results are sent and into which final results are received.
  [[nodiscard]] std::byte* partial(const Range& range) const { return outputs_.front() + range.begin * element_; }

  // partial = received op inputs. `received` is a segment of the wire.
  void combine(const Range& range, const std::byte* received, std::byte* scratch);

  // outputs = (received op inputs), divided for a mean: the final result. With a cast the result is rounded as for the
  // wire.
  void conclude(const Range& range, const std::byte* received, std::byte* scratch);

  // outputs = inputs, reduced and divided, for the only member of a lane.
  void conclude_alone();

  // outputs = (first op second), divided for a mean if `final`, else partial = first op second.
  void merge(const Range& range, const std::byte* first, const std::byte* second, bool final);

  // outputs = all of `operands`, the contributions of all members, reduced and divided. With a cast the result is
  // rounded, and `wire` holds its segment.
  void conclude_all(const Range& range, std::span<const std::byte* const> operands, std::byte* wire);

  // Copies the result, `received` or already in this rank's output (nullptr), to all outputs.
  void deliver(const Range& range, const std::byte* received);

  // Conversion to and from a segment of the wire. Values are final or partial sums. Partial sums of a mean are divided
  // on the wire, to stay in its range.
  void encode(std::byte* wire, const std::byte* values, std::size_t count, bool final) const;
  void decode(std::byte* values, const std::byte* wire, std::size_t count, bool final) const;

  // Returns the number of nonfinite elements among the results that came over the wire or were rounded for it.
  [[nodiscard]] std::size_t nonfinite() const { return nonfinite_; }

 private:
  // Reduces the first `sources` of sources_ into all outputs, or only into this rank's.
  void reduce_sources(const Range& range, std::size_t sources, const compute::Reduction& how, bool everywhere);
  void list_inputs(const Range& range, std::size_t place);  // writes to sources_, from `place` on
  void add_inputs(const Range& range, const std::byte* received, bool final);
  [[nodiscard]] bool contributes_input() const;  // true if the contribution is the input, unchanged

  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::size_t count_;
  How how_;
  std::size_t element_;
  std::size_t nonfinite_ = 0;
  std::vector<const void*> sources_;
  std::vector<void*> targets_;
};

}  // namespace gradientflow::collective
