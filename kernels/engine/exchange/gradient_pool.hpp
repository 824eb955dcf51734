// Gradient pool: all gradient tensors of a model, contiguous in memory of the host or of a CUDA device, reduced there
// without a copy while backpropagation still writes the rest (GradientFlow paper, sections 2.6 and 3.1: lazy
// allreduce).
//
// Tensors are fused into ranges, which depend only on the layout and a threshold. A range is due when all of its
// tensors are ready and all ranges before it are due. So all ranks reduce the same ranges in the same order, whatever
// the order in which tensors become ready, and without communication about it. Due ranges are reduced by a progress
// thread; or, inside a node without spare cores, by the threads that call `ready` and `wait`, see
// collective::PooledSlices. On a device, ranges are reduced in the pool's own stream, behind the work that was in the
// streams of their tensors when the tensors became ready; the host does not wait for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../../collective/in_node/pooled_slices.hpp"
#include "../calls/communicator.hpp"
#include "../calls/stream_marks.hpp"
#include "fusion.hpp"
#include "pool.hpp"

namespace gradientflow::engine {

class GradientPool final : public Pool {
 public:
  struct Options {
    std::optional<std::size_t> fusion_threshold = {};  // bytes; see `fuse` and `automatic_threshold`
    std::optional<Wire> wire = {};                     // format of float32 values between nodes
    transport::Algorithm algorithm = transport::Algorithm::automatic;
    std::optional<int> device = {};  // CUDA device of the tensors; none: the host
    std::size_t extra = 0;           // number of extra numbers, averaged in every iteration
  };

  // `counts`: elements of each tensor, in the order in which they lie in memory; every tensor starts at a multiple of
  // 64 bytes, and the padding between tensors is reduced too, as zeros. The pool has a duplicate of `communicator`, and
  // is closed with `communicator`. Collective. Throws Error(type) unless `dtype` is a floating-point dtype.
  GradientPool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype, const Options& options);
  GradientPool(const GradientPool&) = delete;
  GradientPool& operator=(const GradientPool&) = delete;
  ~GradientPool() override;

  [[nodiscard]] std::size_t fusion_threshold() const { return fusion_threshold_; }
  [[nodiscard]] const std::vector<TensorRange>& ranges() const { return ranges_; }
  [[nodiscard]] std::size_t bytes_of(const TensorRange& range) const {
    return offsets_[range.end] - offsets_[range.begin];
  }

  // Limits the next iterations to the first `tensors` tensors; the same number on all ranks. Call it between
  // iterations.
  void limit(std::size_t tensors);

  // Sets the threshold and wire of ranges from the next iteration on; the same on all ranks. Call it between
  // iterations; the contents of the tensors stay. Throws Error(value) once a tensor is ready.
  void regroup(std::optional<std::size_t> fusion_threshold, std::optional<Wire> wire);

  // Marks tensor `tensor` as final for this iteration; on a device, after the work that is in the stream now. From any
  // thread. Throws Error(value) for an index out of range, or for a second call in one iteration.
  void ready(std::size_t tensor, Stream stream = nullptr);
  void ready_all(Stream stream = nullptr);  // marks all that are not yet ready

  // Waits until every tensor is replaced by its mean over the ranks, and starts the next iteration. Tensors that are
  // not ready count as zeros; if no tensor is ready on any rank, throws Error(value) on all ranks, and the means are
  // zeros. If the timeout (seconds) passes first, throws Error(timeout); the iteration continues and can be waited for
  // again. On a device, later work of the stream sees the means.
  void wait(std::optional<double> timeout = {}, Stream stream = nullptr) { wait_within(timeout, stream); }
  using Pool::wait_until;  // same as `wait`; throws TimeOver

  // Submits a call behind the due ranges to the progress thread; returns nullptr if there is no progress thread.
  std::shared_ptr<Handle> submit(const collective::Call& call);

  // Returns the input of a step: all gradients. Throws Error(value) unless they are averaged.
  [[nodiscard]] Update update() const { return update_of({{0, elements()}}); }

  // Counts the gradients in memory that are infinite or NaN. Throws Error(type) for float64. On a device it waits for
  // the stream.
  [[nodiscard]] std::size_t count_nonfinite(Stream stream = nullptr) const {
    return memory_->count_nonfinite(data(), dtype_, elements(), stream);
  }

  void close(bool drain) noexcept override;

 private:
  enum class Progress { thread, caller, in_wait };

  [[nodiscard]] static Progress progress_of(const Communicator& communicator, const Options& options);
  [[nodiscard]] std::size_t threshold_of(std::optional<std::size_t> given) const;
  void write_extra();
  void read_extra();
  [[nodiscard]] std::string description(const std::vector<std::size_t>& counts) const;
  void lay_out_ranges();
  void make_calls();
  [[nodiscard]] collective::Call make_call_for(const Communicator& communicator, std::size_t range) const;
  [[nodiscard]] collective::Call call_for(std::size_t range, Stream stream = nullptr) const;

  void record_ready(std::size_t tensor, Clock::time_point now, Stream stream) const;
  void mark(std::size_t tensor, Clock::time_point now, Stream stream);  // mutex_ held, as for the next two functions
  void mark_in_range(std::size_t tensor, Clock::time_point now, Stream stream);
  void start_due_ranges();
  void help_reduce();
  void reduce_own_slices(const std::unique_lock<std::mutex>& reducing);
  void finish_slices(collective::Group& group);
  void finish_ranges(Deadline deadline, Stream stream);

  void complete_remaining(Stream stream) override;
  void exchange(Deadline deadline, Stream stream) override;
  void conclude(Stream stream) override;
  void start_next_iteration() override;
  void reset() override;

  Progress progress_;
  Options options_;
  int nodes_;
  std::size_t fusion_threshold_;
  std::unique_ptr<GradientPool> extra_pool_;  // extra numbers of a device pool, on the host
  std::size_t active_;                        // number of first tensors that are in ranges
  std::vector<TensorRange> ranges_;
  std::vector<std::size_t> range_of_;    // range of each tensor
  std::vector<collective::Call> calls_;  // call of each range: checked, with its path chosen
  std::vector<StreamMarks> marks_;       // device only: stream positions, by range, when its tensors became ready

  std::unique_ptr<collective::PooledSlices> slices_;  // set if the callers reduce
  std::mutex reducing_;                               // held by the caller that reduces; locked before mutex_
  std::size_t reduced_ = 0;                           // number of ranges whose own slices are reduced
  std::uint64_t ranges_before_ = 0;                   // number of ranges in all earlier iterations

  std::size_t collected_ = 0;                       // number of ranges waited for
  std::vector<std::size_t> left_;                   // tensors not ready, for each range
  std::vector<Clock::time_point> complete_;         // time at which each range became complete
  std::size_t due_ = 0;                             // number of due ranges
  std::vector<std::shared_ptr<Handle>> under_way_;  // handles of queued ranges, or one for the end of all
  bool all_idle_ = false;                           // no tensor was ready on any rank
};

}  // namespace gradientflow::engine
