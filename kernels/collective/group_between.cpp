// Calls that a group serves by messages between its nodes.
#include "../base/error.hpp"
#include "between/pairwise.hpp"
#include "between/pairwise_allreduce.hpp"
#include "between/recursive_doubling.hpp"
#include "between/ring.hpp"
#include "between/tree.hpp"
#include "group.hpp"
#include "hierarchical.hpp"

namespace gradientflow::collective {

std::optional<std::size_t> Group::run_over_messages(const Call& call, const Choice& choice) {
  if (call.signature.kind == transport::CallKind::allreduce) {
    return allreduce_over_messages(call, choice);
  }
  if (call.signature.kind == transport::CallKind::allgather && choice.path == Path::agreement) {
    gather_by_agreement(call);
    return {};
  }
  announce(call, Payload::nothing);
  const Lane everybody{*messages_, all_ranks_, static_cast<std::size_t>(endpoint_->rank()), segments()};
  messages_->expect(all_ranks_);
  const Shape shape = choice.path == Path::chain ? Shape::chain : Shape::binomial;
  switch (call.signature.kind) {
    case transport::CallKind::reduce_scatter:
      ring_reduce_scatter(everybody, call, work_->scratch);
      return {};
    case transport::CallKind::allgather:
    case transport::CallKind::allgatherv:
      if (choice.path == Path::ring) {
        ring_allgather(everybody, call);
      } else {
        pairwise(everybody, call);
      }
      return {};
    case transport::CallKind::broadcast:
      tree_broadcast(everybody, call, topology_, shape);
      return {};
    case transport::CallKind::reduce:
      tree_reduce(everybody, call, topology_, shape, work_->scratch);
      return {};
    case transport::CallKind::alltoall:
    case transport::CallKind::gather:
    case transport::CallKind::scatter:
      pairwise(everybody, call);
      return {};
    case transport::CallKind::allreduce:
    case transport::CallKind::barrier:
      return {};
  }
  throw Error(ErrorKind::internal, "unknown kind of call");
}

// Gathers blocks along with the agreement, with one rank per node.
void Group::gather_by_agreement(const Call& call) {
  announce(call, Payload::block);
  const std::vector<int>& ranks = agreement_->leaders();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::byte* const block = ranks[i] == endpoint_->rank() ? call.input : agreement_->received(i);
    compute::copy(call.output + static_cast<std::size_t>(ranks[i]) * call.bytes(), block, call.bytes(),
                  compute::Store::cached);
  }
}

std::optional<std::size_t> Group::allreduce_over_messages(const Call& call, const Choice& choice) {
  if (choice.path == Path::agreement) {
    announce(call, call.bytes() > 0 ? Payload::tensor : Payload::nothing);
    return {};
  }
  if (choice.path == Path::hierarchical || choice.path == Path::hierarchical_lanes) {
    const std::size_t nonfinite = run_hierarchical(call, choice, announce(call, Payload::nothing));
    return call.signature.wire && topology_.nodes() > 1 ? std::optional(nonfinite) : std::nullopt;
  }
  const Lane everybody{*messages_, all_ranks_, static_cast<std::size_t>(endpoint_->rank()), segments()};
  Operands operands({call.input}, {call.output}, call.signature.count,
                    {partial_reduction_of(call.signature), call.signature.wire});
  if (choice.path == Path::pairwise) {
    pairwise_over_messages(call, everybody, operands);
  } else {
    announce(call, Payload::nothing);
    messages_->expect(all_ranks_);
    const auto allreduce = choice.path == Path::ring ? ring_allreduce : recursive_doubling;
    allreduce(everybody, operands, work_->scratch);
  }
  return call.signature.wire ? std::optional(operands.nonfinite()) : std::nullopt;
}

// Sends parts along with the agreement if they are small enough.
void Group::pairwise_over_messages(const Call& call, const Lane& everybody, Operands& operands) {
  PairwiseAllreduce exchange(everybody, operands, work_->scratch);
  if (largest_node_ > 1 || !Agreement::is_direct(topology_.nodes()) || exchange.largest_part() > largest_along) {
    announce(call, Payload::nothing);
    messages_->expect(all_ranks_);
    pairwise_allreduce(everybody, operands, work_->scratch);
    return;
  }
  announce(call, Payload::parts, &exchange);
  std::vector<const std::byte*> parts;
  for (std::size_t i = 0; i < all_ranks_.size(); ++i) {
    parts.push_back(agreement_->received(i));
  }
  exchange.finish(parts);
}

std::size_t Group::run_hierarchical(const Call& call, const Choice& choice, bool mapped) {
  const bool lanes = choice.path == Path::hierarchical_lanes;
  const Levels levels{*messages_, *node_, topology_, segments(), lanes, choice.between};
  const std::vector<int> participants = drivers(topology_, lanes);
  messages_->expect(participants);
  if (node_->size() == 1 && mapped) {
    return hierarchical(levels, call, {{call.input}, {call.output}}, work_->scratch);
  }
  if (mapped) {
    const auto inputs = node_->locate(call.input, call.bytes()).second;
    const auto outputs = node_->locate(call.output, call.bytes()).second;
    NodeTensors tensors;
    for (int local = 0; local < node_->size(); ++local) {
      tensors.inputs.push_back(inputs->part(local) + node_->announcement(local).input.offset);
      tensors.outputs.push_back(outputs->part(local) + node_->announcement(local).output.offset);
    }
    const std::size_t nonfinite = hierarchical(levels, call, tensors, work_->scratch);
    node_->check_no_rank_failed();
    return nonfinite;
  }
  if (work_->stretches == nullptr) {
    try {
      work_->stretches = node_->allocate(staging_slots * config_.stretch_bytes);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::memory) {
        throw;
      }
      throw Error(ErrorKind::system, error.what());  // fatal: other nodes may have memory already, and wait
    }
  }
  const std::size_t nonfinite = hierarchical_staged(levels, call, *work_->stretches, work_->scratch);
  node_->check_no_rank_failed();
  return nonfinite;
}

}  // namespace gradientflow::collective
