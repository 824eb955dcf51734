#include "group.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>

#include "../base/error.hpp"
#include "between/clock.hpp"
#include "between/mpi_collective.hpp"
#include "between/pairwise.hpp"
#include "between/pairwise_allreduce.hpp"
#include "between/recursive_doubling.hpp"
#include "between/ring.hpp"
#include "between/tree.hpp"
#include "hierarchical.hpp"
#include "in_node/one_pass.hpp"
#include "in_node/peer_memory.hpp"
#include "in_node/read_peers.hpp"
#include "in_node/staged.hpp"

namespace gradientflow::collective {
namespace {

using transport::CallKind;
using transport::Signature;

// Every rank selects the path of a call by itself, so these settings must be the same on all ranks.
constexpr std::array<std::string_view, 16> agreed_fields = {
    "node_size",     "direct_read",      "inline_bytes",      "staging_bytes",  "direct_read_bytes", "streaming_bytes",
    "segment_bytes", "window",           "stretch_bytes",     "doubling_bytes", "ring_bytes",        "timeline",
    "progress",      "host_piece_bytes", "device_slot_bytes", "peer_bytes"};

}  // namespace

Group::Group(MPI_Comm comm, const Config& config) : config_(config), mpi_(comm, config.timeout) {
  check_configuration();
  topology_ = transport::group_ranks(mpi_.allgather(transport::host_key()), mpi_.rank(), config_.node_size);
  topology_.pids = mpi_.allgather(getpid());
  std::string reason;
  node_ = transport::Node::join(mpi_, topology_, config_, reason);
  if (node_ == nullptr) {
    topology_ = transport::isolate_ranks(topology_, reason);
    node_ = transport::Node::join(mpi_, topology_, config_, reason);
    if (node_ == nullptr) {
      throw Error(ErrorKind::system, reason);
    }
  }
  const auto by_size = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  const auto [smallest, largest] = std::minmax_element(topology_.members.begin(), topology_.members.end(), by_size);
  smallest_node_ = static_cast<int>(smallest->size());
  largest_node_ = static_cast<int>(largest->size());
  messages_ = std::make_unique<transport::Messages>(mpi_, *node_, topology_, config_.timeout);
  std::vector<int> leaders;
  for (const auto& members : topology_.members) {
    leaders.push_back(members.front());
  }
  agreement_ = std::make_unique<Agreement>(*messages_, std::move(leaders), static_cast<std::size_t>(topology_.node()));
  everybody_.resize(static_cast<std::size_t>(mpi_.size()));
  std::iota(everybody_.begin(), everybody_.end(), 0);
  probe_direct_reads();
}

// Memory that MPI may still read or write, because a message was abandoned, is leaked on purpose.
Group::~Group() {
  if (has_abandoned_requests()) {
    static_cast<void>(agreement_.release());
    static_cast<void>(work_.release());
  }
}

void Group::check_configuration() const {
  using Text = std::array<char, 32>;
  std::array<Text, agreed_fields.size()> mine{};
  for (std::size_t i = 0; i < agreed_fields.size(); ++i) {
    get_field(config_, agreed_fields.at(i)).copy(mine.at(i).data(), sizeof(Text) - 1);
  }
  const auto all = mpi_.allgather(mine);
  for (std::size_t i = 0; i < agreed_fields.size(); ++i) {
    const auto other =
        std::find_if(all.begin(), all.end(), [&](const auto& theirs) { return theirs.at(i) != all.front().at(i); });
    if (other != all.end()) {
      throw Error(ErrorKind::mismatch, "setting " + std::string(agreed_fields.at(i)) +
                                           " differs between ranks: " + all.front().at(i).data() + " on rank 0, " +
                                           other->at(i).data() + " on rank " + std::to_string(other - all.begin()));
    }
  }
}

// Every rank reads a few bytes of every other rank of its node. All must succeed.
void Group::probe_direct_reads() {
  const std::uint64_t mine = 0x6772616466ULL + static_cast<std::uint64_t>(mpi_.rank());
  const std::vector<std::uintptr_t> addresses = mpi_.allgather(reinterpret_cast<std::uintptr_t>(&mine));
  int refused = 0;
  try {
    for (int local = 0; local < node_->size(); ++local) {
      std::uint64_t theirs = 0;
      const int rank = node_->world_rank(local);
      if (local != node_->rank()) {
        const auto* const address = reinterpret_cast<const void*>(addresses[static_cast<std::size_t>(rank)]);
        node_->read(local, &theirs, address, sizeof theirs);
        if (theirs != 0x6772616466ULL + static_cast<std::uint64_t>(rank)) {
          throw Error(ErrorKind::system, "process_vm_readv of rank " + std::to_string(rank) + " read something else");
        }
      }
    }
  } catch (const Error& error) {
    refused = 1;
    direct_read_remark_ = error.what();
  }
  const std::vector<int> refusals = mpi_.allgather(refused);
  const auto refusing = std::find(refusals.begin(), refusals.end(), 1);
  direct_read_allowed_ = config_.direct_read && refusing == refusals.end();
  if (!config_.direct_read) {
    direct_read_remark_ = "switched off (GRADIENTFLOW_DIRECT_READ)";
  } else if (!direct_read_allowed_ && direct_read_remark_.empty()) {
    direct_read_remark_ = "refused on rank " + std::to_string(refusing - refusals.begin());
  }
}

Situation Group::situation(const Signature& signature, bool in_node_memory) const {
  return {.kind = signature.kind,
          .algorithm = signature.algorithm,
          .bytes = largest_input(signature, mpi_.size()),
          .wire = signature.wire.has_value(),
          .ranks = mpi_.size(),
          .nodes = topology_.nodes(),
          .smallest_node = smallest_node_,
          .largest_node = largest_node_,
          .in_node_memory = in_node_memory,
          .direct_read_allowed = direct_read_allowed_};
}

// Node memory that MPI may still read or write, because a message was abandoned, is leaked on purpose.
Outcome Group::run(const Call& call) {
  const std::uint64_t before = messages_->bytes_sent();
  try {
    Outcome outcome = serve(call);
    if (outcome.path != Path::mpi) {
      outcome.bytes_sent = messages_->bytes_sent() - before;
    }
    outcome.idle = outcome.path == Path::alone ? call.signature.idle : all_idle_;
    return outcome;
  } catch (...) {
    if (has_abandoned_requests()) {
      for (const std::byte* const tensor : {call.input, static_cast<const std::byte*>(call.output)}) {
        static_cast<void>(new auto(node_->locate(tensor, 0).second));  // NOLINT(*-owning-memory): on purpose
      }
    }
    throw;
  }
}

Outcome Group::serve(const Call& call) {
  Choice choice = call.choice ? *call.choice : choose(call.signature, false);
  Outcome outcome{choice.path, {}, {}};
  switch (choice.path) {
    case Path::alone:
      run_alone(call);
      break;
    case Path::announcement:
      announce_inline(call);
      finish_inline(call);
      break;
    case Path::node_memory:
    case Path::direct:
    case Path::staged:
      choice = run_in_node(call, choice);
      outcome.path = choice.path;
      break;
    case Path::mpi:
      mpi_.check_not_finalized();
      announce(call, Payload::nothing);
      mpi_collective(mpi_, call);
      break;
    case Path::agreement:
    case Path::recursive_doubling:
    case Path::ring:
    case Path::hierarchical:
    case Path::hierarchical_lanes:
    case Path::binomial:
    case Path::chain:
    case Path::pairwise:
      mpi_.check_not_finalized();
      outcome.nonfinite = run_over_messages(call, choice);
      break;
    case Path::device_memory:
    case Path::device_staged:
    case Path::nccl:
    case Path::nccl_hierarchical:
    case Path::through_host:
      throw Error(ErrorKind::internal, "a call on tensors of a device came to the collectives of the host");
  }
  if (config_.debug) {
    report(call, choice);
  }
  return outcome;
}

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

Outcome Group::finish(const Call& call, const std::function<void()>& before_more) {
  const Choice& choice = *call.choice;  // NOLINT(bugprone-unchecked-optional-access): can_begin() has seen it
  const bool alone = choice.path == Path::alone;
  alone ? run_alone(call) : finish_inline(call, before_more);
  if (config_.debug) {
    report(call, choice);
  }
  return {choice.path, {}, 0, alone ? call.signature.idle : all_idle_};
}

void Group::report(const Call& call, const Choice& choice) const {
  if (mpi_.rank() == 0) {
    const bool two_levels = choice.path == Path::hierarchical || choice.path == Path::hierarchical_lanes;
    std::ostringstream line;
    line << "gradientflow: " << describe(call.signature, call.label) << ": " << name_of(choice.path);
    if (two_levels) {
      line << " with " << name_of(choice.between) << " between nodes";
    }
    line << ", " << choice.reason << "\n";
    std::fputs(line.str().c_str(), stderr);
  }
}

void Group::interrupt() noexcept {
  node_->interrupt();
  mpi_.interrupt();
}

void Group::close() noexcept {
  node_->close();
  messages_->tell_closed();
}

void Group::fail(const Error& reason) noexcept {
  node_->fail(reason);
  messages_->tell_failed(reason);
}

PartialReduction Group::partial_reduction_of(const Signature& signature) const {
  return {signature.dtype, signature.op, mpi_.size()};
}

// This node's partial result for a call that the agreement serves, in memory that the node's ranks read later.
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
  const Signature& signature = call.signature;
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

// Writes the result to the output or, if the node has other ranks, to the payload, which they read.
void Group::conclude_payload(const Call& call, std::span<std::byte> payload, std::span<const void* const> sources) {
  void* const target = node_->size() == 1 ? call.output : payload.data();
  compute::reduce({&target, 1}, sources, call.signature.count, partial_reduction_of(call.signature).finish());
}

bool Group::announce(const Call& call, Payload payload, PairwiseAllreduce* exchange) {
  const Signature& signature = call.signature;
  const std::size_t payload_bytes = payload == Payload::tensor ? call.bytes() : 0;
  transport::Location input;
  transport::Location output;
  if (node_->size() > 1) {
    input = node_->locate(call.input, input_count(call, mpi_.size(), mpi_.rank()) * call.element()).first;
    output = node_->locate(call.output, output_count(signature, mpi_.size(), mpi_.rank()) * call.element()).first;
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

// All ranks know that some made a different call, and come here to tell each other which.
void Group::raise_mismatch(const Call& call) {
  const transport::CallReport mine(call.signature, call.label);
  std::vector<transport::CallReport> reports(everybody_.size());
  const Lane everybody{*messages_, everybody_, static_cast<std::size_t>(mpi_.rank()), segments()};
  messages_->expect(everybody_);
  pairwise(everybody, {.signature = {.count = sizeof mine, .kind = CallKind::allgather},
                       .input = reinterpret_cast<const std::byte*>(&mine),
                       .output = reinterpret_cast<std::byte*>(reports.data())});
  throw transport::mismatch_error(reports, everybody_);
}

std::optional<std::size_t> Group::run_over_messages(const Call& call, const Choice& choice) {
  if (call.signature.kind == CallKind::allreduce) {
    return allreduce_over_messages(call, choice);
  }
  if (call.signature.kind == CallKind::allgather && choice.path == Path::agreement) {
    gather_by_agreement(call);
    return {};
  }
  announce(call, Payload::nothing);
  const Lane everybody{*messages_, everybody_, static_cast<std::size_t>(mpi_.rank()), segments()};
  messages_->expect(everybody_);
  const Shape shape = choice.path == Path::chain ? Shape::chain : Shape::binomial;
  switch (call.signature.kind) {
    case CallKind::reduce_scatter:
      ring_reduce_scatter(everybody, call, work_->scratch);
      return {};
    case CallKind::allgather:
    case CallKind::allgatherv:
      if (choice.path == Path::ring) {
        ring_allgather(everybody, call);
      } else {
        pairwise(everybody, call);
      }
      return {};
    case CallKind::broadcast:
      tree_broadcast(everybody, call, topology_, shape);
      return {};
    case CallKind::reduce:
      tree_reduce(everybody, call, topology_, shape, work_->scratch);
      return {};
    case CallKind::alltoall:
    case CallKind::gather:
    case CallKind::scatter:
      pairwise(everybody, call);
      return {};
    case CallKind::allreduce:
    case CallKind::barrier:
    case CallKind::allocate:
    case CallKind::split:
      return {};
  }
  throw Error(ErrorKind::internal, "unknown kind of call");
}

// One rank on each node: the blocks travel with the agreement.
void Group::gather_by_agreement(const Call& call) {
  announce(call, Payload::block);
  const std::vector<int>& ranks = agreement_->leaders();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::byte* const block = ranks[i] == mpi_.rank() ? call.input : agreement_->received(i);
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
  const Lane everybody{*messages_, everybody_, static_cast<std::size_t>(mpi_.rank()), segments()};
  Operands operands({call.input}, {call.output}, call.signature.count,
                    {partial_reduction_of(call.signature), call.signature.wire.value_or(call.signature.dtype)});
  if (choice.path == Path::pairwise) {
    pairwise_over_messages(call, everybody, operands);
  } else {
    announce(call, Payload::nothing);
    messages_->expect(everybody_);
    const auto allreduce = choice.path == Path::ring ? ring_allreduce : recursive_doubling;
    allreduce(everybody, operands, work_->scratch);
  }
  return call.signature.wire ? std::optional(operands.nonfinite()) : std::nullopt;
}

// Small enough parts travel with the agreement.
void Group::pairwise_over_messages(const Call& call, const Lane& everybody, Operands& operands) {
  PairwiseAllreduce exchange(everybody, operands, work_->scratch);
  if (largest_node_ > 1 || !Agreement::is_direct(topology_.nodes()) || exchange.largest_part() > largest_along) {
    announce(call, Payload::nothing);
    messages_->expect(everybody_);
    pairwise_allreduce(everybody, operands, work_->scratch);
    return;
  }
  announce(call, Payload::parts, &exchange);
  std::vector<const std::byte*> parts;
  for (std::size_t i = 0; i < everybody_.size(); ++i) {
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
    node_->check_nobody_failed();
    return nonfinite;
  }
  if (work_->stretches == nullptr) {
    try {
      work_->stretches = node_->allocate(staging_slots * config_.stretch_bytes);
    } catch (const Error& error) {  // fatal: other nodes may have theirs, and wait
      throw Error(ErrorKind::system, error.what());
    }
  }
  const std::size_t nonfinite = hierarchical_staged(levels, call, *work_->stretches, work_->scratch);
  node_->check_nobody_failed();
  return nonfinite;
}

Segments Group::segments() const { return {config_.segment_bytes, static_cast<std::size_t>(config_.window)}; }

void Group::run_alone(const Call& call) {
  const std::size_t bytes = output_count(call.signature, 1, 0) * call.element();
  if (call.output != nullptr && call.output != call.input) {
    compute::copy(call.output, call.input, bytes, compute::Store::cached);
  }
}

void Group::announce_inline(const Call& call) {
  const std::size_t bytes = input_count(call, mpi_.size(), mpi_.rank()) * call.element();
  const bool from_root = call.signature.kind == CallKind::broadcast || call.signature.kind == CallKind::scatter;
  const bool sends = !from_root || call.signature.root == mpi_.rank();
  node_->announce(call.signature, {}, {}, {call.input, sends ? bytes : 0});
}

void Group::finish_inline(const Call& call, const std::function<void()>& before_more) {
  node_->confirm(call.label, before_more);
  all_idle_ = node_->all_idle();
  read_peers(*node_, call, PeerMemory::payloads(*node_), compute::Store::cached);
}

// By the announcements: whether the inputs of all ranks lie in one segment, and the outputs that others write to, too.
bool Group::in_node_memory(const Signature& signature) const {
  const std::uint32_t inputs = node_->announcement(0).input.segment;
  const int root = node_->local_rank_of(signature.root);
  const std::uint32_t outputs = node_->announcement(std::max(root, 0)).output.segment;
  bool mapped = inputs != 0;
  for (int local = 0; local < node_->size(); ++local) {
    mapped = mapped && node_->announcement(local).input.segment == inputs;
    if (signature.kind == CallKind::allreduce) {
      mapped = mapped && outputs != 0 && node_->announcement(local).output.segment == outputs;
    } else if (signature.kind == CallKind::reduce) {
      mapped = mapped && outputs == inputs;
    }
  }
  return mapped;
}

Choice Group::run_in_node(const Call& call, Choice choice) {
  const std::size_t bytes = input_count(call, mpi_.size(), mpi_.rank()) * call.element();
  const auto [input, input_segment] = node_->locate(call.input, bytes);
  const auto [output, output_segment] =
      call.output == call.input ? std::pair(input, input_segment) : node_->locate(call.output, call.bytes());
  node_->exchange(call.signature, input, output, {}, call.label);
  all_idle_ = node_->all_idle();
  const bool mapped = in_node_memory(call.signature);
  choice = mapped ? in_one_segment : choice;
  const auto store = call.bytes() >= config_.streaming_bytes ? compute::Store::streaming : compute::Store::cached;
  const bool pulls = call.signature.kind != CallKind::allreduce && call.signature.kind != CallKind::reduce;
  if (choice.path == Path::staged) {
    staged(*node_, call);
  } else if (pulls) {
    read_peers(*node_, call,
               mapped ? PeerMemory::mapped(*node_, Tensor::input, *input_segment) : PeerMemory::direct(*node_), store);
    node_->synchronize();
  } else {
    // In a reduce the root's output lies in the segment of the inputs; the other ranks may have no output.
    const transport::Segment& results =
        output_segment != nullptr && call.signature.kind == CallKind::allreduce ? *output_segment : *input_segment;
    one_pass(*node_, call, PeerMemory::mapped(*node_, Tensor::input, *input_segment),
             PeerMemory::mapped(*node_, Tensor::output, results), store);
  }
  node_->check_nobody_failed();
  return choice;
}

bool Group::agree_on(const Call& call) {
  mpi_.check_not_finalized();
  announce({.signature = call.signature, .counts = call.counts, .label = call.label}, Payload::nothing);
  return all_idle_;
}

std::shared_ptr<transport::Segment> Group::allocate(std::size_t bytes, transport::Pages pages,
                                                    const std::function<void()>& attend) {
  if (topology_.nodes() > 1) {
    mpi_.check_not_finalized();
    announce({.signature = {.count = bytes, .kind = CallKind::allocate}}, Payload::nothing);
  }
  return node_->allocate(bytes, pages, attend);
}

// One rank of each node asks rank 0 for the time, several times; the quickest answer counts.
Group::Clock Group::compare_clocks() {
  mpi_.check_not_finalized();
  announce({.signature = {.kind = CallKind::barrier}}, Payload::nothing);
  Clock mine{static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()), 0.0};
  mine.run = mine.run * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(getpid());
  const std::vector<int>& leaders = agreement_->leaders();
  messages_->expect(leaders);
  if (mpi_.rank() == leaders.front()) {
    for (auto leader = leaders.begin() + 1; leader != leaders.end(); ++leader) {
      answer_with_time(*messages_, *leader);
    }
  } else if (node_->rank() == 0) {
    mine.offset = ask_for_time(*messages_, leaders.front());
  }
  const std::vector<Clock> all = mpi_.allgather(mine);
  return {all.front().run, all[static_cast<std::size_t>(node_->world_rank(0))].offset};
}

MPI_Comm Group::split(int color, int key) {
  mpi_.check_not_finalized();
  const Signature signature{.kind = CallKind::split};
  announce({.signature = signature}, Payload::nothing);
  return mpi_.split(color, key, [&] {
    if (const auto loss = node_->find_loss(signature)) {
      throw Error(*loss);
    }
  });
}

}  // namespace gradientflow::collective
