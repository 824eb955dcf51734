#include "group.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <sstream>
#include <utility>

#include "../base/error.hpp"
#include "between/clock.hpp"
#include "between/mpi_plugin.hpp"

namespace gradientflow::collective {
namespace {

using transport::CallKind;
using transport::Signature;

// Where a rank runs.
struct Place {
  std::size_t host = 0;
  pid_t pid = 0;
  int job_rank = 0;
};

}  // namespace

Group::Group(std::unique_ptr<transport::Endpoint> endpoint, const Config& config)
    : config_(config), endpoint_(std::move(endpoint)) {
  if (config_.window == 0) {
    config_.window = endpoint_->limits().window;
  }
  check_configuration();
  const Place mine{transport::host_key(), getpid(), endpoint_->job_rank()};
  const auto places = endpoint_->allgather(mine);
  std::vector<std::size_t> hosts;
  std::transform(places.begin(), places.end(), std::back_inserter(hosts), [](const Place& each) { return each.host; });
  topology_ = transport::group_ranks(hosts, endpoint_->rank(), config_.node_size);
  for (const Place& each : places) {
    topology_.pids.push_back(each.host == mine.host ? each.pid : 0);
    topology_.job_ranks.push_back(each.job_rank);
  }
  std::string reason;
  node_ = transport::Node::join(*endpoint_, topology_, config_, reason);
  if (node_ == nullptr) {
    topology_ = transport::isolate_ranks(topology_, reason);
    node_ = transport::Node::join(*endpoint_, topology_, config_, reason);
    if (node_ == nullptr) {
      throw Error(ErrorKind::system, reason);
    }
  }
  const auto by_size = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  const auto [smallest, largest] = std::minmax_element(topology_.members.begin(), topology_.members.end(), by_size);
  smallest_node_ = static_cast<int>(smallest->size());
  largest_node_ = static_cast<int>(largest->size());
  messages_ = std::make_unique<transport::Messages>(*endpoint_, *node_, topology_, config_.timeout);
  std::vector<int> leaders;
  for (const auto& members : topology_.members) {
    leaders.push_back(members.front());
  }
  agreement_ = std::make_unique<Agreement>(*messages_, std::move(leaders), static_cast<std::size_t>(topology_.node()));
  all_ranks_.resize(static_cast<std::size_t>(endpoint_->size()));
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  probe_direct_reads();
}

// If a message was abandoned, leaks on purpose the memory that the endpoint may still access.
Group::~Group() {
  if (has_abandoned_requests()) {
    static_cast<void>(agreement_.release());
    static_cast<void>(work_.release());
  }
}

// Throws if shared settings differ between ranks: each rank selects paths alone, from these settings.
void Group::check_configuration() const {
  using Text = std::array<char, 32>;
  std::vector<const ConfigField*> fields;
  std::string mine;
  for (const ConfigField& field : config_fields()) {
    if (field.shared) {
      Text text{};
      get_field(config_, field.name).copy(text.data(), sizeof(Text) - 1);
      mine.append(text.data(), sizeof(Text));
      fields.push_back(&field);
    }
  }
  const std::vector<std::byte> raw = endpoint_->allgather(static_cast<const void*>(mine.data()), mine.size());
  const auto value = [&](std::size_t rank, std::size_t field) {
    return std::string(reinterpret_cast<const char*>(raw.data()) + rank * mine.size() + field * sizeof(Text));
  };
  for (std::size_t i = 0; i < fields.size(); ++i) {
    for (std::size_t r = 1; r < static_cast<std::size_t>(endpoint_->size()); ++r) {
      if (value(r, i) != value(0, i)) {
        throw Error(ErrorKind::mismatch, "setting " + std::string(fields[i]->name) +
                                             " differs between ranks: " + value(0, i) + " on rank 0, " + value(r, i) +
                                             " on rank " + std::to_string(r));
      }
    }
  }
}

// Reads a few bytes of every peer of the node. All ranks must succeed.
void Group::probe_direct_reads() {
  const std::uint64_t mine = 0x6772616466ULL + static_cast<std::uint64_t>(endpoint_->rank());
  const std::vector<std::uintptr_t> addresses = endpoint_->allgather(reinterpret_cast<std::uintptr_t>(&mine));
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
  const std::vector<int> refusals = endpoint_->allgather(refused);
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
          .bytes = largest_input(signature, endpoint_->size()),
          .wire = signature.wire.has_value(),
          .ranks = endpoint_->size(),
          .nodes = topology_.nodes(),
          .smallest_node = smallest_node_,
          .largest_node = largest_node_,
          .in_node_memory = in_node_memory,
          .direct_read_allowed = direct_read_allowed_,
          .transport = endpoint_->transport(),
          .has_mpi_communicator = endpoint_->by_mpi() != nullptr};
}

