#include "arguments.hpp"

#include <mpi.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../base/error.hpp"
#include "../compute/cuda/runtime.hpp"
#include "options.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

using collective::Call;
using transport::Algorithm;
using transport::CallKind;
using transport::Signature;

// By the numbers that gradientflow.h gives them.
constexpr std::array dtypes = {DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int8,
                               DType::uint8,   DType::int32,    DType::int64,   DType::boolean};  // from GF_FLOAT16 on
constexpr std::array ops = {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min, ReduceOp::prod};
constexpr std::array algorithms = {
    Algorithm::automatic,          Algorithm::ring,   Algorithm::hierarchical, Algorithm::hierarchical_lanes,
    Algorithm::recursive_doubling, Algorithm::shared, Algorithm::mpi,          Algorithm::nccl};
static_assert(dtypes[GF_BOOL - GF_FLOAT16] == DType::boolean && dtypes.size() == dtype_count);
static_assert(ops[GF_PROD] == ReduceOp::prod && ops.size() == reduce_op_count);
static_assert(algorithms[GF_ALGORITHM_NCCL] == Algorithm::nccl && algorithms.size() == transport::algorithm_count);

ReduceOp op_of(int op) {
  if (op < GF_SUM || op > GF_PROD) {
    throw Error(ErrorKind::value, std::to_string(op) + " is not a gf_op");
  }
  return ops.at(static_cast<std::size_t>(op));
}

Algorithm algorithm_of(int algorithm) {
  if (algorithm < GF_ALGORITHM_AUTO || algorithm > GF_ALGORITHM_NCCL) {
    throw Error(ErrorKind::value, std::to_string(algorithm) + " is not a gf_algorithm");
  }
  return algorithms.at(static_cast<std::size_t>(algorithm));
}

// gf_call_options, with the enums as numbers.
struct Options {
  std::size_t size = sizeof(gf_call_options);
  int algorithm = GF_ALGORITHM_AUTO;
  int wire = GF_NO_DTYPE;
  int device = GF_HOST;
  void* stream = nullptr;
};
static_assert(sizeof(Options) == sizeof(gf_call_options) &&
              offsetof(Options, algorithm) == offsetof(gf_call_options, algorithm) &&
              offsetof(Options, wire) == offsetof(gf_call_options, wire) &&
              offsetof(Options, device) == offsetof(gf_call_options, device) &&
              offsetof(Options, stream) == offsetof(gf_call_options, stream));

// gf_pool_options, the same way.
struct PoolOptions {
  std::size_t size = sizeof(gf_pool_options);
  std::size_t fusion_threshold = GF_AUTO_THRESHOLD;
  int wire = GF_NO_DTYPE;
  int algorithm = GF_ALGORITHM_AUTO;
  int device = GF_HOST;
};
static_assert(sizeof(PoolOptions) == sizeof(gf_pool_options) &&
              offsetof(PoolOptions, fusion_threshold) == offsetof(gf_pool_options, fusion_threshold) &&
              offsetof(PoolOptions, wire) == offsetof(gf_pool_options, wire) &&
              offsetof(PoolOptions, algorithm) == offsetof(gf_pool_options, algorithm) &&
              offsetof(PoolOptions, device) == offsetof(gf_pool_options, device));

// gf_sparse_pool_options, the same way.
struct SparsePoolOptions {
  std::size_t size = sizeof(gf_sparse_pool_options);
  std::size_t chunk_size = 32768;
  std::size_t extra = 0;
  float momentum = 0.9F;
  int skip_nonfinite = 0;
  std::size_t fusion_threshold = GF_AUTO_THRESHOLD;
  int wire = GF_NO_DTYPE;
  int algorithm = GF_ALGORITHM_AUTO;
};
static_assert(sizeof(SparsePoolOptions) == sizeof(gf_sparse_pool_options) &&
              offsetof(SparsePoolOptions, chunk_size) == offsetof(gf_sparse_pool_options, chunk_size) &&
              offsetof(SparsePoolOptions, extra) == offsetof(gf_sparse_pool_options, extra) &&
              offsetof(SparsePoolOptions, momentum) == offsetof(gf_sparse_pool_options, momentum) &&
              offsetof(SparsePoolOptions, skip_nonfinite) == offsetof(gf_sparse_pool_options, skip_nonfinite) &&
              offsetof(SparsePoolOptions, fusion_threshold) == offsetof(gf_sparse_pool_options, fusion_threshold) &&
              offsetof(SparsePoolOptions, wire) == offsetof(gf_sparse_pool_options, wire) &&
              offsetof(SparsePoolOptions, algorithm) == offsetof(gf_sparse_pool_options, algorithm));

// None for the host.
std::optional<int> device_of(int device) {
  if (device == GF_HOST) {
    return std::nullopt;
  }
  const int devices = compute::cuda::device_count();
  if (devices == 0) {
    throw Error(ErrorKind::system, compute::cuda::runtime_trouble());
  }
  if (device < 0 || device >= devices) {
    throw Error(ErrorKind::value, std::to_string(device) + " is not the number of a CUDA device: they are 0 to " +
                                      std::to_string(devices - 1) + ", or GF_HOST");
  }
  return device;
}

// What both kinds of pools have.
template <class Given>
engine::GradientPool::Options pool_options(const Given& options, DType dtype) {
  engine::GradientPool::Options made{.fusion_threshold = {}, .wire = {}, .algorithm = algorithm_of(options.algorithm)};
  if (options.fusion_threshold != GF_AUTO_THRESHOLD) {
    made.fusion_threshold = options.fusion_threshold;
  }
  if (options.wire != GF_NO_DTYPE) {
    made.wire = collective::rounding_wire(dtype_of(options.wire), dtype);
  }
  return made;
}

