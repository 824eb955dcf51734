#include <bit>
#include <cmath>
#include <string>

#include "top_k.cuh"

namespace gradientflow::compute::cuda {
namespace {

constexpr unsigned bin_count = 2048;

__device__ std::uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffU; }

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

// ---- the k-th largest -----------------------------------------------------------------------------------------------

// Search for the k-th largest of some magnitudes, in rounds of 11, 10 and 10 bits.
struct Search {
  std::uint32_t bins[bin_count];
  std::uint32_t prefix;       // known upper bits
  unsigned long long larger;  // number of elements above the known upper bits
};

// State of a selection that is under way, in scratch memory.
struct SelectionState {
  Search sample;
  Search layer;
  unsigned long long nonfinite;
  unsigned long long passing;  // number of elements that reach the given or estimated threshold
  std::uint32_t threshold;
  std::uint32_t least;        // threshold of entries: larger elements are sent
  unsigned long long equals;  // number of elements equal to `least` that are sent: the first ones
  std::uint32_t least_sent;

  [[nodiscard]] __device__ std::uint32_t at_most_equals(std::uint32_t number) const {
    return number < equals ? number : static_cast<std::uint32_t>(equals);
  }
};

// Counts the elements with the known upper bits by their next bits, and all elements that reach `threshold`, if it is
// given.
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

// Finds the bin of the k-th largest, and clears the bins for the next round. Needs one thread block.
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

__global__ void set_threshold(SelectionState* state, std::uint32_t floor, std::uint32_t given) {
  const std::uint32_t found = given != 0 ? given : state->sample.prefix;
  state->threshold = found < floor ? floor : found < infinity_bits ? found : infinity_bits;
}

__global__ void decide(SelectionState* state, std::size_t k, std::uint32_t floor, bool has_threshold) {
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

// ---- choice of entries ----------------------------------------------------------------------------------------------

// Number of elements that are sent for certain, and number of elements equal to the least magnitude, of which only the
// first are sent.
struct Counts {
  std::uint32_t certain;
  std::uint32_t equal;
};

// Tells if `step` of Floyd's algorithm drew an element already in the set. `first[i]` is the first step that drew i.
__device__ bool is_repeated(const std::uint32_t* first, std::size_t begin, std::uint64_t seed, std::size_t step) {
  while (true) {
    const std::size_t i = random_below(step + 1, seed, step);
    if (first[i] != step) {
      return true;
    }
    if (i < begin || i == step) {
      return false;
    }
    step = i;  // i is in the set, too, if step i drew a repeated element and so added i itself
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
  const SelectionState* state;
  const std::uint32_t* first;  // first steps for `random`, or nullptr

  __device__ Counts at(std::size_t i) const {
    if (first != nullptr) {
      const std::size_t begin = call.block.count - call.block.k;
      const bool is_drawn = first[i] != no_number || (i >= begin && is_repeated(first, begin, call.seed, i));
      return {is_drawn ? 1U : 0U, 0};
    }
    const std::uint32_t m = magnitude(call.next_residual[i]);
    return {m > state->least ? 1U : 0U, m == state->least ? 1U : 0U};
  }
  // Counts this thread's elements, from `begin` on.
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

__global__ void __launch_bounds__(threads)
    count_chosen(Select call, const SelectionState* state, const std::uint32_t* first, std::uint32_t* certain,
                 std::uint32_t* equal) {
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
__global__ void __launch_bounds__(threads) write_chosen(Select call, SelectionState* state, const std::uint32_t* first,
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
  std::uint32_t least = no_number;
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
  if (least != no_number) {
    atomicMin(&state->least_sent, least);
  }
}

__global__ void tell(Select call, const SelectionState* state, const std::uint32_t* certain, const std::uint32_t* equal,
                     Selected* selected) {
  const bool is_sent = state->nonfinite == 0 && certain != nullptr;
  const unsigned long long sent = is_sent ? *certain + state->at_most_equals(*equal) : 0;
  *reinterpret_cast<std::uint32_t*>(call.data) = static_cast<std::uint32_t>(sent);
  selected->sent = sent;
  selected->threshold = sent == 0 || call.how == Select::How::random ? 0.0F : __uint_as_float(state->least_sent);
  selected->nonfinite = state->nonfinite;
}

// Parts of the scratch memory of a selection.
struct Scratch {
  SelectionState* state;
  std::uint32_t* certain;  // count of each group, and a last one for all groups
  std::uint32_t* equal;
  std::byte* rest;  // sample, or the steps that drew each element
};

Scratch scratch_of(void* scratch, std::size_t count) {
  auto* const state = static_cast<SelectionState*>(scratch);
  auto* const certain = reinterpret_cast<std::uint32_t*>(state + 1);
  auto* const equal = certain + groups_of(count) + 1;
  return {state, certain, equal, reinterpret_cast<std::byte*>(equal + groups_of(count) + 1)};
}

bool takes_sample(const Select& call) {
  return call.how == Select::How::sampled && call.threshold == 0 && call.block.k != 0 &&
         !is_large_part(call.block.count, call.block.k) && sample_of(call.block.count, call.block.k) != 0;
}

}  // namespace

std::size_t scratch_bytes(const Select& call) {
  const std::size_t count = call.block.count;
  const std::size_t numbers = call.how == Select::How::random ? count
                              : takes_sample(call)            ? sample_of(count, call.block.k)
                                                              : 0;
  return sizeof(SelectionState) + (2 * (groups_of(count) + 1) + numbers) * 4;
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
  SelectionState* const state = parts.state;
  std::uint32_t* const certain = parts.certain;
  std::uint32_t* const equal = parts.equal;
  const std::uint32_t floor = smallest_sent(call.block.values);
  const bool is_random = call.how == Select::How::random;
  check(cudaMemsetAsync(state, 0, sizeof(SelectionState), own_stream));
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

}  // namespace gradientflow::compute::cuda
