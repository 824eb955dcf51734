#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "../top_k_rules.hpp"
#include "launch.cuh"
#include "top_k.hpp"
#include "work.cuh"

namespace gradientflow::compute::cuda {
namespace {

constexpr auto sentence = "the gradients and entries of sparse communication are float16, bfloat16 or float32";
constexpr unsigned bin_count = 2048;
constexpr unsigned own = 8;                   // neighbouring elements that a thread has
constexpr std::size_t group = threads * own;  // elements of a thread block
constexpr std::size_t words_of_group = group / 32;
constexpr unsigned most_blocks = 1024;  // of a kernel whose threads go over a layer in strides
constexpr std::uint32_t nobody = 0xffffffffU;

std::size_t groups_of(std::size_t count) { return (count + group - 1) / group; }
std::size_t strides(std::size_t count) { return std::min<std::size_t>((count + threads - 1) / threads, most_blocks); }

__device__ std::uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffU; }

// ---- x
// ---------------------------------------------------------------------------------------------------------------

struct Corrected {
  float velocity;
  float x;
};

__device__ Corrected corrected(const Select& call, float gradient, float velocity, float residual) {
  float fresh = gradient * call.scale;
  if (call.next_velocity != nullptr) {
    fresh = velocity * call.momentum + fresh;
  }
  return {fresh, fresh + residual};
}

template <class Element>
__global__ void __launch_bounds__(threads) take_sample(Select call, std::size_t size, float* sample) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < size) {
    const std::size_t place = sample_place(i, size, call.block.count, call.seed);
    const auto* const gradient = static_cast<const typename Element::Stored*>(call.gradient);
    sample[i] =
        corrected(call, Element::to_float(gradient[place]), call.velocity == nullptr ? 0.0F : call.velocity[place],
                  call.residual == nullptr ? 0.0F : call.residual[place])
            .x;
  }
}

template <int n>
__device__ Pack<float, n> load_or_zeros(const float* values, std::size_t i) {
  return values == nullptr ? Pack<float, n>{} : load<n>(values + i);
}

template <class Element>
struct CorrectBody {
  using Stored = typename Element::Stored;
  static constexpr int width = 4;
  template <int n>
  struct Elements {
    Pack<Stored, n> gradient;
    Pack<float, n> velocity;
    Pack<float, n> residual;
  };

  const Select& call;
  unsigned long long* nonfinite;

  [[nodiscard]] __device__ Stored* gradient() const { return static_cast<Stored*>(call.gradient); }
  __device__ bool is_aligned() const {
    return cuda::is_aligned<width>(gradient()) && cuda::is_aligned<width>(call.residual) &&
           cuda::is_aligned<width>(call.next_residual) && cuda::is_aligned<width>(call.velocity) &&
           cuda::is_aligned<width>(call.next_velocity);
  }
  template <int n>
  __device__ Elements<n> load(std::size_t i) const {
    return {cuda::load<n>(gradient() + i), load_or_zeros<n>(call.velocity, i), load_or_zeros<n>(call.residual, i)};
  }
  template <int n>
  __device__ void finish(const Elements<n>& elements, std::size_t i) const {
    Pack<float, n> x;
    Pack<float, n> velocity;
    unsigned bad = 0;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const Corrected found =
          corrected(call, Element::to_float(elements.gradient[k]), elements.velocity[k], elements.residual[k]);
      x[k] = found.x;
      velocity[k] = found.velocity;
      bad += magnitude(found.x) >= infinity_bits ? 1U : 0U;
    }
    store<n>(call.next_residual + i, x);
    if (call.next_velocity != nullptr) {
      store<n>(call.next_velocity + i, velocity);
    }
    if (call.clear) {
      store<n>(gradient() + i, Pack<Stored, n>{});
    }
    if (bad != 0) {
      atomicAdd(nonfinite, bad);
    }
  }
};

template <class Element>
__global__ void __launch_bounds__(threads) correct(Select call, unsigned long long* nonfinite) {
  for_each_element<2>(CorrectBody<Element>{call, nonfinite}, block_of<group>(call.block.count));
}

// ---- the k-th largest
// ------------------------------------------------------------------------------------------------

