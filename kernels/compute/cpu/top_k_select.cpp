// Selection of entries. Passes over whole layers are in the tables of SIMD levels; this file has the work on entries.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../base/error.hpp"
#include "../top_k.hpp"
#include "../top_k_rules.hpp"
#include "entry_block.hpp"
#include "select.hpp"

namespace gradientflow::compute {
namespace {

constexpr std::size_t run = 4096;                 // elements that a pass tests before candidates are dropped
constexpr std::size_t slack = 16;                 // room for a whole vector after the last candidate
constexpr std::size_t batch = 1024;               // entries that are written to a block together
constexpr std::size_t streaming_count = 1 << 20;  // least size of layers that are written past the caches

std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU; }

// The k-th largest of the magnitudes, and the number of larger magnitudes, found in rounds of 11, 10 and 10 bits.
struct Kth {
  std::uint32_t least;
  std::size_t larger;
};
Kth kth_largest(const float* x, std::size_t count, std::size_t k) {
  std::array<std::uint32_t, 2048> bins;
  std::uint32_t prefix = 0;
  std::size_t larger = 0;
  std::uint32_t low = 31;
  for (const std::uint32_t bits : {11U, 10U, 10U}) {
    const std::uint32_t high = low;
    low -= bits;
    bins.fill(0);
    const std::uint32_t mask = (1U << bits) - 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t m = magnitude(x[i]);
      if (m >> high == prefix) {
        ++bins[(m >> low) & mask];
      }
    }
    std::uint32_t bin = mask;
    while (bin != 0 && larger + bins[bin] < k) {
      larger += bins[bin--];
    }
    prefix = prefix << bits | bin;
  }
  return {prefix, larger};
}

// Writer of a block: takes entries in ascending order, rounds them, writes them, and leaves the rest as residuals.
class Writer {
 public:
  Writer(const KernelTable& table, const Select& call)
      : call_(call),
        narrow_(table.cast[float_index(call.block.values)][float_index(DType::float32)]),
        widen_(table.cast[float_index(DType::float32)][float_index(call.block.values)]),
        limit_(largest_sent(call.block.values, call.limit)) {
    std::memset(call.data, 0, call.block.bytes);
  }

  void write(const std::uint32_t* indices, const float* x, std::size_t number) {
    const EntryBlock& block = call_.block;
    const std::size_t size = size_of(block.values);
    for (std::size_t begin = 0; begin < number; begin += batch) {
      const std::size_t some = std::min(batch, number - begin);
      std::array<float, batch> values;
      std::copy_n(x + begin, some, values.data());
      for (std::size_t i = 0; i < some; ++i) {
        values[i] = std::clamp(values[i], -limit_, limit_);
      }
      std::byte* const to = call_.data + block.value_begin + (written_ + begin) * size;
      narrow_(to, values.data(), some, 1.0F);
      widen_(values.data(), to, some, 1.0F);
      for (std::size_t i = 0; i < some; ++i) {
        const std::uint32_t index = indices[begin + i];
        put_index(written_ + begin + i, index);
        call_.next_residual[index] = x[begin + i] - values[i];
        if (call_.masking && call_.next_velocity != nullptr) {
          call_.next_velocity[index] = 0;
        }
      }
    }
    for (std::size_t i = 0; i < number; ++i) {
      least_ = std::min(least_, magnitude(x[i]));
    }
    written_ += number;
  }

  Selected finish(std::size_t nonfinite) {
    put_word(call_.data, static_cast<std::uint32_t>(written_));
    return {.sent = written_, .threshold = written_ == 0 ? 0 : std::bit_cast<float>(least_), .nonfinite = nonfinite};
  }

 private:
  void put_index(std::size_t entry, std::uint32_t index) {
    std::byte* const indices = call_.data + call_.block.index_begin;
    switch (call_.block.indices) {
      case IndexFormat::words:
        put_word(indices + entry * 4, index);
        break;
      case IndexFormat::offsets: {
        const auto offset = static_cast<std::uint16_t>(index % index_page);
        std::memcpy(indices + entry * 2, &offset, sizeof offset);
        std::byte* const entries = indices + padded(call_.block.k * 2) + index / index_page * 4;
        put_word(entries, word_at(entries) + 1);
        break;
      }
      case IndexFormat::bitmap:
        indices[index / 8] |= std::byte{1} << index % 8;
        break;
    }
  }

  const Select& call_;
  CastKernel narrow_;
  CastKernel widen_;
  float limit_;
  std::size_t written_ = 0;
  std::uint32_t least_ = infinity_bits;
};

class Selection {
 public:
  Selection(const KernelTable& table, const Select& call)
      : table_(table),
        call_(call),
        count_(call.block.count),
        k_(call.block.k),
        dtype_size_(size_of(call.dtype)),
        floor_(smallest_sent(call.block.values)) {
    make_room(run);
  }

