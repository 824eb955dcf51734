#include "mpi_endpoint.hpp"

#include <algorithm>
#include <climits>
#include <new>
#include <utility>

#include "../../base/forks.hpp"
#include "extent.hpp"
#include "handle_bits.hpp"
#include "retirement.hpp"

namespace gradientflow::transport {
namespace {

constexpr int fewest_tags = 32768;  // that every MPI library offers

// Below Open MPI's eager limit over TCP, 64 KiB with a header. Where large messages cross there, handshakes wait behind
// data, and links are idle: parts of this size, each sent at once, fill them.
constexpr std::size_t eager_bytes = std::size_t{60} << 10;

constexpr int most_looks = 64;  // after deaths that MPI tells of one by one

std::size_t bytes_of(const MPI_Status& status) {
  MPI_Count bytes = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  return static_cast<std::size_t>(bytes);
}

int tags_of(MPI_Comm comm) {
  int* highest = nullptr;
  int known = 0;
  check_mpi(MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&highest), &known), "MPI_Comm_get_attr");
  return known != 0 ? std::min(*highest, INT_MAX - 1) + 1 : fewest_tags;
}

}  // namespace

MpiEndpoint::MpiEndpoint(MPI_Comm original, double timeout) : timeout_(timeout), forks_(count_forks()) {
  if (forks_ > 0) {
    throw Error(ErrorKind::closed,
                "MPI belongs to the process that this one was forked from: no communicator can be made here");
  }
  free_retired();
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(original, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(original, &size), "MPI_Comm_size");
  place(rank, size, world_rank());
  if (size > 1) {
    assemble(original);
  }
  comm_ = duplicate(original);
  settle();
}

MpiEndpoint::MpiEndpoint(Own /*own*/, MPI_Comm comm, double timeout)
    : comm_(comm), timeout_(timeout), forks_(count_forks()) {
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  place(rank, size, world_rank());
  settle();
}

void MpiEndpoint::settle() {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  limits_ = {.tags = tags_of(comm_),
             .part_bytes = eager_bytes,
             .threads = mpi_thread_multiple(),
             .thread_advice = thread_level_advice()};
}

MpiEndpoint::~MpiEndpoint() {
  const bool is_usable_still = is_usable();
  for (Unwanted& each : unwanted_) {
    finish_later(std::shared_ptr<const std::byte[]>(std::move(each.memory)), each.request);
  }
  if (comm_ != MPI_COMM_NULL && is_usable_still && !stays_ && !has_abandoned_requests()) {
    retire(comm_, std::move(awaited_), awaited_tag_);
  }
}

// In a forked process, and once MPI has ended, it must not be called.
bool MpiEndpoint::is_usable() const noexcept { return forks_ == count_forks() && !mpi_finalized(); }

std::unique_ptr<Endpoint> MpiEndpoint::duplicate() const { return std::make_unique<MpiEndpoint>(comm_, timeout_); }

std::unique_ptr<Endpoint> MpiEndpoint::split(int color, int key, const CheckPeers& check_peers) const {
  const MPI_Comm part = split_off(color, key, check_peers);
  if (part == MPI_COMM_NULL) {
    return nullptr;
  }
  return std::unique_ptr<Endpoint>(new MpiEndpoint(Own{}, part, timeout_));
}

void MpiEndpoint::close(std::vector<int> awaited, int tag, bool has_lost_messages) noexcept {
  closed_ = true;
  stays_ = has_lost_messages;
  awaited_ = std::move(awaited);
  awaited_tag_ = tag;
}

Request MpiEndpoint::send(int to, int tag, const void* data, std::size_t bytes, bool until_taken) {
  MPI_Request request = MPI_REQUEST_NULL;
  const auto start = until_taken ? &MPI_Issend : &MPI_Isend;
  const Extent extent(bytes);
  check(start(data, extent.count(), extent.type(), to, tag, comm_, &request), until_taken ? "MPI_Issend" : "MPI_Isend");
  return {*this, to_bits(request), to, Request::Kind::send};
}

Request MpiEndpoint::receive(int from, int tag, void* data, std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const Extent extent(bytes);
  check(MPI_Irecv(data, extent.count(), extent.type(), from, tag, comm_, &request), "MPI_Irecv");
  return {*this, to_bits(request), from, Request::Kind::receive};
}

// MPI tells of ranks that have died whenever it is asked about any rank, until that is acknowledged.
std::optional<Arrival> MpiEndpoint::next(std::optional<int> tag) {
  if (has_unwanted_.load(std::memory_order_relaxed)) {
    drop_received();
  }
  for (int look = 0; look < most_looks; ++look) {
    int there = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int code = MPI_Improbe(MPI_ANY_SOURCE, tag.value_or(MPI_ANY_TAG), comm_, &there, &message, &status);
    if (code == MPI_SUCCESS) {
      return there == 0 ? std::nullopt
                        : std::optional<Arrival>(std::in_place, *this, to_bits(message),
                                                 Envelope{status.MPI_SOURCE, status.MPI_TAG, bytes_of(status)});
    }
    if (!is_process_failure(code)) {
      check(code, "MPI_Improbe");
    }
    acknowledge_failures(comm_);
    has_deaths_ = true;
  }
  return std::nullopt;
}

Request MpiEndpoint::receive(Arrival& arrival, void* data) {
  auto message = from_bits<MPI_Message>(arrival.handle());
  MPI_Request request = MPI_REQUEST_NULL;
  const Extent extent(arrival.envelope().bytes);
  arrival.end();
  check(MPI_Imrecv(data, extent.count(), extent.type(), &message, &request), "MPI_Imrecv");
  return {*this, to_bits(request), arrival.envelope().source, Request::Kind::receive};
}

std::optional<std::size_t> MpiEndpoint::test(Request& request) {
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

void MpiEndpoint::give_up(Request& request, Owner owner) noexcept {
  const auto own = from_bits<MPI_Request>(request.handle());
  request.end();
  if (owner != nullptr) {
    finish_later(std::move(owner), own);
  } else {
    cancel(own, request.kind() == Request::Kind::receive);
  }
}

void MpiEndpoint::cancel(MPI_Request request, bool receives) const noexcept {
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

void MpiEndpoint::discard(Arrival& arrival) noexcept {
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
  } catch (const std::exception&) {  // MPI keeps it
    note_abandoned_request();
  }
}

void MpiEndpoint::drop_received() noexcept {
  const std::lock_guard lock(unwanted_mutex_);
  std::erase_if(unwanted_, [](Unwanted& each) {
    int done = 0;
    return MPI_Test(&each.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
  has_unwanted_ = !unwanted_.empty();
}

std::vector<Death> MpiEndpoint::dead() {
  std::vector<Death> deaths;
  if (has_deaths_) {
    for (const int rank : failed_ranks(comm_)) {
      deaths.push_back({rank});
    }
  }
  return deaths;
}

}  // namespace gradientflow::transport
