#include "node.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>

#include "../../base/error.hpp"

namespace gradientflow::transport {
namespace {

constexpr std::size_t cache_line = 64;

// Prefetches these lines for writing. A store that waits for its line delays the ordered stores behind it.
inline void fetch_for_writing(const void* memory, std::size_t bytes) {
  const auto* const start = static_cast<const std::byte*>(memory);
  for (std::size_t at = 0; at < bytes; at += cache_line) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(start[at]));  // a CPU without the instruction does nothing
#else
    __builtin_prefetch(start + at, 1);
#endif
  }
}

// Returns the cores that each rank may use: it may be bound to some. Collective.
std::vector<cpu_set_t> cores_of_ranks(const Endpoint& endpoint) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  return endpoint.allgather(mine);
}

bool contains(cpu_set_t cores, cpu_set_t others) {
  CPU_AND(&cores, &cores, &others);
  return CPU_EQUAL(&cores, &others) != 0;
}

cpu_set_t together(const std::vector<cpu_set_t>& all, const std::vector<int>& local) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int rank : local) {
    CPU_OR(&cores, &cores, &all[static_cast<std::size_t>(rank)]);
  }
  return cores;
}

std::vector<int> numbers_of(const cpu_set_t& cores) {
  std::vector<int> numbers;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (CPU_ISSET(number, &cores)) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

// Names the ranks that have to share cores, and the number of these cores: the smallest set of cores to which more
// ranks than cores are bound.
std::string name_sharing_ranks(const std::vector<cpu_set_t>& all, const std::vector<int>& local) {
  std::string found;
  int fewest = CPU_SETSIZE + 1;
  const auto consider = [&](const cpu_set_t& cores) {
    std::vector<int> ranks;
    std::copy_if(local.begin(), local.end(), std::back_inserter(ranks),
                 [&](int rank) { return contains(cores, all[static_cast<std::size_t>(rank)]); });
    const int count = CPU_COUNT(&cores);
    if (count < fewest && static_cast<std::size_t>(count) < ranks.size()) {
      fewest = count;
      found = name_ranks(ranks) + " share " + (count == 1 ? "one core" : std::to_string(count) + " cores");
    }
  };
  for (const int rank : local) {
    consider(all[static_cast<std::size_t>(rank)]);
  }
  consider(together(all, local));
  return found;
}

}  // namespace

Node::Layout::Layout(const Config& config, std::size_t ranks)
    : payload_bytes(std::max(round_up(config.inline_bytes, cache_line), sizeof(CallReport::label))),
      staging_bytes(round_up(std::max(config.staging_bytes, ranks * cache_line), page)),
      announcement_stride(sizeof(Announcement) + payload_bytes),
      staging_offset(round_up(sizeof(Flags) + 2 * announcement_stride, page)),
      rank_stride(staging_offset + 2 * staging_bytes) {}

std::unique_ptr<Node> Node::join(const Endpoint& endpoint, const Topology& topology, const Config& config,
                                 std::string& reason) {
  const std::vector<int>& local = topology.local();
  const bool leader = local.front() == endpoint.rank();
  const std::size_t bytes = Layout(config, local.size()).rank_stride * local.size();

  MemoryMap memory;
  MemoryOffer offer;
  if (leader) {
    try {
      memory = MemoryMap::create(bytes);
      std::random_device random;
      offer = {(std::uint64_t{random()} << 32) | random(), memory.descriptor(), 0};
      reinterpret_cast<Flags*>(memory.data())->token = offer.token;
    } catch (const Error& error) {
      offer.error = 1;
      reason = error.what();
    }
  }
  const MemoryOffer from_leader = endpoint.allgather(offer)[static_cast<std::size_t>(local.front())];
  int failed = from_leader.error;
  if (!leader && failed == 0) {
    try {
      const auto leader_index = static_cast<std::size_t>(local.front());
      memory = MemoryMap::open(topology.pids[leader_index], from_leader.descriptor, bytes);
      if (reinterpret_cast<const Flags*>(memory.data())->token != from_leader.token) {
        throw Error(ErrorKind::system, "the memory opened is not that of this node's first rank");
      }
    } catch (const Error& error) {
      failed = 1;
      reason = error.what();
    }
  }
  const std::vector<int> failures = endpoint.allgather(failed);
  const std::vector<cpu_set_t> cores = cores_of_ranks(endpoint);
  memory.seal();
  std::vector<int> failing;
  for (std::size_t r = 0; r < failures.size(); ++r) {
    if (failures[r] != 0) {
      failing.push_back(static_cast<int>(r));
    }
  }
  if (!failing.empty()) {
    reason = name_ranks(failing) + " cannot share memory with the node" + (reason.empty() ? "" : ": " + reason);
    return nullptr;
  }
  return std::unique_ptr<Node>(new Node(std::move(memory), topology, config,
                                        {numbers_of(together(cores, local)), name_sharing_ranks(cores, local)}));
}

