#include "tcp_endpoint.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../gathering.hpp"
#include "engine.hpp"
#include "inbox.hpp"

namespace gradientflow::transport::tcp {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t gathering_tags = 1U << 20;  // number of gatherings after which tags repeat

constexpr auto spin = 30us;
constexpr auto longest_sleep = 5ms;

template <class Operation>
Operation* operation_of(const Request& request) {
  return reinterpret_cast<Operation*>(request.handle());  // NOLINT(*-no-int-to-ptr)
}

std::uint64_t handle_of(const void* operation) { return reinterpret_cast<std::uint64_t>(operation); }

// Returns a stage's number; widened endpoints use small numbers.
std::uint64_t number_of(Stage stage) {
  switch (stage) {
    case Stage::agree:
      return 1;
    case Stage::work:
      return 2;
    case Stage::begin:
      return std::uint64_t{1} << 32;
  }
  return 0;
}

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

}  // namespace

TcpEndpoint::TcpEndpoint(std::shared_ptr<Engine> engine, std::vector<int> ranks, std::uint64_t id)
    : engine_(std::move(engine)),
      can_lose_ranks_(engine_->can_lose_ranks()),
      ranks_(std::move(ranks)),
      id_(id),
      inbox_(engine_->open(id)) {
  place(group_rank_of(engine_->rank()), static_cast<int>(ranks_.size()), engine_->rank());
}

TcpEndpoint::~TcpEndpoint() { close({}, 0, false); }

int TcpEndpoint::group_rank_of(int rank_of_job) const {
  return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank_of_job) - ranks_.begin());
}

Limits TcpEndpoint::limits() const {
  return {.tags = first_gathering_tag, .part_bytes = 0, .window = 8, .wakes = true, .threads = true};
}

Request TcpEndpoint::send(int to, int tag, const void* data, std::size_t bytes, bool until_taken) {
  return {*this, handle_of(engine_->send(*inbox_, job_rank_of(to), tag, data, bytes, until_taken)), to,
          Request::Kind::send};
}

Request TcpEndpoint::receive(int from, int tag, void* data, std::size_t bytes) {
  return {*this, handle_of(engine_->receive(*inbox_, job_rank_of(from), tag, data, bytes)), from,
          Request::Kind::receive};
}

std::optional<Arrival> TcpEndpoint::next(std::optional<int> tag) {
  auto arrived = engine_->next(*inbox_, tag);
  if (arrived == nullptr) {
    engine_->make_progress(0ms);
    arrived = engine_->next(*inbox_, tag);
  }
  if (arrived == nullptr) {
    return std::nullopt;
  }
  const Envelope envelope{group_rank_of(arrived->source), arrived->tag, arrived->bytes};
  return std::optional<Arrival>(std::in_place, *this, handle_of(arrived.release()), envelope);
}

Request TcpEndpoint::receive(Arrival& arrival, void* data) {
  std::unique_ptr<Arrived> arrived(reinterpret_cast<Arrived*>(arrival.handle()));  // NOLINT(*-no-int-to-ptr)
  arrival.end();
  return {*this, handle_of(engine_->receive(std::move(arrived), data)), arrival.envelope().source,
          Request::Kind::receive};
}

std::optional<std::size_t> TcpEndpoint::test(Request& request) {
  const auto take = [&](auto* operation) -> std::optional<std::size_t> {
    if (!engine_->test(*operation)) {
      return std::nullopt;
    }
    const std::unique_ptr<std::remove_pointer_t<decltype(operation)>> ended(operation);
    request.end();
    if (ended->error) {
      throw Error(ended->error->kind(), "rank " + std::to_string(request.peer()) + " " + ended->error->what());
    }
    return ended->bytes;
  };
  return request.kind() == Request::Kind::send ? take(operation_of<Sending>(request))
                                               : take(operation_of<Receiving>(request));
}

bool TcpEndpoint::may_have_ended(const Request& request) const noexcept {
  const Operation& operation = request.kind() == Request::Kind::send
                                   ? static_cast<const Operation&>(*operation_of<Sending>(request))
                                   : *operation_of<Receiving>(request);
  return operation.has_ended.load(std::memory_order_acquire);
}

bool TcpEndpoint::pause(Patience& patience) {
  if (patience.is_in_background()) {
    engine_->make_progress(longest_sleep, true);
    return true;
  }
  if (patience.polls(spin)) {
    engine_->make_progress(0ms);
    return false;
  }
  engine_->make_progress(longest_sleep);
  return patience.has_slept();
}

void TcpEndpoint::give_up(Request& request, Owner owner) noexcept {
  if (request.kind() == Request::Kind::send) {
    engine_->give_up(operation_of<Sending>(request), std::move(owner));
  } else {
    engine_->give_up(operation_of<Receiving>(request));
  }
}

void TcpEndpoint::discard(Arrival& arrival) noexcept {
  engine_->drop(std::unique_ptr<Arrived>(reinterpret_cast<Arrived*>(arrival.handle())));  // NOLINT(*-no-int-to-ptr)
}

