#include "node.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <random>
#include <system_error>

#include "../../base/error.hpp"
#include "../../base/text.hpp"
#include "memory_limits.hpp"

namespace gradientflow::transport {
namespace {

constexpr std::size_t cache_line = 64;
constexpr long nap_nanoseconds = 5'000'000;  // how often a sleeping rank looks up
constexpr std::chrono::milliseconds longest_yielding{10};

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Prefetches these lines for writing. A store that waits for its line holds up the ordered ones behind it.
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

void futex_sleep(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec nap{0, nap_nanoseconds};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &nap, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Cores that the ranks of a node may use, together: each of them may be bound to some. Collective.
std::size_t count_cores(const MpiCommunicator& mpi, const std::vector<int>& local) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  const std::vector<cpu_set_t> all = mpi.allgather(mine);
  cpu_set_t together;
  CPU_ZERO(&together);
  for (const int rank : local) {
    CPU_OR(&together, &together, &all[static_cast<std::size_t>(rank)]);
  }
  return static_cast<std::size_t>(CPU_COUNT(&together));
}

// What the leader offers and what the others report while memory is handed over.
struct Offer {
  std::uint64_t token = 0;
  int descriptor = -1;
  int error = 0;
};

}  // namespace

Node::Layout::Layout(const Config& config, std::size_t ranks)
    : payload_bytes(std::max(round_up(config.inline_bytes, cache_line), sizeof(CallReport::label))),
      staging_bytes(round_up(std::max(config.staging_bytes, ranks * cache_line), page)),
      announcement_stride(sizeof(Announcement) + payload_bytes),
      staging_offset(round_up(sizeof(Flags) + 2 * announcement_stride, page)),
      rank_stride(staging_offset + 2 * staging_bytes) {}

std::unique_ptr<Node> Node::join(const MpiCommunicator& mpi, const Topology& topology, const Config& config,
                                 std::string& reason) {
  const std::vector<int>& local = topology.local();
  const bool leader = local.front() == mpi.rank();
  const std::size_t bytes = Layout(config, local.size()).rank_stride * local.size();

  MemoryMap memory;
  Offer offer;
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
  const Offer from_leader = mpi.allgather(offer)[static_cast<std::size_t>(local.front())];
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
  const std::vector<int> failures = mpi.allgather(failed);
  const std::size_t cores = count_cores(mpi, local);
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
  return std::unique_ptr<Node>(new Node(std::move(memory), topology, config, cores));
}

Node::Node(MemoryMap control, const Topology& topology, const Config& config, std::size_t cores)
    : layout_(config, topology.local().size()),
      control_(std::move(control)),
      rank_(topology.local_rank()),
      size_(static_cast<int>(topology.local().size())),
      world_ranks_(topology.local()),
      waits_outside_(topology.nodes() > 1),
      timeout_(config.timeout),
      cores_(cores),
      spin_(topology.local().size() <= cores ? config.spin : 0),
      yields_(config.yields) {
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
  bool labelled = false;
  for (int local = 0; local < size_; ++local) {
    reports.emplace_back(announcement(local).signature, "");
    labelled = labelled || reports.back().signature.labelled;
  }
  if (labelled) {  // all ranks see that, and tell each other the labels
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

bool Node::is_confirmed_soon() const noexcept {
  for (std::int64_t polls = 0; !is_confirmed(); ++polls) {
    if (polls == spin_) {
      return false;
    }
    pause_core();
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
  // The other ranks have read this rank's previous announcement: the next one takes its place, and may be as long as
  // this. The same goes for its tasks.
  fetch_for_writing(&flags(rank_).tasks[(sequence_ + 1) % 2], sizeof(Tasks));
  fetch_for_writing(announcement_at(rank_, sequence_ + 1), sizeof(Announcement) + payload_behind_);
  return same;
}

std::uint32_t Node::advance() {
  publish(flags(rank_).progress, ++step_);
  return step_;
}

// A sleeper registers in `sleepers` before it looks at the word for the last time, a publisher looks at `sleepers`
// after it has written the word; both orders are sequentially consistent, so one of them sees the other.
void Node::publish(std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept {
  word.store(value, std::memory_order_seq_cst);
  if (flags(rank_).sleepers.load(std::memory_order_seq_cst) != 0) {
    futex_wake(word);
  }
}

std::uint32_t Node::take_task(int owner, std::uint32_t tasks_each) noexcept {
  std::atomic<std::uint32_t>& taken = tasks(owner).taken;
  return taken.load(std::memory_order_relaxed) < tasks_each ? taken.fetch_add(1, std::memory_order_relaxed)
                                                            : tasks_each;
}

void Node::finish_task(int owner, std::uint32_t tasks_each) noexcept {
  std::atomic<std::uint32_t>& done = tasks(owner).done;
  if (done.fetch_add(1, std::memory_order_seq_cst) + 1 == tasks_each &&
      flags(owner).sleepers.load(std::memory_order_seq_cst) != 0) {
    futex_wake(done);
  }
}

std::atomic<std::uint32_t>& Node::awaited(int local, Event event) const noexcept {
  switch (event) {
    case Event::announcement:
      return announcement_at(local, sequence_)->sequence;
    case Event::tasks:
      return tasks(local).done;
    case Event::step:
      break;
  }
  return flags(local).progress;
}

// Counters wrap around; a peer is never ahead by more than a few.
bool Node::arrived(int local, Event event, std::uint32_t target) const noexcept {
  return static_cast<std::int32_t>(awaited(local, event).load(std::memory_order_acquire) - target) >= 0;
}

// The polls of one wait are counted over all ranks: once it has begun to yield, it does not spin for the next rank.
// Where others keep the cores busy each yield may take long: then a few are enough, and the clock is looked at.
void Node::wait_for_all(Event event, std::uint32_t target) {
  std::int64_t polls = 0;
  Deadline deadline;
  const auto may_yield = [&] {
    const auto now = std::chrono::steady_clock::now();
    if (polls == spin_) {
      deadline.began = now;
    }
    return polls < spin_ + yields_ && now - deadline.began < longest_yielding;
  };
  for (int local = 0; local < size_; ++local) {
    for (; !arrived(local, event, target); ++polls) {
      if (polls < spin_) {
        pause_core();
      } else if (deadline.at == Deadline().at && may_yield()) {
        sched_yield();
      } else {
        sleep_until_arrived(local, event, target, deadline);
      }
    }
  }
}

void Node::sleep_until_arrived(int local, Event event, std::uint32_t target, Deadline& deadline) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> patience(std::min(timeout_, 1e9));  // what the clock can count, with room
  const auto extend = [&](Clock::time_point from) {
    deadline = {from, from + std::chrono::duration_cast<Clock::duration>(patience), pulse_of_all()};
  };
  if (deadline.at == Clock::time_point{}) {
    extend(deadline.began);
  }
  std::atomic<std::uint32_t>& word = awaited(local, event);
  std::atomic<std::uint32_t>& sleepers = flags(local).sleepers;
  while (true) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = word.load(std::memory_order_seq_cst);
    if (!arrived(local, event, target)) {
      futex_sleep(word, seen);
    }
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (arrived(local, event, target)) {
      return;
    }
    check_not_interrupted();
    check_peers(event, target);
    if (Clock::now() > deadline.at) {
      if (pulse_of_all() == deadline.pulse) {
        raise_timeout(event, target);
      }
      extend(Clock::now());
    }
  }
}

// A rank that left after its part of the event is no loss. In shared work, every rank does a part until its step, which
// it takes when all of the work is done.
void Node::check_peers(Event event, std::uint32_t target) const {
  const Event part = event == Event::tasks ? Event::step : event;
  const std::uint32_t part_done = event == Event::tasks ? step_ + 1 : target;
  for (int local = 0; local < size_; ++local) {
    if (local == rank_ || arrived(local, part, part_done)) {
      continue;
    }
    const Process& process = processes_[static_cast<std::size_t>(local)];
    const State state = flags(local).state.load(std::memory_order_acquire);
    const bool alive = process.alive();
    if ((alive && state == State::open) || arrived(local, part, part_done)) {
      continue;
    }
    throw state == State::open ? death_of(local, signature_)
    : state == State::closed   ? loss_of(local, closing_of(signature_), signature_)
                               : failure_of(local, signature_);
  }
}

void Node::check_not_interrupted() const {
  if (interrupted_.load()) {
    throw Error(ErrorKind::closed, "the communicator was closed during " + describe(signature_));
  }
}

void Node::check_nobody_failed() const {
  for (int local = 0; local < size_; ++local) {
    if (flags(local).state.load(std::memory_order_acquire) == State::failed) {
      throw failure_of(local, signature_);
    }
  }
}

// A closed rank finishes the calls that it has begun, so it is no loss. Among failed ranks, one with an error of its
// own is preferred to one that lost a peer.
std::optional<Error> Node::find_loss(const Signature& during) const {
  std::optional<Error> loss;
  for (int local = 0; local < size_; ++local) {
    if (local == rank_) {
      continue;
    }
    if (flags(local).state.load(std::memory_order_acquire) == State::failed) {
      if (flags(local).reason_kind != ErrorKind::peer) {
        return failure_of(local, during);
      }
      loss = failure_of(local, during);
    } else if (!processes_[static_cast<std::size_t>(local)].alive()) {
      return death_of(local, during);
    }
  }
  return loss;
}

// With several nodes, the timeout of a rank may be about ranks of other nodes: then it is one for all ranks of this
// node.
Error Node::failure_of(int local, const Signature& during) const {
  const Flags& theirs = flags(local);
  const Error lost = loss_of(local, "has given up after an error", during);
  return {waits_outside_ && theirs.reason_kind == ErrorKind::timeout ? ErrorKind::timeout : ErrorKind::peer,
          std::string(lost.what()) + ": " + theirs.reason.data()};
}

std::uint64_t Node::pulse_of_all() const noexcept {
  std::uint64_t sum = 0;
  for (int local = 0; local < size_; ++local) {
    sum += flags(local).pulse.load(std::memory_order_relaxed);
  }
  return sum;
}

Error Node::loss_of(int local, const char* how, const Signature& during) const {
  return {ErrorKind::peer, "rank " + std::to_string(world_rank(local)) + " " + how + " while rank " +
                               std::to_string(world_rank(rank_)) + " waited for it in " + describe(during)};
}

Error Node::death_of(int local, const Signature& during) const {
  const std::string pid = std::to_string(processes_[static_cast<std::size_t>(local)].pid());
  return loss_of(local, ("(process " + pid + ") has died").c_str(), during);
}

void Node::read(int local, void* destination, const void* address, std::size_t bytes) const {
  const Process& process = processes_[static_cast<std::size_t>(local)];
  try {
    process.read(destination, address, bytes);
  } catch (const Error& error) {
    if (error.code() == ESRCH || !process.alive()) {
      throw death_of(local, signature_);
    }
    throw;
  }
}

void Node::fail(const Error& reason) noexcept {
  if (gives_up_.exchange(true)) {
    return;
  }
  Flags& mine = flags(rank_);
  if (mine.state.load(std::memory_order_relaxed) == State::open) {
    mine.reason_kind = reason.kind();
    std::strncpy(mine.reason.data(), reason.what(), mine.reason.size() - 1);
  }
  leave(State::failed);
}

void Node::leave(State state) noexcept {
  State open = State::open;
  flags(rank_).state.compare_exchange_strong(open, state, std::memory_order_acq_rel);
}

void Node::raise_timeout(Event event, std::uint32_t target) const {
  std::vector<int> missing;
  for (int local = 0; local < size_; ++local) {
    if (!arrived(local, event, target)) {
      missing.push_back(world_rank(local));
    }
  }
  throw Error(ErrorKind::timeout, describe(signature_) + " timed out after " + format_number(timeout_) +
                                      " s (GRADIENTFLOW_TIMEOUT) on rank " + std::to_string(world_rank(rank_)) +
                                      ": no sign of " + name_ranks(missing));
}

void Segment::provide(const std::byte* begin, std::size_t bytes) const {
  if (memory_.size() % huge_page != 0) {
    return;  // small ones come as they are written to
  }
  const auto offset = static_cast<std::size_t>(begin - memory_.data());
  const std::size_t from = offset / huge_page * huge_page;
  memory_.populate(from, round_up(offset + bytes, huge_page) - from, [] {});
}

// Every rank provides the pages of its own part, so that they are near it on a machine with several memory domains.
// The leader makes the memory and offers its descriptor in an announcement; a second exchange tells everybody whether
// all could open it, after which nobody needs the descriptor any more. Getting the pages may take long: a rank that is
// done waits for the others as long as they make progress, and one that gives up ends the work of the others.
std::shared_ptr<Segment> Node::allocate(std::size_t bytes, Pages pages, const std::function<void()>& attend) {
  if (bytes > (std::size_t{1} << 40)) {
    throw Error(ErrorKind::value,
                "node memory of " + std::to_string(bytes) + " bytes a rank: at most 1 TiB is possible");
  }
  const std::size_t stride = round_up(std::max<std::size_t>(bytes, 1), bytes >= huge_page ? huge_page : page);
  Signature signature{.count = bytes, .kind = CallKind::allocate};
  const bool leader = rank_ == 0;
  MemoryMap memory;
  Offer offer;
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
    Offer theirs;
    std::memcpy(&theirs, payload(local), sizeof theirs);
    return theirs;
  };
  tell();
  const Offer from_leader = offer_of(0);
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
      check_nobody_failed();
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
