#include "arguments.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "../base/error.hpp"
#include "../compute/cuda/runtime.hpp"
#include "../engine/calls/request.hpp"
#include "options.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

using collective::Call;
using transport::Algorithm;
using transport::CallKind;

// Values that the constants of gradientflow.h stand for; the constants are indices of these arrays.
constexpr std::array dtypes = {DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int8,
                               DType::uint8,   DType::int32,    DType::int64,   DType::boolean};  // first: GF_FLOAT16
constexpr std::array ops = {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min, ReduceOp::prod};
constexpr std::array algorithms = {
    Algorithm::automatic,          Algorithm::ring,   Algorithm::hierarchical, Algorithm::hierarchical_lanes,
    Algorithm::recursive_doubling, Algorithm::shared, Algorithm::mpi,          Algorithm::nccl};
static_assert(dtypes[GF_BOOL - GF_FLOAT16] == DType::boolean && dtypes.size() == dtype_count);
static_assert(ops[GF_PROD] == ReduceOp::prod && ops.size() == reduce_op_count);
static_assert(algorithms[GF_ALGORITHM_NCCL] == Algorithm::nccl && algorithms.size() == transport::algorithm_count);

// Returns the number in an enum of a program. In C an enum may hold any number, and C++ must not read such an enum.
template <class Enum>
int number_of(const Enum& field) {
  int number = 0;
  static_assert(sizeof number == sizeof field);
  std::memcpy(&number, &field, sizeof number);
  return number;
}

// Returns the value that a constant of gradientflow.h stands for; `first` is the least constant of its kind. Throws
// Error(kind) for other numbers.
template <class T, std::size_t size>
T meaning_of(int constant, int first, const std::array<T, size>& meanings, const char* what,
             ErrorKind kind = ErrorKind::value) {
  if (constant < first || constant >= first + static_cast<int>(size)) {
    throw Error(kind, std::to_string(constant) + " is not a " + what);
  }
  return meanings.at(static_cast<std::size_t>(constant - first));
}

Algorithm algorithm_of(const gf_algorithm& field) {
  return meaning_of(number_of(field), GF_ALGORITHM_AUTO, algorithms, "gf_algorithm");
}

// Returns the device, or nothing for the host.
std::optional<int> device_of(int device) {
  if (device == GF_HOST) {
    return std::nullopt;
  }
  const int devices = compute::cuda::device_count();
  if (devices == 0) {
    throw Error(ErrorKind::system, compute::cuda::unavailable_reason());
  }
  if (device < 0 || device >= devices) {
    throw Error(ErrorKind::value, std::to_string(device) + " is not the number of a CUDA device: they are 0 to " +
                                      std::to_string(devices - 1) + ", or GF_HOST");
  }
  return device;
}

// Returns true for MPI_IN_PLACE: 1 in Open MPI and in MPI's standard interface, -1 in MPICH. These are no addresses of
// memory.
bool is_mpi_in_place(const void* data) {
  const auto address = reinterpret_cast<std::intptr_t>(data);
  return address == 1 || address == -1;
}

compute::Select::How selection_of(const gf_selection& field) {
  using How = compute::Select::How;
  constexpr std::array selections = {How::sampled, How::exact, How::random};
  return meaning_of(number_of(field), GF_SELECTION_SAMPLED, selections, "gf_selection");
}

// Converts the options that dense and sparse pools share.
template <class Given>
engine::GradientPool::Options pool_options(const Given& options) {
  engine::GradientPool::Options made{
      .fusion_threshold = {}, .wire = given_wire(options.wire), .algorithm = algorithm_of(options.algorithm)};
  if (options.fusion_threshold != GF_AUTO_THRESHOLD) {
    made.fusion_threshold = options.fusion_threshold;
  }
  return made;
}

}  // namespace

DType dtype_of(int dtype) { return meaning_of(dtype, GF_FLOAT16, dtypes, "gf_dtype of tensors", ErrorKind::type); }

std::optional<Wire> given_wire(const gf_dtype& field) {
  switch (const int wire = number_of(field)) {
    case GF_NO_DTYPE:
      return {};
    case GF_FLOAT8_E4M3:
      return Wire::float8_e4m3;
    default:
      return wire_of(dtype_of(wire));
  }
}

std::vector<std::size_t> tensor_counts(const std::size_t* counts, std::size_t tensors, std::size_t element) {
  engine::check_fits(tensors, sizeof *counts);
  std::vector<std::size_t> of_each;
  std::size_t sum = 0;
  for (std::size_t i = 0; i < tensors; ++i) {
    of_each.push_back((&given(counts, "counts"))[i]);
    engine::check_fits(of_each.back(), element);
    sum += of_each.back();
    engine::check_fits(sum, element);
  }
  return of_each;
}

