// Common base of pools with residuals. An iteration in which a gradient is not finite is dropped, and leaves residuals
// unchanged.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../memory/versioned_array.hpp"
#include "pool.hpp"

namespace gradientflow::engine {

struct NonfiniteTensorRange {  // place of the first nonfinite gradient found: a tensor from `first` to `last`
  int rank;                    // -1: every rank's gradient was finite, but the mean was not
  std::size_t first;
  std::size_t last;
};

// Throws Error(type) unless gradients are float16, bfloat16 or float32. `pool`: its name in the error.
void check_gradients(DType dtype, std::string_view pool);

// Returns 1 / `scale`, by which scaled gradients are multiplied. Throws Error(value) unless `scale` is a power of two.
[[nodiscard]] float inverse_of_loss_scale(double scale);

// Throws Error(value) unless there are `elements` numbers and all are finite. `what`: their name in the error.
void check_kept(std::span<const float> numbers, std::size_t elements, const char* what);

class ResidualPool : public Pool {
 public:
  void rollback(Stream stream = nullptr) override;

  // Describe the last finished iteration.
  [[nodiscard]] bool dropped() const { return locked(last_) == Fate::dropped; }  // a gradient was not finite
  // Returns the place of the gradient that was not finite; a SparsePool knows the place only if it threw.
  [[nodiscard]] std::optional<NonfiniteTensorRange> nonfinite() const { return locked(nonfinite_); }
  // Returns the time to select, gather and scatter the sent data.
  [[nodiscard]] double selection_seconds() const { return locked(selection_seconds_); }

  // Sets if iterations with nonfinite gradients are dropped instead of an error. The same on all ranks.
  void set_skip_nonfinite(bool skip) { skip_nonfinite_ = skip; }
  [[nodiscard]] bool skip_nonfinite() const { return skip_nonfinite_; }

  [[nodiscard]] double loss_scale() const { return 1.0 / static_cast<double>(scale_); }

  // Copies the residuals, laid out as the gradients, to memory of the host. Between iterations.
  void copy_residuals(std::span<float> destination) const;
  // Sets the residuals of this rank alone; zeroes the gradients. Throws Error(value) for numbers that are not finite.
  void set_residuals(std::span<const float> residual, Stream stream = nullptr);

  // Makes the peers' `restore` throw, with the reason. Called instead of `restore` on a rank that cannot resume from
  // its state.
  void refuse_state(const std::string& why);

 protected:
  // `name`: for error messages. `offsets`: as returned by lay_out().
  ResidualPool(const std::string& name, DType dtype, const std::vector<std::size_t>& offsets, std::size_t extra,
               bool skip_nonfinite);

  // Marks tensors, with mutex_ held, and then processes everything that these tensors complete. The end of the
  // iteration waits for this processing.
  template <class Mark, class Process>
  void work_on(Mark mark, Process process) {
    check_open();
    {
      const std::lock_guard lock(mutex_);
      mark();
      workers_.enter();
    }
    const Workers::Leave leave(workers_);
    process();
  }
  // Waits for the processing above, when the end of the iteration begins; mutex_ is held from then on.
  [[nodiscard]] std::unique_lock<std::mutex> stop_work();

  void conclude(Stream stream) final;
  // Decides if the iteration is kept, fails or is dropped. Every rank decides alike, from the same numbers.
  virtual void decide() = 0;
  virtual void drop_gradients(Stream stream);
  // Remember the state beside the gradients, before `decide` changes it; return to that state.
  virtual void snapshot_residuals() { residual_.snapshot(); }
  virtual void rollback_residuals() { residual_.restore(); }
  void reset() override;

  // Drops the iteration, unless this rank gives it up.
  void drop() { fate_ = fate_ == Fate::given_up ? fate_ : Fate::dropped; }

  // Report to the peers on this rank's first nonfinite gradient.
  struct NonfiniteTensors {
    std::int64_t first = -1;  // -1: there is none
    std::int64_t last = -1;
  };
  [[nodiscard]] NonfiniteTensors nonfinite_tensors() const;  // mutex_ held, or at the end
  [[nodiscard]] static std::optional<NonfiniteTensorRange> first_place(std::span<const NonfiniteTensors> of_ranks);
  [[nodiscard]] static Error nonfinite_error(const NonfiniteTensorRange& place);
  // Notes that a gradient of this rank is not finite in `part` of the elements, which belongs to the tensors `first` to
  // `last`. `count(begin, end)` counts nonfinite elements, to find the tensor.
  template <class Count>
  void note_nonfinite(Update::Span part, std::size_t first, std::size_t last, Count count);

  void check_residuals(std::span<const float> residual) const;
  // Throws the error of `check`, and makes the peers' `restore` throw; throws Error(mismatch) if descriptions differ.
  template <class Check>
  void check_state(Check check, const std::string& description) {
    check_open();
    try {
      check();
    } catch (const Error& error) {
      refuse_state(error.what());
      throw;
    }
    check_same("states of " + name_ + "s", description);
  }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes): for derived pools
  bool skip_nonfinite_;
  float scale_ = 1.0F;  // factor of gradients: 1 / loss scale
  VersionedArray residual_;

  std::optional<NonfiniteTensorRange> found_nonfinite_;  // nonfinite place on this rank; at the end, over all ranks
  std::atomic<std::int64_t> selection_time_{0};          // nanoseconds
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)

 private:
  Workers workers_{mutex_};

  // Results of the last iteration.
  std::optional<NonfiniteTensorRange> nonfinite_;
  double selection_seconds_ = 0.0;
};

template <class Count>
void ResidualPool::note_nonfinite(Update::Span part, std::size_t first, std::size_t last, Count count) {
  NonfiniteTensorRange place{communicator_->rank(), first, last};
  for (std::size_t tensor = first; tensor <= last; ++tensor) {
    const std::size_t begin = std::max(part.begin, offsets_[tensor] / size_of(dtype_));
    const std::size_t end = std::min(part.end, offsets_[tensor + 1] / size_of(dtype_));
    if (begin < end && count(begin, end) > 0) {
      place.first = place.last = tensor;
      break;
    }
  }
  const std::lock_guard lock(mutex_);
  if (!found_nonfinite_ || place.first < found_nonfinite_->first) {
    found_nonfinite_ = place;
  }
}

}  // namespace gradientflow::engine
