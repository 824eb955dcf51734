#include <algorithm>

#include "top_k.cuh"

namespace gradientflow::compute::cuda {
namespace {

constexpr std::uint32_t nothing = 0xffffffffU;  // mark of an element without entries: a NaN that no sum can be

// Returns the number of parts of a block, each of 2,048 entries, a page, or 2,048 bits.
std::size_t parts_of(const EntryBlock& block) {
  switch (block.indices) {
    case IndexFormat::words:
      return groups_of(block.k);
    case IndexFormat::offsets:
      return index_pages(block.count);
    default:
      return groups_of(block.count);
  }
}

__device__ std::uint32_t word_at(const std::byte* data) { return *reinterpret_cast<const std::uint32_t*>(data); }

// Counts the entries of each part of a block.
__global__ void __launch_bounds__(threads)
    count_parts(EntryBlock block, const std::byte* data, std::size_t parts, std::uint32_t* entries) {
  const std::size_t part = static_cast<std::size_t>(blockIdx.x) * threads + threadIdx.x;
  if (part >= parts) {
    return;
  }
  const std::byte* const indices = data + block.index_begin;
  std::uint32_t number = 0;
  if (block.indices == IndexFormat::words) {
    const std::size_t left = word_at(data) - min(std::size_t{word_at(data)}, part * group);
    number = static_cast<std::uint32_t>(min(left, group));
  } else if (block.indices == IndexFormat::offsets) {
    number = word_at(indices + padded(block.k * 2) + part * 4);
  } else {
    for (std::size_t w = part * words_of_group; w < min((part + 1) * words_of_group, bitmap_words(block.count)); ++w) {
      number += static_cast<std::uint32_t>(__popc(word_at(indices + w * 4)));
    }
  }
  entries[part] = number;
}

__device__ std::size_t index_at(const EntryBlock& block, const std::byte* data, std::size_t part, std::size_t entry) {
  const std::byte* const indices = data + block.index_begin;
  return block.indices == IndexFormat::words
             ? reinterpret_cast<const std::uint32_t*>(indices)[entry]
             : part * index_page + reinterpret_cast<const std::uint16_t*>(indices)[entry];
}

// Checks each part in a thread block. Sets combined->bad to `number` if the block is invalid and no earlier block was.
__global__ void __launch_bounds__(threads)
    check_parts(EntryBlock block, const std::byte* data, std::size_t parts, const std::uint32_t* before,
                std::uint64_t number, Combined* combined) {
  const std::size_t part = blockIdx.x;
  const std::size_t said = word_at(data);
  bool is_good = said <= block.k && before[parts] == said;
  if (is_good && block.indices == IndexFormat::bitmap) {
    const std::size_t rest = block.count % 32;
    is_good = rest == 0 || word_at(data + block.index_begin + (bitmap_words(block.count) - 1) * 4) >> rest == 0;
  } else if (is_good && part < parts) {
    for (std::size_t e = before[part] + threadIdx.x; e < before[part + 1]; e += threads) {
      const std::size_t index = index_at(block, data, part, e);
      const bool has_one_before = block.indices == IndexFormat::words ? e != 0 : e != before[part];
      is_good = is_good && index < block.count && (!has_one_before || index_at(block, data, part, e - 1) < index);
    }
  }
  if (!is_good && combined->bad == 0) {
    combined->bad = number;
  }
}

template <class Value>
__device__ void add_entry(const EntryBlock& block, const std::byte* data, std::size_t entry, std::uint32_t* sum) {
  const float value = Value::to_float(reinterpret_cast<const typename Value::Stored*>(data + block.value_begin)[entry]);
  const std::uint32_t bits = __float_as_uint(canonical_nan(*sum == nothing ? value : __uint_as_float(*sum) + value));
  *sum = bits;
}

// Adds the entries of each part in a thread block.
template <class Value>
__global__ void __launch_bounds__(threads)
    add_parts(EntryBlock block, const std::byte* data, const std::uint32_t* before, std::uint32_t* sums,
              const Combined* combined) {
  __shared__ std::uint32_t shared[threads];
  if (combined->bad != 0) {
    return;
  }
  const std::size_t part = blockIdx.x;
  if (block.indices != IndexFormat::bitmap) {
    for (std::size_t e = before[part] + threadIdx.x; e < before[part + 1]; e += threads) {
      add_entry<Value>(block, data, e, sums + index_at(block, data, part, e));
    }
    return;
  }
  const std::size_t w = part * words_of_group + threadIdx.x;
  std::uint32_t bits =
      threadIdx.x < words_of_group && w < bitmap_words(block.count) ? word_at(data + block.index_begin + w * 4) : 0;
  std::size_t entry = before[part] + add_before(static_cast<std::uint32_t>(__popc(bits)), shared);
  for (; bits != 0; bits &= bits - 1) {
    add_entry<Value>(block, data, entry++, sums + w * 32 + __ffs(static_cast<int>(bits)) - 1);
  }
}

template <class Element>
__global__ void __launch_bounds__(threads)
    write_sums(typename Element::Stored* gradient, float scale, std::size_t count, const std::uint32_t* sums,
               Combined* combined) {
  if (combined->bad != 0) {
    return;
  }
  unsigned written = 0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * threads + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * threads) {
    if (sums[i] != nothing) {
      gradient[i] = Element::from_float(canonical_nan(__uint_as_float(sums[i]) * scale));
      ++written;
    }
  }
  if (written != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&combined->written), written);
  }
}

}  // namespace

std::size_t scratch_bytes(const Combine& call) {
  return (call.block.count + call.blocks.size() * (parts_of(call.block) + 1)) * 4;
}

void combine(const Combine& call, Combined* combined, void* scratch, Stream stream) {
  const std::size_t count = call.block.count;
  const std::size_t parts = parts_of(call.block);
  auto* const sums = static_cast<std::uint32_t*>(scratch);
  const auto entries = [&](std::size_t number) { return sums + count + number * (parts + 1); };
  const auto own_stream = static_cast<cudaStream_t>(stream);
  static_cast<void>(index_among_floats(call.dtype, sentence));
  check(cudaMemsetAsync(combined, 0, sizeof *combined, own_stream));
  check(cudaMemsetAsync(sums, 0xff, count * sizeof *sums, own_stream));
  for (std::size_t b = 0; b < call.blocks.size(); ++b) {
    launch(count_parts, (parts + threads - 1) / threads, threads, stream, call.block, call.blocks[b], parts,
           entries(b));
    launch(add_up_before, 1, threads, stream, entries(b), parts);
    launch(check_parts, std::max<std::size_t>(parts, 1), threads, stream, call.block, call.blocks[b], parts, entries(b),
           b + 1, combined);
  }
  with_element(call.block.values, sentence, [&]<class Value>() {
    for (std::size_t b = 0; b < call.blocks.size(); ++b) {
      launch(add_parts<Value>, parts, threads, stream, call.block, call.blocks[b], entries(b), sums, combined);
    }
  });
  with_element(call.dtype, sentence, [&]<class Element>() {
    launch(write_sums<Element>, strides(count), threads, stream, static_cast<typename Element::Stored*>(call.gradient),
           call.scale, count, sums, combined);
  });
}

}  // namespace gradientflow::compute::cuda
