// Chunks in memory of a CUDA device: a single launch of each kernel works on all chunks that become ready together, in
// the given stream. Norms stay on the device until finish(), which brings them to the host with one copy.
//
// Every chunk has work at most once between two calls of finish(). So each launch has its own memory for lists of
// calls, norms and scratch, all allocated once, and launches in different streams share nothing.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "../../compute/chunks.hpp"
#include "../calls/stream_marks.hpp"
#include "../memory/call_lists.hpp"
#include "../memory/mirrored_memory.hpp"
#include "chunk_work.hpp"

namespace gradientflow::engine {

class DeviceChunkWork final : public ChunkWork {
 public:
  DeviceChunkWork(int device, DType dtype, std::size_t chunks, std::size_t chunk_size, float momentum);
  DeviceChunkWork(const DeviceChunkWork&) = delete;
  DeviceChunkWork& operator=(const DeviceChunkWork&) = delete;
  ~DeviceChunkWork() override;  // waits for work under way

  void set_scale(float scale) override { scale_ = scale; }
  void set_momentum(float momentum) override { momentum_ = momentum; }
  void note_ready(std::size_t chunk, Stream stream) override;
  void order(Stream stream) override;
  void process(std::span<const ChunkJob> jobs, const Then& then, Stream stream) override;
  void scatter(std::span<const ChunkJob> jobs, Stream stream) override;
  bool finish(Deadline deadline) override;
  [[nodiscard]] double norm(std::size_t chunk) const override { return norm_of_[chunk]; }
  [[nodiscard]] std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count) const override;

 private:
  // Memory for the results of a launch.
  struct Results {
    double* norms;
    std::byte* scratch;
  };

  void start(std::span<const ChunkJob> jobs, Stream stream);
  bool receive_norms(Deadline deadline);  // mutex_ held
  template <class Call>
  Results results_for(const compute::cuda::CallList<Call>& list, std::span<const std::size_t> chunks);

  int device_;
  DType dtype_;
  std::size_t chunk_size_;
  float momentum_;
  float scale_ = 1.0F;
  CallLists lists_;
  MirroredMemory norms_;
  compute::cuda::DeviceMemory scratch_;
  std::unique_ptr<compute::cuda::OwnedStream> reading_;  // stream that copies norms, behind launches in any stream
  std::unique_ptr<compute::cuda::OwnedEvent> read_;

  std::mutex mutex_;                   // guards all members below
  std::vector<StreamMarks> ready_;     // marks of each chunk
  StreamMarks launches_;               // launches since the last finish()
  std::vector<std::size_t> launched_;  // chunks, in the order of their norms in memory
  std::size_t scratch_used_ = 0;
  std::vector<double> norm_of_;  // norm of each chunk
};

}  // namespace gradientflow::engine