  Selected result() {
    Writer writer(table_, call_);
    if (call_.how == Select::How::random || k_ == 0) {
      correct_all();
      return nonfinite_ != 0 ? writer.finish(nonfinite_) : draw(writer);
    }
    if (is_large_part(count_, k_)) {
      correct_all();
      return nonfinite_ != 0 ? writer.finish(nonfinite_) : take_largest(writer);
    }
    const bool exact = call_.how == Select::How::exact;
    const std::size_t sample = sample_of(count_, k_);
    std::uint32_t least = floor_;
    if (!exact && call_.threshold != 0) {
      least = std::max(magnitude(call_.threshold), floor_);
    } else if (sample != 0) {
      least = estimate(sample, exact ? 6 : 3, true);
    }
    collect(least, true);
    if (nonfinite_ == 0 && least > floor_ && (exact ? found_.number < k_ : found_.number * 5 < k_ * 4)) {
      least = sample != 0 && call_.threshold != 0 ? estimate(sample, 6, false) : floor_;
      collect(least, false);
      if (least > floor_ && found_.number < k_) {
        collect(floor_, false);
      }
    }
    if (nonfinite_ == 0) {
      keep_largest();
      writer.write(found_.indices, found_.values, found_.number);
    }
    return writer.finish(nonfinite_);
  }

 private:
  // Corrects the elements from `begin` on.
  void correct(std::size_t begin, std::size_t number, std::uint32_t least, Candidates& found) {
    static constexpr std::array<float, run> zeros = {};
    const bool has_velocity = call_.next_velocity != nullptr;
    const auto at_line = [](const float* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; };
    table_.correct[float_index(call_.dtype)](
        {.gradient = static_cast<std::byte*>(call_.gradient) + begin * dtype_size_,
         .residual = call_.residual == nullptr ? zeros.data() : call_.residual + begin,
         .next_residual = call_.next_residual + begin,
         .velocity = call_.velocity == nullptr ? zeros.data() : call_.velocity + begin,
         .next_velocity = has_velocity ? call_.next_velocity + begin : nullptr,
         .count = number,
         .first = begin,
         .scale = call_.scale,
         .momentum = call_.momentum,
         .least = static_cast<std::int32_t>(least),
         .clear = call_.clear,
         .streaming = count_ >= streaming_count && at_line(call_.next_residual) && at_line(call_.next_velocity)},
        found);
  }

  // Counts infinite and NaN values among the candidates from `begin` on.
  void count_nonfinite(std::size_t begin) {
    for (std::size_t i = begin; i < found_.number; ++i) {
      nonfinite_ += magnitude(found_.values[i]) >= infinity_bits ? 1 : 0;
    }
  }

  void make_room(std::size_t number) {
    if (number + slack > room_) {
      room_ = number + slack;
      indices_ = std::make_unique_for_overwrite<std::uint32_t[]>(room_);
      values_ = std::make_unique_for_overwrite<float[]>(room_);
      found_ = {indices_.get(), values_.get(), 0};
    }
  }

  // Corrects all elements, without collecting candidates.
  void correct_all() {
    for (std::size_t begin = 0; begin < count_; begin += run) {
      found_.number = 0;
      correct(begin, std::min(run, count_ - begin), infinity_bits, found_);
      nonfinite_ += found_.number;
    }
  }

  // Collects the candidates of the layer. If `arises`, x is computed now; otherwise it has been computed before. There
  // is room for twice as many candidates as entries are sent. When the room is full, the k largest candidates stay, and
  // later candidates must exceed the least of them.
  void collect(std::uint32_t least, bool arises) {
    const std::size_t limit = 2 * k_ + 256;
    make_room(limit + run);
    found_.number = 0;
    std::size_t number = std::min(run, std::max<std::size_t>(4 * k_, 256));  // short, to find a threshold soon
    for (std::size_t begin = 0; begin < count_; begin += number, number = run) {
      number = std::min(number, count_ - begin);
      const std::size_t before = found_.number;
      if (arises) {
        correct(begin, number, least, found_);
      } else {
        table_.scan(call_.next_residual + begin, number, begin, static_cast<std::int32_t>(least), found_);
      }
      count_nonfinite(before);
      if (nonfinite_ != 0) {
        found_.number = 0;
        least = infinity_bits;
      } else if (found_.number > limit) {
        least = std::min(keep_largest() + 1, infinity_bits);
      }
    }
  }

  // Keeps the k largest candidates, in their order. Returns the magnitude of the least of them.
  std::uint32_t keep_largest() {
    if (found_.number <= k_) {
      return 0;
    }
    const Kth kth = kth_largest(found_.values, found_.number, k_);
    std::size_t equals = k_ - kth.larger;
    found_.number = keep(kth.least, equals);
    return kth.least;
  }