// A search for the k-th largest of some magnitudes, in rounds of 11, 10 and 10 bits.
struct Search {
  std::uint32_t bins[bin_count];
  std::uint32_t prefix;       // the upper bits that are known
  unsigned long long larger;  // elements above them
};

// What stays in scratch memory while a selection is under way.
struct State {
  Search sample;
  Search layer;
  unsigned long long nonfinite;
  unsigned long long passing;  // elements that reach the threshold that was given or estimated
  std::uint32_t threshold;
  std::uint32_t least;        // entries are larger than this, or
  unsigned long long equals;  // among the first so many that equal it
  std::uint32_t least_sent;

  [[nodiscard]] __device__ std::uint32_t at_most_equals(std::uint32_t number) const {
    return number < equals ? number : static_cast<std::uint32_t>(equals);
  }
};

// Counts the elements with the known upper bits by their next bits; and those that reach `threshold`, if it is given.
__global__ void __launch_bounds__(threads)
    fill_bins(const float* x, std::size_t count, Search* search, unsigned high, unsigned low,
              const std::uint32_t* threshold, unsigned long long* passing) {
  __shared__ std::uint32_t bins[bin_count];
  for (unsigned bin = threadIdx.x; bin < bin_count; bin += threads) {
    bins[bin] = 0;
  }
  __syncthreads();
  const std::uint32_t mask = (1U << (high - low)) - 1;
  unsigned passed = 0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * threads + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * threads) {
    const std::uint32_t m = magnitude(x[i]);
    if (m >> high == search->prefix) {
      atomicAdd(&bins[(m >> low) & mask], 1U);
    }
    passed += threshold != nullptr && m >= *threshold ? 1U : 0U;
  }
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < bin_count; bin += threads) {
    if (bins[bin] != 0) {
      atomicAdd(&search->bins[bin], bins[bin]);
    }
  }
  if (passed != 0) {
    atomicAdd(passing, passed);
  }
}

// One thread block: finds the bin of the k-th largest, and clears the bins for the next round.
__global__ void __launch_bounds__(threads) choose_bin(Search* search, unsigned bits, std::size_t k) {
  __shared__ std::uint32_t sums[threads];
  constexpr unsigned each = bin_count / threads;
  std::uint32_t sum = 0;
  for (unsigned i = 0; i < each; ++i) {
    sum += search->bins[threadIdx.x * each + i];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned part = ((1U << bits) - 1) / each;
    unsigned long long larger = search->larger;
    while (part != 0 && larger + sums[part] < k) {
      larger += sums[part--];
    }
    unsigned bin = part * each + each - 1;
    while (bin != 0 && larger + search->bins[bin] < k) {
      larger += search->bins[bin--];
    }
    search->larger = larger;
    search->prefix = search->prefix << bits | bin;
  }
  __syncthreads();
  for (unsigned i = 0; i < each; ++i) {
    search->bins[threadIdx.x * each + i] = 0;
  }
}

void find_kth(const float* x, std::size_t count, std::size_t k, Search* search, const std::uint32_t* threshold,
              unsigned long long* passing, Stream stream) {
  unsigned low = 31;
  for (const unsigned bits : {11U, 10U, 10U}) {
    const unsigned high = low;
    low -= bits;
    const bool is_first = high == 31;
    launch(fill_bins, strides(count), threads, stream, x, count, search, high, low, is_first ? threshold : nullptr,
           passing);
    launch(choose_bin, 1, threads, stream, search, bits, k);
  }
}

__global__ void set_threshold(State* state, std::uint32_t floor, std::uint32_t given) {
  const std::uint32_t found = given != 0 ? given : state->sample.prefix;
  state->threshold = found < floor ? floor : found < infinity_bits ? found : infinity_bits;
}

__global__ void decide(State* state, std::size_t k, std::uint32_t floor, bool has_threshold) {
  const unsigned long long passing = state->passing;
  if (has_threshold && passing < k && passing * 5 >= k * 4) {
    state->least = state->threshold;
    state->equals = passing;
  } else if (state->layer.prefix < floor) {
    state->least = floor;
    state->equals = k;
  } else {
    state->least = state->layer.prefix;
    state->equals = k - state->layer.larger;
  }
}

