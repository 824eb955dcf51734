#include "splitting.hpp"

#include "../../base/thread.hpp"
#include "mpi.hpp"

namespace gradientflow::transport {

Splitting::Splitting(MPI_Comm comm, int color, int key) : state_(std::make_shared<State>()) {
  state_->comm = comm;
  thread_ = start_thread("a thread that splits a communicator", [state = state_, color, key] {
    state->code = MPI_Comm_split(state->comm, color, key, &state->part);
    state->ended.store(true, std::memory_order_release);
  });
}

Splitting::~Splitting() {
  if (ended()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool Splitting::ended() const noexcept { return state_->ended.load(std::memory_order_acquire); }

MPI_Comm Splitting::part() const {
  check_mpi(state_->code, "MPI_Comm_split", state_->comm);
  return state_->part;
}

}  // namespace gradientflow::transport
