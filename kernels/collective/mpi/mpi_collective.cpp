#include "mpi_collective.hpp"

#include <array>

#include "../../base/error.hpp"
#include "../../transport/buffer.hpp"
#include "../../transport/mpi/mpi.hpp"
#include "../../transport/mpi/mpi_endpoint.hpp"
#include "../call/partition.hpp"

namespace gradientflow::collective {
namespace {

using transport::CallKind;
using transport::check_mpi;

constexpr std::size_t round_elements = std::size_t{1} << 30;      // largest count of an MPI call: its counts are int
constexpr std::size_t widened_elements = std::size_t{256} << 10;  // elements of a round through a float32 buffer

bool is_half(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

MPI_Datatype native_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return MPI_FLOAT;
    case DType::float64:
      return MPI_DOUBLE;
    case DType::int8:
      return MPI_INT8_T;
    case DType::uint8:
    case DType::boolean:
      return MPI_UINT8_T;
    case DType::int32:
      return MPI_INT32_T;
    case DType::int64:
      return MPI_INT64_T;
    case DType::float16:
    case DType::bfloat16:
      break;
  }
  throw Error(ErrorKind::internal, "MPI has no type for " + std::string(name_of(dtype)));
}

// User function of an MPI operator, with our kernels: the operators of MPI libraries differ from ours (and from each
// other) in NaN and in the overflow of small integers.
template <ReduceOp op>
void combine(void* earlier, void* later, int* count, MPI_Datatype* type) {
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!is_half(dtype) && native_type(dtype) == *type) {
      const std::array<const void*, 2> sources = {earlier, later};
      compute::reduce({&later, 1}, sources, static_cast<std::size_t>(*count), {dtype, op});
      return;
    }
  }
}

MPI_User_function* combiner(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return &combine<ReduceOp::sum>;
    case ReduceOp::max:
      return &combine<ReduceOp::max>;
    case ReduceOp::min:
      return &combine<ReduceOp::min>;
    case ReduceOp::prod:
      return &combine<ReduceOp::prod>;
  }
  throw Error(ErrorKind::internal, "unknown op");
}

// An MPI operator for one call. MPI keeps it alive as long as a request needs it.
class Operator {
 public:
  explicit Operator(ReduceOp op) { check_mpi(MPI_Op_create(combiner(op), 1, &op_), "MPI_Op_create"); }
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;
  ~Operator() { MPI_Op_free(&op_); }
  [[nodiscard]] MPI_Op get() const { return op_; }

 private:
  MPI_Op op_ = MPI_OP_NULL;
};

class Rounds {
 public:
  Rounds(const transport::MpiEndpoint& mpi, const Call& call) : mpi_(mpi), call_(call) {}

  void run() {
    switch (call_.signature.kind) {
      case CallKind::barrier:
        start_and_wait([&](MPI_Request* request) { return MPI_Ibarrier(mpi_.get(), request); });
        return;
      case CallKind::allreduce:
        reduce({0, call_.signature.count}, call_.output, everybody);
        return;
      case CallKind::reduce:
        reduce({0, call_.signature.count}, call_.output, call_.signature.root);
        return;
      case CallKind::reduce_scatter:
        for (int r = 0; r < mpi_.size(); ++r) {
          reduce(block(call_.signature.count, static_cast<std::size_t>(mpi_.size()), static_cast<std::size_t>(r)),
                 call_.output, r);
        }
        return;
      case CallKind::broadcast:
        broadcast(call_.output, call_.bytes(), call_.signature.root);
        return;
      case CallKind::allgather:
        allgather();
        return;
      case CallKind::alltoall:
        alltoall();
        return;
      case CallKind::gather:
      case CallKind::scatter:
        gather_or_scatter();
        return;
      case CallKind::allgatherv:
        allgatherv();
        return;
    }
  }

 private:
  static constexpr int everybody = -1;

  template <class Start>
  void start_and_wait(Start start) {
    const std::string what = std::string(name_of(call_.signature.kind)) + " over MPI";
    MPI_Request request = MPI_REQUEST_NULL;
    mpi_.check(start(&request), what);
    mpi_.wait(request, what);
  }

  // Reduces elements `range` of all inputs into `output`, on `root` or on all ranks.
  void reduce(const Range& range, std::byte* output, int root) {
    const bool receives = root == everybody || root == mpi_.rank();
    const std::size_t length = is_half(call_.signature.dtype) ? widened_elements : round_elements;
    for (std::size_t k = 0; k < pieces(range.size(), length); ++k) {
      const Range part = piece(range, length, k);
      const std::byte* const from = call_.input + part.begin * call_.element();
      std::byte* const to = receives ? output + (part.begin - range.begin) * call_.element() : nullptr;
      if (is_half(call_.signature.dtype)) {
        reduce_widened(from, to, part.size(), root);
      } else {
        if (receives && to != from) {
          compute::copy(to, from, part.size() * call_.element(), compute::Store::cached);
        }
        reduce_native(receives ? to : from, receives, part.size(), root, call_.signature.dtype);
        if (receives && call_.signature.op == ReduceOp::mean) {
          divide(to, part.size(), call_.signature.dtype);
        }
      }
    }
  }

