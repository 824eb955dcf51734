#include "gradient_pool.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

namespace gradientflow::engine {
namespace {

using Clock = Times::Clock;

constexpr std::size_t alignment = 64;
constexpr std::size_t largest = std::size_t{1} << 40;  // as for any memory of the node

}  // namespace

GradientPool::GradientPool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype,
                           const Options& options)
    : in_background_(communicator.size() > 1 && (communicator.nodes() == 1 || transport::mpi_thread_multiple())),
      dtype_(dtype),
      options_(options),
      tensors_(counts.size()),
      offsets_{0},
      ready_(counts.size(), false) {
  check_reducible(dtype, ReduceOp::mean);
  for (const std::size_t count : counts) {
    if (count > largest || bytes() > largest) {
      throw Error(ErrorKind::value, "a pool of more than 1 TiB a rank is not possible");
    }
    offsets_.push_back(bytes() + (count * size_of(dtype) + alignment - 1) / alignment * alignment);
  }
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    sizes.push_back(offsets_[i + 1] - offsets_[i]);
  }
  ranges_ = fuse(sizes, options.fusion_threshold);
  range_of_.resize(counts.size(), 0);
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    std::fill(range_of_.begin() + static_cast<std::ptrdiff_t>(ranges_[r].begin),
              range_of_.begin() + static_cast<std::ptrdiff_t>(ranges_[r].end), r);
    left_.push_back(ranges_[r].end - ranges_[r].begin);
  }
  complete_.resize(ranges_.size());
  communicator.check({.signature = call_for(0).signature, .input = nullptr, .output = nullptr, .counts = {}});
  communicator_ = communicator.duplicate("gradient pool of " + std::to_string(bytes()) + " bytes");
  check_same_on_all_ranks(counts);
  segment_ = communicator_->allocate(bytes());
}

GradientPool::~GradientPool() { close(false); }

// Every rank says what pool it makes, and sees what the others do.
void GradientPool::check_same_on_all_ranks(const std::vector<std::size_t>& counts) {
  std::string text = std::to_string(tensors_) + " tensors, " + std::to_string(bytes()) + " bytes of " +
                     std::string(name_of(dtype_)) + ", fusion threshold " + std::to_string(options_.fusion_threshold) +
                     ", algorithm " + std::string(name_of(options_.algorithm)) + ", layout " +
                     std::to_string(collective::hash_of(counts));
  if (options_.wire) {
    text += ", wire " + std::string(name_of(*options_.wire));
  }
  constexpr std::size_t length = 256;
  text.resize(length, '\0');
  const auto ranks = static_cast<std::size_t>(communicator_->size());
  std::string all(ranks * length, '\0');
  communicator_->run({.signature = {.count = length, .kind = transport::CallKind::allgather},
                      .input = reinterpret_cast<const std::byte*>(text.data()),
                      .output = reinterpret_cast<std::byte*>(all.data()),
                      .counts = {}});
  std::vector<std::string> of_each;
  std::vector<int> numbers;
  for (std::size_t r = 0; r < ranks; ++r) {
    of_each.emplace_back(all.data() + r * length);
    numbers.push_back(static_cast<int>(r));
  }
  if (std::any_of(of_each.begin(), of_each.end(), [&](const auto& theirs) { return theirs != of_each.front(); })) {
    throw transport::difference_error("gradient pools", of_each, numbers);
  }
}

void GradientPool::check_open() const {
  if (closed_) {
    throw Error(ErrorKind::closed, "the gradient pool is closed");
  }
  communicator_->check_open();
}

void GradientPool::ready(std::size_t tensor) {
  check_open();
  const auto now = Clock::now();
  if (tensor >= tensors_) {
    throw Error(ErrorKind::value, "tensor " + std::to_string(tensor) + " is not in the pool, which has " +
                                      std::to_string(tensors_));
  }
  {
    const std::lock_guard lock(mutex_);
    if (ready_[tensor]) {
      throw Error(ErrorKind::value, "tensor " + std::to_string(tensor) + " was already ready in this iteration");
    }
    mark(tensor, now);
    queue_complete_ranges();
  }
  if (const auto timeline = communicator_->timeline()) {
    timeline->instant(timeline->thread_track(), "tensor " + std::to_string(tensor) + " ready", now);
  }
}

void GradientPool::ready_all() {
  check_open();
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  for (std::size_t tensor = 0; tensor < tensors_; ++tensor) {
    if (!ready_[tensor]) {
      mark(tensor, now);
    }
  }
  queue_complete_ranges();
}

