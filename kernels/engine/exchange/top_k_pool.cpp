#include "top_k_pool.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "../../base/text.hpp"
#include "../../compute/kernels.hpp"
#include "../calls/request.hpp"
#include "../calls/same_on_all_ranks.hpp"
#include "../memory/layout.hpp"

namespace gradientflow::engine {
namespace {

using How = compute::Select::How;

constexpr std::size_t entries_bytes = 16 * kib;  // between nodes: from here on bytes cost more than latency

// Inside a node all layers are in one message, as blocks are read in place.
std::size_t merge_bytes_of(const Communicator& communicator, const TopKPool::Options& options) {
  return options.merge_bytes.value_or(communicator.nodes() > 1 ? entries_bytes : SIZE_MAX);
}

std::uint64_t mixed(std::uint64_t number) {  // SplitMix64
  number += 0x9e3779b97f4a7c15ULL;
  number = (number ^ (number >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  number = (number ^ (number >> 27U)) * 0x94d049bb133111ebULL;
  return number ^ (number >> 31U);
}

std::vector<std::size_t> begins_of(const std::vector<TopKLayer>& layers, std::size_t elements) {
  std::vector<std::size_t> begins;
  for (const TopKLayer& layer : layers) {
    begins.push_back(layer.begin);
  }
  begins.push_back(elements);
  return begins;
}

std::string name_of(How how) { return how == How::exact ? "exact" : how == How::sampled ? "sampled" : "random"; }

}  // namespace

TopKPool::TopKPool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype,
                   const Options& options)
    : ResidualPool("top-k gradient pool", dtype, lay_out(counts, dtype), options.extra, options.skip_nonfinite),
      options_(options),
      has_thread_(communicator.size() > 1 &&
                  (BlockMemory::is_for(communicator, options.algorithm) || transport::mpi_thread_multiple())),
      rules_{.ranks = static_cast<std::size_t>(communicator.size()),
             .gradients = dtype,
             .values = options.wire.value_or(dtype == DType::bfloat16 ? dtype : DType::float32),
             .merge_bytes = merge_bytes_of(communicator, options),
             .trailer_bytes = sizeof(Trailer) + options.extra * sizeof(double)},
      selection_{.how = options.selection,
                 .momentum = options.momentum.value_or(0.0F),
                 .masking = options.masking,
                 .clip = options.clip.value_or(0.0) * std::sqrt(static_cast<double>(communicator.size()))},
      counts_(counts) {
  check_options(communicator);
  plan_ = plan_top_k(lay_out_layers(counts, in_elements(offsets_, dtype), options.layers), options.ratios, rules_);
  communicator_ =
      communicator.duplicate("top-k pool of " + std::to_string(bytes()) + " bytes", transport::MadeFor::top_k_pool);
  check_same_on_all_ranks(*communicator_, "top-k gradient pools", description(counts));
  memory_ = std::make_unique<PoolMemory>(*communicator_, options.device, bytes());
  blocks_ = std::make_unique<BlockMemory>(*communicator_, options.algorithm, plan_.bytes);
  work_ = LayerWork::make(options.device, layers());
  residual_ = KeptNumbers(begins_of(plan_.layers, elements()), options.device);
  if (options.momentum) {
    velocity_ = KeptNumbers(begins_of(plan_.layers, elements()), options.device);
  }
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    layer_of_.insert(layer_of_.end(), plan_.layers[layer].tensors.end - plan_.layers[layer].tensors.begin, layer);
  }
  thresholds_.assign(layers(), 0.0F);
  is_zero_.assign(layers(), 0);
  make_calls();
  start_next_iteration(false);
  iteration_ = 0;
}

TopKPool::~TopKPool() { close(false); }

void TopKPool::check_options(const Communicator& communicator) const {
  check_gradients(dtype_, "selection of entries");
  const float momentum = options_.momentum.value_or(0.0F);
  if (std::isnan(momentum) || momentum < 0.0F || momentum >= 1.0F) {
    throw Error(ErrorKind::value,
                "the momentum of velocities is from 0 to below 1, not " + format_number(static_cast<double>(momentum)));
  }
  if (options_.clip && (*options_.clip <= 0.0 || !std::isfinite(*options_.clip))) {
    throw Error(ErrorKind::value,
                "the norm that gradients are clipped to is above 0, not " + format_number(*options_.clip));
  }
  static_cast<void>(index_among_floats(rules_.values, "entries travel as"));
  // Checks the call of a dense layer: there may be one only with later ratios.
  static_cast<void>(make_average_of(communicator, {.count = 1, .dtype = DType::float32}));
}

std::string TopKPool::description(const std::vector<std::size_t>& counts) const {
  std::vector<std::size_t> ends;
  for (const TopKLayer& layer : plan_.layers) {
    ends.push_back(layer.tensors.end);
  }
  std::string text = std::to_string(tensors()) + " tensors, " + std::to_string(layers()) + " layers, " +
                     std::to_string(bytes()) + " bytes of " + std::string(name_of(dtype_)) + ", wire " +
                     std::string(name_of(rules_.values)) + ", selection " + name_of(options_.selection) +
                     ", threshold reuse " + std::to_string(options_.threshold_reuse) + ", merge bytes " +
                     std::to_string(rules_.merge_bytes) + ", " + std::to_string(extra_.size()) +
                     " extra numbers, seed " + std::to_string(options_.seed);
  if (options_.momentum) {
    text += ", momentum " + format_number(static_cast<double>(*options_.momentum));
    text += options_.masking ? "" : " without masking";
  }
  if (options_.device) {
    text += ", on CUDA devices";
  }
  if (options_.clip) {
    text += ", clip " + format_number(*options_.clip);
  }
  ends.insert(ends.end(), counts.begin(), counts.end());
  return text + ", layout " + std::to_string(collective::hash_of(ends));
}

void TopKPool::plan(std::span<const double> ratios) {
  plan_ = plan_top_k(std::move(plan_.layers), ratios, rules_);
  blocks_->resize(plan_.bytes);
  make_calls();
  current_.assign(plan_.messages.size(), {});
}

void TopKPool::set_ratios(std::span<const double> ratios) {
  check_between_iterations("ratios are set");
  const std::vector<double> before = this->ratios();
  static_cast<void>(plan_top_k(plan_.layers, ratios, rules_));  // throws before anything is changed
  plan(ratios);
  if (this->ratios() != before) {
    const std::lock_guard lock(mutex_);
    std::fill(thresholds_.begin(), thresholds_.end(), 0.0F);
  }
}

std::vector<double> TopKPool::ratios() const {
  std::vector<double> found;
  for (const TopKLayer& layer : plan_.layers) {
    found.push_back(layer.ratio);
  }
  return found;
}

// Of the settings that must be the same on all ranks and can change between iterations.
std::uint32_t TopKPool::hash_of_settings() const {
  std::vector<double> numbers = ratios();
  numbers.push_back(loss_scale());
  numbers.push_back(skip_nonfinite_ ? 1.0 : 0.0);
  return std::max(collective::hash_of(std::as_bytes(std::span(numbers))), 1U);
}

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
  return make_call(communicator, {.kind = transport::CallKind::allreduce,
                                  .op = ReduceOp::mean,
                                  .algorithm = options_.algorithm,
                                  .wire = array.dtype == DType::float32 ? std::optional(rules_.values) : std::nullopt,
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

// ---- from backpropagation -------------------------------------------------------------------------------------------

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
  check_open();
  const auto now = Clock::now();
  std::optional<std::size_t> complete;
  {
    const std::lock_guard lock(mutex_);
    ready_.check_new(tensor, places());
    complete = mark(tensor, now, stream);
    workers_.enter();
  }
  const Workers::Leave leave(workers_);
  process({complete ? &*complete : nullptr, complete ? 1U : 0U}, elsewhere);
}

// Whether a layer is one tensor, and is selected from at once.
bool TopKPool::can_read_elsewhere(std::size_t layer) const {
  const TopKLayer& its = plan_.layers[layer];
  return options_.overlap && !its.dense && its.tensors.end - its.tensors.begin == 1;
}

void TopKPool::ready_all(Stream stream) {
  check_open();
  const auto now = Clock::now();
  std::vector<std::size_t> complete;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t tensor = 0; tensor < places(); ++tensor) {
      if (!ready_.has(tensor)) {
        if (const auto layer = mark(tensor, now, stream)) {
          complete.push_back(*layer);
        }
      }
    }
    workers_.enter();
  }
  const Workers::Leave leave(workers_);
  process(complete);
}