  // Keeps candidates above `least`, and the first `equals` candidates equal to it.
  std::size_t keep(std::uint32_t least, std::size_t& equals) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < found_.number; ++i) {
      const std::uint32_t m = magnitude(found_.values[i]);
      const bool is_equal = m == least && equals != 0;
      equals -= is_equal ? 1 : 0;
      found_.indices[kept] = found_.indices[i];
      found_.values[kept] = found_.values[i];
      kept += m > least || is_equal ? 1 : 0;
    }
    return kept;
  }

  // Sends the k largest of x, already computed, if k is a large part of the layer.
  Selected take_largest(Writer& writer) {
    Kth kth = kth_largest(call_.next_residual, count_, k_);
    if (kth.least < floor_) {
      kth = {floor_, 0};  // fewer than k elements can travel: all of them are sent
    }
    std::size_t equals = k_ - kth.larger;
    for (std::size_t begin = 0; begin < count_; begin += run) {
      found_.number = 0;
      table_.scan(call_.next_residual + begin, std::min(run, count_ - begin), begin,
                  static_cast<std::int32_t>(kth.least), found_);
      writer.write(found_.indices, found_.values, keep(kth.least, equals));
    }
    return writer.finish(0);
  }

  // Draws Robert Floyd's sample: each set of k elements is equally likely. A set of bits orders the drawn elements.
  Selected draw(Writer& writer) {
    std::vector<std::uint64_t> set((count_ + 63) / 64);
    const auto bit = [](std::size_t i) { return std::uint64_t{1} << i % 64; };
    for (std::size_t j = count_ - k_; j < count_; ++j) {
      const std::uint64_t i = random_below(j + 1, call_.seed, j);
      const std::size_t taken = (set[i / 64] & bit(i)) != 0 ? j : i;
      set[taken / 64] |= bit(taken);
    }
    found_.number = 0;
    for (std::size_t word = 0; word < set.size(); ++word) {
      for (std::uint64_t bits = set[word]; bits != 0; bits &= bits - 1) {
        const std::size_t i = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        found_.indices[found_.number] = static_cast<std::uint32_t>(i);
        found_.values[found_.number++] = call_.next_residual[i];
      }
      if (found_.number + 64 > run || word + 1 == set.size()) {
        writer.write(found_.indices, found_.values, found_.number);
        found_.number = 0;
      }
    }
    Selected selected = writer.finish(0);
    selected.threshold = 0;
    return selected;
  }

  // Estimates the threshold that k elements should reach, plus a margin of `deviations` standard deviations. The sample
  // is stratified: the layer is cut into `sample` parts, and one random element is taken from each. `arises`: x is
  // computed only for the sample.
  std::uint32_t estimate(std::size_t sample, std::size_t deviations, bool arises) {
    const std::size_t rank = sample_rank(deviations);
    const auto x = std::make_unique_for_overwrite<float[]>(sample);
    std::array<std::uint32_t, run> places;
    std::array<std::byte, run * 4> gradient;
    std::array<std::array<float, run>, 4> rows;
    Candidates none = found_;
    for (std::size_t begin = 0; begin < sample; begin += run) {
      const std::size_t number = std::min(run, sample - begin);
      for (std::size_t i = 0; i < number; ++i) {
        places[i] = static_cast<std::uint32_t>(sample_place(begin + i, sample, count_, call_.seed));
      }
      const auto pick = [&](float* row, const float* values) {
        for (std::size_t i = 0; i < number; ++i) {
          row[i] = values == nullptr ? 0 : values[places[i]];
        }
      };
      if (!arises) {
        pick(x.get() + begin, call_.next_residual);
        continue;
      }
      for (std::size_t i = 0; i < number; ++i) {
        std::memcpy(&gradient[i * dtype_size_], static_cast<std::byte*>(call_.gradient) + places[i] * dtype_size_,
                    dtype_size_);
      }
      pick(rows[0].data(), call_.residual);
      pick(rows[1].data(), call_.velocity);
      none.number = 0;
      table_.correct[float_index(call_.dtype)](
          {.gradient = gradient.data(),
           .residual = rows[0].data(),
           .next_residual = x.get() + begin,
           .velocity = rows[1].data(),
           .next_velocity = call_.next_velocity == nullptr ? nullptr : rows[2].data(),
           .count = number,
           .first = 0,
           .scale = call_.scale,
           .momentum = call_.momentum,
           .least = std::numeric_limits<std::int32_t>::max(),
           .clear = false,
           .streaming = false},
          none);
    }
    const std::uint32_t least = kth_largest(x.get(), sample, rank).least;
    return std::clamp(least, floor_, infinity_bits);
  }

  const KernelTable& table_;
  const Select& call_;
  std::size_t count_;
  std::size_t k_;
  std::size_t dtype_size_;
  std::uint32_t floor_;
  std::size_t nonfinite_ = 0;
  std::size_t room_ = 0;
  std::unique_ptr<std::uint32_t[]> indices_;
  std::unique_ptr<float[]> values_;
  Candidates found_ = {};
};

Selected select_with(const KernelTable& table, const Select& call) {
  static_cast<void>(float_index(call.dtype));
  if (!std::isfinite(call.threshold) || call.threshold < 0) {
    throw Error(ErrorKind::value,
                "the threshold of a selection must be finite and not negative, not " + std::to_string(call.threshold));
  }
  return Selection(table, call).result();
}

}  // namespace

Selected select(const Select& call) { return select_with(active_table(), call); }

Selected select_at(SimdLevel level, const Select& call) { return select_with(table_at(level), call); }

}  // namespace gradientflow::compute
