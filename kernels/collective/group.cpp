#include "group.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "../base/error.hpp"
#include "direct_allreduce.hpp"
#include "mpi_collective.hpp"
#include "one_pass.hpp"
#include "pull.hpp"
#include "staged.hpp"

namespace gradientflow::collective {
namespace {

using transport::CallKind;
using transport::Signature;

// Every rank decides alone which way a call goes, so these settings must be the same everywhere.
constexpr std::array<std::string_view, 6> agreed_fields = {"node_size",     "direct_read",       "inline_bytes",
                                                           "staging_bytes", "direct_read_bytes", "streaming_bytes"};

}  // namespace

Group::Group(MPI_Comm comm, const Config& config) : config_(config), mpi_(comm) {
  check_configuration();
  topology_ = transport::detect_topology(mpi_, config_.node_size);
  std::string reason;
  node_ = transport::Node::join(mpi_, topology_, config_, reason);
  if (node_ == nullptr) {
    topology_ = transport::isolate_ranks(topology_, reason);
    node_ = transport::Node::join(mpi_, topology_, config_, reason);
    if (node_ == nullptr) {
      throw Error(ErrorKind::system, reason);
    }
  }
  probe_direct_reads();
}

void Group::check_configuration() const {
  std::array<char, 64> text{};
  for (const std::string_view field : agreed_fields) {
    text.fill('\0');
    const std::string value = get_field(config_, field);
    value.copy(text.data(), text.size() - 1);
    const auto all = mpi_.allgather(text);
    const auto other = std::find_if(all.begin(), all.end(), [&](const auto& theirs) { return theirs != all.front(); });
    if (other != all.end()) {
      throw Error(ErrorKind::mismatch, "setting " + std::string(field) +
                                           " differs between ranks: " + all.front().data() + " on rank 0, " +
                                           other->data() + " on rank " + std::to_string(other - all.begin()));
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

Path Group::path_of(const Signature& signature, bool in_node_memory) const {
  return select({.kind = signature.kind,
                 .algorithm = signature.algorithm,
                 .bytes = signature.count * size_of(signature.dtype),
                 .ranks = mpi_.size(),
                 .nodes = topology_.nodes(),
                 .in_node_memory = in_node_memory,
                 .direct_read_allowed = direct_read_allowed_},
                config_);
}

Path Group::run(const Call& call) {
  const Path path = path_of(call.signature, false);
  switch (path) {
    case Path::mpi:
      run_over_mpi(call);
      return path;
    case Path::alone:
      run_alone(call);
      return path;
    case Path::announcement:
      run_inline(call);
      return path;
    case Path::node_memory:
    case Path::direct:
    case Path::staged:
      return run_in_node(call);
  }
  throw Error(ErrorKind::internal, "no path");
}

void Group::interrupt() noexcept {
  node_->interrupt();
  mpi_.interrupt();
}

void Group::run_over_mpi(const Call& call) {
  mpi_.check_not_finalized();
  if (topology_.nodes() > 1) {
    agree_over_mpi(mpi_, call.signature, config_.timeout);
  } else {
    node_->exchange(call.signature, {}, {}, {});
  }
  mpi_collective(mpi_, call, config_.timeout);
}

void Group::run_alone(const Call& call) {
  if (call.output != nullptr && call.output != call.input) {
    compute::copy(call.output, call.input, call.bytes(), compute::Store::cached);
  }
}

void Group::run_inline(const Call& call) {
  const bool sends = call.signature.kind != CallKind::broadcast || call.signature.root == mpi_.rank();
  node_->exchange(call.signature, {}, {}, {call.input, sends ? call.bytes() : 0});
  pull(*node_, call, PeerMemory::payloads(*node_), compute::Store::cached);
}

// From the announcements: the inputs of all ranks lie in one segment, and so do the outputs that others write to.
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

Path Group::run_in_node(const Call& call) {
  const auto [input, input_segment] = node_->locate(call.input, call.bytes());
  const auto [output, output_segment] =
      call.output == call.input ? std::pair(input, input_segment) : node_->locate(call.output, call.bytes());
  node_->exchange(call.signature, input, output, {});
  const bool mapped = in_node_memory(call.signature);
  const Path path = path_of(call.signature, mapped);
  const auto store = call.bytes() >= config_.streaming_bytes ? compute::Store::streaming : compute::Store::cached;
  const bool pulls = call.signature.kind != CallKind::allreduce && call.signature.kind != CallKind::reduce;
  if (path == Path::staged) {
    staged(*node_, call);
  } else if (pulls) {
    pull(*node_, call,
         mapped ? PeerMemory::mapped(*node_, Tensor::input, *input_segment) : PeerMemory::direct(*node_, Tensor::input),
         store);
    node_->synchronize();
  } else if (mapped) {
    // In a reduce the root's output lies in the segment of the inputs; elsewhere there may be none.
    const transport::Segment& results =
        output_segment != nullptr && call.signature.kind == CallKind::allreduce ? *output_segment : *input_segment;
    one_pass(*node_, call, PeerMemory::mapped(*node_, Tensor::input, *input_segment),
             PeerMemory::mapped(*node_, Tensor::output, results), store);
  } else {
    direct_allreduce(*node_, call, PeerMemory::direct(*node_, Tensor::input),
                     PeerMemory::direct(*node_, Tensor::output));
  }
  node_->check_nobody_failed();
  return path;
}

std::shared_ptr<transport::Segment> Group::allocate(std::size_t bytes) {
  if (topology_.nodes() > 1) {
    mpi_.check_not_finalized();
    agree_over_mpi(mpi_, {.count = bytes, .kind = CallKind::allocate}, config_.timeout);
  }
  return node_->allocate(bytes);
}

}  // namespace gradientflow::collective
