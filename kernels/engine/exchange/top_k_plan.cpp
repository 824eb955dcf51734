#include "top_k_plan.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "../../base/config.hpp"
#include "../../base/error.hpp"
#include "../../base/text.hpp"

namespace gradientflow::engine {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t never_dense_bytes = 4 * kib;  // size below which merging is cheaper than a separate call
constexpr std::size_t dense_message_bytes = mib;

[[nodiscard]] std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// True if an allreduce moves fewer bytes: a ring moves 2 (P - 1) / P of a tensor; otherwise each rank receives P - 1
// blocks.
bool is_dense(const TopKLayer& layer, const TopKRules& rules) {
  const std::size_t bytes = layer.elements * std::min(size_of(rules.gradients), size_of(rules.values));
  const bool is_cheaper = layer.block.bytes * rules.ranks >= 2 * bytes;
  return bytes > never_dense_bytes && (layer.k == layer.elements || is_cheaper);
}

void check_ratios(std::span<const double> ratios, std::size_t layers) {
  if (ratios.size() != layers && ratios.size() != 1) {
    throw Error(ErrorKind::value, "there is one compression ratio for each of the " + std::to_string(layers) +
                                      " layers, or one for all, not " + std::to_string(ratios.size()));
  }
  for (const double ratio : ratios) {
    if (!std::isfinite(ratio) || ratio < 1.0) {
      throw Error(ErrorKind::value, "a compression ratio is a number of 1 or more, not " + format_number(ratio));
    }
  }
}

}  // namespace

std::size_t k_of(std::size_t elements, double ratio) {
  constexpr double rounding = 1e-10;
  const double share = static_cast<double>(elements) / ratio;
  const double k = std::ceil(share - rounding * share);
  return std::min(elements, std::max(std::size_t{elements > 0 ? 1U : 0U}, static_cast<std::size_t>(k)));
}

std::vector<TopKLayer> lay_out_layers(std::span<const std::size_t> counts, std::span<const std::size_t> offsets,
                                      std::span<const std::size_t> together) {
  const std::vector<std::size_t> each(together.empty() ? counts.size() : 0, 1);
  const std::span<const std::size_t> sizes = together.empty() ? std::span(each) : together;
  const bool has_empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  if (std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) != counts.size() || has_empty) {
    throw Error(ErrorKind::value, "layers are numbers of consecutive tensors, 1 or more each, that add up to the " +
                                      std::to_string(counts.size()) + " tensors");
  }
  std::vector<TopKLayer> layers;
  std::size_t first = 0;
  for (const std::size_t size : sizes) {
    TopKLayer layer{.tensors = {first, first + size}, .begin = offsets[first]};
    for (std::size_t tensor = first; tensor < first + size; ++tensor) {
      layer.elements += counts[tensor];
      layer.count = counts[tensor] > 0 ? offsets[tensor] + counts[tensor] - layer.begin : layer.count;
    }
    if (layer.count >= std::size_t{1} << 32U) {
      throw Error(ErrorKind::value, "a layer has fewer than 2^32 elements, not " + std::to_string(layer.count) +
                                        " as layer " + std::to_string(layers.size()));
    }
    layers.push_back(layer);
    first += size;
  }
  return layers;
}

TopKPlan plan_top_k(std::vector<TopKLayer> layers, std::span<const double> ratios, const TopKRules& rules) {
  check_ratios(ratios, layers.size());
  TopKPlan plan;
  plan.layers = std::move(layers);
  std::vector<TopKMessage>& messages = plan.messages;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    TopKLayer& layer = plan.layers[i];
    layer.ratio = ratios.size() == 1 ? ratios.front() : ratios[i];
    layer.k = k_of(layer.elements, layer.ratio);
    layer.block = compute::block_of(layer.count, layer.k, rules.values);
    layer.dense = is_dense(layer, rules);
    const std::size_t full = layer.dense ? dense_message_bytes : rules.merge_bytes;
    const bool is_nothing = layer.count == 0;  // an empty layer fits into any message
    if (!messages.empty() && messages.back().bytes == 0) {
      messages.back().dense = layer.dense;
    }
    const bool fits = !messages.empty() && (is_nothing || (messages.back().dense == layer.dense &&
                                                           messages.back().bytes < std::max(full, std::size_t{1})));
    if (!fits) {
      plan.bytes = aligned(plan.bytes);
      messages.push_back({.begin = i, .dense = layer.dense, .data = plan.bytes});
    }
    TopKMessage& message = messages.back();
    message.end = i + 1;
    layer.message = messages.size() - 1;
    layer.data = plan.bytes;
    const std::size_t bytes = is_nothing ? 0 : (layer.block.bytes + 3) / 4 * 4;
    if (message.dense) {
      message.bytes = (layer.begin + layer.count - plan.layers[message.begin].begin) * size_of(rules.gradients);
    } else {
      message.bytes += bytes;
      plan.bytes += bytes;
    }
  }
  if (messages.empty() || messages.back().dense) {
    const std::size_t end = plan.layers.size();
    messages.push_back({.begin = end, .end = end, .data = aligned(plan.bytes)});
  }
  TopKMessage& last = messages.back();
  plan.trailer = (last.data + last.bytes + sizeof(double) - 1) / sizeof(double) * sizeof(double);
  last.bytes = plan.trailer + rules.trailer_bytes - last.data;
  plan.bytes = last.data + last.bytes;
  return plan;
}

}  // namespace gradientflow::engine