std::vector<std::size_t> counts_of(const Request& request, int ranks) {
  const std::size_t* const first = &given(request.counts, "counts");
  std::vector<std::size_t> counts(first, first + ranks);
  std::size_t sum = 0;
  for (const std::size_t count : counts) {
    check_fits(count, 1);
    sum += count;
    check_fits(sum, 1);
  }
  return counts;
}

// An array of this rank, as the caller gave it.
struct Array {
  const char* name;
  const void* data;
  std::size_t count;
  std::size_t bytes;
};

void check_array(const Array& array, const Signature& signature) {
  if (array.count == 0) {
    return;
  }
  if (array.data == nullptr) {
    throw Error(ErrorKind::value, std::string(array.name) + " is NULL, but has " + std::to_string(array.count) +
                                      " elements in " + describe(signature));
  }
  if (array.data == MPI_IN_PLACE) {
    throw Error(ErrorKind::value,
                std::string(array.name) + " is MPI_IN_PLACE; in place means the same array as input and as output");
  }
}

bool overlap(const Array& a, const Array& b) {
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data);
  return a.bytes > 0 && b.bytes > 0 && begin_a < begin_b + b.bytes && begin_b < begin_a + a.bytes;
}

void check_apart(const Array& input, const Array& output, CallKind kind) {
  const bool may_be_same = kind == CallKind::allreduce || kind == CallKind::reduce || kind == CallKind::broadcast;
  if (!overlap(input, output) || (may_be_same && input.data == output.data)) {
    return;
  }
  throw Error(ErrorKind::value,
              "input and output overlap in " + std::string(name_of(kind)) +
                  (may_be_same ? ", without being the same array" : ", which does not work in place"));
}

}  // namespace

DType dtype_of(int dtype) {
  if (dtype < GF_FLOAT16 || dtype > GF_BOOL) {
    throw Error(ErrorKind::type, std::to_string(dtype) + " is not a gf_dtype of tensors");
  }
  return dtypes.at(static_cast<std::size_t>(dtype - GF_FLOAT16));
}

void check_fits(std::size_t count, std::size_t element) {
  if (count > PTRDIFF_MAX / element) {
    throw Error(ErrorKind::value, std::to_string(count) + " are more elements than memory can hold");
  }
}

std::vector<std::size_t> tensor_counts(const std::size_t* counts, std::size_t tensors, std::size_t element) {
  check_fits(tensors, sizeof *counts);
  std::vector<std::size_t> of_each;
  std::size_t sum = 0;
  for (std::size_t i = 0; i < tensors; ++i) {
    of_each.push_back((&given(counts, "counts"))[i]);
    check_fits(of_each.back(), element);
    sum += of_each.back();
    check_fits(sum, element);
  }
  return of_each;
}

engine::GradientPool::Options make_pool_options(const gf_pool_options* given, DType dtype) {
  const auto options = options_of(PoolOptions(), given, "gf_pool_options", "GF_POOL_OPTIONS_INIT");
  engine::GradientPool::Options made = pool_options(options, dtype);
  made.device = device_of(options.device);
  return made;
}

engine::SparsePool::Options make_sparse_pool_options(const gf_sparse_pool_options* given, DType dtype) {
  const auto options = options_of(SparsePoolOptions(), given, "gf_sparse_pool_options", "GF_SPARSE_POOL_OPTIONS_INIT");
  check_fits(options.extra, sizeof(double));
  return {.pool = pool_options(options, dtype),
          .chunk_size = options.chunk_size,
          .momentum = options.momentum,
          .extra = options.extra,
          .skip_nonfinite = options.skip_nonfinite != 0,
          .first_iteration = 0};
}

Call make_call(const engine::Communicator& communicator, const Request& request) {
  const int ranks = communicator.size();
  const auto options = options_of(Options(), request.options, "gf_call_options", "GF_CALL_OPTIONS_INIT");
  Call call;
  Signature& signature = call.signature;
  signature = {.count = request.count,
               .root = request.root,
               .kind = request.kind,
               .dtype = dtype_of(request.dtype),
               .op = op_of(request.op),
               .algorithm = algorithm_of(options.algorithm)};
  if (options.wire != GF_NO_DTYPE) {
    signature.wire = collective::rounding_wire(dtype_of(options.wire), signature.dtype);
  }
  if (const auto device = device_of(options.device)) {
    signature.memory = transport::Memory::device;
    call.placement = collective::Placement{*device, options.stream};
  }
  if (request.kind == CallKind::allgatherv) {
    call.counts = counts_of(request, ranks);
    signature.count = collective::displacement(call, call.counts.size());
  }
  check_fits(signature.count, call.element() * static_cast<std::size_t>(ranks));

  const auto array = [&](const char* name, const void* data, std::size_t count) {
    return Array{name, count > 0 ? data : nullptr, count, count * call.element()};
  };
  const bool is_broadcast = request.kind == CallKind::broadcast;
  const Array input =
      array(is_broadcast ? "data" : "input", request.input, collective::input_count(call, ranks, communicator.rank()));
  const Array output = array(is_broadcast ? "data" : "output", request.output,
                             collective::output_count(signature, ranks, communicator.rank()));
  check_array(input, signature);
  check_array(output, signature);
  check_apart(input, output, request.kind);
  call.input = static_cast<const std::byte*>(input.data);
  call.output = output.data == nullptr ? nullptr : static_cast<std::byte*>(request.output);
  return call;
}

}  // namespace gradientflow::c
