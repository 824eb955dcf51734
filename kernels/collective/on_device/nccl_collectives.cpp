#include "nccl_collectives.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "../../base/error.hpp"
#include "../call/partition.hpp"

namespace gradientflow::collective {
namespace {

namespace cuda = compute::cuda;
namespace nccl = transport::nccl;
using nccl::Comm;
using nccl::Functions;
using nccl::Result;
using transport::CallKind;

// Type of collectives without a reduction: NCCL moves bytes.
constexpr auto bytes_type = nccl::Type::uint8;

nccl::Type type_of(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return nccl::Type::float16;
    case DType::bfloat16:
      return nccl::Type::bfloat16;
    case DType::float32:
      return nccl::Type::float32;
    case DType::float64:
      return nccl::Type::float64;
    case DType::int8:
      return nccl::Type::int8;
    case DType::uint8:
    case DType::boolean:
      return nccl::Type::uint8;
    case DType::int32:
      return nccl::Type::int32;
    case DType::int64:
      return nccl::Type::int64;
  }
  throw Error(ErrorKind::internal, "unknown dtype");
}

nccl::Op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return nccl::Op::sum;
    case ReduceOp::mean:
      return nccl::Op::avg;
    case ReduceOp::max:
      return nccl::Op::max;
    case ReduceOp::min:
      return nccl::Op::min;
    case ReduceOp::prod:
      return nccl::Op::prod;
  }
  throw Error(ErrorKind::internal, "unknown operator");
}

// First failure of several NCCL calls in a group.
class Results {
 public:
  void operator()(Result result) {
    if (!transport::NcclCommunicator::is_failure(first_)) {
      first_ = result;
    }
  }
  [[nodiscard]] Result first() const { return first_; }

 private:
  Result first_ = Result::success;
};