// ---- which entries
// ---------------------------------------------------------------------------------------------------

// Numbers of elements: those sent for certain, and those equal to the least magnitude sent, of which the first are.
struct Counts {
  std::uint32_t certain;
  std::uint32_t equal;
};

// Whether `step` of Floyd's algorithm drew an element already in the set. `first[i]` is the first step that drew i.
__device__ bool is_repeated(const std::uint32_t* first, std::size_t begin, std::uint64_t seed, std::size_t step) {
  while (true) {
    const std::size_t i = random_below(step + 1, seed, step);
    if (first[i] != step) {
      return true;
    }
    if (i < begin || i == step) {
      return false;
    }
    step = i;  // in the set, too, if step i had to add i itself in place of what it drew
  }
}

__global__ void __launch_bounds__(threads)
    draw(std::uint32_t* first, std::size_t begin, std::size_t count, std::uint64_t seed) {
  const std::size_t step = begin + static_cast<std::size_t>(blockIdx.x) * threads + threadIdx.x;
  if (step < count) {
    atomicMin(&first[random_below(step + 1, seed, step)], static_cast<std::uint32_t>(step));
  }
}

struct Chosen {
  const Select& call;
  const State* state;
  const std::uint32_t* first;  // of `random`

  __device__ Counts at(std::size_t i) const {
    if (first != nullptr) {
      const std::size_t begin = call.block.count - call.block.k;
      const bool is_drawn = first[i] != nobody || (i >= begin && is_repeated(first, begin, call.seed, i));
      return {is_drawn ? 1U : 0U, 0};
    }
    const std::uint32_t m = magnitude(call.next_residual[i]);
    return {m > state->least ? 1U : 0U, m == state->least ? 1U : 0U};
  }
  // The same of this thread's elements, from `begin` on.
  __device__ Counts count(std::size_t begin) const {
    Counts counts{0, 0};
    for (unsigned i = 0; i < own && begin + i < call.block.count; ++i) {
      const Counts one = at(begin + i);
      counts.certain += one.certain;
      counts.equal += one.equal;
    }
    return counts;
  }
};

// The sum of the values of all threads before this one. `shared` has a place for each thread, and all call it.
__device__ std::uint32_t add_before(std::uint32_t value, std::uint32_t* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned distance = 1; distance < threads; distance *= 2) {
    const std::uint32_t other = threadIdx.x >= distance ? shared[threadIdx.x - distance] : 0;
    __syncthreads();
    const std::uint32_t sum = shared[threadIdx.x] + other;
    shared[threadIdx.x] = sum < other ? nobody : sum;  // saturates: only invalid blocks have so many
    __syncthreads();
  }
  const std::uint32_t before = threadIdx.x == 0 ? 0 : shared[threadIdx.x - 1];
  __syncthreads();
  return before;
}

// One thread block: each number becomes the sum of those before it; numbers[number] the sum of all.
__global__ void __launch_bounds__(threads) add_up_before(std::uint32_t* numbers, std::size_t number) {
  __shared__ std::uint32_t shared[threads];
  const std::size_t each = (number + threads - 1) / threads;
  const std::size_t begin = threadIdx.x * each;
  const std::size_t end = min(begin + each, number);
  std::uint32_t sum = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const std::uint32_t more = sum + numbers[i];
    sum = more < sum ? nobody : more;
  }
  std::uint32_t before = add_before(sum, shared);
  for (std::size_t i = begin; i < end; ++i) {
    const std::uint32_t here = numbers[i];
    numbers[i] = before;
    before = before + here < before ? nobody : before + here;
  }
  if (threadIdx.x == threads - 1) {
    numbers[number] = before;
  }
}

__global__ void __launch_bounds__(threads) count_chosen(Select call, const State* state, const std::uint32_t* first,
                                                        std::uint32_t* certain, std::uint32_t* equal) {
  __shared__ std::uint32_t shared[threads];
  const Chosen chosen{call, state, first};
  const Counts counts = chosen.count(blockIdx.x * group + threadIdx.x * own);
  const std::uint32_t certain_before = add_before(counts.certain, shared);
  const std::uint32_t equal_before = add_before(counts.equal, shared);
  if (threadIdx.x == threads - 1) {
    certain[blockIdx.x] = certain_before + counts.certain;
    equal[blockIdx.x] = equal_before + counts.equal;
  }
}

