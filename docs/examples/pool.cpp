// The gradients of a model, averaged over the ranks after every step. They are written to where they are reduced.
//
//   mpicxx pool.cpp -o pool $(gradientflow config --cflags --libs)
//   mpirun -n 4 ./pool
#include <gradientflow.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// From statuses and pointers to what C++ programs are used to.
static void check(gf_status status) {
  if (status != GF_SUCCESS) {
    throw std::runtime_error(std::string(gf_status_name(status)) + ": " + gf_last_error_message());
  }
}

struct Free {
  void operator()(gf_communicator* communicator) const { gf_communicator_free(communicator); }
  void operator()(gf_pool* pool) const { gf_pool_free(pool); }
};
using Communicator = std::unique_ptr<gf_communicator, Free>;
using Pool = std::unique_ptr<gf_pool, Free>;

static void train() {
  gf_communicator* made = nullptr;
  check(gf_init(MPI_COMM_WORLD, nullptr, &made));
  const Communicator communicator(made);

  const std::vector<std::size_t> counts = {784 * 10, 10};  // weights and biases of one layer
  gf_pool* made_pool = nullptr;
  check(gf_pool_create(communicator.get(), counts.data(), counts.size(), GF_FLOAT32, nullptr, &made_pool));
  const Pool pool(made_pool);

  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      auto* const gradient = static_cast<float*>(gf_pool_tensor(pool.get(), i));
      for (std::size_t k = 0; k < counts[i]; ++k) {
        gradient[k] = static_cast<float>(gf_rank(communicator.get()) + step);  // backpropagation
      }
      check(gf_pool_ready(pool.get(), i));
    }
    check(gf_pool_wait(pool.get(), -1));  // every gradient is now the mean over all ranks
  }
  if (gf_rank(communicator.get()) == 0) {
    std::printf("%d ranks: gradient %.1f\n", gf_size(communicator.get()),
                static_cast<const float*>(gf_pool_tensor(pool.get(), 0))[0]);
  }
  check(gf_close(communicator.get()));
}

int main() {
  try {
    train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);  // the other ranks wait for this one
  }
  MPI_Finalize();
}