std::vector<int> ranks_up_to(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

NcclCollectives::NcclCollectives(Group& group, std::shared_ptr<const transport::NcclLibrary> library)
    : group_(group),
      library_(std::move(library)),
      all_(Communicator::make(library_, group_.endpoint(), ranks_up_to(group_.endpoint().size()),
                              group_.config().timeout)),
      watch_(group_.node(), group_.endpoint().rank(), group_.config().timeout) {
  watch_.add(all_);
}

NcclCollectives::~NcclCollectives() { watch_.drain(); }

void NcclCollectives::abort() noexcept {
  watch_.fail({ErrorKind::closed, "the NCCL communicator was aborted because its communicator was closed"});
}

std::optional<std::size_t> NcclCollectives::run(const Call& call, bool hierarchical) {
  watch_.check();
  if (call.signature.count == 0) {
    return call.signature.wire ? std::optional<std::size_t>(0) : std::nullopt;
  }
  if (hierarchical && levels_ == nullptr) {
    make_levels();
  }
  try {
    watch_.begin(call.signature, placement_of(call).stream);
    serve(call, hierarchical);
    watch_.end(placement_of(call).stream);
    if (call.signature.wire) {
      return wait_for_nonfinite(call);
    }
    return std::nullopt;
  } catch (const Error& error) {
    watch_.fail({error.kind(),
                 describe(call.signature) + " failed on rank " + std::to_string(all_->rank()) + ": " + error.what()});
    watch_.check();  // throws the watch's reason if it noticed the failure first
    throw;
  }
}

void NcclCollectives::serve(const Call& call, bool hierarchical) {
  switch (call.signature.kind) {
    case CallKind::allreduce:
      if (call.signature.wire) {
        allreduce_in_wire(call, hierarchical);
      } else {
        allreduce({call.input, call.output, call.signature.count, call.signature.dtype, call.signature.op},
                  hierarchical, placement_of(call).stream);
      }
      return;
    case CallKind::broadcast:
      broadcast(call);
      return;
    case CallKind::reduce:
      reduce(call);
      return;
    case CallKind::allgather:
      allgather(call);
      return;
    case CallKind::reduce_scatter:
      reduce_scatter(call);
      return;
    case CallKind::alltoall:
      alltoall(call);
      return;
    case CallKind::gather:
      gather(call);
      return;
    case CallKind::scatter:
      scatter(call);
      return;
    case CallKind::allgatherv:
      allgatherv(call);
      return;
    case CallKind::barrier:
      break;
  }
  throw Error(ErrorKind::internal, "NCCL was to serve a call that has no tensors");
}

// ---- allreduce ------------------------------------------------------------------------------------------------------

void NcclCollectives::allreduce(const Reduced& what, bool hierarchical, cuda::Stream stream) {
  if (hierarchical) {
    allreduce_in_levels(what, stream);
    return;
  }
  all_->launch([&](const Functions& functions, Comm* comm) {
    return functions.all_reduce(what.input, what.output, what.count, type_of(what.dtype), op_of(what.op), comm, stream);
  });
}

// Divides a mean on every rank by the number of all ranks before the sum, because nodes may differ in size. The output
// of each node's first rank holds its node's partial result, and then the result.
void NcclCollectives::allreduce_in_levels(const Reduced& what, cuda::Stream stream) {
  const nccl::Type type = type_of(what.dtype);
  const bool is_mean = what.op == ReduceOp::mean;
  const nccl::Op in_node = is_mean ? divided_sum(what.dtype) : op_of(what.op);
  const nccl::Op between = is_mean ? nccl::Op::sum : in_node;
  levels_->node->launch([&](const Functions& functions, Comm* comm) {
    return functions.reduce(what.input, what.output, what.count, type, in_node, 0, comm, stream);
  });
  if (levels_->leaders != nullptr) {
    levels_->leaders->launch([&](const Functions& functions, Comm* comm) {
      return functions.all_reduce(what.output, what.output, what.count, type, between, comm, stream);
    });
  }
  levels_->node->launch([&](const Functions& functions, Comm* comm) {
    return functions.broadcast(what.output, what.output, what.count, type, 0, comm, stream);
  });
}

void NcclCollectives::make_levels() {
  const transport::Topology& topology = group_.topology();
  const double timeout = group_.config().timeout;
  auto levels = std::make_unique<Levels>();
  levels->node = Communicator::make(library_, group_.endpoint(), topology.local(), timeout);
  watch_.add(levels->node);
  std::vector<int> leaders;
  if (topology.local_rank() == 0) {
    for (const auto& members : topology.members) {
      leaders.push_back(members.front());
    }
  }
  levels->leaders = Communicator::make(library_, group_.endpoint(), leaders, timeout);
  if (levels->leaders != nullptr) {
    watch_.add(levels->leaders);
  }
  levels_ = std::move(levels);
}

// Makes an operator whose scalar has the tensor's dtype.
nccl::Op NcclCollectives::divided_sum(DType dtype) {
  std::optional<nccl::Op>& op = levels_->divided_sum.at(static_cast<std::size_t>(dtype));
  if (!op) {
    const double exact = 1.0 / group_.endpoint().size();
    const auto rounded = static_cast<float>(exact);
    std::array<std::byte, sizeof(double)> scalar{};
    if (dtype == DType::float64) {
      __builtin_memcpy(scalar.data(), &exact, sizeof exact);
    } else {
      compute::cast(scalar.data(), dtype, &rounded, DType::float32, 1, 1.0F);
    }
    nccl::Op made{};
    levels_->node->launch([&](const Functions& functions, Comm* comm) {
      return functions.red_op_create_pre_mul_sum(&made, scalar.data(), type_of(dtype), nccl::Residence::host_immediate,
                                                 comm);
    });
    op = made;
  }
  return *op;
}

void NcclCollectives::allreduce_in_wire(const Call& call, bool hierarchical) {
  const cuda::Runtime& runtime = cuda::runtime();
  const transport::Signature& signature = call.signature;
  const cuda::Stream stream = placement_of(call).stream;
  const DType wire = dtype_of(signature.wire.value_or(Wire::float32), "NCCL");
  const std::size_t bytes = signature.count * size_of(wire);
  if (wire_.bytes() < bytes) {
    wire_ = {};
    wire_ = cuda::DeviceMemory(bytes);
  }
  if (nonfinite_.bytes() == 0) {
    nonfinite_ = cuda::DeviceMemory(sizeof(std::uint64_t));
  }
  const bool is_mean = signature.op == ReduceOp::mean;
  const float scale = is_mean ? 1.0F / static_cast<float>(group_.endpoint().size()) : 1.0F;
  runtime.cast(wire_.data(), wire, call.input, signature.dtype, signature.count, scale, stream);
  allreduce({wire_.data(), wire_.data(), signature.count, wire, is_mean ? ReduceOp::sum : signature.op}, hierarchical,
            stream);
  runtime.count_nonfinite(wire_.data(), wire, signature.count, reinterpret_cast<std::uint64_t*>(nonfinite_.data()),
                          stream);
  runtime.cast(call.output, signature.dtype, wire_.data(), wire, signature.count, 1.0F, stream);
}

// Counts the nonfinite values on the wire: the result has the same number of them.
std::size_t NcclCollectives::wait_for_nonfinite(const Call& call) {
  std::uint64_t number = 0;
  cuda::runtime().copy(&number, nonfinite_.data(), sizeof number, placement_of(call).stream);
  cuda::runtime().synchronize(placement_of(call).stream);
  watch_.check();  // the stream may have continued because of an abort
  return number;
}

// ---- further reductions ---------------------------------------------------------------------------------------------

void NcclCollectives::reduce(const Call& call) {
  const transport::Signature& signature = call.signature;
  all_->launch([&](const Functions& functions, Comm* comm) {
    return functions.reduce(call.input, call.output, signature.count, type_of(signature.dtype), op_of(signature.op),
                            signature.root, comm, placement_of(call).stream);
  });
}

void NcclCollectives::reduce_scatter(const Call& call) {
  const transport::Signature& signature = call.signature;
  const nccl::Type type = type_of(signature.dtype);
  const nccl::Op op = op_of(signature.op);
  const auto ranks = static_cast<std::size_t>(all_->size());
  if (signature.count % ranks == 0) {
    all_->launch([&](const Functions& functions, Comm* comm) {
      return functions.reduce_scatter(call.input, call.output, signature.count / ranks, type, op, comm,
                                      placement_of(call).stream);
    });
    return;
  }
  all_->launch_group([&](const Functions& functions, Comm* comm) {
    Results results;
    for (std::size_t root = 0; root < ranks; ++root) {
      const Range part = block(signature.count, ranks, root);
      if (part.size() > 0) {
        results(functions.reduce(call.input + part.begin * call.element(), call.output, part.size(), type, op,
                                 static_cast<int>(root), comm, placement_of(call).stream));
      }
    }
    return results.first();
  });
}

// ---- collectives without a reduction --------------------------------------------------------------------------------

void NcclCollectives::broadcast(const Call& call) {
  const bool is_root = all_->rank() == call.signature.root;
  // The root broadcasts in place, since its output is not written.
  auto* const output = is_root ? const_cast<std::byte*>(call.input) : call.output;  // NOLINT(*-const-cast)
  all_->launch([&](const Functions& functions, Comm* comm) {
    return functions.broadcast(output, output, call.bytes(), bytes_type, call.signature.root, comm,
                               placement_of(call).stream);
  });
}

void NcclCollectives::allgather(const Call& call) {
  all_->launch([&](const Functions& functions, Comm* comm) {
    return functions.all_gather(call.input, call.output, call.bytes(), bytes_type, comm, placement_of(call).stream);
  });
}

void NcclCollectives::allgatherv(const Call& call) {
  const auto& counts = call.counts;
  if (std::all_of(counts.begin(), counts.end(), [&](std::size_t count) { return count == counts.front(); })) {
    all_->launch([&](const Functions& functions, Comm* comm) {
      return functions.all_gather(call.input, call.output, counts.front() * call.element(), bytes_type, comm,
                                  placement_of(call).stream);
    });
    return;
  }
  all_->launch_group([&](const Functions& functions, Comm* comm) {
    Results results;
    std::byte* output = call.output;
    for (std::size_t root = 0; root < counts.size(); ++root) {
      const std::size_t bytes = counts[root] * call.element();
      const bool is_root = static_cast<int>(root) == all_->rank();
      if (bytes > 0) {
        results(functions.broadcast(is_root ? call.input : output, output, bytes, bytes_type, static_cast<int>(root),
                                    comm, placement_of(call).stream));
      }
      output += bytes;
    }
    return results.first();
  });
}

void NcclCollectives::alltoall(const Call& call) {
  const cuda::Stream stream = placement_of(call).stream;
  const std::size_t bytes = call.bytes();
  const auto me = static_cast<std::size_t>(all_->rank());
  cuda::runtime().copy(call.output + me * bytes, call.input + me * bytes, bytes, stream);
  all_->launch_group([&](const Functions& functions, Comm* comm) {
    Results results;
    for (int peer = 0; peer < all_->size(); ++peer) {
      const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
      if (peer != all_->rank()) {
        results(functions.send(call.input + offset, bytes, bytes_type, peer, comm, stream));
        results(functions.recv(call.output + offset, bytes, bytes_type, peer, comm, stream));
      }
    }
    return results.first();
  });
}

void NcclCollectives::gather(const Call& call) {
  const cuda::Stream stream = placement_of(call).stream;
  const std::size_t bytes = call.bytes();
  const int root = call.signature.root;
  if (all_->rank() != root) {
    all_->launch([&](const Functions& functions, Comm* comm) {
      return functions.send(call.input, bytes, bytes_type, root, comm, stream);
    });
    return;
  }
  cuda::runtime().copy(call.output + static_cast<std::size_t>(root) * bytes, call.input, bytes, stream);
  all_->launch_group([&](const Functions& functions, Comm* comm) {
    Results results;
    for (int peer = 0; peer < all_->size(); ++peer) {
      if (peer != root) {
        results(functions.recv(call.output + static_cast<std::size_t>(peer) * bytes, bytes, bytes_type, peer, comm,
                               stream));
      }
    }
    return results.first();
  });
}

void NcclCollectives::scatter(const Call& call) {
  const cuda::Stream stream = placement_of(call).stream;
  const std::size_t bytes = call.bytes();
  const int root = call.signature.root;
  if (all_->rank() != root) {
    all_->launch([&](const Functions& functions, Comm* comm) {
      return functions.recv(call.output, bytes, bytes_type, root, comm, stream);
    });
    return;
  }
  cuda::runtime().copy(call.output, call.input + static_cast<std::size_t>(root) * bytes, bytes, stream);
  all_->launch_group([&](const Functions& functions, Comm* comm) {
    Results results;
    for (int peer = 0; peer < all_->size(); ++peer) {
      if (peer != root) {
        results(
            functions.send(call.input + static_cast<std::size_t>(peer) * bytes, bytes, bytes_type, peer, comm, stream));
      }
    }
    return results.first();
  });
}

}  // namespace gradientflow::collective
