#include "mpi_messages.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "../../base/forks.hpp"
#include "extent.hpp"
#include "handle_bits.hpp"
#include "mpi.hpp"
#include "retirement.hpp"

namespace gradientflow::transport {
namespace {

// Size below Open MPI's eager limit over TCP, 64 KiB with a header. Where large messages cross there, handshakes wait
// behind data, and links are idle: parts of this size, each sent at once, fill them.
constexpr std::size_t eager_bytes = std::size_t{60} << 10;

constexpr int most_looks = 64;  // limit of probes when MPI reports deaths one by one

std::size_t bytes_of(const MPI_Status& status) {
  MPI_Count bytes = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  return static_cast<std::size_t>(bytes);
}

}  // namespace

MpiMessages::MpiMessages(double timeout) : timeout_(timeout), forks_(count_forks()) {}

void MpiMessages::use(MPI_Comm comm, std::vector<int> places, int first_tag, std::optional<int> tags) {
  comm_ = comm;
  places_ = std::move(places);
  first_tag_ = first_tag;
  limits_ = {.tags = tags ? *tags : tags_of(comm),
             .part_bytes = eager_bytes,
             .threads = mpi_thread_multiple(),
             .thread_advice = thread_level_advice()};
}

// In a forked process, and once MPI has ended, MPI must not be called.
bool MpiMessages::is_usable() const noexcept { return forks_ == count_forks() && !mpi_finalized(); }

bool MpiMessages::has_ended() const noexcept { return mpi_finalized(); }

int MpiMessages::place_of(int rank) const { return places_.empty() ? rank : places_[static_cast<std::size_t>(rank)]; }

int MpiMessages::rank_at(int place) const {
  if (places_.empty()) {
    return place;
  }
  const auto found = std::find(places_.begin(), places_.end(), place);
  return found == places_.end() ? -1 : static_cast<int>(found - places_.begin());
}

void MpiMessages::check(int code, std::string_view what) const {
  if (code != MPI_SUCCESS) {
    check_mpi(code, what, failed());
  }
}

Request MpiMessages::send(int to, int tag, const void* data, std::size_t bytes, bool until_taken) {
  MPI_Request request = MPI_REQUEST_NULL;
  const auto start = until_taken ? &MPI_Issend : &MPI_Isend;
  const Extent extent(bytes);
  check(start(data, extent.count(), extent.type(), place_of(to), first_tag_ + tag, comm_, &request),
        until_taken ? "MPI_Issend" : "MPI_Isend");
  return {*this, to_bits(request), to, Request::Kind::send};
}

Request MpiMessages::receive(int from, int tag, void* data, std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const Extent extent(bytes);
  check(MPI_Irecv(data, extent.count(), extent.type(), place_of(from), first_tag_ + tag, comm_, &request), "MPI_Irecv");
  return {*this, to_bits(request), from, Request::Kind::receive};
}

std::optional<Arrival> MpiMessages::next(std::optional<int> tag) {
  if (const auto found = find(tag ? first_tag_ + *tag : MPI_ANY_TAG)) {
    return arrival_of(*found);
  }
  return std::nullopt;
}

// Finds a message. MPI reports dead ranks whenever it is asked about any rank, until these deaths are acknowledged.
std::optional<Found> MpiMessages::find(int tag) {
  if (has_unwanted_.load(std::memory_order_relaxed)) {
    drop_received();
  }
  for (int look = 0; look < most_looks; ++look) {
    int there = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int code = MPI_Improbe(MPI_ANY_SOURCE, tag, comm_, &there, &message, &status);
    if (code == MPI_SUCCESS) {
      return there == 0 ? std::nullopt
                        : std::optional(Found{message, {status.MPI_SOURCE, status.MPI_TAG, bytes_of(status)}});
    }
    if (!is_process_failure(code)) {
      check(code, "MPI_Improbe");
    }
    acknowledge_failures(comm_);
    has_deaths_ = true;
  }
  return std::nullopt;
}

Arrival MpiMessages::arrival_of(Found found) {
  const auto& [source, tag, bytes] = found.envelope;
  return {*this, to_bits(found.message), {rank_at(source), tag - first_tag_, bytes}};
}

Request MpiMessages::receive(Arrival& arrival, void* data) {
  const Envelope& envelope = arrival.envelope();
  arrival.end();
  return receive({from_bits<MPI_Message>(arrival.handle()), {place_of(envelope.source), envelope.tag, envelope.bytes}},
                 data, envelope.bytes);
}

Request MpiMessages::receive(Found found, void* data, std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const Extent extent(bytes);
  check(MPI_Imrecv(data, extent.count(), extent.type(), &found.message, &request), "MPI_Imrecv");
  return {*this, to_bits(request), rank_at(found.envelope.source), Request::Kind::receive};
}

std::optional<std::size_t> MpiMessages::test(Request& request) {
  auto own = from_bits<MPI_Request>(request.handle());
  const bool receives = request.kind() == Request::Kind::receive;
  int done = 0;
  MPI_Status status;
  const int code = MPI_Test(&own, &done, &status);
  if (code != MPI_SUCCESS) {
    request.end();
    cancel(own, receives);
    check(code, (receives ? "a message from rank " : "a message to rank ") + std::to_string(request.peer()));
  }
  if (done == 0) {
    return std::nullopt;
  }
  request.end();
  return receives ? bytes_of(status) : 0;
}

void MpiMessages::give_up(Request& request, Owner owner) noexcept {
  const auto own = from_bits<MPI_Request>(request.handle());
  request.end();
  if (owner != nullptr) {
    finish_later(std::move(owner), own);
  } else {
    cancel(own, request.kind() == Request::Kind::receive);
  }
}

void MpiMessages::cancel(MPI_Request request, bool receives) const noexcept {
  if (request == MPI_REQUEST_NULL || !is_usable()) {
    return;
  }
  if (receives) {
    int done = 0;
    if (MPI_Cancel(&request) == MPI_SUCCESS && MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
        done != 0) {
      return;
    }
  }
  note_abandoned_request();
  if (request != MPI_REQUEST_NULL) {  // MPI_Cancel and MPI_Test may have ended it
    MPI_Request_free(&request);
  }
}

void MpiMessages::discard(Arrival& arrival) noexcept {
  arrival.end();
  if (closed_ || !is_usable()) {
    return;
  }
  try {
    const std::size_t bytes = arrival.envelope().bytes;
    const std::lock_guard lock(unwanted_mutex_);
    Unwanted& unwanted = unwanted_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(bytes), MPI_REQUEST_NULL);
    auto message = from_bits<MPI_Message>(arrival.handle());
    const Extent extent(bytes);
    check(MPI_Imrecv(unwanted.memory.get(), extent.count(), extent.type(), &message, &unwanted.request), "MPI_Imrecv");
    has_unwanted_ = true;
  } catch (const std::exception&) {  // MPI keeps the message
    note_abandoned_request();
  }
}

void MpiMessages::drop_received() noexcept {
  const std::lock_guard lock(unwanted_mutex_);
  std::erase_if(unwanted_, [](Unwanted& each) {
    int done = 0;
    return MPI_Test(&each.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
  has_unwanted_ = !unwanted_.empty();
}

void MpiMessages::leave_unwanted() noexcept {
  for (Unwanted& each : unwanted_) {
    finish_later(std::shared_ptr<const std::byte[]>(std::move(each.memory)), each.request);
  }
  unwanted_.clear();
}

std::vector<int> MpiMessages::failed() const {
  std::vector<int> ranks;
  for (const int place : failed_ranks(comm_)) {
    if (const int rank = rank_at(place); rank >= 0) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<Death> MpiMessages::dead() {
  std::vector<Death> deaths;
  if (has_deaths_) {
    for (const int rank : failed()) {
      deaths.push_back({rank});
    }
  }
  return deaths;
}

}  // namespace gradientflow::transport
