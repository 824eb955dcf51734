// The set-up calls of an MpiEndpoint, which wait for other ranks, with a timeout.
#include <algorithm>
#include <cstring>

#include "../../base/text.hpp"
#include "../../base/waits.hpp"
#include "../buffer.hpp"
#include "../patience.hpp"
#include "../signature.hpp"
#include "mpi.hpp"
#include "mpi_endpoint.hpp"
#include "roll.hpp"
#include "splitting.hpp"

namespace gradientflow::transport {

// A rank that gives up reports this in a second roll call, made by all ranks that come at all. So each of them makes
// the same calls on `comm`, and none is left alone in the duplication or split that follows, which MPI cannot cancel.
void MpiEndpoint::assemble(MPI_Comm comm, const std::string& what, const CheckPeers& check_peers) const {
  try {
    Roll present(comm, Roll::Answer::here);
    wait_until([&] { return present.complete(); }, what, [&] { return present.missing(); }, timeout_, check_peers);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::timeout) {
      const Roll verdict(comm, Roll::Answer::gave_up);
    }
    throw;
  }
  Roll verdict(comm, Roll::Answer::here);
  wait_until([&] { return verdict.complete(); }, what, [&] { return verdict.missing(); }, timeout_, check_peers);
  if (verdict.abandoned()) {
    throw abandoned(verdict.abandoners(), what);
  }
}

Error MpiEndpoint::abandoned(const std::vector<int>& by, const std::string& what) const {
  return {ErrorKind::peer, (by.empty() ? "some ranks have" : name_ranks(by) + (by.size() == 1 ? " has" : " have")) +
                               " given up waiting before all ranks came, so rank " + std::to_string(rank()) +
                               " fails in " + what};
}

MPI_Comm MpiEndpoint::duplicate(MPI_Comm original) const {
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

std::vector<std::byte> MpiEndpoint::allgather(const void* mine, std::size_t bytes, int timeouts) const {
  return gather(mine, bytes, "an exchange between " + std::to_string(size()) + " ranks", timeouts * timeout_);
}

std::vector<std::byte> MpiEndpoint::gather(const void* mine, std::size_t bytes, const std::string& what,
                                           double seconds) const {
  return size() <= few_ranks ? gather_by_messages(mine, bytes, what, seconds)
                             : gather_by_mpi(mine, bytes, what, seconds);
}

// Gathers by messages from every rank to every other, so that the missing ranks are known.
std::vector<std::byte> MpiEndpoint::gather_by_messages(const void* mine, std::size_t bytes, const std::string& what,
                                                       double seconds) const {
  const auto ranks = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank());
  std::vector<std::byte> all(bytes * ranks);
  std::copy_n(static_cast<const std::byte*>(mine), bytes, all.data() + me * bytes);
  const Buffer own(*this, bytes);
  std::copy_n(static_cast<const std::byte*>(mine), bytes, own.data());
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
      cancel(receives[r], true);
      cancel(sends[r], false);
    }
    note_abandoned_request();  // messages of other ranks may still come
    throw;
  }
  return all;
}

std::vector<std::byte> MpiEndpoint::gather_by_mpi(const void* mine, std::size_t bytes, const std::string& what,
                                                  double seconds) const {
  const auto ranks = static_cast<std::size_t>(size());
  const Buffer own(*this, bytes);
  const Buffer all(*this, bytes * ranks);
  std::copy_n(static_cast<const std::byte*>(mine), bytes, own.data());
  const int count = static_cast<int>(bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(own.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_, &request), "MPI_Iallgather");
  wait(request, what, seconds);
  return {all.data(), all.data() + bytes * ranks};
}

template <class Done, class Missing>
void MpiEndpoint::wait_until(Done done, const std::string& what, Missing missing, double seconds,
                             const CheckPeers& check_peers) const {
  Patience patience(seconds);
  while (!done()) {
    const bool has_slept = patience.pause();
    if (mpi_finalized()) {  // another thread did so, at the end of the process: MPI must not be asked any more
      throw Error(ErrorKind::closed, "MPI has been finalized during " + what);
    }
    if (!has_slept) {
      continue;
    }
    if (patience.over()) {
      const std::vector<int> ranks = missing();
      throw Error(ErrorKind::timeout,
                  what + " timed out after " + format_number(timeout_) + " s (GRADIENTFLOW_TIMEOUT) on rank " +
                      std::to_string(rank()) + ": " +
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

void MpiEndpoint::wait(MPI_Request& request, const std::string& what, std::optional<double> seconds) const {
  try {
    wait_until(
        [&] {
          int done = 0;
          check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
          return done != 0;
        },
        what, [] { return std::vector<int>(); }, seconds.value_or(timeout_));
  } catch (const Error&) {
    note_abandoned_request();
    throw;
  }
}

// No rank calls MPI_Comm_split before all ranks have come, and have everything that the call needs. A rank tells all
// other ranks when its MPI_Comm_split has ended, or when it gives up. It returns its part once MPI_Comm_split has ended
// on all ranks: so either all ranks return, or none does. Until then no rank continues, so a rank that has left counts
// as missing.
MPI_Comm MpiEndpoint::split_off(int color, int key, const CheckPeers& check_peers) const {
  const int mpi_color = color < 0 ? MPI_UNDEFINED : color;
  const std::string what = "a split of " + std::to_string(size()) + " ranks";
  MPI_Comm part = MPI_COMM_NULL;
  std::optional<Splitting> splitting;
  if (size() > 1) {
    if (mpi_thread_multiple()) {
      splitting.emplace(comm_, mpi_color, key);
    }
    try {
      assemble(comm_, what, check_peers);
    } catch (const Error&) {
      note_abandoned_request();
      throw;
    }
  }
  if (!splitting) {
    check(MPI_Comm_split(comm_, mpi_color, key, &part), "MPI_Comm_split");
    if (size() == 1) {
      return part;
    }
  } else {
    splitting->begin();
    try {
      wait_until([&] { return splitting->ended(); }, what, [] { return std::vector<int>(); }, timeout_, check_peers);
      part = splitting->part();
    } catch (const Error& error) {
      note_abandoned_request();
      throw give_up_in(what, error);
    }
  }
  const auto here = Roll::Answer::here;
  const std::vector<std::byte> raw = gather(&here, sizeof here, what, timeout_ + waits::roll_call.seconds());
  std::vector<Roll::Answer> answers(static_cast<std::size_t>(size()));
  std::memcpy(answers.data(), raw.data(), raw.size());
  std::vector<int> by;
  for (int r = 0; r < size(); ++r) {
    if (answers[static_cast<std::size_t>(r)] == Roll::Answer::gave_up) {
      by.push_back(r);
    }
  }
  if (!by.empty()) {
    note_abandoned_request();
    throw abandoned(by, what);
  }
  return part;
}

// Tells other ranks that this rank gives up. Returns `error`, or after a timeout the error that names the silent ranks.
// Many ranks cannot be told, because this would take a second collective call beside the stuck call.
Error MpiEndpoint::give_up_in(const std::string& what, const Error& error) const {
  if (size() > few_ranks || mpi_finalized()) {
    return error;
  }
  const bool is_timeout = error.kind() == ErrorKind::timeout;
  const auto gave_up = Roll::Answer::gave_up;
  try {
    static_cast<void>(gather(&gave_up, sizeof gave_up, what, is_timeout ? waits::roll_call.seconds() : 0.0));
  } catch (const Error& named) {
    return is_timeout ? named : error;
  }
  return error;
}

}  // namespace gradientflow::transport
