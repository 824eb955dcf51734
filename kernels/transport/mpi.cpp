#include "mpi.hpp"

#include <array>

#include "../base/error.hpp"
#include "../base/text.hpp"
#include "patience.hpp"
#include "retirement.hpp"

namespace gradientflow::transport {

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(ErrorKind::mpi, std::string(what) + " failed on rank " + std::to_string(world_rank()) +
                                  " of MPI_COMM_WORLD: " + std::string(text.data(), static_cast<std::size_t>(length)));
}

MpiCommunicator::MpiCommunicator(MPI_Comm original) {
  free_retired();
  check_mpi(MPI_Comm_dup(original, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
}

MpiCommunicator::~MpiCommunicator() {
  if (comm_ != MPI_COMM_NULL && !finalized() && !stuck_) {
    retire(comm_, std::move(awaited_), awaited_tag_);
  }
}

std::vector<std::byte> MpiCommunicator::allgather(const void* mine, std::size_t bytes) const {
  std::vector<std::byte> all(bytes * static_cast<std::size_t>(size_));
  const int count = static_cast<int>(bytes);
  check_mpi(MPI_Allgather(mine, count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_), "MPI_Allgather");
  return all;
}

bool MpiCommunicator::finalized() const noexcept {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

void MpiCommunicator::check_not_finalized() const {
  if (finalized()) {
    throw Error(ErrorKind::closed,
                "MPI has been finalized on rank " + std::to_string(rank_) + ", and the call needs it");
  }
}

void MpiCommunicator::wait(MPI_Request& request, double timeout, const std::string& what) const {
  Patience patience(timeout);
  while (true) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what.c_str());
    if (done != 0) {
      return;
    }
    if (!patience.pause()) {
      continue;
    }
    if (patience.over()) {
      stuck_ = true;
      throw Error(ErrorKind::timeout,
                  what + " timed out after " + format_number(timeout) + " s on rank " + std::to_string(rank_));
    }
    if (interrupted()) {
      stuck_ = true;
      throw Error(ErrorKind::closed, "the communicator was closed during " + what);
    }
  }
}

MPI_Comm MpiCommunicator::split(int color, int key) const {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &part), "MPI_Comm_split");
  return part;
}

void MpiCommunicator::give_up(MPI_Request& request, bool receives) const noexcept {
  if (finalized()) {
    return;
  }
  if (receives) {
    int done = 0;
    if (MPI_Cancel(&request) == MPI_SUCCESS && MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
        done != 0) {
      return;
    }
  }
  stuck_ = true;
  if (request != MPI_REQUEST_NULL) {
    MPI_Request_free(&request);
  }
}

void free(MPI_Comm comm) noexcept {
  if (comm != MPI_COMM_NULL) {
    MPI_Comm_free(&comm);
  }
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

bool mpi_thread_multiple() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  return provided == MPI_THREAD_MULTIPLE;
}

std::string thread_level_advice() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  const char* const level = provided == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
                            : provided == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
                            : provided == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                                                : "MPI_THREAD_MULTIPLE";
  return std::string(", and MPI was initialised with ") + level +
         ": call MPI_Init_thread with MPI_THREAD_MULTIPLE instead of MPI_Init, or let GradientFlow initialise MPI";
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace gradientflow::transport
