// End of a sparse pool's iteration: the exchange between the ranks, and the decisions that follow.
#include <algorithm>
#include <cmath>
#include <utility>

#include "../../base/text.hpp"
#include "chunk_selection.hpp"
#include "sparse_pool.hpp"

namespace gradientflow::engine {

void SparsePool::exchange(Deadline deadline, Stream stream) {
  try {
    learn_own_norms(deadline);
    send_norms(deadline);
    receive_means(deadline, stream);
    message_->receive(deadline);
    scatter_means(deadline, stream);
  } catch (const Error&) {
    give_up(stream);
    throw;
  }
}

void SparsePool::learn_own_norms(Deadline deadline) {
  if (learned_) {
    return;
  }
  if (!work_->finish(deadline)) {
    throw TimeOver();
  }
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    if (done_[chunk] != 0) {
      own_norms_[chunk] = work_->norm(chunk);
      if (!std::isfinite(own_norms_[chunk])) {
        find_nonfinite_tensor(chunk);
      }
    }
  }
  learned_ = true;
}

// Finds the tensor whose gradient is not finite. Looks in the gradients if they are still in memory, otherwise in the
// residuals.
void SparsePool::find_nonfinite_tensor(std::size_t chunk) {
  const Span span = layout_.span_of(chunk);
  const auto [first, last] = layout_.tensors_of(chunk);
  const float* const next = residual_.after(chunk);
  note_nonfinite(span, first, last, [&](std::size_t begin, std::size_t end) -> std::size_t {
    if (important_[chunk] != 0) {
      return work_->count_nonfinite(at(begin), dtype_, end - begin);
    }
    return next != nullptr ? work_->count_nonfinite(next + (begin - span.begin), DType::float32, end - begin) : 0;
  });
}

// Sums the norms of unsent chunks over the ranks. Sent chunks need no exchange of norms, as all ranks have their means.
void SparsePool::send_norms(Deadline deadline) {
  if (message_->is_sent()) {
    return;
  }
  const auto next = fate_ == Fate::given_up ? std::nullopt : std::optional(next_);
  message_->write({.next = next, .idle = idle_, .loss_scale = loss_scale()}, extra_);
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    if (important_[chunk] == 0 && done_[chunk] != 0) {
      message_->set_norm(chunk, own_norms_[chunk]);
    }
  }
  message_->send(*send_, deadline);
}

void SparsePool::receive_means(Deadline deadline, Stream stream) {
  if (!received_) {
    send_->wait_until(deadline, stream);
    received_ = true;
  }
}

void SparsePool::scatter_means(Deadline deadline, Stream stream) {
  const auto begin = Clock::now();
  if (!scattered_) {
    std::vector<ChunkJob> jobs;
    for (const std::size_t chunk : chunk_of_) {
      jobs.push_back(job_for(chunk));
    }
    work_->scatter(jobs, stream);
    scattered_ = true;
    selection_time_ += std::chrono::nanoseconds(Clock::now() - begin).count();
  }
  if (!work_->finish(deadline)) {
    throw TimeOver();
  }
}

void SparsePool::give_up(Stream stream) noexcept {
  try {
    send_->rollback(stream);
  } catch (const Error&) {  // the first error is thrown
  }
  try {
    work_->finish({});
  } catch (const Error&) {  // the same; a device that has failed cannot be used
  }
}

void SparsePool::decide() {
  if (failure_) {
    return;
  }
  const auto begin = Clock::now();
  std::vector<double> norms(message_->norms().begin(), message_->norms().end());
  for (const std::size_t chunk : chunk_of_) {
    norms[chunk] = static_cast<double>(communicator_->size()) * work_->norm(chunk);
  }
  message_->read_extra(extra_);
  if (!message_->has_same_loss_scales()) {  // tested first: a different scale may make gradients nonfinite
    failure_ = different_loss_scales();
  } else if (!std::all_of(norms.begin(), norms.end(), [](double norm) { return std::isfinite(norm); })) {
    drop();
    if (skip_nonfinite_) {
      found_nonfinite_.reset();
    } else {
      const NonfiniteTensorRange place = find_nonfinite(norms);
      found_nonfinite_ = place;
      failure_ = nonfinite_error(place);
    }
  } else if (!message_->has_same_next()) {
    failure_ = Error(ErrorKind::mismatch, "the ranks have different densities: this one wants to send " +
                                              std::to_string(next_) + " of " + std::to_string(chunks()) +
                                              " chunks next, and others do not");
  } else if (message_->all_idle() && (chunks() > 0 || !extra_.empty())) {
    failure_ = nothing_ready_error();
  } else {
    if (fate_ != Fate::given_up) {
      keep_residuals();
    }
    if (const auto next = message_->next()) {
      choose(choose_important(norms, *next));
    }
  }
  const std::lock_guard lock(mutex_);
  norms_ = std::move(norms);
  selection_time_ += std::chrono::nanoseconds(Clock::now() - begin).count();
}

// Returns the error. All ranks call this, or none.
Error SparsePool::different_loss_scales() const {
  try {
    check_same("settings of a sparse gradient pool", "loss scale " + format_number(loss_scale()));
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::internal, "the loss scales of a sparse gradient pool differ, and are the same"};
}

// Finds the first rank with a gradient that is not finite, and the tensors there. If all gradients are finite, finds
// the chunk whose mean or norm is not. All ranks call this, or none.
NonfiniteTensorRange SparsePool::find_nonfinite(const std::vector<double>& norms) const {
  const NonfiniteTensors mine = nonfinite_tensors();
  std::vector<NonfiniteTensors> of_each(static_cast<std::size_t>(communicator_->size()));
  communicator_->run({.signature = {.count = 2, .kind = transport::CallKind::allgather, .dtype = DType::int64},
                      .input = reinterpret_cast<const std::byte*>(&mine),
                      .output = reinterpret_cast<std::byte*>(of_each.data()),
                      .counts = {}});
  if (const auto place = first_place(of_each)) {
    return *place;
  }
  const auto norm = std::find_if_not(norms.begin(), norms.end(), [](double each) { return std::isfinite(each); });
  const auto [first, last] = layout_.tensors_of(static_cast<std::size_t>(norm - norms.begin()));
  return {-1, first, last};
}

}  // namespace gradientflow::engine
