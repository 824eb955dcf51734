// The entry points of top_k.hpp. Passes over whole layers are in the tables of SIMD levels; work on entries is here.
#include "../top_k.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../base/error.hpp"
#include "../top_k_rules.hpp"
#include "select.hpp"

namespace gradientflow::compute {
namespace {

constexpr std::size_t run = 4096;                 // elements that a pass looks at before candidates are thrown out
constexpr std::size_t slack = 16;                 // room for a whole vector behind the last candidate
constexpr std::size_t batch = 1024;               // entries that are written to a block together
constexpr std::size_t streaming_count = 1 << 20;  // layers from here on are written past the caches

std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU; }

std::uint32_t word_at(const std::byte* address) {
  std::uint32_t word = 0;
  std::memcpy(&word, address, sizeof word);
  return word;
}
void put_word(std::byte* address, std::uint32_t word) { std::memcpy(address, &word, sizeof word); }

std::uint16_t half_at(const std::byte* address) {
  std::uint16_t half = 0;
  std::memcpy(&half, address, sizeof half);
  return half;
}

std::size_t float_index(DType dtype) {
  return index_among_floats(dtype,
                            "the gradients and entries of sparse communication are float16, bfloat16 or float32");
}

// ---- which entries --------------------------------------------------------------------------------------------------

// The k-th largest of the magnitudes, and how many are larger. Three rounds, of 11, 10 and 10 bits, whatever the
// values.
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

// Takes entries in ascending order: rounds them, writes them to the block, and leaves the rest as residuals.
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

  // Counts what is infinite or NaN among the candidates from `begin` on.
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

