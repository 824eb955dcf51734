// Layers of a top-k pool: their completion, and the selection of entries from them.
#include <cstring>
#include <optional>
#include <utility>

#include "top_k_pool.hpp"

namespace gradientflow::engine {
namespace {

std::uint64_t mixed(std::uint64_t number) {  // SplitMix64
  number += 0x9e3779b97f4a7c15ULL;
  number = (number ^ (number >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  number = (number ^ (number >> 27U)) * 0x94d049bb133111ebULL;
  return number ^ (number >> 31U);
}

}  // namespace

void TopKPool::ready(std::size_t tensor, Stream stream) { become_ready(tensor, nullptr, stream); }

void TopKPool::ready_elsewhere(std::size_t tensor, std::byte* gradient) {
  check_open();
  {
    const std::lock_guard lock(mutex_);
    ready_.check_new(tensor, tensors());
  }
  if (can_read_elsewhere(layer_of_[tensor])) {
    become_ready(tensor, gradient, nullptr);
  } else {
    std::memcpy(data() + offsets_[tensor], gradient, counts_[tensor] * size_of(dtype_));
    become_ready(tensor, nullptr, nullptr);
  }
}

void TopKPool::become_ready(std::size_t tensor, std::byte* elsewhere, Stream stream) {
  std::optional<std::size_t> complete;
  work_on(
      [&, now = Clock::now()] {
        ready_.check_new(tensor, places());
        log_beginning();
        complete = mark(tensor, now, stream);
      },
      [&] { process({complete ? &*complete : nullptr, complete ? 1U : 0U}, elsewhere); });
}

// True if the layer is a single tensor whose entries are selected at once.
bool TopKPool::can_read_elsewhere(std::size_t layer) const {
  const TopKLayer& its = plan_.layers[layer];
  return options_.overlap && !its.dense && its.tensors.end - its.tensors.begin == 1;
}

void TopKPool::ready_all(Stream stream) {
  std::vector<std::size_t> complete;
  const auto mark_one = [&, now = Clock::now()](std::size_t tensor) {
    if (const auto layer = mark(tensor, now, stream)) {
      complete.push_back(*layer);
    }
  };
  work_on([&] { ready_.for_each_missing(places(), mark_one); }, [&] { process(complete); });
}

std::optional<std::size_t> TopKPool::mark(std::size_t tensor, Clock::time_point now, Stream stream) {
  ready_.add(tensor);
  if (tensor >= tensors()) {
    return {};
  }
  const std::size_t layer = layer_of_[tensor];
  LayerProgress& progress = progress_[layer];
  --progress.left;
  work_->note_ready(layer, progress.left == 0, stream);
  if (progress.left > 0) {
    return {};
  }
  if (!finishing_) {
    progress.ready = now;
  }
  return layer;
}

void TopKPool::process(std::span<const std::size_t> complete, std::byte* elsewhere) {
  if (!options_.overlap && !finishing_) {
    return;
  }
  for (const std::size_t layer : complete) {
    if (!options_.device) {
      select_from_layer(layer, elsewhere);
    }
    const std::lock_guard lock(mutex_);
    progress_[layer].done = true;
    start_due_messages();
  }
  if (complete.empty()) {
    const std::lock_guard lock(mutex_);
    start_due_messages();
  }
}

void TopKPool::select_from_layer(std::size_t layer, std::byte* elsewhere) {
  const TopKLayer& its = plan_.layers[layer];
  LayerProgress& progress = progress_[layer];
  if (its.count == 0) {
    return;
  }
  work_->wait_for(layer);
  const auto begin = Clock::now();
  if (elsewhere != nullptr && is_zero_[layer] == 0) {
    clear_layer(layer, nullptr);
  }
  const bool samples = options_.threshold_reuse == 0 || iteration_ % (options_.threshold_reuse + 1) == 0;
  const LayerResult result =
      work_->select_from({.layer = its,
                          .gradient = elsewhere != nullptr ? elsewhere : at(its.begin),
                          .clear = elsewhere == nullptr,
                          .dtype = dtype_,
                          .residual = residual_.before(layer),
                          .next_residual = residual_.after(layer),
                          .velocity = velocity_.is_none() ? nullptr : velocity_.before(layer),
                          .next_velocity = velocity_.is_none() ? nullptr : velocity_.after(layer),
                          .seed = mixed(mixed(mixed(options_.seed) + iteration_) + layer),
                          .threshold = samples ? 0.0F : thresholds_[layer],
                          .block = its.dense ? nullptr : blocks_->own(its.data)},
                         selection_);
  progress.selected = result.selected;
  progress.keeps = result.keeps;
  is_zero_[layer] = its.dense ? 0 : 1;
  if (progress.selected.nonfinite > 0) {
    find_nonfinite_tensor(layer);
  }
  const auto end = Clock::now();
  progress.seconds = std::chrono::duration<double>(end - begin).count();
  selection_time_ += std::chrono::nanoseconds(end - begin).count();
  if (const auto timeline = communicator_->recorder().timeline()) {
    timeline->span(timeline->thread_track(), "select", begin, end,
                   "\"layer\": " + std::to_string(layer) + ", \"sent\": " + std::to_string(progress.selected.sent));
  }
}

// Finds the tensor whose gradient is not finite, if the gradient is still in memory. Sends nothing of the layer.
void TopKPool::find_nonfinite_tensor(std::size_t layer) {
  const TopKLayer& its = plan_.layers[layer];
  const float* const left = residual_.after(layer);
  note_nonfinite({its.begin, its.begin + its.count}, its.tensors.begin, its.tensors.end - 1,
                 [&](std::size_t begin, std::size_t end) {
                   return its.dense ? work_->count_nonfinite(at(begin), dtype_, end - begin)
                                    : work_->count_nonfinite(left + (begin - its.begin), DType::float32, end - begin);
                 });
  if (!its.dense) {
    std::memset(blocks_->own(its.data), 0, its.block.bytes);
  }
}

void TopKPool::complete_remaining(Stream stream) {
  const auto now = Clock::now();
  std::vector<std::size_t> complete;
  {
    const auto lock = stop_work();
    ready_.for_each_missing(tensors(), [&](std::size_t tensor) {
      if (fate_ != Fate::given_up) {
        clear_tensor(tensor, stream);
      }
      static_cast<void>(mark(tensor, now, stream));
    });
    if (fate_ == Fate::given_up) {
      skip_remaining(stream);
      start_due_messages();
      return;
    }
    for (std::size_t layer = 0; layer < layers(); ++layer) {
      if (!progress_[layer].done) {
        complete.push_back(layer);
      }
    }
  }
  process(complete);
}

// Sends nothing of incomplete layers, in an iteration that is given up.
void TopKPool::skip_remaining(Stream stream) {
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const TopKLayer& its = plan_.layers[layer];
    if (!progress_[layer].done && its.count > 0) {
      memory_->clear(at(its.begin), its.count * size_of(dtype_), stream);
      work_->note_ready(layer, false, stream);
      progress_[layer].sends_nothing = true;
      if (!its.dense) {
        std::memset(blocks_->own(its.data), 0, its.block.bytes);
      }
    }
    progress_[layer].done = true;
  }
}

void TopKPool::clear_layer(std::size_t layer, Stream stream) {
  const TopKLayer& its = plan_.layers[layer];
  memory_->clear(at(its.begin), its.count * size_of(dtype_), stream);
  is_zero_[layer] = 1;
}

}  // namespace gradientflow::engine