// If a message was abandoned, leaks on purpose the node memory that the endpoint may still access.
CallResult Group::run(const Call& call) {
  const std::uint64_t before = messages_->bytes_sent();
  try {
    CallResult outcome{};
    const Path path = serve(call, outcome);
    if (path != Path::mpi) {
      outcome.bytes_sent = messages_->bytes_sent() - before;
    }
    outcome.path = name_of(path);
    outcome.idle = path == Path::alone ? call.signature.idle : all_idle_;
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

Path Group::serve(const Call& call, CallResult& outcome) {
  Choice choice = call.choice ? *call.choice : choose(call.signature, false);
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
      break;
    case Path::mpi:
      endpoint_->check_mpi_not_ended();
      announce(call, Payload::nothing);
      mpi_plugin().run(*endpoint_->by_mpi(), call);
      break;
    case Path::agreement:
    case Path::recursive_doubling:
    case Path::ring:
    case Path::hierarchical:
    case Path::hierarchical_lanes:
    case Path::binomial:
    case Path::chain:
    case Path::pairwise:
      endpoint_->check_not_ended();
      outcome.nonfinite = run_over_messages(call, choice);
      break;
  }
  if (config_.debug) {
    report(call, choice);
  }
  return choice.path;
}

void Group::report(const Call& call, const Choice& choice) const {
  if (endpoint_->rank() == 0) {
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
  endpoint_->interrupt();
}

void Group::close() noexcept {
  node_->close();
  messages_->tell_closed();
}

void Group::fail(const Error& reason) noexcept {
  node_->fail(reason);
  messages_->tell_failed(reason);
}

// Keeps memory that the endpoint may still access: see the destructor.
void Group::release() noexcept {
  if (!has_abandoned_requests()) {
    node_->release();
    agreement_.reset();
    work_.reset();
  }
  messages_->end();
  endpoint_->release_sockets();
}

std::shared_ptr<transport::Segment> Group::allocate(std::size_t bytes, transport::Pages pages,
                                                    const std::function<void()>& attend) {
  if (topology_.nodes() > 1) {
    endpoint_->check_not_ended();
    announce({.signature = {.count = bytes, .allocates = true}}, Payload::nothing);
  }
  return node_->allocate(bytes, pages, attend);
}

// Asks rank 0 for the time, several times, from one rank of each node; the quickest answer counts.
Group::Clock Group::compare_clocks() {
  endpoint_->check_not_ended();
  announce({.signature = {.kind = CallKind::barrier}}, Payload::nothing);
  Clock mine{static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()), 0.0};
  mine.run = mine.run * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(getpid());
  const std::vector<int>& leaders = agreement_->leaders();
  messages_->expect(leaders);
  if (endpoint_->rank() == leaders.front()) {
    for (auto leader = leaders.begin() + 1; leader != leaders.end(); ++leader) {
      answer_with_time(*messages_, *leader);
    }
  } else if (node_->rank() == 0) {
    mine.offset = ask_for_time(*messages_, leaders.front());
  }
  const std::vector<Clock> all = endpoint_->allgather(mine);
  return {all.front().run, all[static_cast<std::size_t>(node_->world_rank(0))].offset};
}

std::unique_ptr<transport::Endpoint> Group::split(int color, int key) {
  endpoint_->check_not_ended();
  endpoint_->check_mpi_not_ended();
  const Signature signature{.splits = true};
  announce({.signature = signature}, Payload::nothing);
  messages_->expect(all_ranks_);
  return endpoint_->split(color, key, [&] {
    if (const auto loss = node_->find_loss(signature)) {
      throw Error(*loss);
    }
    messages_->check_peers();
  });
}

}  // namespace gradientflow::collective
