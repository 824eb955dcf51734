// What a sparse pool has done to the elements of its chunks: the same work, with the same bits, on the host and on a
// CUDA device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "../../base/dtype.hpp"
#include "../../compute/cuda/stream.hpp"
#include "../calls/waiting.hpp"

namespace gradientflow::engine {

// What there is to be done with a chunk, and where. `slot`, where it has one: it is gathered into it with its
// residual, and later scattered from there. Else it goes to `next_residual`, if there is one.
struct ChunkJob {
  std::size_t chunk;
  std::size_t count;
  std::byte* gradient;
  const float* residual;  // nullptr: there is no residual
  float* next_residual;
  std::byte* slot;
};

class ChunkWork {
 public:
  using Stream = compute::cuda::Stream;
  using Then = std::function<void(const ChunkJob&)>;

  // `chunks` chunks of at most `chunk_size` elements each, which is the size of all slots. The device's twin for a
  // device.
  static std::unique_ptr<ChunkWork> make(std::optional<int> device, DType dtype, std::size_t chunks,
                                         std::size_t chunk_size, float momentum);
  ChunkWork() = default;
  ChunkWork(const ChunkWork&) = delete;
  ChunkWork& operator=(const ChunkWork&) = delete;
  virtual ~ChunkWork() = default;

  // Gradients are multiplied by it. A power of two.
  virtual void set_scale(float scale) = 0;
  virtual void set_momentum(float momentum) = 0;

  // A tensor that reaches into a chunk is ready, in this stream, and others are not: whoever works on the chunk, in
  // whatever stream, does so behind what is in this one now.
  virtual void note_ready(std::size_t chunk, Stream stream) = 0;

  // What is put into the stream from now on comes behind all that was noted or given since the last finish().
  virtual void order(Stream stream) = 0;

  // Gathers each chunk or updates its residual, and zeroes what is left of a slot behind it; then calls `then` for it:
  // on a device that only means that it is in the stream. From any thread.
  virtual void process(std::span<const ChunkJob> jobs, const Then& then, Stream stream) = 0;

  // Copies the slots back to the gradients.
  virtual void scatter(std::span<const ChunkJob> jobs, Stream stream) = 0;

  // Waits until all that was given so far is done, also on a device; false where the deadline comes first. To be called
  // between the processing of chunks and their scattering, and after that, so that each chunk is in it once.
  virtual bool finish(Deadline deadline) = 0;

  // Of what was last processed or scattered of a chunk, after finish(): its L1 norm.
  [[nodiscard]] virtual double norm(std::size_t chunk) const = 0;

  // Waits for the device.
  [[nodiscard]] virtual std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count) const = 0;
};

}  // namespace gradientflow::engine
