#include "mpi_subset.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "../gathering.hpp"
#include "mpi.hpp"

namespace gradientflow::transport {
namespace {

// Layout of an MPI tag, from the highest bits on: the family, the generation, a bit for the tags listed below, and the
// tag. The lowest tags, which have 15 bits, too (Tag), belong to the endpoint of all ranks, so that its late messages
// meet no messages of other endpoints.
constexpr int tag_bits = 15;
constexpr int tags = 1 << tag_bits;

// Tags in the upper half: the tag for the agreement at each stage except the last, the tag of the notice to excluded
// ranks, and the tags of gatherings.
constexpr int excluded_tag = 2;
constexpr int first_gathering_tag = tags + 4;
constexpr std::uint32_t gathering_tags = tags - 4;  // number of gatherings after which tags repeat

int first_tag_of(const Number& number) {
  const int first = (number.family * Number::generations + number.generation) * 2 * tags;
  switch (number.stage) {
    case Stage::begin:
      return first + tags;
    case Stage::agree:
      return first + tags + 1;
    case Stage::work:
      return first;
  }
  return first;
}

}  // namespace

Number Number::next(Stage made) const {
  const int following = made == Stage::begin ? generation : generation + 1;
  if (following == generations) {
    throw Error(ErrorKind::value, "over MPI a communicator can be recovered " + std::to_string(generations - 1) +
                                      " times; over TCP (GRADIENTFLOW_TRANSPORT=tcp) as often as you like");
  }
  return {family, following, made};
}

MpiSubset::MpiSubset(std::shared_ptr<SharedMessages> shared, std::vector<int> places, Number number, double timeout)
    : MpiMessages(timeout), shared_(std::move(shared)), number_(number) {
  int own = 0;
  check_mpi(MPI_Comm_rank(shared_->comm(), &own), "MPI_Comm_rank");
  const auto found = std::find(places.begin(), places.end(), own);
  place(static_cast<int>(found - places.begin()), static_cast<int>(places.size()), world_rank());
  use(shared_->comm(), std::move(places), first_tag_of(number), number.stage == Stage::work ? tags : 1);
  has_deaths_ = true;
}

bool MpiSubset::is_own(const Envelope& envelope, int tag) const {
  return tag == MPI_ANY_TAG ? envelope.tag / tags == first_tag_ / tags : envelope.tag == tag;
}

// Called with the lock of the shared messages held.
std::optional<Found> MpiSubset::find_own(int tag) {
  if (auto kept = shared_->take([&](const Envelope& each) { return is_own(each, tag); })) {
    return kept;
  }
  while (auto found = find(tag)) {
    if (is_own(found->envelope, tag)) {
      return found;
    }
    shared_->keep(*found);
  }
  return std::nullopt;
}

// A message of a rank outside of this endpoint is dropped: that rank has come to another decision, before it was taken
// for dead.
std::optional<Arrival> MpiSubset::next(std::optional<int> tag) {
  return next_at(number_.stage != Stage::work ? first_tag_ : tag ? first_tag_ + *tag : MPI_ANY_TAG);
}

std::optional<Arrival> MpiSubset::next_at(int wanted) {
  const auto held = shared_->lock();
  while (const auto found = find_own(wanted)) {
    Arrival arrival = arrival_of(*found);
    if (arrival.envelope().source >= 0) {
      return arrival;
    }
  }
  return std::nullopt;
}

Request MpiSubset::receive(int from, int tag, void* data, std::size_t bytes) {
  const auto held = shared_->lock();
  const auto kept = shared_->take(
      [&](const Envelope& each) { return each.source == place_of(from) && each.tag == first_tag_ + tag; });
  return kept ? receive(*kept, data, bytes) : MpiMessages::receive(from, tag, data, bytes);
}

std::vector<std::byte> MpiSubset::gathered(const void* mine, std::size_t bytes, const std::string& what, int timeouts,
                                           const CheckPeers& check_peers) const {
  auto& self = const_cast<MpiSubset&>(*this);  // NOLINT(*-const-cast): its messages are no state that users see
  return gather(self, first_gathering_tag + static_cast<int>(gathers_++ % gathering_tags),
                {mine, bytes, what + " " + std::to_string(size()) + " ranks", timeout_, timeouts}, check_peers);
}

template <class T>
std::vector<T> MpiSubset::gathered(const T& mine, const CheckPeers& check_peers) const {
  const auto raw = gathered(&mine, sizeof mine, "a split of", 1, check_peers);
  std::vector<T> all(static_cast<std::size_t>(size()));
  std::memcpy(all.data(), raw.data(), raw.size());
  return all;
}

std::vector<std::byte> MpiSubset::allgather(const void* mine, std::size_t bytes, int timeouts) const {
  return gathered(mine, bytes, "an exchange between", timeouts, {});
}

// Other threads may take numbers meanwhile, for endpoints of other ranks.
int MpiSubset::new_family(const CheckPeers& check_peers) const {
  while (true) {
    const std::vector<int> proposed = gathered(shared_->next_family(), check_peers);
    const int family = *std::max_element(proposed.begin(), proposed.end());
    if (family >= Number::families) {
      throw Error(ErrorKind::value, "over MPI no more than " + std::to_string(Number::families - 1) +
                                        " communicators can be made of recovered ones");
    }
    const std::vector<int> taken = gathered(shared_->take_family(family) ? 1 : 0, check_peers);
    if (std::find(taken.begin(), taken.end(), 0) == taken.end()) {
      return family;
    }
  }
}

std::unique_ptr<Endpoint> MpiSubset::made_of(std::span<const int> ranks, Number number) const {
  std::vector<int> places;
  for (const int rank : ranks) {
    places.push_back(place_of(rank));
  }
  return std::make_unique<MpiSubset>(shared_, std::move(places), number, timeout_);
}

std::unique_ptr<Endpoint> MpiSubset::split(int color, int key, const CheckPeers& check_peers) const {
  const std::vector<SplitArguments> all = gathered(SplitArguments{color, key}, check_peers);
  const int family = new_family(check_peers);
  return color < 0 ? nullptr : made_of(together(all, rank()), {.family = family});
}

std::unique_ptr<Endpoint> MpiSubset::duplicate() const { return split(0, rank(), {}); }

std::unique_ptr<Endpoint> MpiSubset::among(std::span<const int> ranks, Stage stage) const {
  return made_of(ranks, number_.next(stage));
}

std::vector<Sign> MpiSubset::signs(const IsAlive& is_alive) {
  std::vector<Sign> found;
  const std::vector<int> dead = failed();
  for (int r = 0; r < size(); ++r) {
    if ((is_alive && !is_alive(r)) || std::find(dead.begin(), dead.end(), r) != dead.end()) {
      found.push_back({r, Liveness::dead, "has died: its process has ended"});
    }
  }
  while (const auto word = next_at(first_tag_ + excluded_tag)) {
    excluded_by_.insert(word->envelope().source);
  }
  for (const int rank : excluded_by_) {
    found.push_back({rank, Liveness::excluded_us, "has taken others for dead"});
  }
  return found;
}

void MpiSubset::exclude(const Sign& lost) {
  if (lost.liveness != Liveness::dead && !excluded_by_.contains(lost.rank)) {
    send(lost.rank, excluded_tag, nullptr, 0, false).give_up(std::make_shared<const int>());
  }
}

void MpiSubset::close(std::vector<int> /*awaited*/, int /*tag*/, bool /*has_lost_messages*/) noexcept {
  closed_ = true;
}

}  // namespace gradientflow::transport
