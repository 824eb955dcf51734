#include "pool.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "../../base/text.hpp"
#include "../calls/same_on_all_ranks.hpp"
#include "../memory/layout.hpp"

namespace gradientflow::engine {

Pool::Pool(std::string name, DType dtype, std::size_t tensors, std::vector<std::size_t> offsets, std::size_t extra)
    : name_(std::move(name)),
      dtype_(dtype),
      tensors_(tensors),
      offsets_(std::move(offsets)),
      extra_(extra, 0.0),
      ready_(places()) {}

void Pool::close(bool drain) noexcept {
  closed_ = true;
  communicator_->close(drain);
}

// ---- checks ---------------------------------------------------------------------------------------------------------

void Pool::check_open() const {
  if (closed_) {
    throw Error(ErrorKind::closed, "the " + name_ + " is closed");
  }
  communicator_->check_open();
}

void Pool::check_can_end() const {
  if (ready_count() == 0 || !communicator_->is_broken()) {
    check_open();
  }
}

void Pool::check_between_iterations(const char* what) const {
  const std::lock_guard lock(mutex_);
  check_none_ready(what);
}

void Pool::check_none_ready(const char* what) const {
  if (ready_.count() > 0) {
    check_open();
    throw Error(ErrorKind::value, std::string(what) + " between iterations, not after a tensor is ready: wait first");
  }
}

void Pool::check_begun(bool begun) const {
  if (!begun) {
    check_open();
    throw Error(ErrorKind::internal, "a call of the " + name_ + " has not begun");
  }
}

void Pool::check_same(const std::string& things, const std::string& description) const {
  check_same_on_all_ranks(*communicator_, things, description);
}

// ---- the end of an iteration ----------------------------------------------------------------------------------------

void Pool::wait_within(std::optional<double> timeout, Stream stream, const std::function<void()>& prepare) {
  Deadline deadline;
  check_timeout(timeout);
  if (timeout) {
    deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(std::clamp(*timeout, 0.0, 1e9)));
  }
  try {
    LoggedCalls& log = communicator_->log();
    log.during(log.begin(CallForm::pool_wait, {.detail = 1}, static_cast<std::uint32_t>(iteration()) + 1),
               [&] { wait_until(deadline, stream, prepare); });
  } catch (const TimeOver&) {
    throw Error(ErrorKind::timeout,
                "the gradients were not averaged within " + format_number(timeout.value_or(0.0)) + " s; it goes on");
  }
}

void Pool::wait_until(Deadline deadline, Stream stream, const std::function<void()>& prepare) {
  check_can_end();
  const std::uint64_t awaited = iteration();
  std::unique_lock one_at_a_time(waiting_, std::defer_lock);
  if (deadline) {
    static_cast<void>(one_at_a_time.try_lock_until(*deadline));
  } else {
    one_at_a_time.lock();
  }
  if (iteration() != awaited) {  // another thread has ended the iteration meanwhile
    return;
  }
  if (!one_at_a_time.owns_lock()) {
    throw TimeOver();
  }
  if (prepare) {
    prepare();
  }
  end_iteration(deadline, stream);
}

void Pool::give_up(Stream stream) {
  const std::uint64_t under_way = iteration();
  const std::lock_guard one_at_a_time(waiting_);
  if (iteration() == under_way && ready_count() > 0) {
    check_can_end();
    fate_ = Fate::given_up;
    end_iteration({}, stream);
  }
}

void Pool::rollback(Stream stream) {
  if (ready_count() > 0) {
    give_up(stream);
  } else if (settle("an iteration is rolled back", {Fate::kept, Fate::failed, Fate::given_up})) {
    const std::lock_guard lock(mutex_);
    means_ = no_means;
  }
}

void Pool::commit() {
  if (!settle("an iteration is committed", {Fate::failed})) {
    throw Error(ErrorKind::value, "only an iteration that has failed can be committed");
  }
  commit_residuals();
}

bool Pool::settle(const char* what, std::initializer_list<Fate> fates) {
  const std::lock_guard lock(mutex_);
  check_none_ready(what);
  const bool is_one = std::find(fates.begin(), fates.end(), last_) != fates.end();
  last_ = is_one ? Fate::settled : last_;
  return is_one;
}

Pool::Fate Pool::fate() const {
  if (fate_ != Fate::open) {
    return fate_;
  }
  return failure_ ? Fate::failed : Fate::kept;
}

void Pool::begin_finishing() {
  if (!finishing_) {
    finishing_ = true;
    idle_ = ready_.count() == 0;
  }
}

void Pool::end_iteration(Deadline deadline, Stream stream) {
  const auto begin = Clock::now();
  noting_failure([&] { complete_remaining(stream); });
  noting_failure([&] { exchange(deadline, stream); });
  noting_failure([&] { conclude(stream); });
  start_next_iteration();
  const std::optional<Error> failure = std::exchange(failure_, {});
  if (const auto timeline = communicator_->recorder().timeline()) {
    timeline->span(timeline->thread_track(), "wait for gradients", begin, Clock::now());
  }
  if (failure) {
    throw Error(*failure);
  }
}

void Pool::start_next_iteration() {
  const std::lock_guard lock(mutex_);
  ready_.forget();
  finishing_ = false;
  idle_ = false;
  last_ = fate();
  means_ = last_ == Fate::kept || last_ == Fate::dropped ? new_means() : no_means;
  reports_ = std::exchange(current_, {});
  reset();
  fate_ = Fate::open;
  ++iteration_;
}

void Pool::clear_gradients(Stream stream) { memory_->clear(data(), bytes(), stream); }

void Pool::clear_tensor(std::size_t tensor, Stream stream) const {
  memory_->clear(data() + offsets_[tensor], offsets_[tensor + 1] - offsets_[tensor], stream);
}

void Pool::zero(Stream stream) {
  check_open();
  check_between_iterations("gradients are zeroed");
  clear_gradients(stream);
  const std::lock_guard lock(mutex_);
  means_ = no_means;
  last_ = Fate::settled;
}

// ---- results --------------------------------------------------------------------------------------------------------

Update Pool::update_of(std::vector<Update::Span> spans) const {
  check_process();
  check_has_means(means(), ready_count(), tensors());
  return {.means = means(),
          .data = data(),
          .dtype = dtype_,
          .device = memory_->device(),
          .offsets = in_elements({offsets_.data(), tensors_ + 1}, dtype_),
          .spans = std::move(spans)};
}

void Pool::take_over_means(const Pool& other) {
  const Means theirs = other.means();
  const std::lock_guard lock(mutex_);
  means_ = theirs;
}

std::size_t Pool::ready_count() const {
  const std::lock_guard lock(mutex_);
  return ready_.count();
}

void Pool::log_beginning() {
  if (ready_.count() == 0) {
    LoggedCalls& log = communicator_->log();
    log.end(log.begin(CallForm::pool_ready, {}, 0));
  }
}

bool Pool::is_ready(std::size_t tensor) const {
  const std::lock_guard lock(mutex_);
  return ready_.has(tensor);
}

Means Pool::means() const {
  const std::lock_guard lock(mutex_);
  return ready_.count() > 0 ? no_means : means_;
}

}  // namespace gradientflow::engine
