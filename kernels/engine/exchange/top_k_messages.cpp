// Messages of a top-k pool, and the decisions that follow at the end of an iteration.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "../../base/text.hpp"
#include "../calls/request.hpp"
#include "top_k_pool.hpp"

namespace gradientflow::engine {

void TopKPool::make_calls() {
  calls_.clear();
  for (const TopKMessage& message : plan_.messages) {
    calls_.push_back(make_call_for(message));
  }
}

collective::Call TopKPool::make_average_of(const Communicator& communicator, Array array) const {
  if (options_.device) {
    array.placement = collective::Placement{*options_.device, work_ != nullptr ? work_->stream() : nullptr};
  }
  return make_call(communicator,
                   {.kind = transport::CallKind::allreduce,
                    .op = ReduceOp::mean,
                    .algorithm = options_.algorithm,
                    .wire = array.dtype == DType::float32 ? std::optional(wire_of(rules_.values)) : std::nullopt,
                    .input = array,
                    .output = array});
}

collective::Call TopKPool::make_call_for(const TopKMessage& message) const {
  if (!message.dense) {
    return blocks_->call_for(message);
  }
  collective::Call call = make_average_of(
      *communicator_,
      {.data = at(plan_.layers[message.begin].begin), .count = message.bytes / size_of(dtype_), .dtype = dtype_});
  call.signature.detail = transport::pool_detail(static_cast<std::size_t>(&message - plan_.messages.data()));
  return call;
}

void TopKPool::start_due_messages() {
  while (due_ < plan_.messages.size()) {
    const TopKMessage& message = plan_.messages[due_];
    const auto begin = progress_.begin() + static_cast<std::ptrdiff_t>(message.begin);
    const auto end = progress_.begin() + static_cast<std::ptrdiff_t>(message.end);
    if (!std::all_of(begin, end, [](const LayerProgress& progress) { return progress.done; })) {
      return;
    }
    const bool is_last = due_ + 1 == plan_.messages.size();
    if (is_last && !finishing_ && !(extra_.empty() ? ready_.count() > 0 : ready_.has(tensors()))) {
      return;
    }
    const auto now = Clock::now();
    Report& report = current_[due_];
    report = {message.bytes, {}, now, {now, now, now}};
    if (has_thread_) {
      under_way_.push_back(communicator_->submit([this, index = due_](collective::Group& /*group*/) {
        send(index, [this](const collective::Call& call, Report& its) {
          its.outcome = communicator_->run_within(call, its.times);
        });
      }));
    }
    ++due_;
  }
}

void TopKPool::write_trailer() {
  const std::lock_guard lock(mutex_);
  const Trailer trailer = nonfinite_tensors();
  std::byte* const place = blocks_->own(plan_.trailer);
  std::memcpy(place, &trailer, sizeof trailer);
  if (!extra_.empty()) {
    std::memcpy(place + sizeof trailer, extra_.data(), extra_.size() * sizeof(double));
  }
}

// Sends and combines a message, in the progress thread if there is one. Returns at once after a failure: the peers then
// make no more calls either.
template <class Run>
void TopKPool::send(std::size_t message, Run run) {
  if (failed_) {
    return;
  }
  try {
    const TopKMessage& its = plan_.messages[message];
    for (std::size_t layer = its.begin; options_.device && layer < its.end; ++layer) {
      if (!progress_[layer].sends_nothing) {
        select_from_layer(layer);
      }
    }
    if (message + 1 == plan_.messages.size()) {
      write_trailer();
    }
    collective::Call call = calls_[message];
    call.signature.idle = idle_;
    if (!its.dense) {
      call.signature.detail = hash_of_settings();
    }
    run(call, current_[message]);
    if (its.dense) {
      work_->finish();
    } else {
      if (blocks_->shared()) {
        current_[message].outcome.path = name_of(collective::Path::node_memory);
      }
      combine(message);
    }
  } catch (const Error&) {
    failed_ = true;
    throw;
  }
}

void TopKPool::combine(std::size_t index) {
  const TopKMessage& message = plan_.messages[index];
  const auto begin = Clock::now();
  for (std::size_t layer = message.begin; layer < message.end; ++layer) {
    const TopKLayer& its = plan_.layers[layer];
    if (its.count > 0) {
      const auto blocks = blocks_->of_each(message, its.data);
      const double scale = loss_scale() / static_cast<double>(communicator_->size());
      progress_[layer].united = work_->combine({.gradient = at(its.begin),
                                                .dtype = dtype_,
                                                .scale = static_cast<float>(scale),
                                                .block = its.block,
                                                .blocks = blocks});
      is_zero_[layer] = 0;
    }
  }
  selection_time_ += std::chrono::nanoseconds(Clock::now() - begin).count();
}

void TopKPool::exchange(Deadline deadline, Stream /*stream*/) {
  for (; collected_ < plan_.messages.size(); ++collected_) {
    noting_failure([&] {
      if (has_thread_) {
        check_begun(collected_ < under_way_.size());
        await(*under_way_[collected_], deadline);
      } else {
        send(collected_, [&](const collective::Call& call, Report& report) {
          report.times.started = Clock::now();
          report.outcome = communicator_->run(call);
          report.times.ended = Clock::now();
        });
      }
    });
  }
}

void TopKPool::decide() {
  if (failure_) {
    fail_exchange();
    return;
  }
  read_times();
  const auto trailers = blocks_->of_each(plan_.messages.back(), plan_.trailer);
  average_extra(trailers);
  find_nonfinite(trailers);
  if (blocks_->must_grow()) {
    blocks_->grow();
    make_calls();
  }
  if (const auto place = found_nonfinite_) {
    drop();
    if (!skip_nonfinite_) {
      failure_ = nonfinite_error(*place);
    }
  } else if (current_.back().outcome.idle && (elements() > 0 || !extra_.empty())) {
    failure_ = nothing_ready_error();
  } else if (fate_ != Fate::given_up) {
    keep_residuals(progress_);
  }
}

// Clears the reports of an exchange that has failed.
void TopKPool::fail_exchange() {
  if (failure_ && failure_->kind() == ErrorKind::mismatch) {
    failure_ = different_settings(*failure_);
  }
  const std::lock_guard lock(mutex_);
  current_.clear();
  failed_progress_ = std::exchange(progress_, {});
}

// Reads the times at which the device's layers were ready.
void TopKPool::read_times() {
  const auto now = Clock::now();
  const std::vector<double> seconds = work_->seconds_since_ready();
  for (std::size_t layer = 0; layer < seconds.size(); ++layer) {
    if (progress_[layer].ready) {
      progress_[layer].ready =
          now - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds[layer]));
    }
  }
}

