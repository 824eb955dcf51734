// The weights of one server, their versions, and the update of a round.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "../../base/team.hpp"
#include "notes.hpp"
#include "server_memory.hpp"

namespace gradientflow::engine {

// The gradients of one worker in a round: laid out as the flat vector is, or as the shard.
struct Contribution {
  const std::byte* data;
  bool is_flat;
};

class ServerShard {
 public:
  // `threads`: that make an update together.
  ServerShard(const ServerLayout& layout, const ServerMemory& memory, std::size_t server, int workers, DType wire,
              const ServerOptimizer& optimizer, std::size_t threads);

  // Updates the weights by the mean of what the workers of a round have pushed, in the order given, times `scale`.
  // `rates`: of each tensor. `after_ranges`: called as ranges are done, with the number of them; see `latest`.
  using AfterRanges = std::function<void(std::size_t ranges)>;
  void apply(std::span<const Contribution> round, std::span<const ServerSettings> settings,
             std::span<const float> rates, float scale, const AfterRanges& after_ranges = {});

  // The sums of the squares of this shard's weights, and of that mean, for LARS: two numbers for each tensor that has a
  // trust coefficient, zeros for the others.
  [[nodiscard]] std::vector<double> norms(std::span<const Contribution> round, std::span<const ServerSettings> settings,
                                          float scale);

  [[nodiscard]] std::size_t size() const { return layout_->shard_size(server_); }
  [[nodiscard]] std::size_t version() const { return version_; }
  [[nodiscard]] const float* weights() const { return memory_->weights(server_, version_); }
  [[nodiscard]] const std::byte* travelling() const { return memory_->travelling(server_, version_); }

  // The same, or where an update is under way those that it makes, as far as it has come.
  [[nodiscard]] const float* latest() const { return memory_->weights(server_, latest_); }
  [[nodiscard]] const std::byte* latest_travelling() const { return memory_->travelling(server_, latest_); }

  // A worker of this node may read the present version from now on, until it lets go.
  void lease_to(int worker);

  // Arrays of the shard, for checkpoints: 0 the weights; 1 the momentum, zeros where there is none yet. Of Adam 1 and 2
  // are exp_avg and exp_avg_sq, and all elements of 3 are the number of updates.
  [[nodiscard]] std::vector<float> array(std::size_t number) const;
  void load(std::size_t number, const float* values);

 private:
  struct Block {  // of a part, in which an update is made
    const float* before;
    float* weights;
    void* travelling;  // nullptr where the weights travel as they are
    const void* gradient;
    std::size_t at;  // in the shard
    std::size_t count;
  };
  void round_weights();
  [[nodiscard]] std::size_t states() const { return optimizer_.is_adam() ? 2 : 1; }
  void step_momentum(const Block& block, DType gradient, const ServerSettings& setting, float rate, float scale);
  void step_adam(const Block& block, DType gradient, const ServerSettings& setting, float scale);
  struct Scratch {               // of one thread
    std::vector<float> mean;     // of a block
    std::vector<float> widened;  // of a block, what each worker has pushed, as float32
  };
  void make_scratch(std::size_t round);
  [[nodiscard]] const void* mean_of(std::span<const Contribution> round, const TensorPart& part, std::size_t begin,
                                    std::size_t count, Scratch& scratch);
  [[nodiscard]] DType mean_dtype(std::span<const Contribution> round) const {
    return round.size() == 1 ? wire_ : DType::float32;
  }
  [[nodiscard]] std::size_t free_version();
  [[nodiscard]] const std::byte* address_in(const Contribution& of, const TensorPart& part, std::size_t begin) const;
  void average(std::span<const Contribution> round, const TensorPart& part, std::size_t begin, std::size_t count,
               Scratch& scratch);

  const ServerLayout* layout_;
  const ServerMemory* memory_;
  std::size_t server_;
  int workers_;
  DType wire_;
  std::size_t version_ = 0;
  std::size_t latest_ = 0;
  std::size_t provided_ = 0;  // versions whose pages are there
  ServerOptimizer optimizer_;
  std::array<std::vector<float>, 2> state_;  // the momentum, or exp_avg and exp_avg_sq; empty as long as there is none
  std::uint64_t updates_ = 0;                // since the first one; of Adam
  std::size_t block_ = 0;                    // elements
  std::vector<Scratch> scratch_;             // of each thread
  Team team_;
};

}  // namespace gradientflow::engine