void GradientPool::mark(std::size_t tensor, Clock::time_point now) {
  ready_[tensor] = true;
  ++ready_count_;
  if (!ranges_.empty() && --left_[range_of_[tensor]] == 0) {
    complete_[range_of_[tensor]] = now;
  }
}

collective::Call GradientPool::call_for(std::size_t range) const {
  const std::size_t begin = ranges_.empty() ? 0 : offsets_[ranges_[range].begin];
  const std::size_t size = ranges_.empty() ? 0 : bytes_of(ranges_[range]);
  std::byte* const memory = segment_ == nullptr ? nullptr : segment_->mine() + begin;
  return {.signature = {.count = size / size_of(dtype_),
                        .kind = transport::CallKind::allreduce,
                        .dtype = dtype_,
                        .op = ReduceOp::mean,
                        .algorithm = options_.algorithm,
                        .detail = transport::pool_detail(range),
                        .wire = options_.wire},
          .input = memory,
          .output = memory,
          .counts = {}};
}

void GradientPool::queue_complete_ranges() {
  if (!in_background_) {
    return;
  }
  while (under_way_.size() < ranges_.size() && left_[under_way_.size()] == 0) {
    under_way_.push_back(communicator_->submit(call_for(under_way_.size())));
  }
}

// Zeros for what is not ready, and everything on its way.
void GradientPool::finish_what_is_left() {
  if (finishing_) {
    return;
  }
  const auto now = Clock::now();
  for (std::size_t tensor = 0; tensor < tensors_; ++tensor) {
    if (!ready_[tensor]) {
      std::memset(data() + offsets_[tensor], 0, offsets_[tensor + 1] - offsets_[tensor]);
      mark(tensor, now);
    }
  }
  finishing_ = true;
  queue_complete_ranges();
}

void GradientPool::start_next_iteration() {
  ready_.assign(ready_.size(), false);
  ready_count_ = 0;
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    left_[r] = ranges_[r].end - ranges_[r].begin;
  }
  under_way_.clear();
  collected_ = 0;
  finishing_ = false;
  ++iteration_;
  reports_ = std::exchange(current_, {});
}

// The report of the range that is due, once its call has ended.
GradientPool::Report GradientPool::collect(Clock::time_point begin, std::optional<double> timeout) {
  Handle& handle = *under_way_[collected_];
  if (timeout && !handle.done()) {
    *timeout = std::max(0.0, *timeout - std::chrono::duration<double>(Clock::now() - begin).count());
  }
  handle.wait(timeout);
  return {handle.outcome(), complete_[collected_], handle.times()};
}

GradientPool::Report GradientPool::reduce_now() {
  Times times{complete_[collected_], Clock::now(), {}};
  const collective::Outcome outcome = communicator_->run(call_for(collected_));
  times.ended = Clock::now();
  return {outcome, complete_[collected_], times};
}

void GradientPool::wait(std::optional<double> timeout) {
  check_open();
  const std::lock_guard one_at_a_time(waiting_);
  const auto begin = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    finish_what_is_left();
  }
  std::optional<Error> failure;
  for (; collected_ < ranges_.size(); ++collected_) {
    try {
      current_.push_back(in_background_ ? collect(begin, timeout) : reduce_now());
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::timeout && in_background_ && !under_way_[collected_]->done()) {
        throw;  // not the end of the call, only of the patience
      }
      failure = failure.value_or(error);
    }
  }
  if (failure) {
    current_.clear();
  }
  const std::lock_guard lock(mutex_);
  start_next_iteration();
  if (const auto timeline = communicator_->timeline()) {
    timeline->span(timeline->thread_track(), "wait for gradients", begin, Clock::now());
  }
  if (failure) {
    throw Error(*failure);
  }
}

void GradientPool::abandon() {
  if (ready_count() > 0) {
    wait();
  }
}

std::size_t GradientPool::ready_count() const {
  const std::lock_guard lock(mutex_);
  return ready_count_;
}

std::vector<GradientPool::Report> GradientPool::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

std::uint64_t GradientPool::iteration() const {
  const std::lock_guard lock(mutex_);
  return iteration_;
}

void GradientPool::close(bool drain) noexcept {
  closed_ = true;
  communicator_->close(drain);
}

bool GradientPool::closed() const { return closed_ || communicator_->closed(); }

}  // namespace gradientflow::engine
