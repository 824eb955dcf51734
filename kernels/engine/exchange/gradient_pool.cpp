#include "gradient_pool.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "../../base/text.hpp"
#include "../calls/request.hpp"
#include "../calls/same_on_all_ranks.hpp"
#include "../memory/layout.hpp"

namespace gradientflow::engine {
namespace {

using Clock = Times::Clock;

constexpr std::size_t fusion_bytes = 8 * mib;  // from here on the time of an allreduce is that of its bytes
constexpr std::size_t hot_bytes = 256 * kib;   // stay in the caches until all ranks are ready

std::vector<std::size_t> with_extra(std::vector<std::size_t> counts, std::size_t extra) {
  if (extra > 0) {
    counts.push_back(extra);
  }
  return counts;
}

}  // namespace

GradientPool::GradientPool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype,
                           const Options& options)
    : progress_(progress_of(communicator, options)),
      dtype_(dtype),
      options_(options),
      fusion_threshold_(threshold_of(options.fusion_threshold)),
      extra_(options.extra, 0.0),
      tensors_(counts.size() + (extra_lie_behind() ? 1 : 0)),
      active_(tensors_),
      offsets_(lay_out(with_extra(counts, extra_lie_behind() ? options.extra : 0), dtype)),
      ready_(tensors_) {
  if (options.wire) {
    options_.wire = collective::rounding_wire(*options.wire, dtype);
  }
  lay_out_ranges();
  static_cast<void>(make_call_for(communicator, 0));  // throws errors before other ranks are waited for
  communicator_ = communicator.duplicate("gradient pool of " + std::to_string(bytes()) + " bytes",
                                         transport::MadeFor::gradient_pool);
  check_same_on_all_ranks(*communicator_, "gradient pools", description(counts));
  memory_ = std::make_unique<PoolMemory>(*communicator_, options.device, offsets_.back(),
                                         collective::PooledSlices::extra_bytes);
  if (options.device && options.extra > 0) {
    extra_pool_ = std::make_unique<GradientPool>(communicator, std::vector{options.extra}, DType::float64, Options{});
  }
  make_calls();
  if (progress_ == Progress::caller) {
    slices_ = std::make_unique<collective::PooledSlices>(memory_->on_host(), communicator_->local_size(),
                                                         communicator_->local_rank());
  }
}

void GradientPool::lay_out_ranges() {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < active_; ++i) {
    sizes.push_back(offsets_[i + 1] - offsets_[i]);
  }
  ranges_ = fuse(sizes, fusion_threshold_);
  range_of_.assign(tensors_, 0);
  left_.clear();
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    std::fill(range_of_.begin() + static_cast<std::ptrdiff_t>(ranges_[r].begin),
              range_of_.begin() + static_cast<std::ptrdiff_t>(ranges_[r].end), r);
    left_.push_back(ranges_[r].end - ranges_[r].begin);
  }
  complete_.resize(ranges_.size());
  marks_.clear();
  for (std::size_t r = 0; options_.device && r < ranges_.size(); ++r) {
    marks_.emplace_back(*options_.device);
  }
}

void GradientPool::make_calls() {
  calls_.clear();
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    calls_.push_back(make_call_for(*communicator_, r));
  }
}

GradientPool::Progress GradientPool::progress_of(const Communicator& communicator, const Options& options) {
  if (communicator.size() == 1) {
    return Progress::in_wait;
  }
  if (communicator.nodes() > 1 || options.device ||
      (options.algorithm != transport::Algorithm::automatic && options.algorithm != transport::Algorithm::shared)) {
    return transport::mpi_thread_multiple() ? Progress::thread : Progress::in_wait;
  }
  const std::string& choice = communicator.group().config().progress;
  const std::size_t enough = 2 * static_cast<std::size_t>(communicator.local_size());
  const bool has_cores = communicator.group().node().cores() >= enough;
  return choice == "thread" || (choice == "auto" && has_cores) ? Progress::thread : Progress::caller;
}

