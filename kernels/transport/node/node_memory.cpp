// Memory that ranks of a node share beyond the control block.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "../../base/error.hpp"
#include "memory_limits.hpp"
#include "node.hpp"

namespace gradientflow::transport {

void Segment::provide(const std::byte* begin, std::size_t bytes) const {
  if (memory_.size() % huge_page != 0) {
    return;  // small segments get pages as they are written to
  }
  const auto offset = static_cast<std::size_t>(begin - memory_.data());
  const std::size_t from = offset / huge_page * huge_page;
  memory_.populate(from, round_up(offset + bytes, huge_page) - from, [] {});
}

// Every rank provides the pages of its own part, so that they are near it on a machine with several memory domains. The
// leader makes the memory and offers its descriptor in an announcement. A second exchange tells all ranks if all could
// open it; afterwards the descriptor is not needed any more. Getting the pages may take long: a rank that is done waits
// for its peers as long as they make progress, and a rank that gives up ends their work.
std::shared_ptr<Segment> Node::allocate(std::size_t bytes, Pages pages, const std::function<void()>& attend) {
  if (bytes > (std::size_t{1} << 40)) {
    throw Error(ErrorKind::value,
                "node memory of " + std::to_string(bytes) + " bytes a rank: at most 1 TiB is possible");
  }
  const std::size_t stride = round_up(std::max<std::size_t>(bytes, 1), bytes >= huge_page ? huge_page : page);
  Signature signature{.count = bytes, .allocates = true};
  const bool leader = rank_ == 0;
  MemoryMap memory;
  MemoryOffer offer;
  const std::size_t total = stride * static_cast<std::size_t>(size_);
  if (leader && pages == Pages::now && total > MemoryLimits().available()) {
    offer.error = ENOMEM;
  } else if (leader) {
    try {
      memory = MemoryMap::create(total);
      offer.descriptor = memory.descriptor();
    } catch (const Error& error) {
      offer.error = error.code();
    }
  }
  const auto tell = [&] { exchange(signature, {}, {}, std::as_bytes(std::span(&offer, 1))); };
  const auto offer_of = [&](int local) {
    MemoryOffer theirs;
    std::memcpy(&theirs, payload(local), sizeof theirs);
    return theirs;
  };
  tell();
  const MemoryOffer from_leader = offer_of(0);
  offer.error = from_leader.error;
  if (!leader && offer.error == 0) {
    try {
      memory =
          MemoryMap::open(processes_.front().pid(), from_leader.descriptor, stride * static_cast<std::size_t>(size_));
    } catch (const Error& error) {
      offer.error = error.code();
    }
  }
  if (offer.error == 0 && pages == Pages::now && stride % huge_page == 0) {
    const auto between = [&] {
      pulse();
      if (attend) {
        attend();
      }
      check_not_interrupted();
      check_no_rank_failed();
    };
    try {
      memory.populate(static_cast<std::size_t>(rank_) * stride, stride, between);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::memory) {
        throw;
      }
      offer.error = error.code();
    }
  }
  tell();
  memory.seal();
  for (int local = 0; local < size_; ++local) {
    if (const int code = offer_of(local).error; code != 0) {
      throw Error(ErrorKind::memory, "cannot get " + std::to_string(bytes) + " bytes of node memory on rank " +
                                         std::to_string(world_rank(local)) + ": " +
                                         std::generic_category().message(code));
    }
  }
  segment_count_ = segment_count_ % ((1U << 24) - 1) + 1;
  const auto segment = std::make_shared<Segment>(std::move(memory), stride, rank_, segment_count_);
  const std::lock_guard lock(segments_mutex_);
  std::erase_if(segments_, [](const auto& entry) { return entry.second.expired(); });
  segments_[segment->mine()] = segment;
  return segment;
}

std::pair<Location, std::shared_ptr<Segment>> Node::locate(const void* address, std::size_t bytes) const {
  const auto* const start = static_cast<const std::byte*>(address);
  Location location{.address = reinterpret_cast<std::uint64_t>(address)};
  const std::lock_guard lock(segments_mutex_);
  auto candidate = segments_.upper_bound(start);
  if (candidate != segments_.begin()) {
    --candidate;
    if (auto segment = candidate->second.lock();
        segment != nullptr && start + bytes <= segment->mine() + segment->stride()) {
      location.offset = static_cast<std::uint64_t>(start - segment->mine()) & ((std::uint64_t{1} << 40) - 1);
      location.segment = segment->id() & ((1U << 24) - 1);
      return {location, std::move(segment)};
    }
  }
  return {location, nullptr};
}

}  // namespace gradientflow::transport
