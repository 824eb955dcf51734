#include "float_array.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../../base/error.hpp"
#include "../../transport/node/memory_map.hpp"

namespace gradientflow::engine {

FloatArray::FloatArray(std::size_t size, std::optional<int> device) : device_(device), size_(size) {
  constexpr std::size_t line = 64;
  if (size == 0) {
    return;
  }
  if (device_) {
    const compute::cuda::UseDevice use(*device_);
    on_device_ = compute::cuda::DeviceMemory(size * sizeof(float));
    compute::cuda::runtime().clear(on_device_.data(), on_device_.bytes(), nullptr);
    compute::cuda::runtime().synchronize(nullptr);
    return;
  }
  const bool is_large = size * sizeof(float) >= transport::huge_page;
  const std::size_t alignment = is_large ? transport::huge_page : line;
  const std::size_t bytes = (size * sizeof(float) + alignment - 1) / alignment * alignment;
  memory_.reset(static_cast<float*>(std::aligned_alloc(alignment, bytes)));
  if (memory_ == nullptr) {
    throw Error(ErrorKind::memory, "there is not enough memory for " + std::to_string(bytes) + " bytes");
  }
#if defined(MADV_HUGEPAGE)
  if (is_large) {
    ::madvise(memory_.get(), bytes, MADV_HUGEPAGE);  // only advice: failure is harmless
  }
#endif
  std::memset(memory_.get(), 0, bytes);
}

void FloatArray::read(std::size_t begin, std::span<float> destination) const {
  if (!device_) {
    std::copy_n(data() + begin, destination.size(), destination.begin());
  } else if (!destination.empty()) {
    const compute::cuda::UseDevice use(*device_);
    compute::cuda::runtime().copy(destination.data(), data() + begin, destination.size_bytes(), nullptr);
    compute::cuda::runtime().synchronize(nullptr);
  }
}

void FloatArray::write(std::size_t begin, std::span<const float> source) {
  if (!device_) {
    std::copy(source.begin(), source.end(), data() + begin);
  } else if (!source.empty()) {
    const compute::cuda::UseDevice use(*device_);
    compute::cuda::runtime().copy(data() + begin, source.data(), source.size_bytes(), nullptr);
    compute::cuda::runtime().synchronize(nullptr);
  }
}

void FloatArray::Free::operator()(float* memory) const noexcept { std::free(memory); }

}  // namespace gradientflow::engine
