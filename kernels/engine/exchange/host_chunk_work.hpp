// Chunks in memory of the host: processed in sequence in the caller's thread.
#pragma once

#include <vector>

#include "../../compute/store.hpp"
#include "chunk_work.hpp"

namespace gradientflow::engine {

class HostChunkWork final : public ChunkWork {
 public:
  HostChunkWork(DType dtype, std::size_t chunks, std::size_t chunk_size, float momentum);

  void set_scale(float scale) override { scale_ = scale; }
  void set_momentum(float momentum) override { momentum_ = momentum; }
  void note_ready(std::size_t /*chunk*/, Stream /*stream*/) override {}
  void order(Stream /*stream*/) override {}
  void process(std::span<const ChunkJob> jobs, const Then& then, Stream stream) override;
  void scatter(std::span<const ChunkJob> jobs, Stream stream) override;
  bool finish(Deadline /*deadline*/) override { return true; }
  [[nodiscard]] double norm(std::size_t chunk) const override { return norms_[chunk]; }
  [[nodiscard]] std::size_t count_nonfinite(const void* source, DType dtype, std::size_t count) const override;

 private:
  [[nodiscard]] double gather(const ChunkJob& job) const;
  [[nodiscard]] double update_residual(const ChunkJob& job) const;

  DType dtype_;
  std::size_t chunk_size_;
  float momentum_;
  float scale_ = 1.0F;
  compute::Store store_;
  std::vector<double> norms_;  // each written by one thread
};

}  // namespace gradientflow::engine
