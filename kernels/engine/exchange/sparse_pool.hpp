// Coarse-grained sparse communication (GradientFlow paper, section 3.2 and algorithm 1): a gradient pool of which only
// the important chunks travel, and what is not sent stays in residuals for later iterations.
//
// Gradients lie side by side in one stretch of memory, cut into chunks of equal size. A chunk is full when all tensors
// that reach into it are ready. A full important chunk, with its residual, is gathered into its slot of a second pool,
// an ordinary GradientPool: so neighbouring slots are sent together, while backpropagation goes on. A full chunk that
// is not important is added to the residual, times the momentum, and zeroed. In `wait` the means are scattered back, so
// that the memory holds exactly the gradient that the update uses, the same on all ranks; and all ranks choose the next
// important chunks: those with the largest L1 norms, summed over the ranks. The first iteration sends everything.
//
// On a CUDA device, all of this memory is there, and the work on chunks is put into the streams that tensors become
// ready in (ChunkWork). To choose chunks the host needs norms: `wait` waits for the device twice, for the norms of this
// rank's chunks and for those of the means; between the two, chunks are being sent.
//
// Residuals are kept twice, before and after the iteration, by chunk: an iteration that fails, or has gradients that
// are not finite, leaves them as they were. One that is abandoned removes only those of chunks already sent.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../calls/communicator.hpp"
#include "../calls/waiting.hpp"
#include "../memory/kept_numbers.hpp"
#include "../memory/pool_memory.hpp"
#include "../update/update.hpp"
#include "chunk_work.hpp"
#include "gradient_pool.hpp"
#include "ready_tensors.hpp"
#include "residual_pool.hpp"

namespace gradientflow::engine {

class SparsePool : public ResidualPool {
 public:
  struct Options {
    GradientPool::Options pool = {};  // with the device that has the tensors, if it is not the host
    std::size_t chunk_size = 32768;   // elements
    float momentum = 0.0F;            // residuals are multiplied by it in every iteration
    std::size_t extra = 0;            // number of extra numbers, averaged in every iteration
    bool skip_nonfinite = false;      // drop an iteration whose gradients are not finite, instead of an error
    std::uint64_t first_iteration = 0;
  };

  using Span = Update::Span;  // of the gradients

  // `counts`: elements of each tensor, which lie in memory as those of a GradientPool do; so the padding between them
  // belongs to the chunks. Collective. Throws Error(type) unless `dtype` is float16, bfloat16 or float32; Error(value)
  // for a chunk size of 0 or a momentum that is not in 0..1.
  SparsePool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype, const Options& options);
  SparsePool(const SparsePool&) = delete;
  SparsePool& operator=(const SparsePool&) = delete;
  ~SparsePool();

  [[nodiscard]] std::size_t fusion_threshold() const { return send_->fusion_threshold(); }
  [[nodiscard]] std::size_t chunk_size() const { return chunk_size_; }
  [[nodiscard]] std::size_t chunks() const { return left_.size(); }

  // As those of GradientPool. The extra numbers, if any, count as one more tensor, behind the others.
  void ready(std::size_t tensor, Stream stream = nullptr);
  void ready_all(Stream stream = nullptr);

  // Waits until the memory holds the means of the chunks that were sent, and zeros elsewhere, and starts the next
  // iteration, which sends a share of `density` of the chunks. Tensors that are not ready count as zeros; if none is on
  // any rank, throws Error(value) on all ranks, and residuals are as before. If the timeout (seconds) passes first,
  // throws Error(timeout); the iteration goes on and can be waited for again. Throws Error(nonfinite), on all ranks,
  // where a gradient is infinite or NaN, unless such iterations are skipped: either way all gradients are then zero,
  // and residuals are as before. Throws Error(mismatch) where densities differ. On a device it waits until the
  // gradients are there.
  void wait(std::optional<double> timeout, double density, Stream stream = nullptr);

  // Ends an iteration that has begun, without its result: the other ranks get zeros for chunks that are not full.
  void abandon(Stream stream = nullptr);

  // Of the last iteration that has ended; before the first one, everything was sent.
  [[nodiscard]] std::vector<std::size_t> sent() const;  // chunks, in ascending order
  [[nodiscard]] std::vector<Span> spans() const;        // their elements, neighbours joined
  [[nodiscard]] std::vector<double> norms() const;      // by chunk, summed over the ranks
  // The last one of reports() is that of the message with norms and extra numbers.

  [[nodiscard]] std::vector<std::uint8_t> important() const;  // by chunk: whether the running iteration sends it

