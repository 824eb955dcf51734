#include "device_segment.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "../../base/error.hpp"

namespace gradientflow::collective {
namespace {

namespace cuda = compute::cuda;

constexpr std::size_t most_events = 2;

// A rank's part of the board: the state of its share, for its peers. Zeros at first.
struct BoardEntry {
  std::atomic<std::uint32_t> closed;              // 1: the rank no longer maps parts of its peers
  std::array<std::array<char, 400>, 2> failures;  // reason why a step failed; two steps alternate
  cuda::ProcessHandle memory;
  std::array<cuda::ProcessHandle, most_events> events;
};

BoardEntry& entry_of(const transport::Segment& board, std::size_t rank) {
  return *reinterpret_cast<BoardEntry*>(board.part(static_cast<int>(rank)));
}

std::size_t ranks_of(const transport::Node& node) { return static_cast<std::size_t>(node.size()); }
std::size_t rank_of(const transport::Node& node) { return static_cast<std::size_t>(node.rank()); }

// Steps in which a segment is created. Each rank does its part; then all ranks learn if every rank succeeded. A rank
// may fail in the next step before its peers have read this step's failures. So two entries of the board alternate: all
// ranks have read an entry before it is used again.
class Steps {
 public:
  Steps(transport::Node& node, const transport::Segment& board) : node_(node), board_(board) {}

  // Throws an Error of this kind, the same on all ranks, if `work` threw on any.
  template <class Work>
  void take(ErrorKind kind, Work work) {
    const std::size_t place = taken_++ % 2;
    try {
      work();
    } catch (const Error& error) {
      auto& failure = entry_of(board_, rank_of(node_)).failures.at(place);
      std::string_view(error.what()).copy(failure.data(), failure.size() - 1);
    }
    node_.synchronize();
    for (std::size_t rank = 0; rank < ranks_of(node_); ++rank) {
      if (const auto& failure = entry_of(board_, rank).failures.at(place); failure[0] != '\0') {
        throw Error(kind, "rank " + std::to_string(node_.world_rank(static_cast<int>(rank))) + " " + failure.data());
      }
    }
  }

