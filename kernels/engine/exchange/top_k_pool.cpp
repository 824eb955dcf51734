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

// Returns the least size of a message: inside a node all layers share one, as blocks are read in place.
std::size_t merge_bytes_of(const Communicator& communicator, const TopKPool::Options& options) {
  return options.merge_bytes.value_or(communicator.nodes() > 1 ? entries_bytes : SIZE_MAX);
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
      has_thread_(communicator.size() > 1 && (BlockMemory::is_for(communicator, options.algorithm) ||
                                              communicator.group().endpoint().limits().threads)),
      rules_{.ranks = static_cast<std::size_t>(communicator.size()),
             .gradients = dtype,
             .values = dtype_of(options.wire.value_or(dtype == DType::bfloat16 ? Wire::bfloat16 : Wire::float32),
                                "a top-k gradient pool"),
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
  check_same("top-k gradient pools", description(counts));
  memory_ = std::make_unique<PoolMemory>(*communicator_, options.device, bytes());
  blocks_ = std::make_unique<BlockMemory>(*communicator_, options.algorithm, plan_.bytes);
  work_ = LayerWork::make(options.device, layers());
  residual_ = VersionedArray(begins_of(plan_.layers, elements()), options.device);
  if (options.momentum) {
    velocity_ = VersionedArray(begins_of(plan_.layers, elements()), options.device);
  }
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    layer_of_.insert(layer_of_.end(), plan_.layers[layer].tensors.end - plan_.layers[layer].tensors.begin, layer);
  }
  thresholds_.assign(layers(), 0.0F);
  is_zero_.assign(layers(), 0);
  make_calls();
  TopKPool::reset();
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

void TopKPool::snapshot_residuals() {
  ResidualPool::snapshot_residuals();
  velocity_.snapshot();
}

void TopKPool::rollback_residuals() {
  ResidualPool::rollback_residuals();
  velocity_.restore();
}

void TopKPool::drop_gradients(Stream stream) {
  ResidualPool::drop_gradients(stream);
  std::fill(is_zero_.begin(), is_zero_.end(), 1);
}

void TopKPool::reset() {
  ResidualPool::reset();
  layer_selections_.clear();
  for (std::size_t layer = 0; layer < progress_.size(); ++layer) {
    const TopKLayer& its = plan_.layers[layer];
    const LayerProgress& progress = progress_[layer];
    layer_selections_.push_back({.tensors = its.tensors,
                                 .elements = its.elements,
                                 .k = its.k,
                                 .ratio = its.ratio,
                                 .dense = its.dense,
                                 .indices = its.block.indices,
                                 .sent = progress.selected.sent,
                                 .united = its.dense ? its.elements : progress.united,
                                 .threshold = progress.selected.threshold,
                                 .select_seconds = progress.seconds,
                                 .message = its.message,
                                 .ready = progress.ready});
  }
  progress_.assign(layers(), {});
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    progress_[layer].left = plan_.layers[layer].tensors.end - plan_.layers[layer].tensors.begin;
  }
  current_.assign(plan_.messages.size(), {});
  under_way_.clear();
  due_ = collected_ = 0;
  failed_ = false;
  blocks_->next_iteration();
  work_->forget();
}

// ---- between iterations ---------------------------------------------------------------------------------------------

void TopKPool::set_loss_scale(double scale) {
  check_between_iterations("the loss scale is set");
  scale_ = selection_.scale = inverse_of_loss_scale(scale);
}

void TopKPool::clear_gradients(Stream stream) {
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    clear_layer(layer, stream);
  }
}

void TopKPool::copy_velocities(std::span<float> destination) const {
  check_between_iterations("velocities are read");
  if (!has_velocities() && !destination.empty()) {
    throw Error(ErrorKind::value, "there are no velocities without a momentum");
  }
  velocity_.read(destination);
}

void TopKPool::restore(const TopKCheckpoint& state) {
  check_state(
      [&] {
        check_residuals(state.residual);
        check_kept(state.velocity, velocity_.is_none() ? 0 : elements(), "velocities");
        check_kept(state.threshold, state.threshold.empty() ? 0 : layers(), "thresholds");
      },
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
  return update_of(dropped() ? std::vector<Update::Span>{} : std::vector<Update::Span>{{0, elements()}});
}

}  // namespace gradientflow::engine
