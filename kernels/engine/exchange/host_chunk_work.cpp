#include "host_chunk_work.hpp"

#include <cstring>

#include "../../base/text.hpp"
#include "../../compute/chunks.hpp"
#include "../../compute/kernels.hpp"

namespace gradientflow::engine {
namespace {

constexpr std::size_t beyond_caches = mib;  // size at which residuals leave the caches

}  // namespace

HostChunkWork::HostChunkWork(DType dtype, std::size_t chunks, std::size_t chunk_size, float momentum)
    : dtype_(dtype),
      chunk_size_(chunk_size),
      momentum_(momentum),
      store_(chunks * chunk_size * sizeof(float) >= beyond_caches ? compute::Store::streaming : compute::Store::cached),
      norms_(chunks, 0.0) {}

void HostChunkWork::process(std::span<const ChunkJob> jobs, const Then& then, Stream /*stream*/) {
  for (const ChunkJob& job : jobs) {
    norms_[job.chunk] = job.slot != nullptr ? gather(job) : update_residual(job);
    then(job);
  }
}

double HostChunkWork::gather(const ChunkJob& job) const {
  const double norm = compute::gather({.gradient = job.gradient,
                                       .dtype = dtype_,
                                       .residual = job.residual,
                                       .buffer = job.slot,
                                       .count = job.count,
                                       .scale = scale_});
  std::memset(job.slot + job.count * size_of(dtype_), 0, (chunk_size_ - job.count) * size_of(dtype_));
  return norm;
}

double HostChunkWork::update_residual(const ChunkJob& job) const {
  return compute::update_residual({.gradient = job.gradient,
                                   .dtype = dtype_,
                                   .residual = job.residual,
                                   .next_residual = job.next_residual,
                                   .count = job.count,
                                   .scale = scale_,
                                   .momentum = momentum_,
                                   .store = store_});
}

void HostChunkWork::scatter(std::span<const ChunkJob> jobs, Stream /*stream*/) {
  for (const ChunkJob& job : jobs) {
    norms_[job.chunk] = compute::scatter(
        {.gradient = job.gradient, .dtype = dtype_, .buffer = job.slot, .count = job.count, .scale = scale_});
  }
}

std::size_t HostChunkWork::count_nonfinite(const void* source, DType dtype, std::size_t count) const {
  return compute::count_nonfinite(source, dtype, count);
}

}  // namespace gradientflow::engine
