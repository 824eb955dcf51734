#include "server_shard.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "../../compute/kernels.hpp"
#include "../../compute/steps/steps.hpp"
#include "../../compute/sum_of_squares.hpp"

namespace gradientflow::engine {
namespace {

constexpr std::size_t cached_bytes = 256 * kib;  // size of a block, over all arrays of an update
constexpr std::size_t streamed_bytes = 4 * mib;  // size from which a version is in no cache when it is read
constexpr std::size_t least_block = 1024;        // elements
constexpr std::size_t worth_sharing = 1 << 17;   // elements: a smaller update ends before a thread wakes

}  // namespace

ServerShard::ServerShard(const ServerLayout& layout, const ServerMemory& memory, std::size_t server, int workers,
                         DType wire, const ServerOptimizer& optimizer, std::size_t threads)
    : layout_(&layout),
      memory_(&memory),
      server_(server),
      workers_(workers),
      wire_(wire),
      optimizer_(optimizer),
      updates_(optimizer.is_adam() ? layout.tensors() : 0),
      scratch_(threads),
      team_(threads) {}

// Updates block by block, so that a block's weights, optimizer state and mean stay in the caches from one kernel to the
// next.
void ServerShard::apply(std::span<const Contribution> round, std::span<const ServerSettings> settings,
                        std::span<const std::optional<float>> rates, float scale, const AfterRanges& after_ranges) {
  const std::size_t next = latest_ = free_version();
  float* const weights = memory_->weights(server_, next);
  const float* const present = this->weights();
  const bool rounds = wire_ != DType::float32;
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    updates_[i] += rates[i] ? 1 : 0;
  }
  make_scratch(round.size());
  const auto& parts = layout_->parts_of_server(server_);
  for (const TensorPart& part : parts) {
    for (std::size_t s = 0; s < states() && (optimizer_.is_adam() || settings[part.tensor].momentum != 0.0F); ++s) {
      state_[s].resize(size());
    }
  }
  const auto update = [&](const TensorPart& part, std::size_t from, std::size_t to, Scratch& scratch) {
    for (std::size_t begin = from; begin < to; begin += block_) {
      const ServerSettings& setting = settings[part.tensor];
      const std::size_t count = std::min(block_, to - begin);
      const std::size_t at = part.shard + begin;
      Block block{
          present + at, weights + at, rounds ? memory_->wire_weights(server_, next) + at * size_of(wire_) : nullptr,
          nullptr,      at,           count};
      if (!rates[part.tensor]) {
        leave(block);
        continue;
      }
      block.gradient = mean_of(round, part, begin, count, scratch);
      if (optimizer_.is_adam()) {
        step_adam(block, mean_dtype(round), setting, updates_[part.tensor], scale);
      } else {
        step_momentum(block, mean_dtype(round), setting, *rates[part.tensor], scale);
      }
    }
  };
  const auto update_shard = [&](std::size_t first, std::size_t end, Scratch& scratch) {
    auto part = std::upper_bound(parts.begin(), parts.end(), first,
                                 [](std::size_t at, const TensorPart& each) { return at < each.shard + each.count; });
    for (; part != parts.end() && part->shard < end; ++part) {
      update(*part, std::max(first, part->shard) - part->shard, std::min(end, part->shard + part->count) - part->shard,
             scratch);
    }
  };
  // Updates an equal piece in each thread.
  const auto update_together = [&](std::size_t first, std::size_t end) {
    if (end - first < worth_sharing) {
      update_shard(first, end, scratch_[0]);
      return;
    }
    team_.run([&](std::size_t piece, std::size_t pieces) {
      const auto border = [&](std::size_t i) {
        return i == pieces ? end : first + (end - first) * i / pieces / least_block * least_block;
      };
      update_shard(border(piece), border(piece + 1), scratch_[piece]);
    });
  };
  if (after_ranges) {
    for (std::size_t r = 0; r < layout_->ranges().size(); ++r) {
      const Piece& piece = layout_->piece(r, server_);
      update_together(piece.shard, piece.shard + piece.count);
      after_ranges(r + 1);
    }
  } else {
    update_together(0, size());
  }
  version_ = next;
}

