#include "roll.hpp"

#include <algorithm>
#include <numeric>

#include "../endpoint.hpp"
#include "mpi.hpp"

namespace gradientflow::transport {

struct Roll::Pending {
  std::vector<int> ones, displacements, outgoing;  // arguments of this rank's scatter
  std::vector<int> words;                          // a word of each rank, or the smallest of all
  std::vector<MPI_Request> requests;               // a request for each word
};

Roll::Roll(MPI_Comm comm, Answer mine) : comm_(comm), state_(std::make_unique<Pending>()) {
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  const auto ranks = static_cast<std::size_t>(size);
  state_->outgoing.assign(ranks, static_cast<int>(mine));
  const bool by_rank = size <= few_ranks;
  state_->words.resize(by_rank ? ranks : 1);
  state_->requests.assign(state_->words.size(), MPI_REQUEST_NULL);
  if (!by_rank) {
    check_mpi(MPI_Iallreduce(state_->outgoing.data(), state_->words.data(), 1, MPI_INT, MPI_MIN, comm,
                             state_->requests.data()),
              "MPI_Iallreduce", comm);
    return;
  }
  state_->ones.assign(ranks, 1);
  state_->displacements.resize(ranks);
  std::iota(state_->displacements.begin(), state_->displacements.end(), 0);
  for (int root = 0; root < size; ++root) {
    const auto index = static_cast<std::size_t>(root);
    check_mpi(MPI_Iscatterv(state_->outgoing.data(), state_->ones.data(), state_->displacements.data(), MPI_INT,
                            &state_->words[index], 1, MPI_INT, root, comm, &state_->requests[index]),
              "MPI_Iscatterv", comm);
  }
}

Roll::~Roll() {
  const auto under_way = [](MPI_Request request) { return request != MPI_REQUEST_NULL; };
  if (std::any_of(state_->requests.begin(), state_->requests.end(), under_way)) {
    static_cast<void>(state_.release());  // MPI still writes to it
  }
}

bool Roll::arrived(std::size_t index) {
  int done = 0;
  check_mpi(MPI_Test(&state_->requests[index], &done, MPI_STATUS_IGNORE), "the roll call of all ranks", comm_);
  return done != 0;
}

bool Roll::complete() {
  bool all = true;
  for (std::size_t i = 0; i < state_->requests.size(); ++i) {
    all = arrived(i) && all;
  }
  return all;
}

std::vector<int> Roll::missing() {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < state_->requests.size() && state_->requests.size() > 1; ++i) {
    if (!arrived(i)) {
      ranks.push_back(static_cast<int>(i));
    }
  }
  return ranks;
}

bool Roll::abandoned() const {
  return std::find(state_->words.begin(), state_->words.end(), static_cast<int>(Answer::gave_up)) !=
         state_->words.end();
}

std::vector<int> Roll::abandoners() const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < state_->words.size() && state_->words.size() > 1; ++i) {
    if (state_->words[i] == static_cast<int>(Answer::gave_up)) {
      ranks.push_back(static_cast<int>(i));
    }
  }
  return ranks;
}

}  // namespace gradientflow::transport
