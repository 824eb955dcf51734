#include "chunk_work.hpp"

#include "device_chunk_work.hpp"
#include "host_chunk_work.hpp"

namespace gradientflow::engine {

std::unique_ptr<ChunkWork> ChunkWork::make(std::optional<int> device, DType dtype, std::size_t chunks,
                                           std::size_t chunk_size, float momentum) {
  if (device) {
    return std::make_unique<DeviceChunkWork>(*device, dtype, chunks, chunk_size, momentum);
  }
  return std::make_unique<HostChunkWork>(dtype, chunks, chunk_size, momentum);
}

}  // namespace gradientflow::engine