void TopKPool::average_extra(const std::vector<const std::byte*>& trailers) {
  std::vector<double> sum(extra_.size(), 0.0);
  std::vector<double> theirs(extra_.size());
  for (const std::byte* const trailer : trailers) {
    if (!extra_.empty()) {
      std::memcpy(theirs.data(), trailer + sizeof(Trailer), extra_.size() * sizeof(double));
    }
    std::transform(sum.begin(), sum.end(), theirs.begin(), sum.begin(), std::plus<>());
  }
  std::transform(sum.begin(), sum.end(), extra_.begin(),
                 [ranks = static_cast<double>(trailers.size())](double each) { return each / ranks; });
}

// Finds the first rank with a gradient that is not finite, and the tensors there. If all gradients are finite, the mean
// of a dense layer may still be too large for float16.
void TopKPool::find_nonfinite(const std::vector<const std::byte*>& trailers) {
  std::vector<NonfiniteTensors> of_ranks(trailers.size());
  for (std::size_t rank = 0; rank < trailers.size(); ++rank) {
    std::memcpy(&of_ranks[rank], trailers[rank], sizeof of_ranks[rank]);
  }
  found_nonfinite_ = first_place(of_ranks);
  const bool is_float16 = dtype_ == DType::float16 || rules_.values == DType::float16;
  for (std::size_t i = 0; is_float16 && !found_nonfinite_ && i < layers(); ++i) {
    const TopKLayer& layer = plan_.layers[i];
    if (layer.dense && work_->count_nonfinite(at(layer.begin), dtype_, layer.count) > 0) {
      found_nonfinite_ = {-1, layer.tensors.begin, layer.tensors.end - 1};
    }
  }
}

// Hashes the settings that must be the same on all ranks and can change between iterations.
std::uint32_t TopKPool::hash_of_settings() const {
  std::vector<double> numbers = ratios();
  numbers.push_back(loss_scale());
  numbers.push_back(skip_nonfinite_ ? 1.0 : 0.0);
  return std::max(collective::hash_of(std::as_bytes(std::span(numbers))), 1U);
}

std::string TopKPool::settings_text(std::size_t layer) const {
  std::string text = layer < layers()
                         ? "ratio " + format_number(plan_.layers[layer].ratio) + " of layer " + std::to_string(layer)
                         : std::string("the same ratios");
  return text + ", loss scale " + format_number(loss_scale()) + ", " + (skip_nonfinite_ ? "skipping" : "not skipping") +
         " what is not finite";
}

// Returns the error. All ranks call this, or none.
Error TopKPool::different_settings(const Error& failure) {
  std::vector<double> all(layers() * static_cast<std::size_t>(communicator_->size()));
  std::vector<double> mine = ratios();
  const auto array = [](std::vector<double>& numbers) {
    return Array{reinterpret_cast<std::byte*>(numbers.data()), numbers.size(), DType::float64};
  };
  try {
    communicator_->run(make_call(*communicator_,
                                 {.kind = transport::CallKind::allgather, .input = array(mine), .output = array(all)}));
    std::size_t different = layers();
    for (std::size_t i = all.size(); i > 0; --i) {
      different = all[i - 1] != all[(i - 1) % layers()] ? std::min(different, (i - 1) % layers()) : different;
    }
    check_same("settings of a top-k gradient pool", settings_text(different));
  } catch (const Error& error) {
    return error;
  }
  return failure;
}

void TopKPool::keep_residuals(std::span<const LayerProgress> progress) {
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const TopKLayer& its = plan_.layers[layer];
    if (its.count == 0) {
      continue;
    }
    if (progress[layer].keeps) {
      residual_.keep(layer);
    } else {
      residual_.clear(layer);
    }
    if (!velocity_.is_none()) {
      if (its.dense && options_.masking) {
        velocity_.clear(layer);
      } else {
        velocity_.keep(layer);
      }
    }
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    thresholds_[layer] = progress[layer].selected.threshold;
  }
}

// Throws on a device, which selects entries as messages are sent: after a failure some layers may lack a selection.
void TopKPool::commit_residuals() {
  if (options_.device) {
    throw Error(ErrorKind::value, "an iteration of a top-k pool on a CUDA device cannot be committed");
  }
  keep_residuals(failed_progress_);
}

}  // namespace gradientflow::engine
