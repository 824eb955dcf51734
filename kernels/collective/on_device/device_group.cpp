#include "device_group.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

#include "../../base/error.hpp"
#include "../../compute/cuda/owned.hpp"
#include "../call/on_all_ranks.hpp"

namespace gradientflow::collective {
namespace {

namespace cuda = compute::cuda;
using transport::Memory;
using transport::Signature;

// A rank's device and NCCL, as told to all ranks.
struct Equipment {
  std::array<char, 32> bus_id;
  std::array<char, 400> no_nccl;  // reason why there is no NCCL; empty: NCCL is available
  int nccl_version;
  std::size_t host;
  bool several_ranks;  // NCCL, if new enough, is told to allow several ranks on one device
};

template <std::size_t size>
void put(std::array<char, size>& to, std::string_view text) {
  to = {};
  text.copy(to.data(), size - 1);
}

// Returns why these ranks cannot use NCCL together; empty if they can.
std::string reason_without_nccl(const std::vector<Equipment>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].no_nccl[0] != '\0') {
      return "rank " + std::to_string(rank) + " has no NCCL: " + all[rank].no_nccl.data();
    }
    if (all[rank].nccl_version != all.front().nccl_version) {
      return "rank 0 has NCCL " + transport::nccl_version_text(all.front().nccl_version) + ", rank " +
             std::to_string(rank) + " has NCCL " + transport::nccl_version_text(all[rank].nccl_version);
    }
  }
  return {};
}

}  // namespace

DeviceGroup::DeviceGroup(Group& group, int device) : group_(group), device_(device) {
  if (group_.endpoint().size() > 1) {
    group_.endpoint().check_not_ended();
  }
  std::optional<cuda::UseDevice> use;
  std::string bus_id;
  on_all_ranks(group_.endpoint(), "cannot use CUDA device " + std::to_string(device_), [&] {
    use.emplace(device_);
    stream_ = std::make_unique<cuda::OwnedStream>();
    last_ = std::make_unique<cuda::OwnedEvent>();
    bus_id = cuda::runtime().bus_id(device_);
  });
  if (group_.endpoint().size() > 1) {
    find_nccl(bus_id);
    if (group_.topology().nodes() == 1) {
      peers_ = std::make_unique<PeerExchange>(group_.node(), group_.config().device_slot_bytes);
      no_peers_ = peers_->unavailable_reason();
    } else {
      no_peers_ = "the ranks are on " + std::to_string(group_.topology().nodes()) + " nodes";
    }
  }
}

DeviceGroup::~DeviceGroup() = default;

void DeviceGroup::find_nccl(const std::string& bus_id) {
  Equipment mine{};
  std::string unavailable_reason;
  nccl_library_ = transport::NcclLibrary::load(group_.config(), unavailable_reason);
  put(mine.no_nccl, unavailable_reason);
  put(mine.bus_id, bus_id);
  mine.nccl_version = nccl_library_ == nullptr ? 0 : nccl_library_->version();
  mine.host = transport::host_key();
  const char* const several = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");  // NOLINT(concurrency-mt-unsafe): read only
  mine.several_ranks = several != nullptr && std::string_view(several) == "1";
  const std::vector<Equipment> all = group_.endpoint().allgather(mine);
  no_nccl_ = reason_without_nccl(all);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (all[rank].host == all[other].host && all[rank].bus_id == all[other].bus_id) {
        shares_device_ = true;
        const bool told = all[rank].several_ranks && all[other].several_ranks;
        if (no_nccl_.empty() && !told) {
          no_nccl_ = "ranks " + std::to_string(other) + " and " + std::to_string(rank) + " have the same device, " +
                     all[rank].bus_id.data() + ", which NCCL refuses unless NCCL_MULTI_RANK_GPU_ENABLE=1 is set";
        }
      }
    }
  }
}

DeviceSituation DeviceGroup::situation(const Signature& signature, bool in_device_memory) const {
  return {.call = group_.situation(signature, in_device_memory),
          .shares_device = shares_device_,
          .no_nccl = signature.wire && !traits_of(*signature.wire).dtype
                         ? "NCCL does not add values that share a scale, as those of " +
                               std::string(traits_of(*signature.wire).name)
                         : no_nccl_,
          .no_peers = no_peers_};
}

CallResult DeviceGroup::run(const Call& call) {
  const cuda::UseDevice use(device_);
  const cuda::Runtime& runtime = cuda::runtime();
  if (group_.endpoint().size() == 1 && call.signature.algorithm == transport::Algorithm::nccl &&
      nccl_library_ == nullptr) {
    find_nccl(cuda::runtime().bus_id(device_));  // a single rank loads NCCL only on request
  }
  DeviceChoice choice = select_on_device(situation(call.signature, false), group_.config());
  CallResult outcome{name_of(choice.path), {}, {}};
  if (choice.path == DevicePath::alone) {
    run_alone(call);
    outcome.idle = call.signature.idle;
    return outcome;
  }
  check();  // after an earlier failure, other ranks take part in no agreement
  outcome.idle = group_.agree_on(call);
  runtime.wait(placement_of(call).stream, last_->get());
  choice = serve(call, choice, outcome);
  runtime.record(last_->get(), placement_of(call).stream);
  outcome.path = name_of(choice.path);
  if (group_.config().debug) {
    report(call.signature, choice);
  }
  return outcome;
}