std::vector<Death> TcpEndpoint::dead() {
  std::vector<Death> found;
  if (engine_->has_deaths()) {
    for (int r = 0; r < size(); ++r) {
      if (auto how = engine_->death_of(job_rank_of(r))) {
        found.push_back({r, std::move(*how)});
      }
    }
  }
  return found;
}

std::unique_ptr<Endpoint> TcpEndpoint::among(std::span<const int> ranks, Stage stage) const {
  std::vector<int> ranks_of_job;
  std::uint64_t group = mixed(~id_) + number_of(stage);
  for (const int rank : ranks) {
    ranks_of_job.push_back(job_rank_of(rank));
    group = mixed(group + static_cast<std::uint64_t>(ranks_of_job.back()));
  }
  return std::make_unique<TcpEndpoint>(engine_, std::move(ranks_of_job), group);
}

std::vector<Sign> TcpEndpoint::signs(const IsAlive& is_alive) {
  std::vector<Sign> found;
  for (int r = 0; r < size(); ++r) {
    if (auto sign = engine_->sign_of(job_rank_of(r), !is_alive || is_alive(r))) {
      found.push_back({r, sign->liveness, std::move(sign->why)});
    }
  }
  return found;
}

void TcpEndpoint::exclude(const Sign& lost) { engine_->exclude({job_rank_of(lost.rank), lost.liveness, lost.why}); }

bool TcpEndpoint::has_told_excluded() { return engine_->has_told_excluded(); }

int TcpEndpoint::job_size() const { return engine_->ranks(); }

std::unique_ptr<Endpoint> TcpEndpoint::widen(std::span<const std::string> addresses, int first) const {
  engine_->append(first, addresses);
  std::vector<int> ranks = ranks_;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    ranks.push_back(first + static_cast<int>(i));
  }
  const std::uint64_t id = mixed(mixed(~id_) + static_cast<std::uint64_t>(first));  // no number is given twice
  return std::make_unique<TcpEndpoint>(engine_, std::move(ranks), id);
}

Invitation TcpEndpoint::invitation() const {
  const Token& token = engine_->token();
  return {std::string(reinterpret_cast<const char*>(token.data()), token.size()), engine_->addresses(), ranks_, id_};
}

std::uint64_t TcpEndpoint::new_id(int color) const {
  return mixed(mixed(id_ + ++groups_) + static_cast<std::uint64_t>(color));
}

std::unique_ptr<Endpoint> TcpEndpoint::duplicate() const {
  auto copy = std::make_unique<TcpEndpoint>(engine_, ranks_, new_id(0));
  if (by_mpi() != nullptr) {
    copy->keep(by_mpi()->duplicate());
  }
  return copy;
}

std::vector<std::byte> TcpEndpoint::gathered(const void* mine, std::size_t bytes, const std::string& what, int timeouts,
                                             const CheckPeers& check_peers) const {
  auto& self = const_cast<TcpEndpoint&>(*this);  // NOLINT(*-const-cast): its messages are no state that users see
  return gather(self, first_gathering_tag + static_cast<int>(gathers_++ % gathering_tags),
                {mine, bytes, what + " " + std::to_string(size()) + " ranks", engine_->timeout(), timeouts},
                check_peers);
}

std::vector<std::byte> TcpEndpoint::allgather(const void* mine, std::size_t bytes, int timeouts) const {
  return gathered(mine, bytes, "an exchange between", timeouts, {});
}

std::unique_ptr<Endpoint> TcpEndpoint::split(int color, int key, const CheckPeers& check_peers) const {
  const SplitArguments mine{color, key};
  const std::uint64_t id = new_id(color);
  std::vector<SplitArguments> all(ranks_.size());
  const auto raw = gathered(&mine, sizeof mine, "a split of", 1, check_peers);
  std::memcpy(all.data(), raw.data(), raw.size());
  std::unique_ptr<Endpoint> part_by_mpi;
  if (by_mpi() != nullptr) {
    part_by_mpi = by_mpi()->split(color, key, check_peers);
  }
  if (color < 0) {
    return nullptr;
  }
  std::vector<int> ranks;
  for (const int r : together(all, rank())) {
    ranks.push_back(job_rank_of(r));
  }
  auto part = std::make_unique<TcpEndpoint>(engine_, std::move(ranks), id);
  part->keep(std::move(part_by_mpi));
  return part;
}

void TcpEndpoint::close(std::vector<int>, int, bool) noexcept {
  if (const auto kept = keep(nullptr)) {
    if (kept->has_abandoned_requests()) {
      note_abandoned_request();
    }
    kept->close({}, 0, engine_->has_deaths());
  }
  if (inbox_ != nullptr && !engine_->is_forked()) {
    engine_->close(std::exchange(inbox_, nullptr));
  }
}

}  // namespace gradientflow::transport::tcp
