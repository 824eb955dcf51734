// MPI_Comm_split in its own thread: it can be neither canceled nor polled, and the caller has to watch the clock.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace gradientflow::transport {

class Splitting {
 public:
  // Starts the thread. MPI must be callable from several threads. Throws Error(system).
  Splitting(MPI_Comm comm, int color, int key);
  // Leaves the thread for good if it is still in MPI.
  ~Splitting();
  Splitting(const Splitting&) = delete;
  Splitting& operator=(const Splitting&) = delete;

  void begin() noexcept;  // collective
  [[nodiscard]] bool ended() const noexcept;

  // Returns the new communicator, once the split has ended. Throws as check_mpi does.
  [[nodiscard]] MPI_Comm part() const;

 private:
  enum class Stage : std::uint8_t { ready, begun, ended };

  struct Shared {
    MPI_Comm comm;
    MPI_Comm part = MPI_COMM_NULL;
    int code = MPI_SUCCESS;
    std::atomic<Stage> stage{Stage::ready};
  };

  std::shared_ptr<Shared> state_;  // shared with the thread
  std::thread thread_;
};

}  // namespace gradientflow::transport