void ServerShard::leave(const Block& block) const {
  std::copy_n(block.before, block.count, block.weights);
  if (block.wire_weights != nullptr) {
    std::memcpy(block.wire_weights, wire_weights() + block.at * size_of(wire_), block.count * size_of(wire_));
  }
}

void ServerShard::step_momentum(const Block& block, DType gradient, const ServerSettings& setting, float rate,
                                float scale) {
  compute::step(compute::MomentumStep{
      .weight = block.weights,
      .parameter = block.wire_weights,
      .parameter_dtype = wire_,
      .gradient = block.gradient,
      .gradient_dtype = gradient,
      .momentum = setting.momentum == 0.0F ? nullptr : state_[0].data() + block.at,
      .count = block.count,
      .gradient_scale = scale,
      .weight_decay = setting.weight_decay,
      .factor = setting.momentum,
      .inner_rate = optimizer_.is_rate_inside() ? rate : 1.0F,
      .outer_rate = optimizer_.is_rate_inside() ? 1.0F : rate,
      .before = block.before,
      .store = size() * sizeof(float) >= streamed_bytes ? compute::Store::streaming : compute::Store::cached});
}

// Corrects the bias of the first updates in float64, as PyTorch does.
void ServerShard::step_adam(const Block& block, DType gradient, const ServerSettings& setting, std::uint64_t updates,
                            float scale) {
  const double bias_1 = 1.0 - std::pow(optimizer_.beta_1, static_cast<double>(updates));
  const double bias_2 = 1.0 - std::pow(optimizer_.beta_2, static_cast<double>(updates));
  compute::step(compute::AdamStep{.weight = block.weights,
                                  .parameter = block.wire_weights,
                                  .parameter_dtype = wire_,
                                  .gradient = block.gradient,
                                  .gradient_dtype = gradient,
                                  .mean = state_[0].data() + block.at,
                                  .mean_square = state_[1].data() + block.at,
                                  .count = block.count,
                                  .gradient_scale = scale,
                                  .weight_decay = setting.weight_decay,
                                  .rate = static_cast<float>(static_cast<double>(setting.rate) / bias_1),
                                  .root = static_cast<float>(std::sqrt(bias_2)),
                                  .beta_1 = static_cast<float>(optimizer_.beta_1),
                                  .alpha_1 = static_cast<float>(1.0 - optimizer_.beta_1),
                                  .beta_2 = static_cast<float>(optimizer_.beta_2),
                                  .alpha_2 = static_cast<float>(1.0 - optimizer_.beta_2),
                                  .epsilon = static_cast<float>(optimizer_.epsilon),
                                  .before = block.before});
}

std::vector<double> ServerShard::norms(std::span<const Contribution> round, std::span<const ServerSettings> settings,
                                       float scale) {
  std::vector<double> sums(2 * layout_->tensors());
  make_scratch(round.size());
  for (const TensorPart& part : layout_->parts_of_server(server_)) {
    if (settings[part.tensor].trust == 0.0F) {
      continue;
    }
    sums[2 * part.tensor] += compute::sum_of_squares(weights() + part.shard, DType::float32, part.count);
    for (std::size_t begin = 0; begin < part.count; begin += block_) {
      const std::size_t count = std::min(block_, part.count - begin);
      sums[2 * part.tensor + 1] +=
          compute::sum_of_squares(mean_of(round, part, begin, count, scratch_[0]), mean_dtype(round), count, scale);
    }
  }
  return sums;
}

void ServerShard::make_scratch(std::size_t round) {
  block_ = std::max(least_block, cached_bytes / sizeof(float) / (round + 3 + states()) / 64 * 64);
  for (Scratch& scratch : scratch_) {
    scratch.mean.resize(block_);
    scratch.widened.resize(wire_ == DType::float32 ? 0 : block_ * round);
  }
}