std::optional<std::size_t> TopKPool::mark(std::size_t tensor, Clock::time_point now, Stream stream) {
  ready_.add(tensor);
  if (tensor >= tensors()) {
    return {};
  }
  const std::size_t layer = layer_of_[tensor];
  Course& course = course_[layer];
  --course.left;
  work_->note_ready(layer, course.left == 0, stream);
  if (course.left > 0) {
    return {};
  }
  if (!finishing_) {
    course.ready = now;
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
    course_[layer].done = true;
    start_due_messages();
  }
  if (complete.empty()) {
    const std::lock_guard lock(mutex_);
    start_due_messages();
  }
}

void TopKPool::select_from_layer(std::size_t layer, std::byte* elsewhere) {
  const TopKLayer& its = plan_.layers[layer];
  Course& course = course_[layer];
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
  course.selected = result.selected;
  course.keeps = result.keeps;
  is_zero_[layer] = its.dense ? 0 : 1;
  if (course.selected.nonfinite > 0) {
    note_nonfinite(layer);
  }
  const auto end = Clock::now();
  course.seconds = std::chrono::duration<double>(end - begin).count();
  bookkeeping_ += std::chrono::nanoseconds(end - begin).count();
  if (const auto timeline = communicator_->timeline()) {
    timeline->span(timeline->thread_track(), "select", begin, end,
                   "\"layer\": " + std::to_string(layer) + ", \"sent\": " + std::to_string(course.selected.sent));
  }
}

