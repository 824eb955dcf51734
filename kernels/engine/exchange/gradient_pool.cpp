#include "gradient_pool.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "../../base/text.hpp"
#include "../calls/request.hpp"
#include "../memory/layout.hpp"

namespace gradientflow::engine {
namespace {

std::vector<std::size_t> with_extra(std::vector<std::size_t> counts, std::size_t extra) {
  if (extra > 0) {
    counts.push_back(extra);
  }
  return counts;
}

}  // namespace

GradientPool::GradientPool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype,
                           const Options& options)
    : Pool("gradient pool", dtype, counts.size(),
           lay_out(with_extra(counts, options.device ? 0 : options.extra), dtype), options.extra),
      progress_(progress_of(communicator, options)),
      options_(options),
      nodes_(communicator.nodes()),
      fusion_threshold_(threshold_of(options.fusion_threshold)),
      active_(offsets_.size() - 1) {
  options_.wire = rounding_wire(options.wire, dtype);
  lay_out_ranges();
  static_cast<void>(make_call_for(communicator, 0));  // throws errors before other ranks are waited for
  communicator_ = communicator.duplicate("gradient pool of " + std::to_string(bytes()) + " bytes",
                                         transport::MadeFor::gradient_pool);
  check_same("gradient pools", description(counts));
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

// Puts the extra numbers, which are few and ready last, into the last range: a separate range would cost a call.
void GradientPool::lay_out_ranges() {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < std::min(active_, tensors_); ++i) {
    sizes.push_back(offsets_[i + 1] - offsets_[i]);
  }
  ranges_ = fuse(sizes, fusion_threshold_);
  if (active_ > tensors_ && ranges_.empty()) {
    ranges_.push_back({0, active_});
  } else if (active_ > tensors_) {
    ranges_.back().end = active_;
  }
  range_of_.assign(offsets_.size() - 1, 0);
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
    return communicator.group().endpoint().limits().threads ? Progress::thread : Progress::in_wait;
  }
  return communicator.has_cores_for_threads() ? Progress::thread : Progress::caller;
}

GradientPool::~GradientPool() { close(false); }

std::string GradientPool::description(const std::vector<std::size_t>& counts) const {
  std::string text = std::to_string(tensors()) + " tensors, " + std::to_string(extra_.size()) + " extra numbers, " +
                     std::to_string(bytes()) + " bytes of " + std::string(name_of(dtype_)) + ", fusion threshold " +
                     std::to_string(fusion_threshold_) + ", algorithm " + std::string(name_of(options_.algorithm)) +
                     ", layout " + std::to_string(collective::hash_of(counts));
  if (options_.wire) {
    text += ", wire " + std::string(traits_of(*options_.wire).name);
  }
  if (options_.device) {
    text += ", on CUDA devices";
  }
  return text;
}

void GradientPool::limit(std::size_t tensors) {
  const std::lock_guard not_reducing(reducing_);
  const std::lock_guard lock(mutex_);
  if (tensors >= offsets_.size() || ready_.count() > 0) {
    throw Error(ErrorKind::internal, "a pool is limited to more tensors than it has, or in an iteration");
  }
  if (tensors != active_) {
    active_ = tensors;
    lay_out_ranges();
    make_calls();
  }
}

std::size_t GradientPool::threshold_of(std::optional<std::size_t> given) const {
  return given.value_or(automatic_threshold(bytes(), nodes_, progress_ == Progress::caller));
}

void GradientPool::regroup(std::optional<std::size_t> fusion_threshold, std::optional<Wire> wire) {
  check_open();
  const std::lock_guard not_reducing(reducing_);
  const std::lock_guard lock(mutex_);
  check_none_ready("a pool is regrouped");
  options_.wire = rounding_wire(wire, dtype_);
  fusion_threshold_ = threshold_of(fusion_threshold);
  lay_out_ranges();
  make_calls();
}

// Copies the extra numbers to the memory in which they are averaged.
void GradientPool::write_extra() {
  if (extra_pool_ != nullptr) {
    std::memcpy(extra_pool_->data(), extra_.data(), extra_.size() * sizeof(double));
    return;
  }
  std::byte* const place = data() + offsets_[tensors_];
  if (dtype_ == DType::float64) {
    std::memcpy(place, extra_.data(), extra_.size() * sizeof(double));
    return;
  }
  const std::vector<float> rounded(extra_.begin(), extra_.end());
  compute::cast(place, dtype_, rounded.data(), DType::float32, rounded.size(), 1.0F);
}

// Copies the means of the extra numbers back.
void GradientPool::read_extra() {
  const std::byte* const place = extra_pool_ != nullptr ? extra_pool_->data() : data() + offsets_[tensors_];
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
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    ready_.check_new(tensor, active_ + (extra_pool_ != nullptr ? 1 : 0));
    log_beginning();
    record_ready(tensor, now, stream);
    mark(tensor, now, stream);
    start_due_ranges();
  }
  help_reduce();
}

