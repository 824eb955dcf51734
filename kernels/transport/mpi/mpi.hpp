// The MPI library, as far as it is used here: one duplicated communicator whose errors come back as exceptions, and
// waits that leave cores to others and have a timeout.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/error.hpp"

namespace gradientflow::transport {

// Throws unless `code` is MPI_SUCCESS: Error(mpi) with the library's own text and the rank. Where processes of `comm`
// have failed, Error(peer) that names them, if the library tells which.
void check_mpi(int code, std::string_view what, MPI_Comm comm = MPI_COMM_NULL);

// Whether `code` says that a process has failed.
[[nodiscard]] bool is_process_failure(int code);

// The ranks of `comm` whose processes have failed, as far as the library tells. Where it does, it refuses receives from
// any rank until the failures have been acknowledged.
[[nodiscard]] std::vector<int> failed_ranks(MPI_Comm comm);
void acknowledge_failures(MPI_Comm comm) noexcept;

// Up to so many ranks, all may exchange messages with all others, where that makes an error clearer.
inline constexpr int few_ranks = 64;

// How long a rank that gives up waiting listens for the other ranks, to name those that are missing.
inline constexpr double roll_call_seconds = 1.0;

// The tag of what MpiCommunicator itself sends; other tags differ from it.
inline constexpr int set_up_tag = 7;

class MpiCommunicator {
 public:
  using CheckPeers = std::function<void()>;

  // Duplicates `original`, so that our messages never meet the user's. Collective. Throws Error(timeout) that names the
  // ranks that have not come within `timeout` seconds, Error(peer) on a rank for which others have not waited. Both
  // leave `original` as it was. Beyond few_ranks, no rank is named.
  MpiCommunicator(MPI_Comm original, double timeout);

  // Takes over `own`, which it frees in the end. Not collective; not for calls that wait for other ranks.
  explicit MpiCommunicator(MPI_Comm own);
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  ~MpiCommunicator();

  [[nodiscard]] MPI_Comm get() const noexcept { return comm_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  // Every rank's `bytes` bytes, in rank order. Collective; waits as the constructor does. For set-up and rare cases: it
  // sends something to every rank. `timeouts`: how many timeouts it may take, where the others may have to wait for
  // something else before they come.
  [[nodiscard]] std::vector<std::byte> allgather(const void* mine, std::size_t bytes, int timeouts = 1) const;

  // As MPI_Comm_split, with MPI_COMM_NULL for a negative color. Collective; all ranks get their part or none does.
  // Throws Error(timeout) that names the ranks whose split has not ended in time, Error(peer) on a rank for which
  // others have not waited; beyond few_ranks, no rank is named. Where MPI cannot be called from several threads it has
  // no timeout. `check_peers`: called several times a second, to throw where a rank is missing.
  [[nodiscard]] MPI_Comm split(int color, int key, const CheckPeers& check_peers) const;

  // The communicator is freed only after a last message with `tag` has come from each of `ranks`.
  void await_last_messages(std::vector<int> ranks, int tag) noexcept {
    awaited_ = std::move(ranks);
    awaited_tag_ = tag;
  }

  // Never frees the communicator, because MPI still has messages of it.
  void never_free() noexcept { has_abandoned_requests_.store(true); }

  // Whether a request was given up: MPI may still read and write its buffers.
  [[nodiscard]] bool has_abandoned_requests() const noexcept { return has_abandoned_requests_.load(); }

  // Gives up a request that is still under way. Only a receive can be cancelled; of a send MPI may still read the
  // memory, and the communicator is stuck.
  void give_up(MPI_Request& request, bool receives) const noexcept;

  // Makes a wait, now or later, throw Error(closed).
  void interrupt() noexcept { interrupted_.store(true); }
  [[nodiscard]] bool interrupted() const noexcept { return interrupted_.load(); }

  template <class T>
  [[nodiscard]] std::vector<T> allgather(const T& mine, int timeouts = 1) const {
    const std::vector<std::byte> raw = allgather(&mine, sizeof(T), timeouts);
    std::vector<T> all(static_cast<std::size_t>(size_));
    __builtin_memcpy(all.data(), raw.data(), raw.size());
    return all;
  }

  // Throws Error(closed) where MPI has ended: calling it then would end the process.
  void check_not_finalized() const;
  [[nodiscard]] bool finalized() const noexcept;

  // Throws as check_mpi does.
  void check(int code, std::string_view what) const { check_mpi(code, what, comm_); }

  // Waits for `request` as long as the timeout allows, or so many seconds. Throws Error(timeout) naming `what`; the
  // request is then still under way, and the communicator is never freed.
  void wait(MPI_Request& request, const std::string& what, std::optional<double> seconds = {}) const;

 private:
  void assemble(MPI_Comm original) const;
  [[nodiscard]] MPI_Comm duplicate(MPI_Comm original) const;
  [[nodiscard]] std::vector<std::byte> gather(const void* mine, std::size_t bytes, const std::string& what,
                                              double seconds) const;
  [[nodiscard]] std::vector<std::byte> gather_by_mpi(const void* mine, std::size_t bytes, const std::string& what,
                                                     double seconds) const;
  [[nodiscard]] std::vector<std::byte> gather_by_messages(const void* mine, std::size_t bytes, const std::string& what,
                                                          double seconds) const;
  template <class Done, class Missing>
  void wait_until(Done done, const std::string& what, Missing missing, double seconds,
                  const CheckPeers& check_peers = {}) const;
  [[nodiscard]] Error abandoned(const std::vector<int>& by, const std::string& what) const;
  [[nodiscard]] Error give_up_in(const std::string& what, const Error& error) const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  double timeout_;
  int rank_ = 0;
  int size_ = 1;
  std::atomic<bool> interrupted_{false};
  mutable std::atomic<bool> has_abandoned_requests_{false};
  std::vector<int> awaited_;
  int awaited_tag_ = 0;
};

// Memory for the requests of one call. Where MPI may still use it, because a request was given up, it stays for good:
// declare it before the messages that use it.
class Buffer {
 public:
  Buffer(const MpiCommunicator& mpi, std::size_t bytes) : mpi_(mpi), bytes_(std::make_unique<std::byte[]>(bytes)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (mpi_.has_abandoned_requests()) {
      static_cast<void>(bytes_.release());
    }
  }
  [[nodiscard]] std::byte* data() const noexcept { return bytes_.get(); }

 private:
  const MpiCommunicator& mpi_;
  std::unique_ptr<std::byte[]> bytes_;
};

// Frees a communicator that MpiCommunicator::split made; nothing for MPI_COMM_NULL.
void free(MPI_Comm comm) noexcept;

[[nodiscard]] bool mpi_initialised() noexcept;

// In MPI_COMM_WORLD.
[[nodiscard]] int world_rank();

// Whether several threads may call MPI at once (MPI_THREAD_MULTIPLE).
[[nodiscard]] bool mpi_thread_multiple();

// The end of an error about a call that needs it: which thread level there is, and what to do.
[[nodiscard]] std::string thread_level_advice();

// The MPI library's own name and version, one line.
[[nodiscard]] std::string mpi_library_version();

}  // namespace gradientflow::transport
