#include "mpi.hpp"

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include "../../base/error.hpp"
#include "../../base/text.hpp"
#include "../signature.hpp"
#include "../patience.hpp"
#include "retirement.hpp"
#include "roll.hpp"
#include "splitting.hpp"

namespace gradientflow::transport {

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
  if (count > 0) {  // otherwise it may be a constant
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

void check_mpi(int code, std::string_view what, MPI_Comm comm) {
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
    throw Error(ErrorKind::mpi, failure);
  }
  const std::vector<int> dead = failed_ranks(comm);
  throw Error(ErrorKind::peer, dead.empty()
                                   ? failure
                                   : name_ranks(dead) + (dead.size() == 1 ? " has died: " : " have died: ") + failure);
}

MpiCommunicator::MpiCommunicator(MPI_Comm original, double timeout) : timeout_(timeout) {
  free_retired();
  check_mpi(MPI_Comm_rank(original, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(original, &size_), "MPI_Comm_size");
  if (size_ > 1) {
    assemble(original);
  }
  comm_ = duplicate(original);
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiCommunicator::MpiCommunicator(MPI_Comm own) : comm_(own), timeout_(0) {
  check_mpi(MPI_Comm_rank(own, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(own, &size_), "MPI_Comm_size");
  check_mpi(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

// A rank that gives up says so in a second roll call, which all ranks make that come at all: so each of them makes the
// same calls on `original`, and none is left alone in the duplication, which MPI cannot cancel.
void MpiCommunicator::assemble(MPI_Comm original) const {
  const std::string what = "making a communicator of " + std::to_string(size_) + " ranks";
  try {
    Roll present(original, Roll::Answer::here);
    wait_until([&] { return present.complete(); }, what, [&] { return present.missing(); }, timeout_);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::timeout) {
      const Roll verdict(original, Roll::Answer::gave_up);
    }
    throw;
  }
  Roll verdict(original, Roll::Answer::here);
  wait_until([&] { return verdict.complete(); }, what, [&] { return verdict.missing(); }, timeout_);
  if (verdict.abandoned()) {
    throw abandoned(verdict.abandoners(), what);
  }
}

Error MpiCommunicator::abandoned(const std::vector<int>& by, const std::string& what) const {
  return {ErrorKind::peer, (by.empty() ? "some ranks have" : name_ranks(by) + (by.size() == 1 ? " has" : " have")) +
                               " given up waiting before all ranks came, so rank " + std::to_string(rank_) +
                               " fails in " + what};
}

MPI_Comm MpiCommunicator::duplicate(MPI_Comm original) const {
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(original, copy.get(), &request), "MPI_Comm_idup", original);
  try {
    wait_until(
        [&] {
          int done = 0;
          check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup", original);
          return done != 0;
        },
        "MPI_Comm_idup", [] { return std::vector<int>(); }, timeout_);
  } catch (const Error&) {
    static_cast<void>(copy.release());  // MPI still writes to it
    throw;
  }
  return *copy;
}

MpiCommunicator::~MpiCommunicator() {
  if (comm_ != MPI_COMM_NULL && !finalized() && !has_abandoned_requests_) {
    retire(comm_, std::move(awaited_), awaited_tag_);
  }
}

std::vector<std::byte> MpiCommunicator::allgather(const void* mine, std::size_t bytes, int timeouts) const {
  return gather(mine, bytes, "an exchange between " + std::to_string(size_) + " ranks", timeouts * timeout_);
}

std::vector<std::byte> MpiCommunicator::gather(const void* mine, std::size_t bytes, const std::string& what,
                                               double seconds) const {
  return size_ <= few_ranks ? gather_by_messages(mine, bytes, what, seconds)
                            : gather_by_mpi(mine, bytes, what, seconds);
}

// Straight from every rank to every other, so that it is clear who is missing.
std::vector<std::byte> MpiCommunicator::gather_by_messages(const void* mine, std::size_t bytes, const std::string& what,
                                                           double seconds) const {
  const auto ranks = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(rank_);
  std::vector<std::byte> all(bytes * ranks);
  std::memcpy(all.data() + me * bytes, mine, bytes);
  const Buffer own(*this, bytes);
  std::memcpy(own.data(), mine, bytes);
  std::vector<MPI_Request> receives(ranks, MPI_REQUEST_NULL);
  std::vector<MPI_Request> sends(ranks, MPI_REQUEST_NULL);
  const auto done = [&](MPI_Request& request) {
    int flag = 0;
    check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), what);
    return flag != 0;
  };
  try {
    for (std::size_t i = 1; i < ranks; ++i) {
      const std::size_t from = (me + ranks - i) % ranks;
      const std::size_t to = (me + i) % ranks;
      check(MPI_Irecv(all.data() + from * bytes, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(from), set_up_tag,
                      comm_, &receives[from]),
            "MPI_Irecv");
      check(
          MPI_Isend(own.data(), static_cast<int>(bytes), MPI_BYTE, static_cast<int>(to), set_up_tag, comm_, &sends[to]),
          "MPI_Isend");
    }
    wait_until(
        [&] {
          return std::all_of(receives.begin(), receives.end(), done) && std::all_of(sends.begin(), sends.end(), done);
        },
        what,
        [&] {
          std::vector<int> missing;
          for (std::size_t r = 0; r < ranks; ++r) {
            if (!done(receives[r])) {
              missing.push_back(static_cast<int>(r));
            }
          }
          return missing;
        },
        seconds);
  } catch (const Error&) {
    for (std::size_t r = 0; r < ranks; ++r) {
      give_up(receives[r], true);
      give_up(sends[r], false);
    }
    has_abandoned_requests_ = true;  // what others have sent may still come
    throw;
  }
  return all;
}

std::vector<std::byte> MpiCommunicator::gather_by_mpi(const void* mine, std::size_t bytes, const std::string& what,
                                                      double seconds) const {
  const auto ranks = static_cast<std::size_t>(size_);
  const Buffer own(*this, bytes);
  const Buffer all(*this, bytes * ranks);
  std::memcpy(own.data(), mine, bytes);
  const int count = static_cast<int>(bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(own.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_, &request), "MPI_Iallgather");
  wait(request, what, seconds);
  return {all.data(), all.data() + bytes * ranks};
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

template <class Done, class Missing>
void MpiCommunicator::wait_until(Done done, const std::string& what, Missing missing, double seconds,
                                 const CheckPeers& check_peers) const {
  Patience patience(seconds);
  while (!done()) {
    const bool has_slept = patience.pause();
    if (finalized()) {  // by another thread, at the end of the process: MPI must not be asked any more
      throw Error(ErrorKind::closed, "MPI has been finalized during " + what);
    }
    if (!has_slept) {
      continue;
    }
    if (patience.over()) {
      const std::vector<int> ranks = missing();
      throw Error(ErrorKind::timeout,
                  what + " timed out after " + format_number(timeout_) + " s (GRADIENTFLOW_TIMEOUT) on rank " +
                      std::to_string(rank_) + ": " +
                      (ranks.empty() ? "not all ranks have come" : "no sign of " + name_ranks(ranks)));
    }
    if (interrupted()) {
      throw Error(ErrorKind::closed, "the communicator was closed during " + what);
    }
    if (check_peers) {
      check_peers();
    }
  }
}

void MpiCommunicator::wait(MPI_Request& request, const std::string& what, std::optional<double> seconds) const {
  try {
    wait_until(
        [&] {
          int done = 0;
          check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
          return done != 0;
        },
        what, [] { return std::vector<int>(); }, seconds.value_or(timeout_));
  } catch (const Error&) {
    has_abandoned_requests_ = true;
    throw;
  }
}

// A rank whose MPI_Comm_split has ended, or that gives up, says so to all others; it returns its part once all have
// said that theirs has ended: so all return, or none. Until then no rank goes on, so one that has left is missing.
MPI_Comm MpiCommunicator::split(int color, int key, const CheckPeers& check_peers) const {
  const int mpi_color = color < 0 ? MPI_UNDEFINED : color;
  if (size_ == 1 || !mpi_thread_multiple()) {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, mpi_color, key, &part), "MPI_Comm_split");
    return part;
  }
  const std::string what = "a split of " + std::to_string(size_) + " ranks";
  const Splitting splitting(comm_, mpi_color, key);
  MPI_Comm part = MPI_COMM_NULL;
  try {
    wait_until([&] { return splitting.ended(); }, what, [] { return std::vector<int>(); }, timeout_, check_peers);
    part = splitting.part();
  } catch (const Error& error) {
    has_abandoned_requests_ = true;
    throw give_up_in(what, error);
  }
  const auto here = Roll::Answer::here;
  const std::vector<std::byte> raw = gather(&here, sizeof here, what, timeout_ + roll_call_seconds);
  std::vector<Roll::Answer> answers(static_cast<std::size_t>(size_));
  std::memcpy(answers.data(), raw.data(), raw.size());
  std::vector<int> by;
  for (int r = 0; r < size_; ++r) {
    if (answers[static_cast<std::size_t>(r)] == Roll::Answer::gave_up) {
      by.push_back(r);
    }
  }
  if (!by.empty()) {
    has_abandoned_requests_ = true;
    throw abandoned(by, what);
  }
  return part;
}

// Tells the others that this rank gives up. Returns `error`, or after a timeout the error that names the silent ranks.
// Many ranks cannot be told: that would be a collective call beside the one that is stuck.
Error MpiCommunicator::give_up_in(const std::string& what, const Error& error) const {
  if (size_ > few_ranks || finalized()) {
    return error;
  }
  const bool is_timeout = error.kind() == ErrorKind::timeout;
  const auto gave_up = Roll::Answer::gave_up;
  try {
    static_cast<void>(gather(&gave_up, sizeof gave_up, what, is_timeout ? roll_call_seconds : 0.0));
  } catch (const Error& named) {
    return is_timeout ? named : error;
  }
  return error;
}

void MpiCommunicator::give_up(MPI_Request& request, bool receives) const noexcept {
  if (request == MPI_REQUEST_NULL || finalized()) {
    return;
  }
  if (receives) {
    int done = 0;
    if (MPI_Cancel(&request) == MPI_SUCCESS && MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
        done != 0) {
      return;
    }
  }
  has_abandoned_requests_ = true;
  if (request != MPI_REQUEST_NULL) {  // MPI_Cancel and MPI_Test may have ended it
    MPI_Request_free(&request);
  }
}

void free(MPI_Comm comm) noexcept {
  if (comm != MPI_COMM_NULL) {
    MPI_Comm_free(&comm);
  }
}

bool mpi_initialised() noexcept {
  int initialised = 0;
  MPI_Initialized(&initialised);
  return initialised != 0;
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