template <class Value>
__device__ void write_entry(const Select& call, std::uint32_t entry, std::size_t i) {
  const EntryBlock& block = call.block;
  std::byte* const indices = call.data + block.index_begin;
  switch (block.indices) {
    case IndexFormat::words:
      reinterpret_cast<std::uint32_t*>(indices)[entry] = static_cast<std::uint32_t>(i);
      break;
    case IndexFormat::offsets:
      reinterpret_cast<std::uint16_t*>(indices)[entry] = static_cast<std::uint16_t>(i % index_page);
      atomicAdd(reinterpret_cast<std::uint32_t*>(indices + padded(block.k * 2)) + i / index_page, 1U);
      break;
    case IndexFormat::bitmap:
      atomicAdd(reinterpret_cast<std::uint32_t*>(indices) + i / 32, 1U << i % 32);  // the bit is not set yet
      break;
  }
  const float x = call.next_residual[i];
  const float limit = largest_sent(block.values, call.limit);
  const typename Value::Stored sent = Value::from_float(x > limit ? limit : x < -limit ? -limit : x);
  reinterpret_cast<typename Value::Stored*>(call.data + block.value_begin)[entry] = sent;
  call.next_residual[i] = x - Value::to_float(sent);
  if (call.masking && call.next_velocity != nullptr) {
    call.next_velocity[i] = 0.0F;
  }
}

template <class Value>
__global__ void __launch_bounds__(threads) write_chosen(Select call, State* state, const std::uint32_t* first,
                                                        const std::uint32_t* certain, const std::uint32_t* equal) {
  __shared__ std::uint32_t shared[threads];
  if (state->nonfinite != 0) {
    return;
  }
  const Chosen chosen{call, state, first};
  const std::size_t begin = blockIdx.x * group + threadIdx.x * own;
  const Counts counts = chosen.count(begin);
  std::uint32_t certain_before = certain[blockIdx.x] + add_before(counts.certain, shared);
  std::uint32_t equal_before = equal[blockIdx.x] + add_before(counts.equal, shared);
  std::uint32_t least = nobody;
  for (unsigned i = 0; i < own && begin + i < call.block.count; ++i) {
    const Counts one = chosen.at(begin + i);
    if (one.certain != 0 || (one.equal != 0 && equal_before < state->equals)) {
      const std::uint32_t m = magnitude(call.next_residual[begin + i]);
      least = m < least ? m : least;
      write_entry<Value>(call, certain_before + state->at_most_equals(equal_before), begin + i);
    }
    certain_before += one.certain;
    equal_before += one.equal;
  }
  if (least != nobody) {
    atomicMin(&state->least_sent, least);
  }
}

__global__ void tell(Select call, const State* state, const std::uint32_t* certain, const std::uint32_t* equal,
                     Selected* selected) {
  const bool is_sent = state->nonfinite == 0 && certain != nullptr;
  const unsigned long long sent = is_sent ? *certain + state->at_most_equals(*equal) : 0;
  *reinterpret_cast<std::uint32_t*>(call.data) = static_cast<std::uint32_t>(sent);
  selected->sent = sent;
  selected->threshold = sent == 0 || call.how == Select::How::random ? 0.0F : __uint_as_float(state->least_sent);
  selected->nonfinite = state->nonfinite;
}

// The parts of the scratch memory of a selection.
struct Scratch {
  State* state;
  std::uint32_t* certain;  // by group, and a last one of all groups
  std::uint32_t* equal;
  std::byte* rest;  // the sample, or the steps that drew each element
};

Scratch scratch_of(void* scratch, std::size_t count) {
  auto* const state = static_cast<State*>(scratch);
  auto* const certain = reinterpret_cast<std::uint32_t*>(state + 1);
  auto* const equal = certain + groups_of(count) + 1;
  return {state, certain, equal, reinterpret_cast<std::byte*>(equal + groups_of(count) + 1)};
}

