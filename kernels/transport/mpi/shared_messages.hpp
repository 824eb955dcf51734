// Messages of one communicator of MPI that several endpoints use, each with tags of its own.
//
// One of them, a mailbox's, asks for any message, and MPI may give it one of another endpoint. That is kept here until
// its endpoint asks for it.
#pragma once

#include <mpi.h>

#include <functional>
#include <list>
#include <mutex>
#include <optional>

#include "../endpoint.hpp"

namespace gradientflow::transport {

// A message that MPI has given out; its source and its tag are those of the communicator.
struct Found {
  MPI_Message message;
  Envelope envelope;
};

class SharedMessages {
 public:
  explicit SharedMessages(MPI_Comm comm) : comm_(comm) {}

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  // Held from the look into what is kept to the question to MPI, so that a message is in one of the two places.
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // With the lock held. The oldest that is wanted.
  using IsWanted = std::function<bool(const Envelope&)>;
  [[nodiscard]] std::optional<Found> take(const IsWanted& is_wanted);
  void keep(const Found& found) { kept_.push_back(found); }

  // Numbers of families of endpoints, see Number: the lowest that this rank has not taken yet, and whether this one
  // could be taken.
  [[nodiscard]] int next_family();
  [[nodiscard]] bool take_family(int family);

 private:
  MPI_Comm comm_;
  std::mutex mutex_;
  std::list<Found> kept_;  // the oldest first
  int next_family_ = 1;
};

}  // namespace gradientflow::transport
