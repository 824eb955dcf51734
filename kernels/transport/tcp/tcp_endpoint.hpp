// Endpoint of a group of ranks over our own connections.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../endpoint.hpp"

namespace gradientflow::transport::tcp {

class Engine;
struct Inbox;

class TcpEndpoint : public Endpoint {
 public:
  // `ranks`: the group's ranks in the job, in the group's order. `id`: the group's id, unique, and the same on all its
  // ranks.
  TcpEndpoint(std::shared_ptr<Engine> engine, std::vector<int> ranks, std::uint64_t id);
  ~TcpEndpoint() override;
  TcpEndpoint(const TcpEndpoint&) = delete;
  TcpEndpoint& operator=(const TcpEndpoint&) = delete;

  [[nodiscard]] const Transport& transport() const noexcept override { return tcp_transport; }
  [[nodiscard]] Limits limits() const override;
  [[nodiscard]] Request send(int to, int tag, const void* data, std::size_t bytes, bool until_taken) override;
  [[nodiscard]] Request receive(int from, int tag, void* data, std::size_t bytes) override;
  [[nodiscard]] std::optional<Arrival> next(std::optional<int> tag) override;
  [[nodiscard]] Request receive(Arrival& arrival, void* data) override;
  [[nodiscard]] std::optional<std::size_t> test(Request& request) override;
  [[nodiscard]] bool may_have_ended(const Request& request) const noexcept override;
  bool pause(Patience& patience) override;
  void give_up(Request& request, Owner owner) noexcept override;
  void discard(Arrival& arrival) noexcept override;
  [[nodiscard]] std::vector<Death> dead() override;
  [[nodiscard]] bool has_ended() const noexcept override { return false; }
  [[nodiscard]] std::vector<std::byte> allgather(const void* mine, std::size_t bytes, int timeouts) const override;
  [[nodiscard]] std::unique_ptr<Endpoint> split(int color, int key, const CheckPeers& check_peers) const override;
  [[nodiscard]] std::unique_ptr<Endpoint> duplicate() const override;
  [[nodiscard]] bool can_lose_ranks() const override { return can_lose_ranks_; }
  [[nodiscard]] std::unique_ptr<Endpoint> among(std::span<const int> ranks, Stage stage) const override;
  [[nodiscard]] std::vector<Sign> signs(const IsAlive& is_alive) override;
  void exclude(const Sign& lost) override;
  [[nodiscard]] bool has_told_excluded() override;
  [[nodiscard]] int job_size() const override;
  [[nodiscard]] std::unique_ptr<Endpoint> widen(std::span<const std::string> addresses, int first) const override;
  [[nodiscard]] Invitation invitation() const override;
  void close(std::vector<int> awaited, int tag, bool has_lost_messages) noexcept override;
  void release_sockets() noexcept override { engine_.reset(); }

 private:
  [[nodiscard]] int group_rank_of(int rank_of_job) const;
  [[nodiscard]] int job_rank_of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::uint64_t new_id(int color) const;
  [[nodiscard]] std::vector<std::byte> gathered(const void* mine, std::size_t bytes, const std::string& what,
                                                int timeouts, const CheckPeers& check_peers) const;

  std::shared_ptr<Engine> engine_;  // empty after release_sockets()
  bool can_lose_ranks_;
  std::vector<int> ranks_;
  std::uint64_t id_;
  Inbox* inbox_;
  mutable std::atomic<std::uint64_t> groups_{0};   // groups made of this one
  mutable std::atomic<std::uint32_t> gathers_{0};  // gatherings so far
};

}  // namespace gradientflow::transport::tcp
