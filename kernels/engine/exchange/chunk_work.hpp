// Work of a sparse pool on the elements of its chunks. Results have the same bits on the host and on a CUDA device.
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

// Work on a chunk. With a `slot`, the chunk and its residual are gathered into the slot, and later scattered from
// there. Without a slot, both go to `next_residual`, unless that is nullptr.
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

  // Makes the work for `chunks` chunks of at most `chunk_size` elements each, which is the size of every slot. With a
  // `device`, makes the form for that device.
  static std::unique_ptr<ChunkWork> make(std::optional<int> device, DType dtype, std::size_t chunks,
                                         std::size_t chunk_size, float momentum);
  ChunkWork() = default;
  ChunkWork(const ChunkWork&) = delete;
  ChunkWork& operator=(const ChunkWork&) = delete;
  virtual ~ChunkWork() = default;

  // Sets the factor of gradients, a power of two.
  virtual void set_scale(float scale) = 0;
  virtual void set_momentum(float momentum) = 0;

  // Notes a tensor that is ready in this stream while other tensors of the chunk are not ready. Later work on the
  // chunk, in any stream, follows the work that is in this stream now.
  virtual void note_ready(std::size_t chunk, Stream stream) = 0;

  // Makes later work of the stream follow all work noted or given since the last finish().
  virtual void order(Stream stream) = 0;

  // Gathers each chunk or updates its residual, and zeroes the rest of its slot; then calls `then` for the chunk: on a
  // device, once the work is in the stream. From any thread.
  virtual void process(std::span<const ChunkJob> jobs, const Then& then, Stream stream) = 0;

  // Copies the slots back to the gradients.
  virtual void scatter(std::span<const ChunkJob> jobs, Stream stream) = 0;

  // Waits until all work given so far is done, also on a device; returns false if the deadline passes first. Call
  // finish() between the processing and the scattering of chunks, and after scattering: between two calls each chunk
  // may have work only once.
  virtual bool finish(Deadline deadline) = 0;

  // Returns the L1 norm of a chunk as last processed or scattered, after finish().
  [[nodiscard]] virtual double norm(std::size_t chunk) const = 0;

  // Counts elements that are infinite or NaN. Waits for the device.
  [[nodiscard]] virtual std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count) const = 0;
};

}  // namespace gradientflow::engine
