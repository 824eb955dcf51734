// An endpoint whose messages the MPI library moves, on a communicator of its own, whose errors come back as exceptions.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../endpoint.hpp"
#include "mpi.hpp"

namespace gradientflow::transport {

// The tag of what an MpiEndpoint itself sends; other tags differ from it.
inline constexpr int set_up_tag = 7;

class MpiEndpoint final : public Endpoint {
 public:
  // Duplicates `original`, so that our messages never meet the user's. Collective. Throws Error(timeout) that names the
  // ranks that have not come within `timeout` seconds, Error(peer) on a rank for which others have not waited. Both
  // leave `original` as it was. Beyond few_ranks, no rank is named. Throws Error(closed) in a process that was forked
  // off one with MPI, as far as this is known.
  MpiEndpoint(MPI_Comm original, double timeout);
  MpiEndpoint(const MpiEndpoint&) = delete;
  MpiEndpoint& operator=(const MpiEndpoint&) = delete;
  ~MpiEndpoint() override;

  [[nodiscard]] TransportKind kind() const noexcept override { return TransportKind::mpi; }
  [[nodiscard]] Limits limits() const override { return limits_; }
  [[nodiscard]] MPI_Comm get() const noexcept { return comm_; }

  // Gives the communicator away; whoever gets it frees it. For an endpoint that has not been used.
  [[nodiscard]] MPI_Comm release() noexcept { return std::exchange(comm_, MPI_COMM_NULL); }

  [[nodiscard]] Request send(int to, int tag, const void* data, std::size_t bytes, bool until_taken) override;
  [[nodiscard]] Request receive(int from, int tag, void* data, std::size_t bytes) override;
  [[nodiscard]] std::optional<Arrival> next(std::optional<int> tag) override;
  [[nodiscard]] Request receive(Arrival& arrival, void* data) override;
  [[nodiscard]] std::optional<std::size_t> test(Request& request) override;
  bool pause(Patience& patience) override { return patience.pause(); }

  // Only a receive can be cancelled; of a send MPI may still read the memory. Without an owner, the communicator is
  // then stuck.
  void give_up(Request& request, Owner owner) noexcept override;
  void discard(Arrival& arrival) noexcept override;

  // What MPI has told so far: see failed_ranks.
  [[nodiscard]] std::vector<Death> dead() override;
  [[nodiscard]] bool has_ended() const noexcept override { return mpi_finalized(); }

  using Endpoint::allgather;
  [[nodiscard]] std::vector<std::byte> allgather(const void* mine, std::size_t bytes, int timeouts) const override;

  // Throws Error(timeout) that names the ranks whose split has not ended in time; beyond few_ranks, no rank is named.
  // Where MPI cannot be called from several threads it has no timeout.
  [[nodiscard]] std::unique_ptr<Endpoint> split(int color, int key, const CheckPeers& check_peers) const override;
  [[nodiscard]] std::unique_ptr<Endpoint> duplicate() const override;

  void close(std::vector<int> awaited, int tag, bool has_lost_messages) noexcept override;

  // Throws as check_mpi does.
  void check(int code, std::string_view what) const { check_mpi(code, what, comm_); }

  // Waits for a request of MPI's own as long as the timeout allows, or so many seconds. Throws Error(timeout) naming
  // `what`; the request is then still under way, and the communicator is never freed.
  void wait(MPI_Request& request, const std::string& what, std::optional<double> seconds = {}) const;

 private:
  struct Unwanted {  // a message that is received to be dropped, because its sender waits
    std::unique_ptr<std::byte[]> memory;
    MPI_Request request;
  };
  struct Own {};  // takes over a communicator

  MpiEndpoint(Own own, MPI_Comm comm, double timeout);
  void settle();
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
  [[nodiscard]] MPI_Comm split_off(int color, int key, const CheckPeers& check_peers) const;
  void cancel(MPI_Request request, bool receives) const noexcept;
  void drop_received() noexcept;
  [[nodiscard]] bool is_usable() const noexcept;

  MPI_Comm comm_ = MPI_COMM_NULL;
  double timeout_;
  Limits limits_;
  int forks_;  // how often the process had forked when this was made
  std::atomic<bool> has_deaths_{false};
  std::atomic<bool> closed_{false};
  bool stays_ = false;  // the communicator is never freed
  std::vector<int> awaited_;
  int awaited_tag_ = 0;
  std::mutex unwanted_mutex_;
  std::list<Unwanted> unwanted_;
  std::atomic<bool> has_unwanted_{false};
};

}  // namespace gradientflow::transport