GradientPool::~GradientPool() { close(false); }

std::string GradientPool::description(const std::vector<std::size_t>& counts) const {
  std::string text = std::to_string(tensors()) + " tensors, " + std::to_string(extra_.size()) + " extra numbers, " +
                     std::to_string(bytes()) + " bytes of " + std::string(name_of(dtype_)) + ", fusion threshold " +
                     std::to_string(fusion_threshold_) + ", algorithm " + std::string(name_of(options_.algorithm)) +
                     ", layout " + std::to_string(collective::hash_of(counts));
  if (options_.wire) {
    text += ", wire " + std::string(name_of(*options_.wire));
  }
  if (options_.device) {
    text += ", on CUDA devices";
  }
  return text;
}

void GradientPool::check_open() const {
  if (closed_) {
    throw Error(ErrorKind::closed, "the gradient pool is closed");
  }
  communicator_->check_open();
}

void GradientPool::limit(std::size_t tensors) {
  const std::lock_guard not_reducing(reducing_);
  const std::lock_guard lock(mutex_);
  if (tensors > tensors_ || ready_.count() > 0) {
    throw Error(ErrorKind::internal, "a pool is limited to more tensors than it has, or in an iteration");
  }
  if (tensors != active_) {
    active_ = tensors;
    lay_out_ranges();
    make_calls();
  }
}

std::size_t GradientPool::threshold_of(std::optional<std::size_t> given) const {
  return given.value_or(progress_ == Progress::caller ? hot_bytes : fusion_bytes);
}

void GradientPool::regroup(std::optional<std::size_t> fusion_threshold, std::optional<DType> wire) {
  check_open();
  const std::lock_guard not_reducing(reducing_);
  const std::lock_guard lock(mutex_);
  if (ready_.count() > 0) {
    throw Error(ErrorKind::value, "a pool is regrouped between iterations, not after a tensor is ready: wait first");
  }
  options_.wire = wire ? collective::rounding_wire(*wire, dtype_) : wire;
  fusion_threshold_ = threshold_of(fusion_threshold);
  lay_out_ranges();
  make_calls();
}

// Copies the extra numbers to where they are averaged.
void GradientPool::write_extra() {
  if (extra_pool_ != nullptr) {
    std::memcpy(extra_pool_->data(), extra_.data(), extra_.size() * sizeof(double));
    return;
  }
  std::byte* const place = data() + offsets_[tensors_ - 1];
  if (dtype_ == DType::float64) {
    std::memcpy(place, extra_.data(), extra_.size() * sizeof(double));
    return;
  }
  const std::vector<float> rounded(extra_.begin(), extra_.end());
  compute::cast(place, dtype_, rounded.data(), DType::float32, rounded.size(), 1.0F);
}

// Copies their means back.
void GradientPool::read_extra() {
  const std::byte* const place = extra_pool_ != nullptr ? extra_pool_->data() : data() + offsets_[tensors_ - 1];
  if (extra_pool_ != nullptr || dtype_ == DType::float64) {
    std::memcpy(extra_.data(), place, extra_.size() * sizeof(double));
    return;
  }
  std::vector<float> means(extra_.size());
  compute::cast(means.data(), DType::float32, place, dtype_, means.size(), 1.0F);
  std::copy(means.begin(), means.end(), extra_.begin());
}

void GradientPool::ready(std::size_t tensor, Stream stream) {
  check_open();
  if (extra_pool_ != nullptr && tensor == tensors_) {
    write_extra();
    extra_pool_->ready(0);
    return;
  }
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    ready_.check_new(tensor, active_);
    if (extra_lie_behind() && tensor + 1 == tensors_) {
      write_extra();
    }
    record_ready(tensor, now, stream);
    mark(tensor, now, stream);
    start_due_ranges();
  }
  if (slices_ != nullptr) {
    reduce_own_slices(std::unique_lock(reducing_, std::try_to_lock));  // or another thread does it already
  }
}

