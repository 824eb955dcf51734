// Shard of one server: its weights, their versions, and the update of a round.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "../../base/team.hpp"
#include "notes.hpp"
#include "server_memory.hpp"
#include "shard_copy.hpp"

namespace gradientflow::engine {

// Gradients of one worker in a round, in the layout of the flat vector or of the shard.
struct Contribution {
  const std::byte* data;
  bool is_flat;
};

class ServerShard {
 public:
  // `threads`: number of threads that share an update.
  ServerShard(const ServerLayout& layout, const ServerMemory& memory, std::size_t server, int workers, DType wire,
              const ServerOptimizer& optimizer, std::size_t threads);

  // Updates the weights by the mean of the round's gradients, added in the given order, times `scale`. `rates`: one for
  // each tensor; a tensor without a rate, and its momentum, stay unchanged. `after_ranges`: called after each range
  // with the number of ranges done; see `latest`.
  using AfterRanges = std::function<void(std::size_t ranges)>;
  void apply(std::span<const Contribution> round, std::span<const ServerSettings> settings,
             std::span<const std::optional<float>> rates, float scale, const AfterRanges& after_ranges = {});

  // Returns the sums of squares that LARS needs, of this shard's weights and of the mean: two numbers for each tensor,
  // zeros if the tensor has no trust coefficient.
  [[nodiscard]] std::vector<double> norms(std::span<const Contribution> round, std::span<const ServerSettings> settings,
                                          float scale);

  [[nodiscard]] std::size_t size() const { return layout_->shard_size(server_); }
  [[nodiscard]] std::size_t version() const { return version_; }
  [[nodiscard]] const float* weights() const { return memory_->weights(server_, version_); }
  [[nodiscard]] const std::byte* wire_weights() const { return memory_->wire_weights(server_, version_); }

  // Return the weights; during an update, the version being written, of which only the finished ranges are valid.
  [[nodiscard]] const float* latest() const { return memory_->weights(server_, latest_); }
  [[nodiscard]] const std::byte* latest_wire_weights() const { return memory_->wire_weights(server_, latest_); }

  // Gives a worker of this node a lease on the present version, which lasts until the worker gives it back.
  void lease_to(int worker);

  // Return or set an array of the shard, for checkpoints: 0 the weights; 1 the momentum, zeros before the first update.
  // For Adam, 1 and 2 are exp_avg and exp_avg_sq; the elements of 3 are the number of updates of their tensor.
  [[nodiscard]] std::vector<float> array(std::size_t number) const;
  void load(std::size_t number, const float* values);
  [[nodiscard]] std::size_t states() const { return optimizer_.is_adam() ? 2 : 1; }  // arrays beside the weights

  // Copies the whole shard, into the memory of `spare` if there is one.
  [[nodiscard]] ShardCopy copy(std::uint64_t round, std::shared_ptr<std::vector<float>> spare) const;

 private:
  struct Block {  // block of a part: one step of an update
    const float* before;
    float* weights;
    void* wire_weights;  // nullptr if the wire is float32
    const void* gradient;
    std::size_t at;  // position in the shard
    std::size_t count;
  };
  void round_weights();
  void leave(const Block& block) const;
  void step_momentum(const Block& block, DType gradient, const ServerSettings& setting, float rate, float scale);
  void step_adam(const Block& block, DType gradient, const ServerSettings& setting, std::uint64_t updates, float scale);
  struct Scratch {               // memory of one thread
    std::vector<float> mean;     // mean of a block
    std::vector<float> widened;  // gradients of each worker in a block, as float32
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
  std::size_t provided_ = 0;  // versions that have pages
  ServerOptimizer optimizer_;
  std::array<std::vector<float>, 2> state_;  // the momentum, or exp_avg and exp_avg_sq; empty until first used
  std::vector<std::uint64_t> updates_;       // updates of each tensor, for Adam
  std::size_t block_ = 0;                    // elements
  std::vector<Scratch> scratch_;             // scratch memory of each thread
  Team team_;
};

}  // namespace gradientflow::engine