// Finds the tensor whose gradient is not finite, if that can still be seen. Sends nothing of the layer.
void TopKPool::note_nonfinite(std::size_t layer) {
  const TopKLayer& its = plan_.layers[layer];
  NonfinitePlace place{communicator_->rank(), its.tensors.begin, its.tensors.end - 1};
  const float* const left = residual_.after(layer);
  for (std::size_t tensor = its.tensors.begin; tensor < its.tensors.end; ++tensor) {
    const std::size_t begin = offsets_[tensor] / size_of(dtype_) - its.begin;
    const std::size_t end = std::min(offsets_[tensor + 1] / size_of(dtype_) - its.begin, its.count);
    if (begin < end) {
      const std::size_t found = its.dense ? work_->count_nonfinite(at(its.begin + begin), dtype_, end - begin)
                                          : work_->count_nonfinite(left + begin, DType::float32, end - begin);
      if (found > 0) {
        place.first = place.last = tensor;
        break;
      }
    }
  }
  if (!its.dense) {
    std::memset(blocks_->own(its.data), 0, its.block.bytes);
  }
  const std::lock_guard lock(mutex_);
  if (!found_nonfinite_ || place.first < found_nonfinite_->first) {
    found_nonfinite_ = place;
  }
}

void TopKPool::start_due_messages() {
  while (due_ < plan_.messages.size()) {
    const TopKMessage& message = plan_.messages[due_];
    const auto begin = course_.begin() + static_cast<std::ptrdiff_t>(message.begin);
    const auto end = course_.begin() + static_cast<std::ptrdiff_t>(message.end);
    if (!std::all_of(begin, end, [](const Course& course) { return course.done; })) {
      return;
    }
    const bool is_last = due_ + 1 == plan_.messages.size();
    if (is_last && !finishing_ && !(extra_.empty() ? ready_.count() > 0 : ready_.has(tensors()))) {
      return;
    }
    const auto now = Clock::now();
    GradientPool::Report& report = current_[due_];
    report = {message.bytes, {}, now, {now, now, now}};
    if (has_thread_) {
      under_way_.push_back(communicator_->submit([this, index = due_](collective::Group& /*group*/) {
        exchange(index, [this](const collective::Call& call, GradientPool::Report& its) {
          its.outcome = communicator_->run_within(call, its.times);
        });
      }));
    }
    ++due_;
  }
}

void TopKPool::write_trailer() {
  constexpr std::int64_t nowhere = -1;
  Trailer trailer{nowhere, nowhere};
  const std::lock_guard lock(mutex_);
  if (found_nonfinite_) {
    trailer = {static_cast<std::int64_t>(found_nonfinite_->first), static_cast<std::int64_t>(found_nonfinite_->last)};
  }
  std::byte* const place = blocks_->own(plan_.trailer);
  std::memcpy(place, &trailer, sizeof trailer);
  if (!extra_.empty()) {
    std::memcpy(place + sizeof trailer, extra_.data(), extra_.size() * sizeof(double));
  }
}

// ---- messages -------------------------------------------------------------------------------------------------------

