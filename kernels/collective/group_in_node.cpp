// Calls that a group serves inside its node.
#include <algorithm>
#include <utility>

#include "group.hpp"
#include "in_node/one_pass.hpp"
#include "in_node/peer_memory.hpp"
#include "in_node/read_peers.hpp"
#include "in_node/staged.hpp"

namespace gradientflow::collective {

bool Group::can_begin(const Call& call) {
  return call.choice && (call.choice->path == Path::announcement || call.choice->path == Path::alone);
}

bool Group::is_short(const Call& call) {
  return call.choice &&
         (call.choice->path == Path::announcement || (call.choice->path == Path::alone && call.output == call.input));
}

void Group::begin(const Call& call) {
  if (call.choice && call.choice->path == Path::announcement) {
    announce_inline(call);
  }
}

CallResult Group::finish(const Call& call, const std::function<void()>& before_more) {
  const Choice& choice = *call.choice;  // NOLINT(bugprone-unchecked-optional-access): can_begin() has seen it
  const bool alone = choice.path == Path::alone;
  alone ? run_alone(call) : finish_inline(call, before_more);
  if (config_.debug) {
    report(call, choice);
  }
  return {name_of(choice.path), {}, 0, alone ? call.signature.idle : all_idle_};
}

void Group::run_alone(const Call& call) {
  const std::size_t bytes = output_count(call.signature, 1, 0) * call.element();
  if (call.output != nullptr && call.output != call.input) {
    compute::copy(call.output, call.input, bytes, compute::Store::cached);
  }
}

void Group::announce_inline(const Call& call) {
  const std::size_t bytes = input_count(call, endpoint_->size(), endpoint_->rank()) * call.element();
  const bool sends = transport::traits_of(call.signature.kind).input.is_held(call.signature.root == endpoint_->rank());
  node_->announce(call.signature, {}, {}, {call.input, sends ? bytes : 0});
}

void Group::finish_inline(const Call& call, const std::function<void()>& before_more) {
  node_->confirm(call.label, before_more);
  all_idle_ = node_->all_idle();
  read_peers(*node_, call, PeerMemory::payloads(*node_), compute::Store::cached);
}

// Tells if all announced inputs, and all outputs that peers write to, lie in one segment.
bool Group::in_node_memory(const transport::Signature& signature) const {
  const std::uint32_t inputs = node_->announcement(0).input.segment;
  const int root = node_->local_rank_of(signature.root);
  const std::uint32_t outputs = node_->announcement(std::max(root, 0)).output.segment;
  bool mapped = inputs != 0;
  for (int local = 0; local < node_->size(); ++local) {
    mapped = mapped && node_->announcement(local).input.segment == inputs;
    if (signature.kind == transport::CallKind::allreduce) {
      mapped = mapped && outputs != 0 && node_->announcement(local).output.segment == outputs;
    } else if (signature.kind == transport::CallKind::reduce) {
      mapped = mapped && outputs == inputs;
    }
  }
  return mapped;
}

Choice Group::run_in_node(const Call& call, Choice choice) {
  const std::size_t bytes = input_count(call, endpoint_->size(), endpoint_->rank()) * call.element();
  const auto [input, input_segment] = node_->locate(call.input, bytes);
  const auto [output, output_segment] =
      call.output == call.input ? std::pair(input, input_segment) : node_->locate(call.output, call.bytes());
  node_->exchange(call.signature, input, output, {}, call.label);
  all_idle_ = node_->all_idle();
  const bool mapped = in_node_memory(call.signature);
  choice = mapped ? in_one_segment : choice;
  const auto store = call.bytes() >= config_.streaming_bytes ? compute::Store::streaming : compute::Store::cached;
  const bool pulls =
      call.signature.kind != transport::CallKind::allreduce && call.signature.kind != transport::CallKind::reduce;
  if (choice.path == Path::staged) {
    staged(*node_, call);
  } else if (pulls) {
    read_peers(*node_, call,
               mapped ? PeerMemory::mapped(*node_, Tensor::input, *input_segment) : PeerMemory::direct(*node_), store);
    node_->synchronize();
  } else {
    // In a reduce the root's output lies in the segment of the inputs; its peers may have no output.
    const transport::Segment& results =
        output_segment != nullptr && call.signature.kind == transport::CallKind::allreduce ? *output_segment
                                                                                           : *input_segment;
    one_pass(*node_, call, PeerMemory::mapped(*node_, Tensor::input, *input_segment),
             PeerMemory::mapped(*node_, Tensor::output, results), store);
  }
  node_->check_no_rank_failed();
  return choice;
}

}  // namespace gradientflow::collective