// Returns the mean of the round's gradients; the gradients of a single worker are read in place.
const void* ServerShard::mean_of(std::span<const Contribution> round, const TensorPart& part, std::size_t begin,
                                 std::size_t count, Scratch& scratch) {
  if (round.size() == 1) {
    return address_in(round[0], part, begin);
  }
  average(round, part, begin, count, scratch);
  return scratch.mean.data();
}

const std::byte* ServerShard::address_in(const Contribution& of, const TensorPart& part, std::size_t begin) const {
  return of.data + ((of.is_flat ? part.flat : part.shard) + begin) * size_of(wire_);
}

// Averages `count` elements of a part, from `begin` on, in float32, in the order of the round.
void ServerShard::average(std::span<const Contribution> round, const TensorPart& part, std::size_t begin,
                          std::size_t count, Scratch& scratch) {
  std::vector<const void*> sources;
  for (std::size_t i = 0; i < round.size(); ++i) {
    const std::byte* const source = address_in(round[i], part, begin);
    if (wire_ != DType::float32) {
      compute::cast(scratch.widened.data() + i * block_, DType::float32, source, wire_, count, 1.0F);
      sources.push_back(scratch.widened.data() + i * block_);
    } else {
      sources.push_back(source);
    }
  }
  void* const mean = scratch.mean.data();
  compute::reduce({&mean, 1}, sources, count,
                  {.dtype = DType::float32, .op = ReduceOp::mean, .divisor = static_cast<int>(round.size())});
}

void ServerShard::round_weights() {
  if (wire_ != DType::float32) {
    compute::cast(memory_->wire_weights(server_, version_), wire_, weights(), DType::float32, size(), 1.0F);
  }
}

void ServerShard::lease_to(int worker) {
  memory_->word(server_, worker).lease.store(version_ + 1, std::memory_order_release);
}

// Returns the first free version, so that memory already used is used again before untouched memory.
std::size_t ServerShard::free_version() {
  const auto is_held = [this](std::size_t version) {
    for (int worker = 0; worker < workers_; ++worker) {
      if (memory_->is_here(worker) &&
          memory_->word(server_, worker).lease.load(std::memory_order_acquire) == version + 1) {
        return true;
      }
    }
    return false;
  };
  std::size_t version = 0;
  while (version == version_ || is_held(version)) {
    ++version;
  }
  if (version >= provided_) {
    memory_->provide_version(server_, version);
    provided_ = version + 1;
  }
  return version;
}

std::vector<float> ServerShard::array(std::size_t number) const {
  if (number == 0) {
    return {weights(), weights() + size()};
  }
  if (number > states()) {
    std::vector<float> counts(size());
    for (const TensorPart& part : layout_->parts_of_server(server_)) {
      std::fill_n(counts.begin() + static_cast<std::ptrdiff_t>(part.shard), part.count,
                  static_cast<float>(updates_[part.tensor]));
    }
    return counts;
  }
  const std::vector<float>& state = state_[number - 1];
  return state.empty() ? std::vector<float>(size()) : state;
}

ShardCopy ServerShard::copy(std::uint64_t round, std::shared_ptr<std::vector<float>> spare) const {
  ShardCopy copy{.round = round, .updates = updates_, .arrays = 1, .values = std::move(spare)};
  if (copy.values == nullptr) {
    copy.values = std::make_shared<std::vector<float>>();
  }
  copy.values->assign(weights(), weights() + size());
  for (std::size_t s = 0; s < states() && !state_[s].empty(); ++s, ++copy.arrays) {
    copy.values->insert(copy.values->end(), state_[s].begin(), state_[s].end());
  }
  return copy;
}

void ServerShard::load(std::size_t number, const float* values) {
  if (number == 0) {
    const std::size_t next = free_version();
    std::copy_n(values, size(), memory_->weights(server_, next));
    version_ = latest_ = next;
    round_weights();
  } else if (number <= states()) {
    state_[number - 1].assign(values, values + size());
  } else {
    for (const TensorPart& part : layout_->parts_of_server(server_)) {
      if (part.count > 0) {
        updates_[part.tensor] = static_cast<std::uint64_t>(values[part.shard]);
      }
    }
  }
}

}  // namespace gradientflow::engine
