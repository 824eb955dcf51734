// The common base of pools with residuals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../calls/communicator.hpp"
#include "../memory/kept_numbers.hpp"
#include "../memory/pool_memory.hpp"
#include "../update/update.hpp"
#include "gradient_pool.hpp"
#include "ready_tensors.hpp"

namespace gradientflow::engine {

struct NonfinitePlace {  // of the first gradient found that was not finite: a tensor from `first` to `last`
  int rank;              // -1: the gradient of each rank was finite, but not the mean
  std::size_t first;
  std::size_t last;
};
[[nodiscard]] Error nonfinite_error(const NonfinitePlace& place);

// Throws Error(type) unless gradients are float16, bfloat16 or float32; `pool`: named in the error.
void check_gradients(DType dtype, std::string_view pool);

// 1 / `scale`, by which scaled gradients are multiplied. Throws Error(value) unless `scale` is a power of two.
[[nodiscard]] float inverse_of_loss_scale(double scale);

// Throws Error(value) unless there are `elements` numbers and all are finite. `what`: named in the error.
void check_kept(std::span<const float> numbers, std::size_t elements, const char* what);

class ResidualPool {
 public:
  using Stream = GradientPool::Stream;

  ResidualPool(const ResidualPool&) = delete;
  ResidualPool& operator=(const ResidualPool&) = delete;

  [[nodiscard]] std::size_t tensors() const { return offsets_.size() - 1; }
  [[nodiscard]] std::size_t bytes() const { return offsets_.back(); }
  [[nodiscard]] std::size_t elements() const { return bytes() / size_of(dtype_); }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::byte* data() const { return memory_->data(); }
  [[nodiscard]] std::size_t offset(std::size_t tensor) const { return offsets_[tensor]; }  // bytes
  [[nodiscard]] const PoolMemory& memory() const { return *memory_; }
  [[nodiscard]] std::vector<double>& extra() { return extra_; }  // "tensor" tensors() for `ready`

  [[nodiscard]] std::size_t ready_count() const;
  [[nodiscard]] bool is_ready(std::size_t tensor) const;

  // Of the last iteration that has ended.
  [[nodiscard]] bool overflowed() const;                          // whether it was dropped
  [[nodiscard]] std::optional<NonfinitePlace> nonfinite() const;  // where; SparsePool knows only if it threw
  [[nodiscard]] double bookkeeping_seconds() const;               // to select, gather and scatter what is sent
  [[nodiscard]] std::vector<GradientPool::Report> reports() const;
  [[nodiscard]] std::uint64_t iteration() const;  // how many have ended

  // As those of GradientPool; an iteration that was dropped has means, which are zeros.
  [[nodiscard]] Means means() const;

  // Whether iterations whose gradients are not finite are dropped, instead of an error. The same on all ranks.
  void set_skip_nonfinite(bool skip) { skip_nonfinite_ = skip; }
  [[nodiscard]] bool skip_nonfinite() const { return skip_nonfinite_; }

  [[nodiscard]] double loss_scale() const { return 1.0 / static_cast<double>(scale_); }

  // The residuals, laid out as the gradients, in memory of the host. Between iterations.
  void copy_residuals(std::span<float> destination) const;

  // Called instead of `restore` on a rank that cannot go on from its state: `restore` of the other ranks throws, and
  // says why.
  void refuse_state(const std::string& why);

  [[nodiscard]] bool closed() const { return communicator_->closed(); }

  // Throws Error(closed) in a process that was forked off the pool's.
  void check_process() const { communicator_->check_process(); }

 protected:
  // `name`: for error messages. `offsets`: as those of lay_out().
  ResidualPool(std::string name, DType dtype, std::vector<std::size_t> offsets, std::size_t extra, bool skip_nonfinite);
  ~ResidualPool() = default;

  void check_open() const;
  void check_between_iterations(const char* what) const;
  [[nodiscard]] std::byte* at(std::size_t element) const { return data() + element * size_of(dtype_); }
  [[nodiscard]] std::size_t places() const { return tensors() + (extra_.empty() ? 0 : 1); }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes): of those that derive from it
  std::string name_;
  DType dtype_;
  std::vector<std::size_t> offsets_;  // in bytes; one more than tensors
  std::vector<double> extra_;
  bool skip_nonfinite_;
  float scale_ = 1.0F;                          // of gradients: 1 / loss scale
  std::shared_ptr<Communicator> communicator_;  // its own
  std::unique_ptr<PoolMemory> memory_;
  KeptNumbers residual_;

  mutable std::mutex mutex_;
  ReadyTensors ready_;
  std::uint64_t iteration_ = 0;

  // Of the last iteration.
  Means means_ = no_means;
  bool overflowed_ = false;
  std::optional<NonfinitePlace> nonfinite_;
  double last_bookkeeping_ = 0.0;
  std::vector<GradientPool::Report> reports_;
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)
};

}  // namespace gradientflow::engine