Node::Node(MemoryMap control, const Topology& topology, const Config& config, Cores cores)
    : layout_(config, topology.local().size()),
      control_(std::move(control)),
      rank_(topology.local_rank()),
      size_(static_cast<int>(topology.local().size())),
      world_ranks_(topology.local()),
      waits_outside_(topology.nodes() > 1),
      timeout_(config.timeout),
      cores_(std::move(cores)),
      spin_(topology.local().size() <= cores_.numbers.size() ? config.spin : 0),
      yields_(config.yields),
      has_closed_(topology.local().size()) {
  for (const int r : world_ranks_) {
    processes_.emplace_back(topology.pids[static_cast<std::size_t>(r)]);
  }
}

Node::~Node() { close(); }

int Node::local_rank_of(int world_rank) const {
  const auto found = std::find(world_ranks_.begin(), world_ranks_.end(), world_rank);
  return found == world_ranks_.end() ? -1 : static_cast<int>(found - world_ranks_.begin());
}

Node::Flags& Node::flags(int local) const noexcept {
  return *reinterpret_cast<Flags*>(control_.data() + static_cast<std::size_t>(local) * layout_.rank_stride);
}

Announcement* Node::announcement_at(int local, std::uint32_t sequence) const noexcept {
  return reinterpret_cast<Announcement*>(control_.data() + static_cast<std::size_t>(local) * layout_.rank_stride +
                                         sizeof(Flags) + (sequence % 2) * layout_.announcement_stride);
}

const std::byte* Node::payload(int local) const noexcept {
  const Announcement& theirs = announcement(local);
  return theirs.has_payload_inside ? theirs.inside() : reinterpret_cast<const std::byte*>(&theirs) + sizeof theirs;
}

std::byte* Node::staging(int local, std::size_t slot) const noexcept {
  return control_.data() + static_cast<std::size_t>(local) * layout_.rank_stride + layout_.staging_offset +
         (slot % 2) * layout_.staging_bytes;
}

void Node::exchange(const Signature& signature, const Location& input, const Location& output,
                    std::span<const std::byte> payload, std::string_view label) {
  announce(signature, input, output, payload);
  confirm(label);
}

void Node::confirm(std::string_view label, const std::function<void()>& before_more) {
  if (await_announcements()) {
    return;
  }
  std::vector<CallReport> reports;
  bool labeled = false;
  for (int local = 0; local < size_; ++local) {
    reports.emplace_back(announcement(local).signature, "");
    labeled = labeled || reports.back().signature.labeled;
  }
  if (labeled) {  // all ranks see that, and exchange the labels
    if (before_more) {
      before_more();
    }
    const CallReport mine(signature_, label);
    static_cast<void>(try_exchange(signature_, {}, {}, std::as_bytes(std::span(mine.label))));
    for (int local = 0; local < size_; ++local) {
      std::array<char, longest_label + 1>& theirs = reports[static_cast<std::size_t>(local)].label;
      std::memcpy(theirs.data(), this->payload(local), sizeof theirs);
    }
  }
  throw mismatch_error(reports, world_ranks_);
}

bool Node::try_exchange(const Signature& signature, const Location& input, const Location& output,
                        std::span<const std::byte> payload) {
  announce(signature, input, output, payload);
  return await_announcements();
}

void Node::announce(const Signature& signature, const Location& input, const Location& output,
                    std::span<const std::byte> payload) {
  ++sequence_;
  signature_ = signature;
  Announcement& mine = *announcement_at(rank_, sequence_);
  mine.signature = signature;
  mine.input = input;
  mine.output = output;
  const bool has_tensors = input.address != 0 || output.address != 0;
  mine.has_payload_inside = !has_tensors && payload.size() <= Announcement::inside_bytes;
  payload_behind_ = mine.has_payload_inside ? 0 : payload.size();
  if (!payload.empty()) {
    std::byte* const behind = reinterpret_cast<std::byte*>(&mine) + sizeof mine;
    std::memcpy(mine.has_payload_inside ? mine.inside() : behind, payload.data(), payload.size());
  }
  tasks(rank_).taken.store(0, std::memory_order_relaxed);
  tasks(rank_).done.store(0, std::memory_order_relaxed);
  publish(mine.sequence, sequence_);
}

bool Node::is_confirmed() const noexcept {
  for (int local = 0; local < size_; ++local) {
    if (!arrived(local, Event::announcement, sequence_)) {
      return false;
    }
  }
  return true;
}

bool Node::await_announcements() {
  wait_for_all(Event::announcement, sequence_);
  bool same = true;
  all_idle_ = true;
  for (int local = 0; local < size_; ++local) {
    const Signature& theirs = announcement(local).signature;
    same = same && theirs == signature_;
    all_idle_ = all_idle_ && theirs.idle;
  }
  // All ranks have read this rank's previous announcement: the next one takes its place, and may be as long as this.
  // The same holds for its tasks.
  fetch_for_writing(&flags(rank_).tasks[(sequence_ + 1) % 2], sizeof(Tasks));
  fetch_for_writing(announcement_at(rank_, sequence_ + 1), sizeof(Announcement) + payload_behind_);
  return same;
}

}  // namespace gradientflow::transport
