// Endpoint of some ranks of an MPI communicator whose other ranks have died. It uses its own tags on the same
// communicator, and is made without any collective call of MPI.
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

// Identifies an endpoint among all endpoints on one MPI communicator: between two ranks, no two endpoints have the same
// number.
//
// Each attempt to continue without dead ranks takes the next generation. All ranks with the same decision take it; a
// rank with another decision takes these ranks for dead. An endpoint made by split() or duplicate() begins a new
// family, whose number its ranks agree on.
struct Number {
  int family = 0;
  int generation = 0;
  Stage stage = Stage::work;

  static constexpr int families = 512;
  static constexpr int generations = 64;

  // Returns the number of an endpoint made from this endpoint. Throws Error(value) beyond the last generation.
  [[nodiscard]] Number next(Stage made) const;
};

class MpiSubset final : public MpiMessages {
 public:
  // `places`: its ranks' numbers on the communicator.
  MpiSubset(std::shared_ptr<SharedMessages> shared, std::vector<int> places, Number number, double timeout);
  MpiSubset(const MpiSubset&) = delete;
  MpiSubset& operator=(const MpiSubset&) = delete;
  ~MpiSubset() override = default;

  static constexpr int tags_needed = INT32_MAX;  // tags that the communicator must have

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
  [[nodiscard]] std::vector<T> gathered(const T& mine, const CheckPeers& check_peers) const;  // used by a split
  [[nodiscard]] int new_family(const CheckPeers& check_peers) const;
  [[nodiscard]] std::unique_ptr<Endpoint> made_of(std::span<const int> ranks, Number number) const;

  std::shared_ptr<SharedMessages> shared_;
  Number number_;
  std::set<int> excluded_by_;
  mutable std::atomic<std::uint32_t> gathers_{0};  // gatherings so far
};

}  // namespace gradientflow::transport
