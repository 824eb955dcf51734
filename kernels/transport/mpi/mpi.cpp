#include "mpi.hpp"

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <array>
#include <climits>

#include "../../base/error.hpp"
#include "../../base/text.hpp"
#include "../signature.hpp"

namespace gradientflow::transport {
namespace {

constexpr int fewest_tags = 32768;  // offered by every MPI library

}  // namespace

bool is_process_failure(int code) {
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
#ifdef MPIX_ERR_PROC_FAILED
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING;
#else
  return false;
#endif
}

std::vector<int> failed_ranks([[maybe_unused]] MPI_Comm comm) {
  std::vector<int> ranks;
#ifdef OMPI_HAVE_MPIX_COMM_GET_FAILED
  MPI_Group failed = MPI_GROUP_NULL;
  if (comm == MPI_COMM_NULL || MPIX_Comm_get_failed(comm, &failed) != MPI_SUCCESS) {
    return ranks;
  }
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Comm_group(comm, &all);
  int count = 0;
  MPI_Group_size(failed, &count);
  for (int i = 0; i < count; ++i) {
    MPI_Group_translate_ranks(failed, 1, &i, all, &ranks.emplace_back());
  }
  MPI_Group_free(&all);
  if (count > 0) {  // otherwise the group may be a constant
    MPI_Group_free(&failed);
  }
#endif
  return ranks;
}

void acknowledge_failures([[maybe_unused]] MPI_Comm comm) noexcept {
#ifdef OMPI_HAVE_MPIX_COMM_GET_FAILED
  MPIX_Comm_failure_ack(comm);
#endif
}

bool can_outlive_processes() {
#ifdef MPIX_FT
  int* is_on = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, static_cast<void*>(&is_on), &known);
  return known != 0 && *is_on != 0;
#else
  return false;
#endif
}

int tags_of(MPI_Comm comm) {
  int* highest = nullptr;
  int known = 0;
  check_mpi(MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&highest), &known), "MPI_Comm_get_attr");
  return known != 0 ? std::min(*highest, INT_MAX - 1) + 1 : fewest_tags;
}

void check_mpi(int code, std::string_view what, MPI_Comm comm) {
  if (code != MPI_SUCCESS) {
    check_mpi(code, what, is_process_failure(code) ? failed_ranks(comm) : std::vector<int>());
  }
}

void check_mpi(int code, std::string_view what, const std::vector<int>& failed) {
  if (code == MPI_SUCCESS) {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> buffer{};
  int length = 0;
  MPI_Error_string(code, buffer.data(), &length);
  const std::string text(buffer.data(), static_cast<std::size_t>(length));
  const std::string failure =
      std::string(what) + " failed on rank " + std::to_string(world_rank()) + " of MPI_COMM_WORLD: " + text;
  if (!is_process_failure(code)) {
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    throw Error(kind == MPI_ERR_TRUNCATE ? ErrorKind::mismatch : ErrorKind::mpi, failure);
  }
  throw Error(
      ErrorKind::peer,
      failed.empty() ? failure : name_ranks(failed) + (failed.size() == 1 ? " has died: " : " have died: ") + failure);
}

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

bool mpi_initialized() noexcept {
  int initialized = 0;
  MPI_Initialized(&initialized);
  return initialized != 0;
}

bool mpi_finalized() noexcept {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
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

const char* thread_level_advice() {
  static const std::string advice = [] {
    int provided = MPI_THREAD_SINGLE;
    MPI_Query_thread(&provided);
    const char* const level = provided == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
                              : provided == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
                              : provided == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                                                  : "MPI_THREAD_MULTIPLE";
    return std::string(", and MPI was initialized with ") + level +
           ": call MPI_Init_thread with MPI_THREAD_MULTIPLE instead of MPI_Init, or let GradientFlow initialize MPI";
  }();
  return advice.c_str();
}

}  // namespace gradientflow::transport