  // Reduces in place on every receiver. MPI requires that either all ranks of an allreduce work in place or none does;
  // our callers need not agree.
  void reduce_native(const std::byte* data, bool receives, std::size_t elements, int root, DType dtype) {
    const int count = static_cast<int>(elements);
    const MPI_Datatype type = native_type(dtype);
    const Operator op(call_.signature.op);
    const void* const source = receives ? MPI_IN_PLACE : static_cast<const void*>(data);
    void* const target = receives ? const_cast<std::byte*>(data) : nullptr;  // NOLINT(*-const-cast): it is the output
    start_and_wait([&](MPI_Request* request) {
      return root == everybody ? MPI_Iallreduce(source, target, count, type, op.get(), mpi_.get(), request)
                               : MPI_Ireduce(source, target, count, type, op.get(), root, mpi_.get(), request);
    });
  }

  void reduce_widened(const std::byte* from, std::byte* to, std::size_t elements, int root) {
    const transport::Buffer wide(mpi_, elements * sizeof(float));
    std::byte* const buffer = wide.data();
    compute::cast(buffer, DType::float32, from, call_.signature.dtype, elements, 1.0F);
    const bool receives = to != nullptr;
    reduce_native(buffer, receives, elements, root, DType::float32);
    if (receives) {
      if (call_.signature.op == ReduceOp::mean) {
        divide(buffer, elements, DType::float32);
      }
      compute::cast(to, call_.signature.dtype, buffer, DType::float32, elements, 1.0F);
    }
  }

  void divide(std::byte* values, std::size_t elements, DType dtype) const {
    void* const target = values;
    const void* const source = values;
    compute::reduce({&target, 1}, {&source, 1}, elements, {dtype, ReduceOp::mean, mpi_.size()});
  }

  void broadcast(std::byte* data, std::size_t bytes, int root) {
    for (std::size_t k = 0; k < pieces(bytes, round_elements); ++k) {
      const Range part = piece({0, bytes}, round_elements, k);
      start_and_wait([&](MPI_Request* request) {
        return MPI_Ibcast(data + part.begin, static_cast<int>(part.size()), MPI_BYTE, root, mpi_.get(), request);
      });
    }
  }

  void allgather() {
    const std::size_t bytes = call_.bytes();
    if (bytes <= round_elements) {
      start_and_wait([&](MPI_Request* request) {
        return MPI_Iallgather(call_.input, static_cast<int>(bytes), MPI_BYTE, call_.output, static_cast<int>(bytes),
                              MPI_BYTE, mpi_.get(), request);
      });
      return;
    }
    compute::copy(call_.output + static_cast<std::size_t>(mpi_.rank()) * bytes, call_.input, bytes,
                  compute::Store::cached);
    for (int r = 0; r < mpi_.size(); ++r) {
      broadcast(call_.output + static_cast<std::size_t>(r) * bytes, bytes, r);
    }
  }

  // Returns the number of elements as an int. Throws if it is too large for one MPI call.
  [[nodiscard]] int checked_count(std::size_t elements) const {
    if (elements > round_elements) {
      throw Error(ErrorKind::value, "algorithm 'mpi' serves blocks of at most " + std::to_string(round_elements) +
                                        " elements in " + std::string(name_of(call_.signature.kind)));
    }
    return static_cast<int>(elements);
  }

  [[nodiscard]] MPI_Datatype opaque_type() const {
    return is_half(call_.signature.dtype) ? MPI_INT16_T : native_type(call_.signature.dtype);
  }

  void alltoall() {
    const int count = checked_count(call_.signature.count);
    start_and_wait([&](MPI_Request* request) {
      return MPI_Ialltoall(call_.input, count, opaque_type(), call_.output, count, opaque_type(), mpi_.get(), request);
    });
  }

  void gather_or_scatter() {
    const int count = checked_count(call_.signature.count);
    const int root = call_.signature.root;
    start_and_wait([&](MPI_Request* request) {
      return call_.signature.kind == CallKind::gather ? MPI_Igather(call_.input, count, opaque_type(), call_.output,
                                                                    count, opaque_type(), root, mpi_.get(), request)
                                                      : MPI_Iscatter(call_.input, count, opaque_type(), call_.output,
                                                                     count, opaque_type(), root, mpi_.get(), request);
    });
  }

  // Broadcasts each rank's part, because MPI's displacements are ints, too.
  void allgatherv() {
    for (int r = 0; r < mpi_.size(); ++r) {
      const auto index = static_cast<std::size_t>(r);
      const std::size_t bytes = call_.counts[index] * call_.element();
      std::byte* const part = call_.output + displacement(call_, index) * call_.element();
      if (r == mpi_.rank()) {
        compute::copy(part, call_.input, bytes, compute::Store::cached);
      }
      broadcast(part, bytes, r);
    }
  }

  const transport::MpiEndpoint& mpi_;
  const Call& call_;
};

}  // namespace

void mpi_collective(const transport::MpiEndpoint& endpoint, const Call& call) { Rounds(endpoint, call).run(); }

}  // namespace gradientflow::collective
