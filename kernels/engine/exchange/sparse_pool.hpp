// Sparse pool: coarse-grained sparse communication (GradientFlow paper, section 3.2 and algorithm 1). Only the
// important chunks of its gradients are sent; the rest stays in residuals for later iterations.
//
// Gradients lie side by side in memory, cut into chunks of equal size. A chunk is full when all tensors that overlap it
// are ready. A full important chunk is gathered, with its residual, into its slot of a second pool, an ordinary
// GradientPool: so neighboring slots are sent together, while backpropagation continues. A full chunk that is not
// important is added to the residual, times the momentum, and zeroed. In `wait` the means are scattered back, so that
// the memory holds exactly the gradient that the update uses, the same on all ranks. Then all ranks choose the next
// important chunks: those with the largest L1 norms, summed over the ranks. The first iteration sends everything.
//
// With a CUDA device, all of this memory is on the device, and the work on chunks is put into the streams in which
// tensors become ready (ChunkWork). To choose chunks the host needs norms. So `wait` waits for the device twice: first
// for the norms of this rank's chunks, then for the norms of the means; in between, chunks are being sent.
//
// For each chunk there are two residuals, from before and after the iteration. So an iteration that fails, has
// gradients that are not finite, or is rolled back, leaves residuals unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chunk_layout.hpp"
#include "chunk_work.hpp"
#include "gradient_pool.hpp"
#include "norms_message.hpp"
#include "residual_pool.hpp"

namespace gradientflow::engine {

class SparsePool final : public ResidualPool {
 public:
  struct Options {
    GradientPool::Options pool = {};  // device of the tensors included, if it is not the host
    std::size_t chunk_size = 32768;   // elements
    float momentum = 0.0F;            // factor of residuals in every iteration
    std::size_t extra = 0;            // number of extra numbers, averaged in every iteration
    bool skip_nonfinite = false;      // drop an iteration whose gradients are not finite, instead of an error
    std::uint64_t first_iteration = 0;
  };

  using Span = Update::Span;  // range of the gradients

  // `counts`: elements of each tensor. The tensors lie in memory as in a GradientPool, so the padding between them
  // belongs to the chunks. Collective. Throws Error(type) unless `dtype` is float16, bfloat16 or float32; Error(value)
  // for a chunk size of 0 or a momentum that is not in 0..1.
  SparsePool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype, const Options& options);
  SparsePool(const SparsePool&) = delete;
  SparsePool& operator=(const SparsePool&) = delete;
  ~SparsePool() override;

  [[nodiscard]] std::size_t fusion_threshold() const { return send_->fusion_threshold(); }
  [[nodiscard]] std::size_t chunk_size() const { return layout_.chunk_size(); }
  [[nodiscard]] std::size_t chunks() const { return layout_.chunks(); }

  // Same as in GradientPool.
  void ready(std::size_t tensor, Stream stream = nullptr);
  void ready_all(Stream stream = nullptr);

  // Waits until the memory holds the means of the sent chunks, and zeros elsewhere, and starts the next iteration,
  // which sends a share of `density` of the chunks. Tensors that are not ready count as zeros. If no tensor is ready on
  // any rank, throws Error(value) on all ranks, and residuals are as before. If the timeout (seconds) passes first,
  // throws Error(timeout); the iteration continues and can be waited for again. Throws Error(nonfinite), on all ranks,
  // if a gradient is infinite or NaN, unless such iterations are skipped; in both cases all gradients are then zero,
  // and residuals are as before. Throws Error(mismatch) if densities differ. On a device, waits until the gradients are
  // in memory.
  void wait(std::optional<double> timeout, double density, Stream stream = nullptr);

  // Describe the last finished iteration; before the first one, everything counts as sent. sent() and spans() are
  // in ascending order, neighboring spans joined; norms() has, by chunk, the sum over the ranks. The last report of
  // reports() is about the message with norms and extra numbers.
  [[nodiscard]] std::vector<std::size_t> sent() const { return locked(sent_); }
  [[nodiscard]] std::vector<Span> spans() const { return layout_.spans_of(sent()); }
  [[nodiscard]] std::vector<double> norms() const { return locked(norms_); }