DeviceChoice DeviceGroup::serve(const Call& call, DeviceChoice choice, CallResult& outcome) {
  switch (choice.path) {
    case DevicePath::device_memory:
    case DevicePath::device_staged: {
      const std::vector<std::size_t> offsets = common_segment(call);
      choice = select_on_device(situation(call.signature, !offsets.empty()), group_.config());
      if (choice.path == DevicePath::device_memory) {
        peers_->reduce_in_place(call, *peers_->find(call.input, call.bytes()), offsets);
      } else {
        peers_->exchange(call);
      }
      outcome.bytes_sent = 0;
      break;
    }
    case DevicePath::nccl:
    case DevicePath::nccl_hierarchical:
      if (nccl_ == nullptr && !start_nccl(call.signature.algorithm)) {
        return serve(call, select_on_device(situation(call.signature, false), group_.config()), outcome);
      }
      outcome.nonfinite = nccl_->run(call, choice.path == DevicePath::nccl_hierarchical);
      break;
    case DevicePath::through_host: {
      if (staging_ == nullptr) {
        staging_ = std::make_unique<HostStaging>(group_);
      }
      const std::uint64_t before = group_.messages().bytes_sent();
      outcome.nonfinite = staging_->run(call);
      if (call.signature.algorithm != transport::Algorithm::mpi) {
        outcome.bytes_sent = group_.messages().bytes_sent() - before;
      }
      break;
    }
    case DevicePath::alone:
      break;  // run() has served it
  }
  return choice;
}

// Returns each local rank's offset if all tensors of an allreduce in place lie in one segment of device memory,
// otherwise an empty vector. The ranks tell each other their offsets.
std::vector<std::size_t> DeviceGroup::common_segment(const Call& call) {
  if (call.signature.kind != transport::CallKind::allreduce) {
    return {};
  }
  constexpr unsigned id_bits = 24;
  std::uint64_t mine = 0;  // none
  const std::shared_ptr<DeviceSegment> segment = peers_->find(call.input, call.bytes());
  if (segment != nullptr && call.input == call.output) {
    const auto offset = static_cast<std::uint64_t>(call.input - segment->mine());
    mine = (offset << id_bits) | segment->id();
  }
  transport::Node& node = group_.node();
  node.tell(transport::Node::Topic::result, mine);
  node.synchronize();
  std::vector<std::size_t> offsets;
  constexpr std::uint64_t id_mask = (std::uint64_t{1} << id_bits) - 1;
  for (int local = 0; local < node.size(); ++local) {
    const std::uint64_t theirs = node.told(transport::Node::Topic::result, local);
    if ((theirs & id_mask) == 0 || (theirs & id_mask) != (node.told(transport::Node::Topic::result, 0) & id_mask)) {
      return {};
    }
    offsets.push_back(theirs >> id_bits);
  }
  return offsets;
}

void DeviceGroup::run_alone(const Call& call) {
  if (call.output != nullptr && call.output != call.input) {
    const std::size_t bytes = output_count(call.signature, 1, 0) * call.element();
    cuda::runtime().copy(call.output, call.input, bytes, placement_of(call).stream);
  }
}

// Returns false if NCCL does not start: all ranks then learn the reason, and take another path. Throws if the call
// requests an algorithm.
bool DeviceGroup::start_nccl(transport::Algorithm algorithm) {
  try {
    auto made = std::make_unique<NcclCollectives>(group_, nccl_library_);
    const std::lock_guard lock(nccl_mutex_);
    nccl_ = std::move(made);
  } catch (const Error& error) {
    if (algorithm != transport::Algorithm::automatic || error.kind() != ErrorKind::system) {
      throw;
    }
    no_nccl_ = error.what();
    return false;
  }
  return true;
}

std::shared_ptr<DeviceSegment> DeviceGroup::allocate(std::size_t bytes) {
  const cuda::UseDevice use(device_);
  group_.agree_on({.signature = {.count = bytes, .memory = Memory::device, .allocates = true}});
  if (peers_ != nullptr && no_peers_.empty()) {
    return peers_->allocate(bytes);
  }
  return allocate_unmapped(bytes);
}

// Allocates a segment that no other rank maps. All ranks throw if any lacks memory.
std::shared_ptr<DeviceSegment> DeviceGroup::allocate_unmapped(std::size_t bytes) {
  cuda::DeviceMemory memory;
  on_all_ranks(group_.endpoint(), "cannot get " + std::to_string(bytes) + " bytes of memory of its device", [&] {
    memory = cuda::DeviceMemory(std::max(bytes, std::size_t{1}));
    cuda::runtime().clear(memory.data(), bytes, stream_->get());
    cuda::runtime().synchronize(stream_->get());
  });
  std::vector<std::byte*> parts(static_cast<std::size_t>(group_.node().size()));
  const auto local = static_cast<std::size_t>(group_.node().rank());
  parts[local] = memory.data();
  return std::make_shared<DeviceSegment>(std::move(memory), std::move(parts), local, 0);
}

void DeviceGroup::report(const Signature& signature, const DeviceChoice& choice) const {
  if (group_.topology().rank == 0) {
    std::ostringstream line;
    line << "gradientflow: " << describe(signature) << ": " << name_of(choice.path) << ", " << choice.reason << "\n";
    std::fputs(line.str().c_str(), stderr);
  }
}

// Safe while another thread creates the object.
NcclCollectives* DeviceGroup::nccl() const {
  const std::lock_guard lock(nccl_mutex_);
  return nccl_.get();
}

void DeviceGroup::check() const {
  if (const NcclCollectives* const started = nccl()) {
    started->check();
  }
}

void DeviceGroup::abort() noexcept {
  if (NcclCollectives* const started = nccl()) {
    started->abort();
  }
}

}  // namespace gradientflow::collective