void GradientPool::record_ready(std::size_t tensor, Clock::time_point now, Stream stream) const {
  const auto timeline = communicator_->timeline();
  if (timeline == nullptr) {
    return;
  }
  const std::string what = "tensor " + std::to_string(tensor) + " ready";
  timeline->instant(timeline->thread_track(), what, now);
  if (const auto on_device = options_.device ? communicator_->device_timeline(*options_.device) : nullptr) {
    on_device->instant(stream, what);
  }
}

void GradientPool::ready_all(Stream stream) {
  check_open();
  if (extra_pool_ != nullptr && extra_pool_->ready_count() == 0) {
    write_extra();
    extra_pool_->ready(0);
  }
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (extra_lie_behind() && !ready_.has(tensors_ - 1)) {
      write_extra();
    }
    for (std::size_t tensor = 0; tensor < active_; ++tensor) {
      if (!ready_.has(tensor)) {
        mark(tensor, now, stream);
      }
    }
    start_due_ranges();
  }
  if (slices_ != nullptr) {
    reduce_own_slices(std::unique_lock(reducing_, std::try_to_lock));  // or another thread does it already
  }
}

void GradientPool::mark(std::size_t tensor, Clock::time_point now, Stream stream) {
  if (options_.device && !ranges_.empty()) {
    marks_[range_of_[tensor]].mark(stream);
  }
  ready_.add(tensor);
  if (!ranges_.empty() && --left_[range_of_[tensor]] == 0) {
    complete_[range_of_[tensor]] = now;
  }
}

collective::Call GradientPool::make_call_for(const Communicator& communicator, std::size_t range) const {
  const Array array{
      .data = memory_ != nullptr && !ranges_.empty() ? data() + offsets_[ranges_[range].begin] : nullptr,
      .count = ranges_.empty() ? 0 : bytes_of(ranges_[range]) / size_of(dtype_),
      .dtype = dtype_,
      .placement = options_.device ? std::optional(collective::Placement{*options_.device, nullptr}) : std::nullopt};
  collective::Call call = make_call(communicator, {.kind = transport::CallKind::allreduce,
                                                   .op = ReduceOp::mean,
                                                   .algorithm = options_.algorithm,
                                                   .wire = options_.wire,
                                                   .input = array,
                                                   .output = array});
  call.signature.detail = transport::pool_detail(range);
  return call;
}

collective::Call GradientPool::call_for(std::size_t range, Stream stream) const {
  collective::Call call = calls_[range];
  call.signature.idle = idle_;
  if (call.placement) {
    call.placement->stream = stream;
  }
  return call;
}

void GradientPool::start_due_ranges() {
  while (due_ < ranges_.size() && left_[due_] == 0) {
    if (progress_ == Progress::thread) {
      under_way_.push_back(options_.device ? communicator_->submit(call_for(due_), marks_[due_])
                                           : communicator_->submit(call_for(due_)));
    }
    ++due_;
  }
  if (slices_ != nullptr && due_ > 0) {
    slices_->publish(ranges_before_ + due_);
    if (due_ == ranges_.size() && under_way_.empty()) {
      under_way_.push_back(communicator_->submit([this](collective::Group& group) { finish_slices(group); }));
    }
  }
}

// Reduces this rank's slices of the ranges that are due on all ranks.
void GradientPool::reduce_own_slices(const std::unique_lock<std::mutex>& reducing) {
  while (reducing.owns_lock() && reduced_ < ranges_.size() &&
         slices_->complete_everywhere() > ranges_before_ + reduced_) {
    const collective::Call& call = calls_[reduced_];
    Report report{call.bytes(), {collective::Path::node_memory, {}, 0}, {}, {{}, Clock::now(), {}}};
    slices_->reduce(call, offsets_[ranges_[reduced_].begin]);
    report.times.ended = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      report.ready = report.times.queued = complete_[reduced_];
      current_.push_back(report);
    }
    communicator_->record(call, report.outcome, report.times);
    ++reduced_;
  }
}

