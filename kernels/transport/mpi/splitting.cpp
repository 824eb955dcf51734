#include "splitting.hpp"

#include "../../base/thread.hpp"
#include "mpi.hpp"

namespace gradientflow::transport {

Splitting::Splitting(MPI_Comm comm, int color, int key) : state_(std::make_shared<Shared>()) {
  state_->comm = comm;
  thread_ = start_thread("a thread that splits a communicator", [state = state_, color, key] {
    state->stage.wait(Stage::ready);
    if (state->stage.load() == Stage::begun) {
      state->code = MPI_Comm_split(state->comm, color, key, &state->part);
      state->stage.store(Stage::ended, std::memory_order_release);
    }
  });
}

Splitting::~Splitting() {
  auto unused = Stage::ready;
  if (state_->stage.compare_exchange_strong(unused, Stage::ended)) {
    state_->stage.notify_one();
  }
  if (ended()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Splitting::begin() noexcept {
  state_->stage.store(Stage::begun);
  state_->stage.notify_one();
}

bool Splitting::ended() const noexcept { return state_->stage.load(std::memory_order_acquire) == Stage::ended; }

MPI_Comm Splitting::part() const {
  check_mpi(state_->code, "MPI_Comm_split", state_->comm);
  return state_->part;
}

}  // namespace gradientflow::transport
