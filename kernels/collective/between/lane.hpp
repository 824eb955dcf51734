// A lane: ranks that exchange messages in one algorithm, and what each of them brings.
//
// The algorithms between nodes know nothing about nodes. A lane has one rank of each node, which brings the tensors of
// all ranks of its node, as far as they are mapped here; or it has all ranks, each of which brings its own tensor.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "../../base/dtype.hpp"
#include "../../compute/kernels.hpp"
#include "../../transport/messages/messages.hpp"
#include "../call/partial_reduction.hpp"
#include "../call/partition.hpp"

namespace gradientflow::collective {

// How many bytes a message carries at most, and how many messages of one stream are under way at once.
struct Segments {
  std::size_t bytes;
  std::size_t window;
};

struct Lane {
  transport::Messages& messages;
  std::vector<int> ranks;  // the members, in the order of the ring
  std::size_t index;       // this rank's place among them
  Segments segments;

  [[nodiscard]] std::size_t size() const { return ranks.size(); }
  [[nodiscard]] int right() const { return ranks[(index + 1) % ranks.size()]; }
  [[nodiscard]] int left() const { return ranks[(index + ranks.size() - 1) % ranks.size()]; }
};

// Memory for segments on their way, kept from call to call.
class Scratch {
 public:
  // `bytes` bytes, aligned to a cache line. Where they are more than were asked for with this index before, what was
  // returned then is no longer valid.
  [[nodiscard]] std::byte* at(std::size_t index, std::size_t bytes);

 private:
  std::vector<std::vector<std::byte>> buffers_;
};

// The operands of an allreduce as one member of a lane sees them: the node's tensors, `count` elements each.
class Operands {
 public:
  struct How {
    PartialReduction parts;
    DType wire;  // what the values are rounded to on their way; the dtype itself: not at all
  };

  // `outputs.front()` is this rank's own, in which partial results are kept. inputs[i] may be outputs[i].
  Operands(std::vector<const std::byte*> inputs, std::vector<std::byte*> outputs, std::size_t count, const How& how);

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t element() const { return element_; }
  [[nodiscard]] bool cast() const { return how_.wire != how_.parts.dtype; }
  [[nodiscard]] std::size_t wire_element() const { return size_of(how_.wire); }

  // Computes the values that this member brings for elements `range`: its only input, or what becomes of the inputs,
  // kept in its output. own() is where they lie, until a function below overwrites them.
  const std::byte* bring(const Range& range);
  [[nodiscard]] const std::byte* own(const Range& range) const;

  // The same with `buffer` in place of the output, which stays as it is.
  const std::byte* bring_apart(const Range& range, std::byte* buffer);

  // This rank's output: what partial results are sent from and final ones received in.
  [[nodiscard]] std::byte* partial(const Range& range) const { return outputs_.front() + range.begin * element_; }

  // partial = received op inputs. `received` has the dtype of the wire.
  void combine(const Range& range, const std::byte* received, std::byte* scratch);

  // outputs = (received op inputs), divided for a mean: the final result. With a cast it is rounded as it will be sent.
  void conclude(const Range& range, const std::byte* received, std::byte* scratch);

  // The only member of a lane: outputs = inputs, reduced and divided.
  void conclude_alone();

  // outputs = (first op second), divided for a mean if `final`, else partial = first op second.
  void merge(const Range& range, const std::byte* first, const std::byte* second, bool final);

  // outputs = all of `operands`, values of all members, reduced and divided. With a cast the result is rounded as it
  // will be sent, and left in `wire` as it travels.
  void conclude_all(const Range& range, std::span<const std::byte* const> operands, std::byte* wire);

  // Brings the result, which came as `received` or lies in this rank's output already (nullptr), to all outputs.
  void deliver(const Range& range, const std::byte* received);

  // Values as they travel: partial sums, divided beforehand where they make a mean, so that sums stay in the range of
  // the wire's dtype; or final ones.
  void encode(std::byte* wire, const std::byte* values, std::size_t count, bool final) const;
  void decode(std::byte* values, const std::byte* wire, std::size_t count, bool final) const;

  // Elements of results that came over the wire, or were rounded for it, and are not finite.
  [[nodiscard]] std::size_t nonfinite() const { return nonfinite_; }

 private:
  // The first `sources` of sources_, reduced into all outputs, or into this rank's.
  void reduce_sources(const Range& range, std::size_t sources, const compute::Reduction& how, bool everywhere);
  void list_inputs(const Range& range, std::size_t place);  // in sources_, from `place` on
  void add_inputs(const Range& range, const std::byte* received, bool final);
  [[nodiscard]] bool brings_input() const;  // as it is

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
