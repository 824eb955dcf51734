// Top-k pool: top-k communication (LAGS-SGD paper, algorithm 1). Each rank sends the gradient entries of largest
// magnitude, layer by layer, and keeps the remaining entries in residuals.
//
// A layer is one or more consecutive tensors. Once all tensors of a layer are ready, the thread that made the last one
// ready (on a device, the thread that sends the layer's message) adds the residual and selects entries. Selected
// entries are written to a block, the rest to the next residual, and the gradient is zeroed. All ranks know the sizes
// of blocks (TopKPlan), so a message (the blocks of one or more layers) is one allgather; messages are sent in the
// order of layers. The thread that has received a message adds up its entries, in rank order, where the gradients were.
// So all ranks have the same bits. A layer for which a dense allreduce is cheaper is reduced by such an allreduce.
//
// The last message ends with a trailer: a report on nonfinite gradients, and the extra numbers. Settings that must be
// the same on all ranks, such as ratios, are compared with each message.
//
// For each layer there are two residuals and two velocities, from before and after the iteration. So an iteration that
// fails, is given up, has gradients that are not finite, or is rolled back, leaves them unchanged.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../calls/request.hpp"
#include "block_memory.hpp"
#include "layer_work.hpp"
#include "residual_pool.hpp"
#include "top_k_plan.hpp"

namespace gradientflow::engine {

class TopKPool final : public ResidualPool {
 public:
  struct Options {
    std::vector<double> ratios = {1000.0};  // one ratio for each layer, or one for all
    std::vector<std::size_t> layers = {};   // number of tensors of each layer; empty: one tensor per layer
    compute::Select::How selection = compute::Select::How::sampled;
    std::size_t threshold_reuse = 0;     // number of iterations that reuse a threshold before it is sampled again
    std::optional<float> momentum = {};  // momentum correction, with velocities (DGC paper, section 3.1)
    bool masking = true;                 // a velocity is zeroed where it was sent
    std::optional<double> clip = {};     // each layer's gradient is scaled down to a norm of clip * sqrt(ranks)
    std::optional<Wire> wire = {};  // format of values sent; by default float32, or bfloat16 for bfloat16 gradients
    transport::Algorithm algorithm = transport::Algorithm::automatic;
    std::optional<std::size_t> merge_bytes = {};  // least bytes of a message, into which layers are merged
    bool overlap = true;                          // false: all work is done in `wait`
    std::uint64_t seed = 0;                       // seed of samples and of random selections
    std::size_t extra = 0;                        // number of extra numbers, averaged in every iteration
    bool skip_nonfinite = false;  // drop an iteration whose gradients are not finite, instead of an error
    std::optional<int> device = {};
  };

  // Report on a layer in the last iteration.
  struct LayerSelection {
    TensorRange tensors;
    std::size_t elements;
    std::size_t k;
    double ratio;
    bool dense;
    compute::IndexFormat indices;
    std::size_t sent;    // entries sent by this rank
    std::size_t united;  // entries sent by at least one rank
    float threshold;
    double select_seconds;
    std::size_t message;
    std::optional<Times::Clock::time_point>
        ready;  // time at which its gradient was ready; nothing if `wait` completed it
  };

  // `counts`: elements of each tensor; tensors lie in memory as in a GradientPool. Collective. Throws Error(type)
  // unless `dtype` is float16, bfloat16 or float32, Error(value) for an option out of range.
  TopKPool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype, const Options& options);
  TopKPool(const TopKPool&) = delete;
  TopKPool& operator=(const TopKPool&) = delete;
  ~TopKPool() override;

  [[nodiscard]] std::size_t merge_bytes() const { return rules_.merge_bytes; }
  [[nodiscard]] std::size_t layers() const { return plan_.layers.size(); }

  // Sets the ratios, one for each layer or one for all; the same on all ranks. Between iterations. Throws Error(value)
  // for a ratio below 1.
  void set_ratios(std::span<const double> ratios);
  [[nodiscard]] std::vector<double> ratios() const;

  // Same as in GradientPool.
  void ready(std::size_t tensor, Stream stream = nullptr);
  void ready_all(Stream stream = nullptr);

  // Marks a tensor as ready whose gradient is outside the pool, at `gradient` on the host. The gradient is read there,
  // never written, and may be freed after the call. The contents of the tensor in the pool are lost.
  void ready_elsewhere(std::size_t tensor, std::byte* gradient);

  // Waits until the memory holds the mean of the entries sent by all ranks, and zeros elsewhere, and starts the next
  // iteration. Tensors that are not ready count as zeros. If no tensor is ready on any rank, throws Error(value) on all
  // ranks. If the timeout (seconds) passes first, throws Error(timeout); the iteration continues and can be waited for
  // again. Throws Error(nonfinite), on all ranks, if a gradient is infinite or NaN, unless such iterations are skipped;
  // Error(mismatch), on all ranks, if ratios or loss scales differ. After these errors, except the timeout, gradients
  // are zero and residuals are as before.
  void wait(std::optional<double> timeout = {}, Stream stream = nullptr) { wait_within(timeout, stream); }