// Sends and combines a message, in the progress thread if there is one. After a failure the other ranks make no more
// calls, so neither does this one.
template <class Run>
void TopKPool::exchange(std::size_t message, Run run) {
  if (failed_) {
    return;
  }
  try {
    const TopKMessage& its = plan_.messages[message];
    for (std::size_t layer = its.begin; options_.device && layer < its.end; ++layer) {
      if (!course_[layer].sends_nothing) {
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
        current_[message].outcome.path = collective::Path::node_memory;
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
      course_[layer].united = work_->combine({.gradient = at(its.begin),
                                              .dtype = dtype_,
                                              .scale = static_cast<float>(scale),
                                              .block = its.block,
                                              .blocks = blocks});
      is_zero_[layer] = 0;
    }
  }
  bookkeeping_ += std::chrono::nanoseconds(Clock::now() - begin).count();
}

// ---- the end of an iteration ----------------------------------------------------------------------------------------

void TopKPool::wait(std::optional<double> timeout, Stream stream) {
  check_timeout(timeout);
  check_open();
  wait_for_end(
      waiting_, timeout, [this] { return iteration(); },
      [this, stream](Deadline deadline) { end_iteration(deadline, stream); });
}

void TopKPool::abandon(Stream stream) {
  const std::uint64_t given_up = iteration();
  const std::lock_guard one_at_a_time(waiting_);
  if (iteration() == given_up && ready_count() > 0) {
    check_open();
    abandoned_ = true;
    try {
      end_iteration({}, stream);
    } catch (const Error& error) {  // these errors are for ranks that have not abandoned the iteration
      if (error.kind() != ErrorKind::nonfinite && error.kind() != ErrorKind::mismatch) {
        throw;
      }
    }
  }
}

// Zeroes tensors that are not ready, and completes all layers.
void TopKPool::finish_what_is_left(Stream stream) {
  const auto now = Clock::now();
  std::vector<std::size_t> complete;
  {
    std::unique_lock lock(mutex_);
    workers_.wait_for_all(lock);
    if (!finishing_) {
      finishing_ = true;
      idle_ = ready_.count() == 0;
      if (!ready_.has(tensors())) {
        std::fill(extra_.begin(), extra_.end(), 0.0);
      }
    }
    for (std::size_t tensor = 0; tensor < tensors(); ++tensor) {
      if (!ready_.has(tensor)) {
        if (!abandoned_) {
          memory_->clear(data() + offsets_[tensor], offsets_[tensor + 1] - offsets_[tensor], stream);
        }
        static_cast<void>(mark(tensor, now, stream));
      }
    }
    if (abandoned_) {
      send_nothing_of_what_is_left(stream);
      start_due_messages();
      return;
    }
    for (std::size_t layer = 0; layer < layers(); ++layer) {
      if (!course_[layer].done) {
        complete.push_back(layer);
      }
    }
  }
  process(complete);
}

// In an abandoned iteration: sends nothing of layers that are not complete.
void TopKPool::send_nothing_of_what_is_left(Stream stream) {
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const TopKLayer& its = plan_.layers[layer];
    if (!course_[layer].done && its.count > 0) {
      memory_->clear(at(its.begin), its.count * size_of(dtype_), stream);
      work_->note_ready(layer, false, stream);
      course_[layer].sends_nothing = true;
      if (!its.dense) {
        std::memset(blocks_->own(its.data), 0, its.block.bytes);
      }
    }
    course_[layer].done = true;
  }
}

void TopKPool::finish_messages(Deadline deadline) {
  for (; collected_ < plan_.messages.size(); ++collected_) {
    try {
      if (has_thread_) {
        await(*under_way_[collected_], deadline);
      } else {
        exchange(collected_, [&](const collective::Call& call, GradientPool::Report& report) {
          report.times.started = Clock::now();
          report.outcome = communicator_->run(call);
          report.times.ended = Clock::now();
        });
      }
    } catch (const Error& error) {
      failure_ = failure_.value_or(error);
    }
  }
}

void TopKPool::end_iteration(Deadline deadline, Stream stream) {
  const auto begin = Clock::now();
  finish_what_is_left(stream);
  finish_messages(deadline);
  std::optional<Error> failure;
  try {
    failure = conclude();
  } catch (const Error& error) {
    failure = error;
  }
  if (failure || drops_ || abandoned_) {
    drop_gradients(stream);
  }
  start_next_iteration(!abandoned_ && (!failure || drops_));
  if (const auto timeline = communicator_->timeline()) {
    timeline->span(timeline->thread_track(), "wait for gradients", begin, Clock::now());
  }
  if (failure) {
    throw Error(*failure);
  }
}

