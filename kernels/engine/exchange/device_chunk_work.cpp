#include "device_chunk_work.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "../../base/error.hpp"

namespace gradientflow::engine {
namespace {

namespace cuda = compute::cuda;

// Returns memory enough for any work on the chunks. Each chunk may need its own list, or two lists: gathering and
// updating residuals use different lists.
std::size_t list_bytes(std::size_t chunks) {
  return std::max({CallLists::bytes_for<compute::UpdateResidual>(chunks, 2 * chunks),
                   CallLists::bytes_for<compute::Gather>(chunks, 2 * chunks),
                   CallLists::bytes_for<compute::Scatter>(chunks, 2 * chunks)});
}

std::size_t scratch_size(std::size_t chunks, std::size_t chunk_size) {
  return chunks * ((chunk_size + compute::norm_block - 1) / compute::norm_block) * sizeof(float);
}

}  // namespace

DeviceChunkWork::DeviceChunkWork(int device, DType dtype, std::size_t chunks, std::size_t chunk_size, float momentum)
    : device_(device), dtype_(dtype), chunk_size_(chunk_size), momentum_(momentum), launches_(device) {
  const cuda::UseDevice use(device_);
  reading_ = std::make_unique<cuda::OwnedStream>();
  read_ = std::make_unique<cuda::OwnedEvent>();
  lists_ = CallLists(list_bytes(chunks));
  norms_ = MirroredMemory(chunks * sizeof(double));
  scratch_ = cuda::DeviceMemory(scratch_size(chunks, chunk_size));
  launched_.reserve(chunks);
  norm_of_.assign(chunks, 0.0);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    ready_.emplace_back(device_);
  }
}

DeviceChunkWork::~DeviceChunkWork() {
  try {
    finish({});
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a device that has failed does nothing more
  }
}

void DeviceChunkWork::note_ready(std::size_t chunk, Stream stream) {
  const std::lock_guard lock(mutex_);
  ready_[chunk].mark(stream);
}

void DeviceChunkWork::order(Stream stream) {
  const std::lock_guard lock(mutex_);
  const cuda::UseDevice use(device_);
  launches_.hold(stream);
  for (const StreamMarks& marks : ready_) {
    marks.hold(stream);
  }
}

template <class Call>
DeviceChunkWork::Results DeviceChunkWork::results_for(const cuda::CallList<Call>& list,
                                                      std::span<const std::size_t> chunks) {
  const Results results{reinterpret_cast<double*>(norms_.on_device()) + launched_.size(),
                        scratch_.data() + scratch_used_};
  launched_.insert(launched_.end(), chunks.begin(), chunks.end());
  scratch_used_ += cuda::scratch_bytes(list);
  return results;
}

void DeviceChunkWork::process(std::span<const ChunkJob> jobs, const Then& then, Stream stream) {
  if (jobs.empty()) {
    return;
  }
  start(jobs, stream);
  std::for_each(jobs.begin(), jobs.end(), then);
}

void DeviceChunkWork::start(std::span<const ChunkJob> jobs, Stream stream) {
  std::vector<compute::Gather> gathers;
  std::vector<compute::UpdateResidual> updates;
  std::vector<std::size_t> gathered;
  std::vector<std::size_t> residual;
  for (const ChunkJob& job : jobs) {
    if (job.slot != nullptr) {
      gathers.push_back({.gradient = job.gradient,
                         .dtype = dtype_,
                         .residual = job.residual,
                         .buffer = job.slot,
                         .count = job.count,
                         .scale = scale_});
      gathered.push_back(job.chunk);
    } else {
      updates.push_back({.gradient = job.gradient,
                         .dtype = dtype_,
                         .residual = job.residual,
                         .next_residual = job.next_residual,
                         .count = job.count,
                         .scale = scale_,
                         .momentum = momentum_});
      residual.push_back(job.chunk);
    }
  }
  const std::lock_guard lock(mutex_);
  const cuda::UseDevice use(device_);
  const cuda::Runtime& runtime = cuda::runtime();
  const auto gather_list = lists_.add(std::span<const compute::Gather>(gathers), dtype_);
  const auto update_residual_list = lists_.add(std::span<const compute::UpdateResidual>(updates), dtype_);
  lists_.send(stream);
  for (const ChunkJob& job : jobs) {
    ready_[job.chunk].hold(stream);
  }
  if (!gathers.empty()) {
    const Results results = results_for(gather_list, gathered);
    runtime.gather(gather_list, results.norms, results.scratch, stream);
  }
  if (!updates.empty()) {
    const Results results = results_for(update_residual_list, residual);
    runtime.update_residual(update_residual_list, results.norms, results.scratch, stream);
  }
  for (const ChunkJob& job : jobs) {
    if (job.slot != nullptr && job.count < chunk_size_) {
      runtime.clear(job.slot + job.count * size_of(dtype_), (chunk_size_ - job.count) * size_of(dtype_), stream);
    }
  }
  launches_.mark(stream);
}

void DeviceChunkWork::scatter(std::span<const ChunkJob> jobs, Stream stream) {
  if (jobs.empty()) {
    return;
  }
  std::vector<compute::Scatter> scatters;
  std::vector<std::size_t> scattered;
  for (const ChunkJob& job : jobs) {
    scatters.push_back(
        {.gradient = job.gradient, .dtype = dtype_, .buffer = job.slot, .count = job.count, .scale = scale_});
    scattered.push_back(job.chunk);
  }
  const std::lock_guard lock(mutex_);
  const cuda::UseDevice use(device_);
  const auto list = lists_.add(std::span<const compute::Scatter>(scatters), dtype_);
  lists_.send(stream);
  const Results results = results_for(list, scattered);
  cuda::runtime().scatter(list, results.norms, results.scratch, stream);
  launches_.mark(stream);
}

bool DeviceChunkWork::finish(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (!launched_.empty() && !receive_norms(deadline)) {
    return false;
  }
  launched_.clear();
  scratch_used_ = 0;
  lists_.clear();
  launches_.forget();
  for (StreamMarks& marks : ready_) {
    marks.forget();
  }
  return true;
}

bool DeviceChunkWork::receive_norms(Deadline deadline) {
  const cuda::UseDevice use(device_);
  const cuda::Runtime& runtime = cuda::runtime();
  launches_.hold(reading_->get());
  norms_.download(0, launched_.size() * sizeof(double), reading_->get());
  runtime.record(read_->get(), reading_->get());
  while (deadline && !runtime.happened(read_->get())) {
    if (Times::Clock::now() > *deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  runtime.synchronize_event(read_->get());
  const auto* const norms = reinterpret_cast<const double*>(norms_.on_host());
  for (std::size_t i = 0; i < launched_.size(); ++i) {
    norm_of_[launched_[i]] = norms[i];
  }
  return true;
}

std::size_t DeviceChunkWork::count_nonfinite(const void* source, DType dtype, std::size_t count) const {
  const cuda::UseDevice use(device_);
  const cuda::DeviceMemory found(sizeof(std::uint64_t));
  std::uint64_t number = 0;
  cuda::runtime().count_nonfinite(source, dtype, count, reinterpret_cast<std::uint64_t*>(found.data()),
                                  reading_->get());
  cuda::runtime().copy(&number, found.data(), sizeof number, reading_->get());
  cuda::runtime().synchronize(reading_->get());
  return number;
}

}  // namespace gradientflow::engine