// Zeroes tensors that are not ready, and makes all ranges due.
void GradientPool::finish_what_is_left(Stream stream) {
  if (finishing_) {
    return;
  }
  const auto now = Clock::now();
  idle_ = count_ready() == 0;
  for (std::size_t tensor = 0; tensor < active_; ++tensor) {
    if (!ready_.has(tensor)) {
      memory_->clear(data() + offsets_[tensor], offsets_[tensor + 1] - offsets_[tensor], stream);
      mark(tensor, now, stream);
    }
  }
  start_due_ranges();
  finishing_ = true;
}

// Returns the error of the iteration that ends.
std::optional<Error> GradientPool::start_next_iteration() {
  const std::lock_guard not_reducing(reducing_);
  const std::lock_guard lock(mutex_);
  ready_.forget();
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    left_[r] = ranges_[r].end - ranges_[r].begin;
  }
  for (StreamMarks& marks : marks_) {
    marks.forget();
  }
  due_ = 0;
  reduced_ = 0;
  ranges_before_ += ranges_.size();
  under_way_.clear();
  collected_ = 0;
  finishing_ = false;
  idle_ = false;
  all_idle_ = false;
  means_ = failure_ ? no_means : new_means();
  ++iteration_;
  reports_ = std::exchange(current_, {});
  if (failure_) {
    reports_.clear();
  }
  return std::exchange(failure_, {});
}

void GradientPool::wait(std::optional<double> timeout, Stream stream) {
  check_timeout(timeout);
  check_open();
  wait_for_end(
      waiting_, timeout, [this] { return iteration(); },
      [this, stream](Deadline deadline) { end_iteration(deadline, stream); });
}

std::shared_ptr<Handle> GradientPool::submit(const collective::Call& call) {
  return progress_ == Progress::thread ? communicator_->submit(call) : nullptr;
}

void GradientPool::abandon(Stream stream) {
  const std::uint64_t abandoned = iteration();
  const std::lock_guard one_at_a_time(waiting_);
  if (iteration() == abandoned && ready_count() > 0) {
    check_open();
    end_iteration({}, stream);
    const std::lock_guard lock(mutex_);
    means_ = no_means;
  }
}

void GradientPool::end_iteration(Deadline deadline, Stream stream) {
  const auto begin = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    finish_what_is_left(stream);
  }
  if (slices_ != nullptr && !ranges_.empty()) {
    noting_failure([&] { await(*under_way_.front(), deadline); });
  } else {
    finish_ranges(deadline, stream);
  }
  if (extra_pool_ != nullptr) {
    noting_failure([&] { failure_ ? extra_pool_->abandon() : extra_pool_->wait(); });
  }
  if (all_idle_) {
    failure_ = failure_.value_or(nothing_ready_error());
  }
  if (!extra_.empty() && !failure_) {
    read_extra();
  }
  const std::optional<Error> failure = start_next_iteration();
  if (const auto timeline = communicator_->timeline()) {
    timeline->span(timeline->thread_track(), "wait for gradients", begin, Clock::now());
  }
  if (failure) {
    throw Error(*failure);
  }
}

void GradientPool::finish_ranges(Deadline deadline, Stream stream) {
  for (; collected_ < ranges_.size(); ++collected_) {
    noting_failure([&] {
      Report report{
          bytes_of(ranges_[collected_]), {}, complete_[collected_], {complete_[collected_], Clock::now(), {}}};
      if (progress_ == Progress::thread) {
        await(*under_way_[collected_], deadline);
        report.outcome = under_way_[collected_]->outcome();
        report.times = under_way_[collected_]->times();
        under_way_[collected_]->order(stream);
      } else {
        if (options_.device) {
          marks_[collected_].hold(stream);
        }
        report.outcome = communicator_->run(call_for(collected_, stream));
        report.times.ended = Clock::now();
      }
      current_.push_back(report);
      all_idle_ = report.outcome.idle;
    });
  }
}