// Keeps or drops the iteration. Every rank decides alike, from the same numbers.
std::optional<Error> TopKPool::conclude() {
  can_take_back_ = false;
  if (failure_) {
    return failure_->kind() == ErrorKind::mismatch ? different_settings(*failure_) : *failure_;
  }
  const auto now = Clock::now();
  const std::vector<double> seconds = work_->seconds_since_ready();
  for (std::size_t layer = 0; layer < seconds.size(); ++layer) {
    if (course_[layer].ready) {
      course_[layer].ready =
          now - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds[layer]));
    }
  }
  const auto trailers = blocks_->of_each(plan_.messages.back(), plan_.trailer);
  average_extra(trailers);
  const std::optional<Error> found = find_nonfinite(trailers);
  if (blocks_->must_grow()) {
    blocks_->grow();
    make_calls();
  }
  if (found) {
    drops_ = true;
    return skip_nonfinite_ ? std::nullopt : found;
  }
  if (current_.back().outcome.idle && (elements() > 0 || !extra_.empty())) {
    return nothing_ready_error();
  }
  if (!abandoned_) {
    keep();
  }
  return {};
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

// Finds the first rank with a gradient that is not finite, and the place there. If all gradients are finite, the mean
// of a dense layer may still be too large for float16.
std::optional<Error> TopKPool::find_nonfinite(const std::vector<const std::byte*>& trailers) {
  for (std::size_t rank = 0; rank < trailers.size(); ++rank) {
    Trailer trailer{};
    std::memcpy(&trailer, trailers[rank], sizeof trailer);
    if (trailer.first_nonfinite >= 0) {
      found_nonfinite_ = {static_cast<int>(rank), static_cast<std::size_t>(trailer.first_nonfinite),
                          static_cast<std::size_t>(trailer.last_nonfinite)};
      return nonfinite_error(*found_nonfinite_);
    }
  }
  for (const TopKLayer& layer : plan_.layers) {
    const bool is_float16 = dtype_ == DType::float16 || rules_.values == DType::float16;
    if (layer.dense && is_float16 && work_->count_nonfinite(at(layer.begin), dtype_, layer.count) > 0) {
      found_nonfinite_ = {-1, layer.tensors.begin, layer.tensors.end - 1};
      return nonfinite_error(*found_nonfinite_);
    }
  }
  return {};
}

std::string TopKPool::settings_text(std::size_t layer) const {
  std::string text = layer < layers()
                         ? "ratio " + format_number(plan_.layers[layer].ratio) + " of layer " + std::to_string(layer)
                         : std::string("the same ratios");
  return text + ", loss scale " + format_number(loss_scale()) + ", " + (skip_nonfinite_ ? "skipping" : "not skipping") +
         " what is not finite";
}

// All ranks call this, or none.
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
    check_same_on_all_ranks(*communicator_, "settings of a top-k gradient pool", settings_text(different));
  } catch (const Error& error) {
    return error;
  }
  return failure;
}

void TopKPool::keep() {
  residual_.remember();
  velocity_.remember();
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const TopKLayer& its = plan_.layers[layer];
    if (its.count == 0) {
      continue;
    }
    if (course_[layer].keeps) {
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
  can_take_back_ = true;
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    thresholds_[layer] = course_[layer].selected.threshold;
  }
}

void TopKPool::take_back(Stream stream) {
  check_open();
  check_between_iterations("an iteration is taken back");
  if (can_take_back_) {
    residual_.go_back();
    velocity_.go_back();
    can_take_back_ = false;
    drop_gradients(stream);
  }
}

void TopKPool::clear_layer(std::size_t layer, Stream stream) {
  const TopKLayer& its = plan_.layers[layer];
  memory_->clear(at(its.begin), its.count * size_of(dtype_), stream);
  is_zero_[layer] = 1;
}

void TopKPool::drop_gradients(Stream stream) {
  memory_->clear(data(), bytes(), stream);
  std::fill(is_zero_.begin(), is_zero_.end(), 1);
  const std::lock_guard lock(mutex_);
  means_ = no_means;
}

