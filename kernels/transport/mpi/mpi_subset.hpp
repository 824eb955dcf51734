// An endpoint of some ranks of a communicator of MPI, of whose others some have died: with tags of its own, on the same
// communicator. Making one takes no call of MPI for which others would have to come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "../endpoint.hpp"
#include "mpi_messages.hpp"
#include "shared_messages.hpp"

namespace gradientflow::transport {

// What tells the endpoints on one communicator apart, no two of which have the same between two ranks.
//
// Whoever goes on without ranks that have died, or tries to, takes the next generation: all that come to the same
// decision do, and whoever has come to another one takes them for dead. What is made by split() and duplicate() begins
// a family of its own, on which its ranks agree.
struct Number {
  int family = 0;
  int generation = 0;
  Stage stage = Stage::work;

  static constexpr int families = 512;
  static constexpr int generations = 64;

  // Of the endpoint that is made of this one. Throws Error(value) beyond the last generation.
  [[nodiscard]] Number next(Stage made) const;
};

class MpiSubset final : public MpiMessages {
 public:
  // `places`: of its ranks, on the communicator.
  MpiSubset(std::shared_ptr<SharedMessages> shared, std::vector<int> places, Number number, double timeout);
  MpiSubset(const MpiSubset&) = delete;
  MpiSubset& operator=(const MpiSubset&) = delete;
  ~MpiSubset() override = default;

  static constexpr int tags_needed = INT32_MAX;  // of the communicator

  [[nodiscard]] Request receive(int from, int tag, void* data, std::size_t bytes) override;
  using MpiMessages::receive;
  [[nodiscard]] std::optional<Arrival> next(std::optional<int> tag) override;

  using Endpoint::allgather;
  [[nodiscard]] std::vector<std::byte> allgather(const void* mine, std::size_t bytes, int timeouts) const override;
  [[nodiscard]] std::unique_ptr<Endpoint> split(int color, int key, const CheckPeers& check_peers) const override;
  [[nodiscard]] std::unique_ptr<Endpoint> duplicate() const override;

  [[nodiscard]] bool can_lose_ranks() const override { return true; }
  [[nodiscard]] std::unique_ptr<Endpoint> among(std::span<const int> ranks, Stage stage) const override;
  [[nodiscard]] std::vector<Sign> signs(const IsAlive& is_alive) override;
  void exclude(const Sign& lost) override;

  void close(std::vector<int> awaited, int tag, bool has_lost_messages) noexcept override;

 private:
  [[nodiscard]] bool is_own(const Envelope& envelope, int tag) const;
  [[nodiscard]] std::optional<Found> find_own(int tag);
  [[nodiscard]] std::optional<Arrival> next_at(int wanted);
  [[nodiscard]] std::vector<std::byte> gathered(const void* mine, std::size_t bytes, const std::string& what,
                                                int timeouts, const CheckPeers& check_peers) const;
  template <class T>
  [[nodiscard]] std::vector<T> gathered(const T& mine, const CheckPeers& check_peers) const;  // for a split
  [[nodiscard]] int new_family(const CheckPeers& check_peers) const;
  [[nodiscard]] std::unique_ptr<Endpoint> made_of(std::span<const int> ranks, Number number) const;

  std::shared_ptr<SharedMessages> shared_;
  Number number_;
  std::set<int> excluded_by_;
  mutable std::atomic<std::uint32_t> gathers_{0};  // so far
};

}  // namespace gradientflow::transport