  [[nodiscard]] std::vector<LayerSelection> layer_selections() const { return locked(layer_selections_); }
  [[nodiscard]] Update update() const;

  // Same as in SparsePool.
  void set_loss_scale(double scale);

  // Describe or copy the velocities, laid out as the gradients. Between iterations.
  [[nodiscard]] bool has_velocities() const { return !velocity_.is_none(); }
  void copy_velocities(std::span<float> destination) const;
  [[nodiscard]] std::vector<float> thresholds() const {
    return locked(thresholds_);
  }  // threshold of each layer, for a checkpoint

  // Checkpoint: the state with which an iteration begins.
  struct TopKCheckpoint {
    std::span<const float> residual;
    std::span<const float> velocity;   // empty without momentum
    std::span<const float> threshold;  // threshold of each layer; empty: none
    std::uint64_t iteration;
  };
  // Resumes from a checkpoint. Collective. Throws Error(mismatch), before it changes anything, if the states of the
  // ranks do not agree, or if another rank has refused its state.
  void restore(const TopKCheckpoint& state);

 private:
  using Trailer = NonfiniteTensors;  // report at the start of the trailer; the extra numbers follow it

  // Progress of a layer in this iteration.
  struct LayerProgress {
    std::size_t left = 0;  // tensors not ready
    bool done = false;     // ready to be sent; on the host, its entries are selected
    bool sends_nothing = false;
    compute::Selected selected{};
    bool keeps = false;  // same as in LayerResult
    std::size_t united = 0;
    std::optional<Clock::time_point> ready{};
    double seconds = 0.0;
  };

  void check_options(const Communicator& communicator) const;
  [[nodiscard]] std::string description(const std::vector<std::size_t>& counts) const;
  void plan(std::span<const double> ratios);
  void make_calls();
  [[nodiscard]] collective::Call make_average_of(const Communicator& communicator, Array array) const;
  [[nodiscard]] collective::Call make_call_for(const TopKMessage& message) const;
  [[nodiscard]] std::uint32_t hash_of_settings() const;

  // Marks a tensor as ready; returns the layer that it completes, if any. mutex_ held.
  std::optional<std::size_t> mark(std::size_t tensor, Clock::time_point now, Stream stream);
  void become_ready(std::size_t tensor, std::byte* elsewhere, Stream stream);
  void process(std::span<const std::size_t> complete, std::byte* elsewhere = nullptr);
  [[nodiscard]] bool can_read_elsewhere(std::size_t layer) const;
  void select_from_layer(std::size_t layer, std::byte* elsewhere = nullptr);
  void clear_layer(std::size_t layer, Stream stream);
  void find_nonfinite_tensor(std::size_t layer);
  void skip_remaining(Stream stream);

  void start_due_messages();  // mutex_ held
  void write_trailer();
  template <class Run>
  void send(std::size_t message, Run run);
  void combine(std::size_t index);

  void complete_remaining(Stream stream) override;
  void exchange(Deadline deadline, Stream stream) override;
  void decide() override;
  void drop_gradients(Stream stream) override;
  void commit_residuals() override;
  void snapshot_residuals() override;
  void rollback_residuals() override;
  void clear_gradients(Stream stream) override;
  void reset() override;

  void read_times();
  void average_extra(const std::vector<const std::byte*>& trailers);
  void find_nonfinite(const std::vector<const std::byte*>& trailers);
  void fail_exchange();
  [[nodiscard]] Error different_settings(const Error& failure);
  [[nodiscard]] std::string settings_text(std::size_t layer) const;
  void keep_residuals(std::span<const LayerProgress> progress);

  Options options_;
  bool has_thread_;  // has a progress thread
  TopKRules rules_;
  TopKPlan plan_;
  std::unique_ptr<BlockMemory> blocks_;
  std::unique_ptr<LayerWork> work_;
  std::vector<collective::Call> calls_;  // call of each message
  std::vector<std::size_t> layer_of_;    // layer of each tensor
  VersionedArray velocity_;
  std::vector<float> thresholds_;  // threshold of each layer
  Selection selection_;
  std::vector<std::size_t> counts_;  // elements of each tensor

  std::vector<LayerProgress> progress_;  // progress of each layer
  std::vector<std::uint8_t> is_zero_;    // true for each layer whose memory is known to be zero
  std::vector<std::shared_ptr<Handle>> under_way_;
  std::size_t due_ = 0;        // number of messages complete on this rank
  std::size_t collected_ = 0;  // number of messages waited for
  std::atomic<bool> failed_{false};

  // Results of the last iteration.
  std::vector<LayerProgress> failed_progress_;
  std::vector<LayerSelection> layer_selections_;
};

}  // namespace gradientflow::engine