void TopKPool::start_next_iteration(bool has_means) {
  const std::lock_guard lock(mutex_);
  layer_reports_.clear();
  for (std::size_t layer = 0; layer < course_.size(); ++layer) {
    const TopKLayer& its = plan_.layers[layer];
    const Course& course = course_[layer];
    layer_reports_.push_back({.tensors = its.tensors,
                              .elements = its.elements,
                              .k = its.k,
                              .ratio = its.ratio,
                              .dense = its.dense,
                              .indices = its.block.indices,
                              .sent = course.selected.sent,
                              .united = its.dense ? its.elements : course.united,
                              .threshold = course.selected.threshold,
                              .select_seconds = course.seconds,
                              .message = its.message,
                              .ready = course.ready});
  }
  reports_ = std::move(current_);
  if (failure_) {
    layer_reports_.clear();
    reports_.clear();
  }
  course_.assign(layers(), {});
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    course_[layer].left = plan_.layers[layer].tensors.end - plan_.layers[layer].tensors.begin;
  }
  current_.assign(plan_.messages.size(), {});
  ready_.forget();
  under_way_.clear();
  due_ = collected_ = 0;
  finishing_ = abandoned_ = false;
  idle_ = failed_ = false;
  failure_.reset();
  overflowed_ = std::exchange(drops_, false);
  nonfinite_ = std::exchange(found_nonfinite_, {});
  means_ = has_means ? new_means() : no_means;
  last_bookkeeping_ = static_cast<double>(bookkeeping_.exchange(0)) * 1e-9;
  blocks_->next_iteration();
  work_->forget();
  ++iteration_;
}

// ---- between iterations ---------------------------------------------------------------------------------------------

void TopKPool::set_loss_scale(double scale) {
  check_between_iterations("the loss scale is set");
  scale_ = selection_.scale = inverse_of_loss_scale(scale);
}

void TopKPool::zero(Stream stream) {
  check_open();
  check_between_iterations("gradients are zeroed");
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    clear_layer(layer, stream);
  }
  const std::lock_guard lock(mutex_);
  means_ = no_means;
}

void TopKPool::copy_velocities(std::span<float> destination) const {
  check_between_iterations("velocities are read");
  if (!has_velocities() && !destination.empty()) {
    throw Error(ErrorKind::value, "there are no velocities without a momentum");
  }
  velocity_.read(destination);
}

std::vector<float> TopKPool::thresholds() const {
  const std::lock_guard lock(mutex_);
  return thresholds_;
}

void TopKPool::set_residuals(std::span<const float> residual, Stream stream) {
  check_open();
  check_between_iterations("residuals are replaced");
  check_kept(residual, elements(), "residuals");
  residual_.write(residual);
  can_take_back_ = false;
  drop_gradients(stream);
}

void TopKPool::restore(const State& state) {
  check_open();
  try {
    check_between_iterations("residuals are replaced");
    check_kept(state.residual, elements(), "residuals");
    check_kept(state.velocity, velocity_.is_none() ? 0 : elements(), "velocities");
    check_kept(state.threshold, state.threshold.empty() ? 0 : layers(), "thresholds");
  } catch (const Error& error) {
    refuse_state(error.what());
    throw;
  }
  check_same_on_all_ranks(*communicator_, "states of top-k gradient pools",
                          "iteration " + std::to_string(state.iteration));
  set_residuals(state.residual);
  velocity_.write(state.velocity);
  const std::lock_guard lock(mutex_);
  thresholds_.assign(layers(), 0.0F);
  std::copy(state.threshold.begin(), state.threshold.end(), thresholds_.begin());
  iteration_ = state.iteration;
}

// ---- results --------------------------------------------------------------------------------------------------------

Update TopKPool::update() const {
  check_process();
  check_has_means(means(), ready_count(), tensors());
  return {.means = means(),
          .data = data(),
          .dtype = dtype_,
          .device = options_.device,
          .offsets = in_elements(offsets_, dtype_),
          .spans = overflowed() ? std::vector<Update::Span>{} : std::vector<Update::Span>{{0, elements()}}};
}

void TopKPool::take_over_means(const TopKPool& other) {
  const Means theirs = other.means();
  const std::lock_guard lock(mutex_);
  means_ = theirs;
}

std::vector<TopKPool::LayerReport> TopKPool::layer_reports() const {
  const std::lock_guard lock(mutex_);
  return layer_reports_;
}

void TopKPool::close(bool drain) noexcept { communicator_->close(drain); }

}  // namespace gradientflow::engine