void GradientPool::record_ready(std::size_t tensor, Clock::time_point now, Stream stream) const {
  const auto timeline = communicator_->recorder().timeline();
  if (timeline == nullptr) {
    return;
  }
  const std::string what = "tensor " + std::to_string(tensor) + " ready";
  const bool has_place = tensor + 1 < offsets_.size();  // extra numbers have no place
  timeline->instant(timeline->thread_track(), what, now,
                    has_place ? "\"bytes\": " + std::to_string(offsets_[tensor + 1] - offsets_[tensor]) : "");
  if (const auto on_device = options_.device ? communicator_->recorder().device_timeline(*options_.device) : nullptr) {
    on_device->instant(stream, what);
  }
}

void GradientPool::ready_all(Stream stream) {
  check_open();
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    ready_.for_each_missing(active_ + (extra_pool_ != nullptr ? 1 : 0),
                            [&](std::size_t tensor) { mark(tensor, now, stream); });
    start_due_ranges();
  }
  help_reduce();
}

void GradientPool::mark(std::size_t tensor, Clock::time_point now, Stream stream) {
  if (tensor == tensors_) {
    write_extra();
  }
  if (tensor == active_) {
    extra_pool_->ready(0);
    ready_.add(tensor);
  } else {
    mark_in_range(tensor, now, stream);
  }
}

void GradientPool::mark_in_range(std::size_t tensor, Clock::time_point now, Stream stream) {
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

// Reduces in a thread that called `ready`, unless another thread already reduces.
void GradientPool::help_reduce() {
  if (slices_ != nullptr) {
    reduce_own_slices(std::unique_lock(reducing_, std::try_to_lock));
  }
}

// Reduces this rank's slices of the ranges that are due on all ranks.
void GradientPool::reduce_own_slices(const std::unique_lock<std::mutex>& reducing) {
  while (reducing.owns_lock() && reduced_ < ranges_.size() &&
         slices_->complete_everywhere() > ranges_before_ + reduced_) {
    const collective::Call& call = calls_[reduced_];
    Report report{call.bytes(), {name_of(collective::Path::node_memory), {}, 0}, {}, {{}, Clock::now(), {}}};
    slices_->reduce(call, offsets_[ranges_[reduced_].begin]);
    report.times.ended = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      report.ready = report.times.queued = complete_[reduced_];
      current_.push_back(report);
    }
    communicator_->recorder().record(call, report.outcome, report.times);
    ++reduced_;
  }
}

// ---- the end of an iteration ----------------------------------------------------------------------------------------

std::shared_ptr<Handle> GradientPool::submit(const collective::Call& call) {
  return progress_ == Progress::thread ? communicator_->submit(call) : nullptr;
}

void GradientPool::complete_remaining(Stream stream) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  begin_finishing();
  ready_.for_each_missing(active_, [&](std::size_t tensor) {
    clear_tensor(tensor, stream);
    mark_in_range(tensor, now, stream);
  });
  start_due_ranges();
}

void GradientPool::exchange(Deadline deadline, Stream stream) {
  if (slices_ != nullptr && !ranges_.empty()) {
    noting_failure([&] {
      check_begun(!under_way_.empty());
      await(*under_way_.front(), deadline);
    });
  } else {
    finish_ranges(deadline, stream);
  }
  if (extra_pool_ != nullptr) {
    failure_ ? extra_pool_->rollback() : extra_pool_->wait();
  }
}

void GradientPool::finish_ranges(Deadline deadline, Stream stream) {
  for (; collected_ < ranges_.size(); ++collected_) {
    noting_failure([&] {
      Report report{
          bytes_of(ranges_[collected_]), {}, complete_[collected_], {complete_[collected_], Clock::now(), {}}};
      if (progress_ == Progress::thread) {
        check_begun(collected_ < under_way_.size());
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

// Reduces the remaining slices once all ranges are due on all ranks. Runs in the progress thread, so that this rank may
// wait for this pool while another rank waits for another call.
void GradientPool::finish_slices(collective::Group& group) {
  collective::Call meet = make_call(*communicator_, {.kind = transport::CallKind::barrier});
  meet.signature.detail = transport::pool_detail(0);
  meet.signature.idle = idle_;
  all_idle_ = group.run(meet).idle;
  reduce_own_slices(std::unique_lock(reducing_));
  group.run(meet);
}

void GradientPool::conclude(Stream /*stream*/) {
  if (failure_) {
    return;
  }
  if (all_idle_) {
    throw nothing_ready_error();
  }
  if (!extra_.empty()) {
    read_extra();
  }
}

void GradientPool::start_next_iteration() {
  const std::lock_guard not_reducing(reducing_);
  Pool::start_next_iteration();
}

void GradientPool::reset() {
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    left_[r] = ranges_[r].end - ranges_[r].begin;
  }
  for (StreamMarks& marks : marks_) {
    marks.forget();
  }
  due_ = reduced_ = collected_ = 0;
  ranges_before_ += ranges_.size();
  under_way_.clear();
  all_idle_ = false;
  if (failure_) {
    reports_.clear();
  }
}

void GradientPool::close(bool drain) noexcept {
  if (extra_pool_ != nullptr) {
    extra_pool_->close(drain);
  }
  Pool::close(drain);
}

}  // namespace gradientflow::engine
