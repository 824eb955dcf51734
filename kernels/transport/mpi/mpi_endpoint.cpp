#include "mpi_endpoint.hpp"

#include <utility>

#include "mpi.hpp"
#include "mpi_subset.hpp"
#include "retirement.hpp"

namespace gradientflow::transport {

MpiEndpoint::MpiEndpoint(MPI_Comm original, double timeout) : MpiMessages(timeout) {
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
    assemble(original, "making a communicator of " + std::to_string(size) + " ranks", {});
  }
  set_up(duplicate(original));
}

MpiEndpoint::MpiEndpoint(Own /*own*/, MPI_Comm comm, double timeout) : MpiMessages(timeout) {
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  place(rank, size, world_rank());
  set_up(comm);
}

void MpiEndpoint::set_up(MPI_Comm comm) {
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  use(comm, {}, 0, {});
}

MpiEndpoint::~MpiEndpoint() {
  leave_unwanted();
  if (comm_ != MPI_COMM_NULL && is_usable() && !stays_ && shared_ == nullptr && !has_abandoned_requests()) {
    retire(comm_, std::move(awaited_), awaited_tag_);
  }
}

std::unique_ptr<Endpoint> MpiEndpoint::duplicate() const { return std::make_unique<MpiEndpoint>(comm_, timeout_); }

std::unique_ptr<Endpoint> MpiEndpoint::split(int color, int key, const CheckPeers& check_peers) const {
  const MPI_Comm part = split_off(color, key, check_peers);
  if (part == MPI_COMM_NULL) {
    return nullptr;
  }
  return std::unique_ptr<Endpoint>(new MpiEndpoint(Own{}, part, timeout_));
}

bool MpiEndpoint::can_lose_ranks() const {
  return can_outlive_processes() && tags_of(MPI_COMM_WORLD) >= MpiSubset::tags_needed;
}

std::unique_ptr<Endpoint> MpiEndpoint::among(std::span<const int> ranks, Stage stage) const {
  if (shared_ == nullptr) {
    shared_ = std::make_shared<SharedMessages>(comm_);
  }
  return std::make_unique<MpiSubset>(shared_, std::vector(ranks.begin(), ranks.end()), Number().next(stage), timeout_);
}

void MpiEndpoint::close(std::vector<int> awaited, int tag, bool has_lost_messages) noexcept {
  closed_ = true;
  stays_ = has_lost_messages;
  awaited_ = std::move(awaited);
  awaited_tag_ = tag;
}

}  // namespace gradientflow::transport
