// Announcement of a group's call to all its ranks, and the data that travel with it.
#include "between/pairwise.hpp"
#include "between/pairwise_allreduce.hpp"
#include "group.hpp"

namespace gradientflow::collective {

PartialReduction Group::partial_reduction_of(const transport::Signature& signature) const {
  return {signature.dtype, signature.op, endpoint_->size()};
}

// Returns this node's partial result for a call that the agreement serves, in memory that the node's ranks read later.
std::span<std::byte> Group::payload_of(const Call& call) {
  const bool alone = node_->size() == 1;
  std::byte* const values = alone ? work_->scratch.at(0, call.bytes()) : node_->staging(0, 0);
  std::vector<const void*> sources;
  for (int local = 0; local < node_->size(); ++local) {
    sources.push_back(alone ? call.input : node_->payload(local));
  }
  void* const target = values;
  compute::reduce({&target, 1}, sources, call.signature.count, partial_reduction_of(call.signature).begin());
  return {values, call.bytes()};
}

Statement Group::agree(const Call& call, bool same, Payload payload, PairwiseAllreduce* exchange) {
  const transport::Signature& signature = call.signature;
  const auto leaders = static_cast<std::size_t>(topology_.nodes());
  const auto me = static_cast<std::size_t>(topology_.node());
  const bool mapped = same && (node_->size() == 1 || in_node_memory(signature));
  Statement mine{signature, same, mapped};
  mine.signature.idle = node_->all_idle();
  std::span<std::byte> values;
  if (same && payload == Payload::tensor) {
    values = payload_of(call);
  }
  if (!Agreement::is_direct(topology_.nodes())) {
    const Statement agreed = agreement_->agree_by_doubling(mine, values, partial_reduction_of(signature).join());
    if (agreed.same && !values.empty()) {
      const void* const source = values.data();
      conclude_payload(call, values, {&source, 1});
    }
    return agreed;
  }
  std::vector<std::span<const std::byte>> parts;
  for (std::size_t i = 0; i < leaders && same && payload != Payload::nothing; ++i) {
    parts.push_back(payload == Payload::block    ? std::span(call.input, call.bytes())
                    : payload == Payload::tensor ? values
                                                 : exchange->part_for(i));
  }
  const Statement agreed = agreement_->agree_directly(mine, parts);
  if (agreed.same && !values.empty()) {
    std::vector<const void*> sources(leaders);
    for (std::size_t i = 0; i < leaders; ++i) {
      sources[i] = i == me ? values.data() : agreement_->received(i);
    }
    conclude_payload(call, values, sources);
  }
  return agreed;
}

// Writes the result to the output or, if the node has several ranks, to the payload, which they read.
void Group::conclude_payload(const Call& call, std::span<std::byte> payload, std::span<const void* const> sources) {
  void* const target = node_->size() == 1 ? call.output : payload.data();
  compute::reduce({&target, 1}, sources, call.signature.count, partial_reduction_of(call.signature).finish());
}

bool Group::announce(const Call& call, Payload payload, PairwiseAllreduce* exchange) {
  const transport::Signature& signature = call.signature;
  const std::size_t payload_bytes = payload == Payload::tensor ? call.bytes() : 0;
  transport::Location input;
  transport::Location output;
  if (node_->size() > 1) {
    input = node_->locate(call.input, input_count(call, endpoint_->size(), endpoint_->rank()) * call.element()).first;
    output = node_->locate(call.output, output_count(signature, endpoint_->size(), endpoint_->rank()) * call.element())
                 .first;
  }
  if (topology_.nodes() == 1) {
    node_->exchange(signature, input, output, {}, call.label);
    all_idle_ = node_->all_idle();
    messages_->begin(signature, topology_.local());
    return in_node_memory(signature);
  }
  constexpr std::uint64_t different = 0;
  constexpr std::uint64_t alike = 1;
  constexpr std::uint64_t mapped = 2;
  constexpr std::uint64_t idle = 4;
  messages_->begin(signature, agreement_->leaders());
  const bool same = node_->try_exchange(signature, input, output, {call.input, node_->size() > 1 ? payload_bytes : 0});
  std::uint64_t verdict = different;
  if (node_->rank() == 0) {
    const Statement agreed = agree(call, same, payload, exchange);
    verdict = !agreed.same ? different : alike | (agreed.mapped ? mapped : 0) | (agreed.signature.idle ? idle : 0);
  }
  if (node_->size() > 1) {
    node_->tell(transport::Node::Topic::agreement, verdict);
    node_->synchronize();
    verdict = node_->told(transport::Node::Topic::agreement, 0);
    if (verdict != different && payload_bytes > 0) {
      compute::copy(call.output, node_->staging(0, 0), payload_bytes, compute::Store::cached);
    }
  }
  if (verdict == different) {
    raise_mismatch(call);
  }
  all_idle_ = (verdict & idle) != 0;
  return (verdict & mapped) != 0;
}

// Throws Error(mismatch). All ranks know that calls differ, and exchange their calls for the message.
void Group::raise_mismatch(const Call& call) {
  const transport::CallReport mine(call.signature, call.label);
  std::vector<transport::CallReport> reports(all_ranks_.size());
  const Lane everybody{*messages_, all_ranks_, static_cast<std::size_t>(endpoint_->rank()), segments()};
  messages_->expect(all_ranks_);
  pairwise(everybody, {.signature = {.count = sizeof mine, .kind = transport::CallKind::allgather},
                       .input = reinterpret_cast<const std::byte*>(&mine),
                       .output = reinterpret_cast<std::byte*>(reports.data())});
  throw transport::mismatch_error(reports, all_ranks_);
}

Segments Group::segments() const { return {config_.segment_bytes, static_cast<std::size_t>(config_.window)}; }

bool Group::agree_on(const Call& call) {
  endpoint_->check_not_ended();
  announce({.signature = call.signature, .counts = call.counts, .label = call.label}, Payload::nothing);
  return all_idle_;
}

}  // namespace gradientflow::collective