engine::GradientPool::Options make_pool_options(const gf_pool_options* given) {
  const auto options =
      options_of(gf_pool_options GF_POOL_OPTIONS_INIT, given, "gf_pool_options", "GF_POOL_OPTIONS_INIT");
  engine::GradientPool::Options made = pool_options(options);
  made.device = device_of(options.device);
  return made;
}

engine::SparsePool::Options make_sparse_pool_options(const gf_sparse_pool_options* given) {
  const auto options = options_of(gf_sparse_pool_options GF_SPARSE_POOL_OPTIONS_INIT, given, "gf_sparse_pool_options",
                                  "GF_SPARSE_POOL_OPTIONS_INIT");
  engine::check_fits(options.extra, sizeof(double));
  return {.pool = pool_options(options),
          .chunk_size = options.chunk_size,
          .momentum = options.momentum,
          .extra = options.extra,
          .skip_nonfinite = options.skip_nonfinite != 0,
          .first_iteration = 0};
}

engine::TopKPool::Options make_top_k_pool_options(const gf_top_k_pool_options* given) {
  const auto options = options_of(gf_top_k_pool_options GF_TOP_K_POOL_OPTIONS_INIT, given, "gf_top_k_pool_options",
                                  "GF_TOP_K_POOL_OPTIONS_INIT");
  engine::check_fits(options.extra, sizeof(double));
  engine::TopKPool::Options made{.ratios = {options.ratio},
                                 .selection = selection_of(options.selection),
                                 .threshold_reuse = options.threshold_reuse,
                                 .masking = options.masking != 0,
                                 .wire = given_wire(options.wire),
                                 .algorithm = algorithm_of(options.algorithm),
                                 .overlap = options.overlap != 0,
                                 .seed = options.seed,
                                 .extra = options.extra,
                                 .skip_nonfinite = options.skip_nonfinite != 0};
  if (options.layers != nullptr) {
    made.layers.assign(options.layers, options.layers + options.layer_count);
  }
  if (!(options.momentum < 0.0F)) {
    made.momentum = options.momentum;
  }
  if (options.clip != 0.0) {
    made.clip = options.clip;
  }
  if (options.merge_bytes != GF_AUTO_THRESHOLD) {
    made.merge_bytes = options.merge_bytes;
  }
  return made;
}

Call make_call(const engine::Communicator& communicator, const Arguments& given) {
  const auto options =
      options_of(gf_call_options GF_CALL_OPTIONS_INIT, given.options, "gf_call_options", "GF_CALL_OPTIONS_INIT");
  const DType dtype = dtype_of(given.dtype);
  const int ranks = communicator.size();
  engine::check_fits(given.count, size_of(dtype) * static_cast<std::size_t>(ranks));
  engine::Request request{.kind = given.kind,
                          .op = meaning_of(given.op, GF_SUM, ops, "gf_op"),
                          .root = given.root,
                          .algorithm = algorithm_of(options.algorithm),
                          .wire = given_wire(options.wire)};
  if (options.label != nullptr || options.shape != nullptr) {
    engine::Label label{.name = options.label == nullptr ? "" : options.label, .shape = {}};
    if (options.shape != nullptr) {
      label.shape = {options.shape, options.dimensions};
    }
    request.label = label;
  }
  Call sizes{.signature = {.count = given.count, .root = given.root, .kind = given.kind}};
  if (given.kind == CallKind::allgatherv) {
    const std::size_t* const first = &c::given(given.counts, "counts");
    request.counts.assign(first, first + ranks);
    sizes.counts = request.counts;
    sizes.signature.count = collective::displacement(sizes, request.counts.size());
  }
  std::optional<collective::Placement> placement;
  if (const auto device = device_of(options.device)) {
    placement = {*device, options.stream};
  }
  const bool is_broadcast = given.kind == CallKind::broadcast;
  const auto array = [&](const char* name, const void* data, std::size_t count) {
    if (count > 0 && data == nullptr) {
      throw Error(ErrorKind::value, std::string(is_broadcast ? "data" : name) + " is NULL, but has " +
                                        std::to_string(count) + " elements in " + std::string(name_of(given.kind)));
    }
    if (count > 0 && is_mpi_in_place(data)) {
      throw Error(ErrorKind::value,
                  std::string(name) + " is MPI_IN_PLACE; in place means the same array as input and as output");
    }
    auto* const bytes = const_cast<std::byte*>(static_cast<const std::byte*>(data));  // NOLINT(*-const-cast): not ours
    return engine::Array{count > 0 ? bytes : nullptr, count, dtype, placement};
  };
  request.input = array("input", given.input, collective::input_count(sizes, ranks, communicator.rank()));
  request.output = array("output", given.output, collective::output_count(sizes.signature, ranks, communicator.rank()));
  return engine::make_call(communicator, request);
}

}  // namespace gradientflow::c
