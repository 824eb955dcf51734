// Endpoint over the MPI library, on its own communicator, whose errors come back as exceptions.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mpi_messages.hpp"

namespace gradientflow::transport {

class SharedMessages;

// Tag of the messages that an MpiEndpoint itself sends; other tags differ from it.
inline constexpr int set_up_tag = 7;

class MpiEndpoint final : public MpiMessages {
 public:
  // Duplicates `original`, so that our messages never meet the user's. Collective. Throws an Error(timeout) that names
  // the ranks that have not come within `timeout` seconds, or Error(peer) on a rank for which other ranks have not
  // waited. Both errors leave `original` as it was. Beyond few_ranks, no rank is named. Throws Error(closed) in a
  // process forked from a process with MPI, as far as this is known.
  MpiEndpoint(MPI_Comm original, double timeout);
  MpiEndpoint(const MpiEndpoint&) = delete;
  MpiEndpoint& operator=(const MpiEndpoint&) = delete;
  ~MpiEndpoint() override;

  [[nodiscard]] const Endpoint* by_mpi() const noexcept override { return this; }
  [[nodiscard]] MPI_Comm get() const noexcept { return comm_; }

  // Gives the communicator to the caller, which frees it. For an endpoint that has not been used.
  [[nodiscard]] MPI_Comm release() noexcept { return std::exchange(comm_, MPI_COMM_NULL); }

  using Endpoint::allgather;
  [[nodiscard]] std::vector<std::byte> allgather(const void* mine, std::size_t bytes, int timeouts) const override;

  // Throws an Error(timeout) that names the ranks with a split that has not ended in time; beyond few_ranks, no rank is
  // named. If several threads cannot call MPI, the split has no timeout once all ranks have come.
  [[nodiscard]] std::unique_ptr<Endpoint> split(int color, int key, const CheckPeers& check_peers) const override;
  [[nodiscard]] std::unique_ptr<Endpoint> duplicate() const override;

  // Once an endpoint has been made by among(), the communicator is never freed.
  [[nodiscard]] bool can_lose_ranks() const override;
  [[nodiscard]] std::unique_ptr<Endpoint> among(std::span<const int> ranks, Stage stage) const override;

  void close(std::vector<int> awaited, int tag, bool has_lost_messages) noexcept override;

  // Waits for a request of MPI's own, for the timeout or for `seconds`. Throws Error(timeout) naming `what`; the
  // request is then still under way, and the communicator is never freed.
  void wait(MPI_Request& request, const std::string& what, std::optional<double> seconds = {}) const;

 private:
  struct Own {};  // tag of the constructor that takes over a communicator

  MpiEndpoint(Own own, MPI_Comm comm, double timeout);
  void set_up(MPI_Comm comm);
  void assemble(MPI_Comm comm, const std::string& what, const CheckPeers& check_peers) const;
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

  bool stays_ = false;                              // the communicator is never freed
  mutable std::shared_ptr<SharedMessages> shared_;  // shared with endpoints of among(); keeps comm_, too
  std::vector<int> awaited_;
  int awaited_tag_ = 0;
};

}  // namespace gradientflow::transport