 private:
  transport::Node& node_;
  const transport::Segment& board_;
  std::size_t taken_ = 0;
};

cuda::DeviceMemory allocate_zeros(std::size_t bytes) {
  try {
    cuda::DeviceMemory memory(bytes);
    const cuda::OwnedStream stream;
    cuda::runtime().clear(memory.data(), bytes, stream.get());
    cuda::runtime().synchronize(stream.get());
    return memory;
  } catch (const Error& error) {
    throw Error(ErrorKind::memory,
                "cannot get " + std::to_string(bytes) + " bytes of memory of its device: " + error.what());
  }
}

// ---- retired shares -------------------------------------------------------------------------------------------------

// Retired shares, one list per process, like mappings: a communicator may end before its peers have closed its memory.
struct Waiting {
  std::mutex mutex;
  std::list<DeviceShare> list;
  pid_t process = getpid();
};

// Returns the list, never destroyed: when the process ends, the driver frees all memory, and CUDA must not be called.
Waiting& waiting() {
  static auto* const all = new Waiting;  // NOLINT(*-owning-memory)
  return *all;
}

// Closes the peers' parts if this rank no longer uses them. Tells if they are closed.
bool close_parts(DeviceShare& share) {
  std::atomic<std::uint32_t>& closed = entry_of(*share.board, share.rank).closed;
  if (closed.load(std::memory_order_relaxed) == 0) {
    if (!cuda::runtime().happened(share.last_use->get())) {
      return false;
    }
    const cuda::UseDevice use(share.device);
    for (std::size_t rank = 0; rank < share.parts.size(); ++rank) {
      if (rank != share.rank && share.parts[rank] != nullptr) {
        cuda::runtime().close(share.parts[rank]);
      }
    }
    share.opened_events.clear();
    closed.store(1, std::memory_order_release);
  }
  return true;
}

bool is_closed_by_all(const DeviceShare& share) {
  for (std::size_t rank = 0; rank < share.parts.size(); ++rank) {
    if (entry_of(*share.board, rank).closed.load(std::memory_order_acquire) == 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

void free_retired_shares() noexcept {
  std::list<DeviceShare> freed;  // freed outside the lock, because freeing waits for the device
  Waiting& all = waiting();
  const std::lock_guard lock(all.mutex);
  if (all.process != getpid()) {
    return;  // after a fork: all shares belong to the parent process
  }
  for (auto entry = all.list.begin(); entry != all.list.end();) {
    const auto next = std::next(entry);
    try {
      if (close_parts(*entry) && is_closed_by_all(*entry)) {
        freed.splice(freed.end(), all.list, entry);
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the device has failed; the memory stays
    }
    entry = next;
  }
}

DeviceSegment::DeviceSegment(DeviceShare share, std::uint32_t id) : id_(id) { share_.push_back(std::move(share)); }

DeviceSegment::DeviceSegment(cuda::DeviceMemory own, std::vector<std::byte*> parts, std::size_t rank, std::uint32_t id)
    : DeviceSegment(DeviceShare{.rank = rank, .own = std::move(own), .parts = std::move(parts)}, id) {}

DeviceSegment::~DeviceSegment() {
  if (share().board != nullptr) {
    {
      Waiting& all = waiting();
      const std::lock_guard lock(all.mutex);
      all.list.splice(all.list.end(), share_);
    }
    free_retired_shares();
  }
}

std::shared_ptr<DeviceSegment> DeviceSegment::make(transport::Node& node, std::size_t bytes, std::uint32_t id,
                                                   std::size_t events, std::shared_ptr<cuda::OwnedEvent> last_use) {
  free_retired_shares();
  const std::shared_ptr<transport::Segment> board = node.allocate(sizeof(BoardEntry));
  free_retired_shares();  // all ranks are here, so shares that all have released are freed now
  const std::size_t rounded =
      (std::max<std::size_t>(bytes, 1) + cuda::shared_grain - 1) / cuda::shared_grain * cuda::shared_grain;
  const std::shared_ptr<DeviceSegment> segment(new DeviceSegment(
      DeviceShare{
          .rank = rank_of(node), .parts = std::vector<std::byte*>(ranks_of(node)), .last_use = std::move(last_use)},
      id));
  DeviceShare& share = segment->share_.front();
  share.opened_events.resize(ranks_of(node));
  Steps steps(node, *board);
  steps.take(ErrorKind::memory, [&] {
    share.device = cuda::runtime().device();
    share.own = allocate_zeros(rounded);
    share.parts[share.rank] = share.own.data();
  });
  steps.take(ErrorKind::system, [&] {
    BoardEntry& mine = entry_of(*board, share.rank);
    share.board = board;
    try {
      mine.memory = cuda::runtime().share(share.own.data());
      for (std::size_t i = 0; i < events; ++i) {
        share.own_events.emplace_back(cuda::EventKind::process);
        mine.events.at(i) = cuda::runtime().share_event(share.own_events.back().get());
      }
    } catch (const Error& error) {
      throw Error(ErrorKind::system, std::string("cannot share memory of its device: ") + error.what());
    }
  });
  steps.take(ErrorKind::system, [&] {
    for (std::size_t rank = 0; rank < ranks_of(node); ++rank) {
      const BoardEntry& theirs = entry_of(*board, rank);
      if (rank == share.rank) {
        continue;  // CUDA does not open handles of the same process
      }
      try {
        share.parts[rank] = cuda::runtime().open(theirs.memory);
        for (std::size_t i = 0; i < events; ++i) {
          share.opened_events[rank].push_back(cuda::OwnedEvent::opened(theirs.events.at(i)));
        }
      } catch (const Error& error) {
        throw Error(ErrorKind::system, "cannot map memory of rank " +
                                           std::to_string(node.world_rank(static_cast<int>(rank))) +
                                           "'s device: " + error.what());
      }
    }
  });
  return segment;
}

}  // namespace gradientflow::collective