  // Returns, for each chunk, 1 if the running iteration sends it.
  [[nodiscard]] std::vector<std::uint8_t> important() const { return locked(important_); }

  // Returns the input of a step: the gradients that the last iteration has sent; or, if `everywhere`, all gradients,
  // with zeros for unsent ones. Throws Error(value) unless they are averaged.
  [[nodiscard]] Update update(bool everywhere) const;

  void take_over_means(const SparsePool& other);

  // Sets the factor by which this rank's residuals are multiplied in every iteration from now on. Between iterations.
  // Throws Error(value) unless the factor is from 0 to 1; in a pool made with a momentum of 0, unless it is 0.
  void set_momentum(float momentum);
  [[nodiscard]] float momentum() const { return options_.momentum; }

  // Sets a power of two by which gradients are multiplied; residuals are not. Between iterations.
  void set_loss_scale(double scale);

  // Resumes from a checkpoint with iteration `iteration`, which sends the `important` chunks; all chunks if `important`
  // is empty. Collective. Throws Error(mismatch), before it changes anything, if the states of the ranks do not agree,
  // or if another rank has refused its state.
  void restore(std::span<const float> residual, const std::vector<std::uint8_t>& important, std::uint64_t iteration);

  void close(bool drain) noexcept override;

 private:
  [[nodiscard]] std::string description(const std::vector<std::size_t>& counts) const;

  [[nodiscard]] std::byte* slot_of(std::size_t chunk) const { return send_->data() + send_->offset(slot_[chunk]); }
  [[nodiscard]] ChunkJob job_for(std::size_t chunk) const;

  // Marks a tensor as ready, and appends the chunks now full. mutex_ held.
  void mark(std::size_t tensor, Stream stream, std::vector<std::size_t>& full);
  void process(const std::vector<std::size_t>& full, Stream stream);
  void skip_remaining(Stream stream);  // mutex_ held

  void complete_remaining(Stream stream) override;
  void exchange(Deadline deadline, Stream stream) override;
  void decide() override;
  void drop_gradients(Stream stream) override;
  void commit_residuals() override;
  void clear_gradients(Stream stream) override;
  void reset() override;

  void learn_own_norms(Deadline deadline);
  void find_nonfinite_tensor(std::size_t chunk);
  void send_norms(Deadline deadline);
  void receive_means(Deadline deadline, Stream stream);
  void scatter_means(Deadline deadline, Stream stream);
  void give_up(Stream stream) noexcept;
  [[nodiscard]] Error different_loss_scales() const;
  [[nodiscard]] NonfiniteTensorRange find_nonfinite(const std::vector<double>& norms) const;
  void keep_residuals();
  void choose(std::vector<std::uint8_t> important);

  Options options_;
  ChunkLayout layout_;
  std::unique_ptr<GradientPool> send_;  // one tensor for each chunk, of which the first are used
  std::unique_ptr<ChunkWork> work_;
  std::unique_ptr<NormsMessage> message_;

  // State by chunk. The important chunks change only between iterations.
  std::vector<std::uint8_t> important_;
  std::vector<std::size_t> slot_;      // slot of each important chunk
  std::vector<std::uint8_t> done_;     // gathered, or its residual updated; each by one thread
  std::vector<double> own_norms_;      // this rank's norms in this iteration, once learned
  std::vector<std::size_t> chunk_of_;  // chunk of each slot

  std::vector<std::size_t> left_;  // overlapping tensors not ready, for each chunk
  std::size_t next_ = 0;           // number of chunks that this rank wants to send next
  bool learned_ = false;           // own norms are set
  bool received_ = false;          // means have arrived
  bool scattered_ = false;

  // Results of the last iteration.
  std::vector<std::size_t> sent_;
  std::vector<double> norms_;
};

}  // namespace gradientflow::engine