// Reduces the remaining slices once all ranges are due on all ranks. Runs in the progress thread, so that a rank may
// wait for this pool while another one waits for something else.
void GradientPool::finish_slices(collective::Group& group) {
  collective::Call meet = make_call(*communicator_, {.kind = transport::CallKind::barrier});
  meet.signature.detail = transport::pool_detail(0);
  meet.signature.idle = idle_;
  all_idle_ = group.run(meet).idle;
  reduce_own_slices(std::unique_lock(reducing_));
  group.run(meet);
}

// Keeps the first error of an iteration, which is thrown once the whole iteration has ended.
template <class Work>
void GradientPool::noting_failure(Work work) {
  try {
    work();
  } catch (const Error& error) {
    failure_ = failure_.value_or(error);
  }
}

std::size_t GradientPool::count_ready() const {
  return ready_.count() + (extra_pool_ != nullptr ? extra_pool_->ready_count() : 0);
}

std::size_t GradientPool::ready_count() const {
  const std::lock_guard lock(mutex_);
  return count_ready();
}

bool GradientPool::is_ready(std::size_t tensor) const {
  if (extra_pool_ != nullptr && tensor == tensors_) {
    return extra_pool_->ready_count() > 0;
  }
  const std::lock_guard lock(mutex_);
  return ready_.has(tensor);
}

void GradientPool::zero(Stream stream) {
  check_open();
  if (ready_count() > 0) {
    throw Error(ErrorKind::value, "gradients are zeroed between iterations, not after a tensor is ready: wait first");
  }
  memory_->clear(data(), bytes(), stream);
  const std::lock_guard lock(mutex_);
  means_ = no_means;
}

Update GradientPool::update() const {
  check_process();
  check_has_means(means(), ready_count(), tensors());
  const std::vector<std::size_t> offsets = in_elements({offsets_.data(), tensors() + 1}, dtype_);
  return {.means = means(),
          .data = data(),
          .dtype = dtype_,
          .device = options_.device,
          .offsets = offsets,
          .spans = {{0, offsets.back()}}};
}

std::vector<GradientPool::Report> GradientPool::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

std::uint64_t GradientPool::iteration() const {
  const std::lock_guard lock(mutex_);
  return iteration_;
}

Means GradientPool::means() const {
  const std::lock_guard lock(mutex_);
  return count_ready() > 0 ? no_means : means_;
}

void GradientPool::take_over_means(const GradientPool& other) {
  const Means theirs = other.means();
  const std::lock_guard lock(mutex_);
  means_ = theirs;
}

std::size_t GradientPool::count_nonfinite(Stream stream) const {
  if (options_.device) {
    const compute::cuda::UseDevice use(*options_.device);
    const compute::cuda::DeviceMemory found(sizeof(std::uint64_t));
    std::uint64_t number = 0;
    compute::cuda::runtime().count_nonfinite(data(), dtype_, bytes() / size_of(dtype_),
                                             reinterpret_cast<std::uint64_t*>(found.data()), stream);
    compute::cuda::runtime().copy(&number, found.data(), sizeof number, stream);
    compute::cuda::runtime().synchronize(stream);
    return number;
  }
  return compute::count_nonfinite(data(), dtype_, bytes() / size_of(dtype_));
}

void GradientPool::close(bool drain) noexcept {
  closed_ = true;
  if (extra_pool_ != nullptr) {
    extra_pool_->close(drain);
  }
  communicator_->close(drain);
}

bool GradientPool::closed() const { return closed_ || communicator_->closed(); }

}  // namespace gradientflow::engine