  // Collects the candidates of the layer, of x as it is computed (`arises`) or was before. There is room for twice as
  // many as are sent; when it is full, the k largest stay, and later ones must be larger than the least of them.
  void collect(std::uint32_t least, bool arises) {
    const std::size_t limit = 2 * k_ + 256;
    make_room(limit + run);
    found_.number = 0;
    std::size_t number = std::min(run, std::max<std::size_t>(4 * k_, 256));  // short: a threshold is found soon
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

  // Leaves the k largest of the candidates, in their order. Returns the magnitude of the least.
  std::uint32_t keep_largest() {
    if (found_.number <= k_) {
      return 0;
    }
    const Kth kth = kth_largest(found_.values, found_.number, k_);
    std::size_t equals = k_ - kth.larger;
    found_.number = keep(kth.least, equals);
    return kth.least;
  }

  // Leaves candidates above `least`, and the first `equals` that are equal to it.
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

  // Sends the k largest of x, already computed, for a k that is a large part of the layer.
  Selected take_largest(Writer& writer) {
    Kth kth = kth_largest(call_.next_residual, count_, k_);
    if (kth.least < floor_) {
      kth = {floor_, 0};  // fewer than k travel: all of them
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

  // Robert Floyd's sample: each set of k elements is equally likely. A set of bits gives them in ascending order.
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

  // Estimates the threshold that about k elements reach, and more by so many standard deviations. The sample is
  // stratified: one element, at random, of each of as many parts of the layer. `arises`: x is computed for the sample
  // alone.
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

// ---- the sum of blocks ----------------------------------------------------------------------------------------------

constexpr std::size_t window = 16384;  // elements that are added up together, in a cache near the core

Error no_block(std::size_t number, const std::string& what) {
  return {ErrorKind::value, "block " + std::to_string(number) + " is not one of entries: " + what};
}

// Goes through the indices of a block, window by window.
class Reader {
 public:
  Reader(const EntryBlock& block, const std::byte* data)
      : block_(block), data_(data), indices_(data + block.index_begin), entries_(word_at(data)) {}

  // Throws unless the number of indices is right, and they ascend and lie within the layer.
  void check(std::size_t number) const {
    if (entries_ > block_.k) {
      throw no_block(number, std::to_string(entries_) + " entries, where it has room for " + std::to_string(block_.k));
    }
    std::size_t there = entries_;
    bool ascend = true;
    switch (block_.indices) {
      case IndexFormat::words:
        ascend = ascend_below<std::uint32_t>(0, entries_, block_.count);
        break;
      case IndexFormat::offsets:
        there = 0;
        for (std::size_t p = 0; p < index_pages(block_.count) && there <= entries_; ++p) {
          const std::size_t end = there + entries_of_page(p);
          ascend = ascend && end <= entries_ && ascend_below<std::uint16_t>(there, end, block_.count - p * index_page);
          there = end;
        }
        break;
      case IndexFormat::bitmap:
        there = 0;
        for (std::size_t w = 0; w < bitmap_words(block_.count); ++w) {
          there += static_cast<std::size_t>(std::popcount(word_at(indices_ + w * 4)));
        }
        ascend = block_.count % 32 == 0 ||
                 word_at(indices_ + (bitmap_words(block_.count) - 1) * 4) >> block_.count % 32 == 0;
        break;
    }
    if (there != entries_) {
      throw no_block(number, "it says that it has " + std::to_string(entries_) + " entries, but has indices of " +
                                 (there > entries_ ? "more" : "fewer"));
    }
    if (!ascend) {
      throw no_block(
          number, "its indices do not ascend, or go beyond the layer's " + std::to_string(block_.count) + " elements");
    }
  }

  // The beginning of the next window that has entries; the end of the layer behind the last one.
  std::size_t next_window() {
    if (position_ == entries_) {
      return block_.count;
    }
    std::size_t index = 0;
    switch (block_.indices) {
      case IndexFormat::words:
        index = word_at(indices_ + position_ * 4);
        break;
      case IndexFormat::offsets:
        for (; position_ == page_end_; ++page_) {
          page_end_ += entries_of_page(page_);
        }
        index = (page_ - 1) * index_page + half_at(indices_ + position_ * 2);
        break;
      case IndexFormat::bitmap:
        while (word_at(indices_ + word_ * 4) == 0) {
          ++word_;
        }
        index = word_ * 32;
        break;
    }
    return index / window * window;
  }

  // The indices of entries in the window from `begin` on, counted from there. next_window() has given `begin`.
  std::size_t read(std::size_t begin, std::array<std::uint16_t, window>& indices) {
    std::size_t number = 0;
    switch (block_.indices) {
      case IndexFormat::words:
        for (; position_ < entries_; ++position_) {
          const std::size_t index = word_at(indices_ + position_ * 4) - begin;
          if (index >= window) {
            break;
          }
          indices[number++] = static_cast<std::uint16_t>(index);
        }
        break;
      case IndexFormat::offsets:
        for (; position_ < page_end_; ++position_) {
          const std::size_t index = half_at(indices_ + position_ * 2) - begin % index_page;
          if (index >= window) {
            break;
          }
          indices[number++] = static_cast<std::uint16_t>(index);
        }
        break;
      case IndexFormat::bitmap:
        for (const std::size_t end = std::min((begin + window) / 32, bitmap_words(block_.count)); word_ < end;
             ++word_) {
          for (std::uint32_t bits = word_at(indices_ + word_ * 4); bits != 0; bits &= bits - 1) {
            const std::size_t index = word_ * 32 - begin + static_cast<std::size_t>(std::countr_zero(bits));
            indices[number++] = static_cast<std::uint16_t>(index);
          }
        }
        position_ += number;
        break;
    }
    return number;
  }

  // The value of the entry that is read next.
  [[nodiscard]] const std::byte* value() const {
    return data_ + block_.value_begin + position_ * size_of(block_.values);
  }

 private:
  [[nodiscard]] std::size_t entries_of_page(std::size_t number) const {
    return word_at(indices_ + padded(block_.k * 2) + number * 4);
  }

  // Whether the indices of these entries ascend, the last one to less than `limit`.
  template <class Index>
  [[nodiscard]] bool ascend_below(std::size_t begin, std::size_t end, std::size_t limit) const {
    const auto at = [this](std::size_t entry) {
      Index index = 0;
      std::memcpy(&index, indices_ + entry * sizeof(Index), sizeof(Index));
      return index;
    };
    bool ascend = begin == end || at(end - 1) < limit;
    for (std::size_t entry = begin + 1; entry < end; ++entry) {
      ascend &= at(entry - 1) < at(entry);
    }
    return ascend;
  }

  const EntryBlock& block_;
  const std::byte* data_;
  const std::byte* indices_;
  std::size_t entries_;
  std::size_t position_ = 0;  // entries that were read
  std::size_t page_ = 0;      // pages that were begun
  std::size_t page_end_ = 0;  // the first entry behind them
  std::size_t word_ = 0;      // of a bitmap: the next one
};

// A part of a layer in which entries are added up. Elements without entries are -0, the neutral element of addition.
struct Window {
  std::array<float, window> sums;
  std::array<std::uint64_t, window / 64> has_entry = {};
  std::array<float, window> values;
  std::array<std::uint16_t, window> indices;
  std::array<std::byte, window * 4> rounded;

  explicit Window(std::size_t count) { std::fill_n(sums.begin(), std::min(window, count), -0.0F); }
};

template <class Bits>
void put_elements(void* gradient, const Window& from, std::size_t number) {
  auto* const to = static_cast<std::byte*>(gradient);
  for (std::size_t i = 0; i < number; ++i) {
    std::memcpy(to + from.indices[i] * sizeof(Bits), from.rounded.data() + i * sizeof(Bits), sizeof(Bits));
  }
}

std::size_t combine_with(const KernelTable& table, const Combine& call) {
  const std::size_t dtype = float_index(call.dtype);
  const auto widen = table.cast[float_index(DType::float32)][float_index(call.block.values)];
  const auto narrow = table.cast[dtype][float_index(DType::float32)];
  std::vector<Reader> readers;
  readers.reserve(call.blocks.size());
  for (const std::byte* const data : call.blocks) {
    readers.emplace_back(call.block, data).check(readers.size() - 1);
  }
  const std::size_t count = call.block.count;
  const auto sum = std::make_unique<Window>(count);
  std::vector<std::size_t> next(readers.size());
  std::transform(readers.begin(), readers.end(), next.begin(), [](Reader& reader) { return reader.next_window(); });
  std::size_t written = 0;
  while (!next.empty()) {
    const std::size_t begin = *std::min_element(next.begin(), next.end());
    if (begin == count) {
      break;
    }
    for (std::size_t b = 0; b < readers.size(); ++b) {
      if (next[b] != begin) {
        continue;
      }
      const std::byte* const values = readers[b].value();
      const std::size_t number = readers[b].read(begin, sum->indices);
      widen(sum->values.data(), values, number, 1.0F);
      for (std::size_t i = 0; i < number; ++i) {
        const std::size_t index = sum->indices[i];
        sum->sums[index] += sum->values[i];
        sum->has_entry[index / 64] |= std::uint64_t{1} << index % 64;
      }
      next[b] = readers[b].next_window();
    }
    std::size_t number = 0;
    for (std::size_t word = 0; word < sum->has_entry.size(); ++word) {
      for (std::uint64_t bits = std::exchange(sum->has_entry[word], 0); bits != 0; bits &= bits - 1) {
        const std::size_t index = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        sum->indices[number] = static_cast<std::uint16_t>(index);
        sum->values[number++] = std::exchange(sum->sums[index], -0.0F);
      }
    }
    narrow(sum->rounded.data(), sum->values.data(), number, call.scale);
    auto* const gradient = static_cast<std::byte*>(call.gradient) + begin * size_of(call.dtype);
    if (size_of(call.dtype) == 4) {
      put_elements<std::uint32_t>(gradient, *sum, number);
    } else {
      put_elements<std::uint16_t>(gradient, *sum, number);
    }
    written += number;
  }
  return written;
}

Selected select_with(const KernelTable& table, const Select& call) {
  static_cast<void>(float_index(call.dtype));
  if (!std::isfinite(call.threshold) || call.threshold < 0) {
    throw Error(ErrorKind::value,
                "the threshold of a selection must be finite and not negative, not " + std::to_string(call.threshold));
  }
  return Selection(table, call).result();
}

}  // namespace

EntryBlock block_of(std::size_t count, std::size_t k, DType values) {
  static_cast<void>(float_index(values));
  if (k > count || count > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorKind::value,
                "a block of entries is of at most as many as the layer has elements, below 2^32, not " +
                    std::to_string(k) + " of " + std::to_string(count));
  }
  const std::array<std::size_t, 3> sizes = {k * 4, padded(k * 2) + index_pages(count) * 4, bitmap_words(count) * 4};
  const auto smallest = std::min_element(sizes.begin(), sizes.end());
  constexpr std::size_t head = sizeof(std::uint32_t);
  return {.count = count,
          .k = k,
          .values = values,
          .indices = static_cast<IndexFormat>(smallest - sizes.begin()),
          .index_begin = head,
          .value_begin = head + *smallest,
          .bytes = head + *smallest + padded(k * size_of(values))};
}

Selected select(const Select& call) { return select_with(active_table(), call); }
std::size_t combine(const Combine& call) { return combine_with(active_table(), call); }

Selected select_at(SimdLevel level, const Select& call) { return select_with(table_at(level), call); }
std::size_t combine_at(SimdLevel level, const Combine& call) { return combine_with(table_at(level), call); }

}  // namespace gradientflow::compute