bool takes_sample(const Select& call) {
  return call.how == Select::How::sampled && call.threshold == 0 && call.block.k != 0 &&
         !is_large_part(call.block.count, call.block.k) && sample_of(call.block.count, call.block.k) != 0;
}

// ---- the sum of blocks
// -----------------------------------------------------------------------------------------------

constexpr std::uint32_t nothing = 0xffffffffU;  // no entries: a NaN that no sum is

// The parts in which a block is worked on: 2,048 entries, a page, or 2,048 bits.
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

// A thread block for each part. Sets combined->bad to `number` if the block is invalid and none before it was.
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

// A thread block for each part.
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

std::size_t scratch_bytes(const Select& call) {
  const std::size_t count = call.block.count;
  const std::size_t numbers = call.how == Select::How::random ? count
                              : takes_sample(call)            ? sample_of(count, call.block.k)
                                                              : 0;
  return sizeof(State) + (2 * (groups_of(count) + 1) + numbers) * 4;
}

void select(const Select& call, Selected* selected, void* scratch, Stream stream) {
  const std::size_t count = call.block.count;
  const std::size_t k = call.block.k;
  static_cast<void>(index_among_floats(call.dtype, sentence));
  if (!std::isfinite(call.threshold) || call.threshold < 0) {
    throw Error(ErrorKind::value,
                "the threshold of a selection must be finite and not negative, not " + std::to_string(call.threshold));
  }
  const auto own_stream = static_cast<cudaStream_t>(stream);
  const Scratch parts = scratch_of(scratch, count);
  State* const state = parts.state;
  std::uint32_t* const certain = parts.certain;
  std::uint32_t* const equal = parts.equal;
  const std::uint32_t floor = smallest_sent(call.block.values);
  const bool is_random = call.how == Select::How::random;
  check(cudaMemsetAsync(state, 0, sizeof(State), own_stream));
  check(cudaMemsetAsync(&state->least_sent, 0xff, sizeof state->least_sent, own_stream));
  check(cudaMemsetAsync(call.data, 0, call.block.bytes, own_stream));
  if (takes_sample(call)) {
    const std::size_t size = sample_of(count, k);
    auto* const sample = reinterpret_cast<float*>(parts.rest);
    with_element(call.dtype, sentence, [&]<class Element>() {
      launch(take_sample<Element>, (size + threads - 1) / threads, threads, stream, call, size, sample);
    });
    find_kth(sample, size, sample_rank(3), &state->sample, nullptr, nullptr, stream);
  }
  with_element(call.dtype, sentence, [&]<class Element>() {
    launch(correct<Element>, groups_of(count), threads, stream, call, &state->nonfinite);
  });
  if (k == 0) {
    launch(tell, 1, 1, stream, call, state, nullptr, nullptr, selected);
    return;
  }
  const std::uint32_t* first = nullptr;
  if (is_random) {
    auto* const steps = reinterpret_cast<std::uint32_t*>(parts.rest);
    check(cudaMemsetAsync(steps, 0xff, count * sizeof *steps, own_stream));
    launch(draw, (k + threads - 1) / threads, threads, stream, steps, count - k, count, call.seed);
    first = steps;
  } else {
    const bool has_threshold =
        takes_sample(call) || (call.how == Select::How::sampled && call.threshold != 0 && !is_large_part(count, k));
    launch(set_threshold, 1, 1, stream, state, floor,
           takes_sample(call) ? 0 : std::bit_cast<std::uint32_t>(call.threshold));
    find_kth(call.next_residual, count, k, &state->layer, has_threshold ? &state->threshold : nullptr, &state->passing,
             stream);
    launch(decide, 1, 1, stream, state, k, floor, has_threshold);
  }
  launch(count_chosen, groups_of(count), threads, stream, call, state, first, certain, equal);
  launch(add_up_before, 1, threads, stream, certain, groups_of(count));
  launch(add_up_before, 1, threads, stream, equal, groups_of(count));
  with_element(call.block.values, sentence, [&]<class Value>() {
    launch(write_chosen<Value>, groups_of(count), threads, stream, call, state, first, certain, equal);
  });
  launch(tell, 1, 1, stream, call, state, certain + groups_of(count), equal + groups_of(count), selected);
}

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
