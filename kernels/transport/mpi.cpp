#include "mpi.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "../base/error.hpp"
#include "../base/text.hpp"

namespace gradientflow::transport {

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  throw Error(ErrorKind::mpi, std::string(what) + " failed on rank " + std::to_string(rank) +
                                  " of MPI_COMM_WORLD: " + std::string(text.data(), static_cast<std::size_t>(length)));
}

MpiCommunicator::MpiCommunicator(MPI_Comm original) {
  check_mpi(MPI_Comm_dup(original, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
}

MpiCommunicator::~MpiCommunicator() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (comm_ != MPI_COMM_NULL && finalized == 0 && !stuck_) {
    MPI_Comm_free(&comm_);
  }
}

std::vector<std::byte> MpiCommunicator::allgather(const void* mine, std::size_t bytes) const {
  std::vector<std::byte> all(bytes * static_cast<std::size_t>(size_));
  const int count = static_cast<int>(bytes);
  check_mpi(MPI_Allgather(mine, count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_), "MPI_Allgather");
  return all;
}

void MpiCommunicator::check_not_finalized() const {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    throw Error(ErrorKind::closed,
                "MPI has been finalized on rank " + std::to_string(rank_) + ", and the call needs it");
  }
}

void MpiCommunicator::wait(MPI_Request& request, double timeout, const std::string& what) const {
  using Clock = std::chrono::steady_clock;
  constexpr int spins = 100;
  constexpr int yields = 1000;
  const auto start = Clock::now();
  auto nap = std::chrono::microseconds(20);
  for (int round = 0;; ++round) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what.c_str());
    if (done != 0) {
      return;
    }
    if (round < spins) {
      continue;
    }
    if (round < spins + yields) {
      sched_yield();
      continue;
    }
    if (std::chrono::duration<double>(Clock::now() - start).count() > timeout) {
      stuck_ = true;
      throw Error(ErrorKind::timeout,
                  what + " timed out after " + format_number(timeout) + " s on rank " + std::to_string(rank_));
    }
    if (interrupted_.load()) {
      stuck_ = true;
      throw Error(ErrorKind::closed, "the communicator was closed during " + what);
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(500));
  }
}

bool mpi_thread_multiple() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  return provided == MPI_THREAD_MULTIPLE;
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace gradientflow::transport