  // The input of a step: the gradients that the last iteration has sent; or, if `everywhere`, all, with zeros for the
  // others. Throws Error(value) unless they are averaged.
  [[nodiscard]] Update update(bool everywhere) const;

  void take_over_means(const SparsePool& other);

  // The residuals of this rank are multiplied by it in every iteration from now on. Between iterations. Throws
  // Error(value) unless it is from 0 to 1, and 0 if the pool was made with 0.
  void set_momentum(float momentum);
  [[nodiscard]] float momentum() const { return options_.momentum; }

  // Gradients are multiplied by this power of two; residuals are not. Between iterations.
  void set_loss_scale(double scale);

  // Zeroes the gradients that the last iteration left.
  void zero(Stream stream = nullptr);

  // Sets the residuals of this rank alone; zeroes the gradients. Throws Error(value) for numbers that are not finite.
  void set_residuals(std::span<const float> residual, Stream stream = nullptr);
  // Goes on from a checkpoint with iteration `iteration`, which sends the `important` chunks; all chunks, if that is
  // empty. Collective. Before anything is changed, throws Error(mismatch) if the states of the ranks do not agree, or
  // if another rank has refused its state.
  void restore(std::span<const float> residual, const std::vector<std::uint8_t>& important, std::uint64_t iteration);

  void close(bool drain) noexcept;

 private:
  using Clock = Times::Clock;

  [[nodiscard]] std::string description(const std::vector<std::size_t>& counts) const;
  [[nodiscard]] Span span_of(std::size_t chunk) const;
  [[nodiscard]] std::pair<std::size_t, std::size_t> tensors_of(std::size_t chunk) const;

  [[nodiscard]] std::byte* slot_of(std::size_t chunk) const { return send_->data() + send_->offset(slot_[chunk]); }
  [[nodiscard]] ChunkJob job_for(std::size_t chunk) const;

  // With mutex_ held; returns the chunks that are full now.
  std::vector<std::size_t> mark(std::size_t tensor, Stream stream);
  void process(const std::vector<std::size_t>& full, Stream stream);
  void zero_extra_if_not_ready();  // with mutex_ held
  void finish_what_is_left(Stream stream);
  void send_nothing_of_what_is_left(Stream stream);

  void end_iteration(Deadline deadline, std::size_t next, Stream stream);
  void learn_own_norms(Deadline deadline);
  void note_nonfinite(std::size_t chunk);
  void exchange_norms(Deadline deadline, std::size_t next);
  void receive_means(Deadline deadline, Stream stream);
  void receive_norms(Deadline deadline);
  void scatter_means(Deadline deadline, Stream stream);
  void give_up(Stream stream) noexcept;
  [[nodiscard]] std::optional<Error> conclude(std::size_t next, Stream stream);
  void check_residuals(std::span<const float> residual) const;
  [[nodiscard]] Error different_loss_scales();
  [[nodiscard]] Error find_nonfinite(const std::vector<double>& norms);
  void drop_gradients(Stream stream);
  void keep(bool result, Stream stream);
  void choose(std::vector<std::uint8_t> important);
  void start_next_iteration(bool has_means);

  Options options_;
  std::size_t chunk_size_;
  std::unique_ptr<GradientPool> send_;  // a tensor for each chunk, of which the first are used
  std::unique_ptr<ChunkWork> work_;

  // By chunk. Which chunks are important changes only between iterations.
  std::vector<std::uint8_t> important_;
  std::vector<std::size_t> slot_;      // of the important ones
  std::vector<std::uint8_t> done_;     // gathered, or its residual updated; each by one thread
  std::vector<double> own_norms_;      // of this rank, in this iteration, once learned
  std::vector<std::size_t> chunk_of_;  // by slot

  std::timed_mutex waiting_;       // one thread waits at a time
  Workers workers_{mutex_};        // on chunks
  std::vector<std::size_t> left_;  // by chunk: tensors that reach into it and are not ready
  bool abandoned_ = false;
  std::optional<bool> idle_;                       // whether nothing was ready when this iteration was waited for
  bool dropped_ = false;                           // this iteration, as a gradient is not finite
  std::optional<NonfinitePlace> found_nonfinite_;  // of this rank, in this iteration
  bool learned_ = false;                           // own norms
  std::vector<double> message_;
  collective::Call norms_call_;  // sums it
  std::shared_ptr<Handle> exchange_;
  bool exchanged_ = false;
  bool received_ = false;
  bool scattered_ = false;
  GradientPool::Report exchange_report_{};
  std::atomic<std::int64_t> bookkeeping_{0};  // nanoseconds

  // Of the last iteration.
  std::vector<std::size_t> sent_;
  std::vector<double> norms_;
};

}  // namespace gradientflow::engine
