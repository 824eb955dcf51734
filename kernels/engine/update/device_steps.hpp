// Kernels of an optimizer on a CUDA device: a single launch serves all tensors.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "../../compute/cuda/steps.hpp"
#include "../../compute/cuda/sum_of_squares.hpp"
#include "../calls/stream_marks.hpp"
#include "../memory/call_lists.hpp"
#include "../memory/mirrored_memory.hpp"

namespace gradientflow::engine {

class DeviceSteps {
 public:
  using Stream = compute::cuda::Stream;
  using SumOfSquares = compute::cuda::SumOfSquares;

  explicit DeviceSteps(int device);
  DeviceSteps(const DeviceSteps&) = delete;
  DeviceSteps& operator=(const DeviceSteps&) = delete;
  ~DeviceSteps();  // waits for work under way

  [[nodiscard]] int device() const { return device_; }

  // Puts all steps into the stream, to run after earlier steps in any stream. `dtype`: dtype of the gradients.
  void run(const compute::StepVectors& steps, DType dtype, Stream stream);

  // Returns the sums of squares of the gradients, then the sums of the weights, which are float32. Waits for the
  // stream.
  [[nodiscard]] std::vector<double> sums_of_squares(std::span<const SumOfSquares> gradients, DType dtype,
                                                    std::span<const SumOfSquares> weights, Stream stream);

  // Makes later work of the stream see the steps.
  void order(Stream stream) const;

 private:
  // Lists that a step reads while the host writes the next step's.
  struct Turn {
    CallLists lists = {};
    compute::cuda::OwnedEvent done = compute::cuda::OwnedEvent();
  };

  int device_;
  std::array<Turn, 2> turns_;
  std::size_t turn_ = 0;
  StreamMarks last_step_;
  CallLists sum_lists_;
  MirroredMemory sums_;
  compute::cuda::DeviceMemory scratch_;
};

}  // namespace gradientflow::engine
