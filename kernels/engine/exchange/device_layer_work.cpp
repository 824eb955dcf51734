#include "device_layer_work.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

#include "../../base/error.hpp"

namespace gradientflow::engine {
namespace {

namespace cuda = compute::cuda;

// Makes room for `bytes` in `memory`.
std::byte* room(cuda::DeviceMemory& memory, std::size_t bytes) {
  if (memory.bytes() < bytes) {
    memory = cuda::DeviceMemory();
    memory = cuda::DeviceMemory(bytes);
  }
  return memory.data();
}

// Returns a host copy of numbers on the device, complete when the stream is; empty for nullptr.
template <class Number>
std::vector<std::remove_const_t<Number>> copied(Number* numbers, std::size_t count, cuda::Stream stream) {
  std::vector<std::remove_const_t<Number>> copy(numbers != nullptr ? count : 0);
  if (!copy.empty()) {
    cuda::runtime().copy(copy.data(), numbers, count * sizeof(Number), stream);
  }
  return copy;
}

}  // namespace

DeviceLayerWork::DeviceLayerWork(int device, std::size_t layers) : device_(device) {
  const cuda::UseDevice use(device_);
  parts_ = std::make_unique<Parts>();
  for (std::size_t layer = 0; layer < layers; ++layer) {
    ready_.push_back({StreamMarks(device_), cuda::OwnedEvent(cuda::EventKind::time), false});
  }
}

DeviceLayerWork::~DeviceLayerWork() {
  try {
    finish();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a device that has failed does nothing more
  }
}

void DeviceLayerWork::note_ready(std::size_t layer, bool is_last, Stream stream) {
  const cuda::UseDevice use(device_);
  Readiness& its = ready_[layer];
  if (is_last) {
    cuda::runtime().record(its.time.get(), stream);
    its.noted = true;
  }
  its.marks.mark(stream);
}

void DeviceLayerWork::wait_for(std::size_t layer) {
  ready_[layer].marks.hold(stream());
  finish();
}

void DeviceLayerWork::forget() {
  for (Readiness& each : ready_) {
    each.marks.forget();
    each.noted = false;
  }
}

std::vector<double> DeviceLayerWork::seconds_since_ready() {
  const cuda::UseDevice use(device_);
  const cuda::Event now = parts_->now.get();
  for (const Readiness& each : ready_) {
    each.marks.hold(stream());
  }
  cuda::runtime().record(now, stream());
  cuda::runtime().synchronize_event(now);
  std::vector<double> seconds;
  for (const Readiness& each : ready_) {
    seconds.push_back(each.noted ? cuda::runtime().milliseconds(each.time.get(), now) * 1e-3
                                 : std::numeric_limits<double>::quiet_NaN());
  }
  return seconds;
}

void DeviceLayerWork::finish() {
  const cuda::UseDevice use(device_);
  cuda::runtime().record(parts_->done.get(), stream());
  cuda::runtime().synchronize_event(parts_->done.get());
}

template <class Result>
Result DeviceLayerWork::result() {
  parts_->result.download(0, sizeof(Result), stream());
  finish();
  Result found;
  std::memcpy(&found, parts_->result.on_host(), sizeof found);
  return found;
}

compute::Selected DeviceLayerWork::select(const compute::Select& call) {
  const cuda::UseDevice use(device_);
  compute::Select there = call;
  there.data = room(parts_->blocks, call.block.bytes);
  void* const scratch = room(parts_->scratch, cuda::runtime().scratch_bytes(there));
  cuda::runtime().select(there, reinterpret_cast<compute::Selected*>(parts_->result.on_device()), scratch, stream());
  cuda::runtime().copy(call.data, there.data, call.block.bytes, stream());
  return result<compute::Selected>();
}

std::size_t DeviceLayerWork::combine(const compute::Combine& call) {
  const cuda::UseDevice use(device_);
  const std::size_t stride = (call.block.bytes + 63) / 64 * 64;
  std::byte* const data = room(parts_->blocks, stride * call.blocks.size());
  std::vector<const std::byte*> blocks;
  for (const std::byte* const block : call.blocks) {
    blocks.push_back(data + blocks.size() * stride);
    cuda::runtime().copy(data + (blocks.size() - 1) * stride, block, call.block.bytes, stream());
  }
  compute::Combine there = call;
  there.blocks = blocks;
  void* const scratch = room(parts_->scratch, cuda::runtime().scratch_bytes(there));
  cuda::runtime().combine(there, reinterpret_cast<cuda::Combined*>(parts_->result.on_device()), scratch, stream());
  const auto combined = result<cuda::Combined>();
  if (combined.bad != 0) {
    throw Error(ErrorKind::value, "block " + std::to_string(combined.bad - 1) + " is not one of entries");
  }
  return combined.written;
}

std::size_t DeviceLayerWork::count_nonfinite(const void* source, DType dtype, std::size_t count) {
  const cuda::UseDevice use(device_);
  cuda::runtime().count_nonfinite(source, dtype, count, reinterpret_cast<std::uint64_t*>(parts_->result.on_device()),
                                  stream());
  return result<std::uint64_t>();
}

double DeviceLayerWork::sum_of_squares(const void* source, DType dtype, std::size_t count, float scale) {
  const cuda::UseDevice use(device_);
  const std::array<cuda::SumOfSquares, 1> calls = {{{.source = source, .count = count, .scale = scale}}};
  parts_->list.clear();
  const auto list = parts_->list.add(std::span<const cuda::SumOfSquares>(calls), dtype);
  parts_->list.send(stream());
  void* const scratch = room(parts_->scratch, cuda::scratch_bytes(list));
  cuda::runtime().sum_of_squares(list, reinterpret_cast<double*>(parts_->result.on_device()), scratch, stream());
  return result<double>();
}

void DeviceLayerWork::add_kept(const LayerJob& job, const Selection& how, float scale) {
  const cuda::UseDevice use(device_);
  const std::size_t count = job.layer.count;
  std::vector<std::byte> gradient = copied(job.gradient, count * size_of(job.dtype), stream());
  const std::vector<float> residual = copied(job.residual, count, stream());
  const std::vector<float> velocity = copied(job.velocity, count, stream());
  finish();
  std::vector<float> next_residual(count);
  std::vector<float> next_velocity(job.next_velocity != nullptr ? count : 0);
  LayerJob here = job;
  here.gradient = gradient.data();
  here.residual = job.residual != nullptr ? residual.data() : nullptr;
  here.next_residual = next_residual.data();
  here.velocity = job.velocity != nullptr ? velocity.data() : nullptr;
  here.next_velocity = job.next_velocity != nullptr ? next_velocity.data() : nullptr;
  LayerWork::add_kept(here, how, scale);
  cuda::runtime().copy(job.gradient, gradient.data(), gradient.size(), stream());
  cuda::runtime().copy(job.next_residual, next_residual.data(), count * sizeof(float), stream());
  if (job.next_velocity != nullptr) {
    cuda::runtime().copy(job.next_velocity, next_velocity.data(), count * sizeof(float), stream());
  }
  finish();
}

}  // namespace gradientflow::engine
