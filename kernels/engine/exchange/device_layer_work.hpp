// Layers in memory of a CUDA device: entries are selected and combined there, by the device's kernels, in a
// separate stream. Little except blocks passes between the device and the host. But the residuals of dense layers are
// added on the host.
//
// One thread at a time works on layers, and waits for its work; other threads may call note_ready() meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../../compute/cuda/owned.hpp"
#include "../calls/stream_marks.hpp"
#include "../memory/call_lists.hpp"
#include "../memory/mirrored_memory.hpp"
#include "layer_work.hpp"

namespace gradientflow::engine {

class DeviceLayerWork final : public LayerWork {
 public:
  DeviceLayerWork(int device, std::size_t layers);
  DeviceLayerWork(const DeviceLayerWork&) = delete;
  DeviceLayerWork& operator=(const DeviceLayerWork&) = delete;
  ~DeviceLayerWork() override;

  std::size_t combine(const compute::Combine& call) override;
  [[nodiscard]] std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count) override;
  void note_ready(std::size_t layer, bool is_last, Stream stream) override;
  void wait_for(std::size_t layer) override;
  void forget() override;
  [[nodiscard]] std::vector<double> seconds_since_ready() override;
  [[nodiscard]] Stream stream() const override { return parts_->stream.get(); }
  void finish() override;

 protected:
  compute::Selected select(const compute::Select& call) override;
  [[nodiscard]] double sum_of_squares(const void* source, DType dtype, std::size_t count, float scale) override;
  void add_kept(const LayerJob& job, const Selection& how, float scale) override;

 private:
  // Time at which a layer became ready.
  struct Readiness {
    StreamMarks marks;
    compute::cuda::OwnedEvent time;  // time of its last tensor
    bool noted;
  };

  // Objects made on the device.
  struct Parts {
    compute::cuda::OwnedStream stream;
    compute::cuda::OwnedEvent done;
    compute::cuda::OwnedEvent now{compute::cuda::EventKind::time};
    MirroredMemory result{64};  // result of one kernel
    CallLists list{CallLists::bytes_for<compute::cuda::SumOfSquares>(1, 1)};
    compute::cuda::DeviceMemory blocks;
    compute::cuda::DeviceMemory scratch;
  };

  // Waits for the stream, and returns the result of a kernel.
  template <class Result>
  [[nodiscard]] Result result();

  int device_;
  std::unique_ptr<Parts> parts_;
  std::vector<Readiness> ready_;  // readiness of each layer
};

}  // namespace gradientflow::engine
