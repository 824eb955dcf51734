// Common base of all endpoints over MPI: their messages, with all ranks and tags of an MPI communicator, or some.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "../endpoint.hpp"
#include "shared_messages.hpp"

namespace gradientflow::transport {

class MpiMessages : public Endpoint {
 public:
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;
  ~MpiMessages() override { leave_unwanted(); }

  [[nodiscard]] const Transport& transport() const noexcept override { return mpi_transport; }
  [[nodiscard]] Limits limits() const override { return limits_; }

  [[nodiscard]] Request send(int to, int tag, const void* data, std::size_t bytes, bool until_taken) override;
  [[nodiscard]] Request receive(int from, int tag, void* data, std::size_t bytes) override;
  [[nodiscard]] std::optional<Arrival> next(std::optional<int> tag) override;
  [[nodiscard]] Request receive(Arrival& arrival, void* data) override;
  [[nodiscard]] std::optional<std::size_t> test(Request& request) override;
  bool pause(Patience& patience) override { return patience.pause(); }

  // Without an owner, cancels a receive. A send cannot be canceled, because MPI may still read its memory: without an
  // owner, it remains an abandoned request.
  void give_up(Request& request, Owner owner) noexcept override;
  void discard(Arrival& arrival) noexcept override;

  // Returns the deaths that MPI has reported so far: see failed_ranks.
  [[nodiscard]] std::vector<Death> dead() override;
  [[nodiscard]] bool has_ended() const noexcept override;

  // Throws as check_mpi does, with the ranks of this endpoint.
  void check(int code, std::string_view what) const;

 protected:
  explicit MpiMessages(double timeout);
  // Begins to use a communicator. `places`: this endpoint's ranks there; empty if the same. `first_tag`: the
  // communicator's tag that is tag 0 here; at most `tags` are used.
  void use(MPI_Comm comm, std::vector<int> places, int first_tag, std::optional<int> tags);

  [[nodiscard]] std::optional<Found> find(int tag);
  [[nodiscard]] Arrival arrival_of(Found found);
  [[nodiscard]] Request receive(Found found, void* data, std::size_t bytes);
  [[nodiscard]] std::vector<int> failed() const;
  [[nodiscard]] int place_of(int rank) const;
  [[nodiscard]] int rank_at(int place) const;  // -1: none here
  void cancel(MPI_Request request, bool receives) const noexcept;
  void drop_received() noexcept;
  void leave_unwanted() noexcept;
  [[nodiscard]] bool is_usable() const noexcept;

  MPI_Comm comm_ = MPI_COMM_NULL;
  double timeout_;
  Limits limits_;
  int first_tag_ = 0;
  int forks_;  // number of forks of the process when this was made
  std::atomic<bool> has_deaths_{false};
  std::atomic<bool> closed_{false};

 private:
  struct Unwanted {  // message received only to be dropped, because its sender waits
    std::unique_ptr<std::byte[]> memory;
    MPI_Request request;
  };

  std::vector<int> places_;
  std::mutex unwanted_mutex_;
  std::list<Unwanted> unwanted_;
  std::atomic<bool> has_unwanted_{false};
};

}  // namespace gradientflow::transport
