// Messages of one MPI communicator that several endpoints share, each with its own tags.
//
// An endpoint of a mailbox asks for any message, and MPI may give it a message of another endpoint. Such a message is
// kept here until its own endpoint asks for it.
#pragma once

#include <mpi.h>

#include <functional>
#include <list>
#include <mutex>
#include <optional>

#include "../endpoint.hpp"

namespace gradientflow::transport {

// Message that MPI has given out, with its source and tag on the communicator.
struct Found {
  MPI_Message message;
  Envelope envelope;
};

class SharedMessages {
 public:
  explicit SharedMessages(MPI_Comm comm) : comm_(comm) {}

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  // Locks the messages. Hold the lock from the search of kept messages until MPI has been asked, so that no message is
  // missed in between.
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // Takes the oldest kept message that is wanted. Called with the lock held.
  using IsWanted = std::function<bool(const Envelope&)>;
  [[nodiscard]] std::optional<Found> take(const IsWanted& is_wanted);
  void keep(const Found& found) { kept_.push_back(found); }

  // Families of endpoints, see Number. next_family() returns the lowest family that this rank has not taken yet.
  // take_family() takes a family, and returns true if it was free.
  [[nodiscard]] int next_family();
  [[nodiscard]] bool take_family(int family);

 private:
  MPI_Comm comm_;
  std::mutex mutex_;
  std::list<Found> kept_;  // ordered, the oldest first
  int next_family_ = 1;
};

}  // namespace gradientflow::transport
