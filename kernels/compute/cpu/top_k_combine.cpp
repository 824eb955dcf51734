// Sum of the blocks of entries of all ranks.
#include <algorithm>
#include <array>
#include <bit>
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

constexpr std::size_t window = 16384;  // elements that are added up together, in a cache near the core

Error no_block(std::size_t number, const std::string& what) {
  return {ErrorKind::value, "block " + std::to_string(number) + " is not one of entries: " + what};
}

// Reader of the indices of a block, window by window.
class Reader {
 public:
  Reader(const EntryBlock& block, const std::byte* data)
      : block_(block), data_(data), indices_(data + block.index_begin), entries_(word_at(data)) {}

  // Throws unless the number of indices is right, and the indices ascend and lie within the layer.
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

  // Returns the beginning of the next window with entries; after the last such window, the end of the layer.
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

  // Reads the indices of entries in the window at `begin`, a result of next_window(). Indices are counted from `begin`.
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

  // Returns the value of the entry that is read next.
  [[nodiscard]] const std::byte* value() const {
    return data_ + block_.value_begin + position_ * size_of(block_.values);
  }

 private:
  [[nodiscard]] std::size_t entries_of_page(std::size_t number) const {
    return word_at(indices_ + padded(block_.k * 2) + number * 4);
  }

  // Tells if the indices of these entries ascend and stay below `limit`.
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
  std::size_t position_ = 0;  // number of entries read
  std::size_t page_ = 0;      // number of pages begun
  std::size_t page_end_ = 0;  // first entry after the pages begun
  std::size_t word_ = 0;      // next word of a bitmap
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

}  // namespace

std::size_t combine(const Combine& call) { return combine_with(active_table(), call); }

std::size_t combine_at(SimdLevel level, const Combine& call) { return combine_with(table_at(level), call); }

}  // namespace gradientflow::compute
