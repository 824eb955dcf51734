// Allreduce and reduce-scatter for all types and operations that XLA uses.
//
// The core has most of these reductions. The reductions of 16-bit integers, the minima and maxima of unsigned integers,
// and the products of complex numbers use collectives that move bytes. Rank r gets block r from every rank, and
// combines these blocks in rank order. So the result has the same bits on all ranks, and is exact except for the
// rounding of complex numbers.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives.hpp"
#include "combine.hpp"
#include "failure.hpp"
#include "job.hpp"

namespace gradientflow::mpiabi {
namespace {

// A dtype of the core whose reduction gives the same bits, and the number of its elements that make up one element of
// XLA's type.
struct Alike {
  DType dtype;
  std::size_t elements = 1;
};

std::optional<Alike> alike(Type type, Op op) {
  const bool wraps = op == Op::sum || op == Op::prod;  // the bits of signed and unsigned integers are the same
  switch (type) {
    case Type::byte:
    case Type::uint8:
      return Alike{DType::uint8};
    case Type::int8:
      return Alike{DType::int8};
    case Type::int32:
      return Alike{DType::int32};
    case Type::int64:
      return Alike{DType::int64};
    case Type::float32:
      return Alike{DType::float32};
    case Type::float64:
      return Alike{DType::float64};
    case Type::uint32:
      return wraps ? std::optional(Alike{DType::int32}) : std::nullopt;
    case Type::uint64:
      return wraps ? std::optional(Alike{DType::int64}) : std::nullopt;
    case Type::complex64:
      return op == Op::sum ? std::optional(Alike{DType::float32, 2}) : std::nullopt;
    case Type::complex128:
      return op == Op::sum ? std::optional(Alike{DType::float64, 2}) : std::nullopt;
    case Type::int16:
    case Type::uint16:
      return std::nullopt;
  }
  return std::nullopt;
}

ReduceOp core_op(Op op) {
  switch (op) {
    case Op::sum:
      return ReduceOp::sum;
    case Op::prod:
      return ReduceOp::prod;
    case Op::min:
      return ReduceOp::min;
    case Op::max:
      return ReduceOp::max;
  }
  throw Error(ErrorKind::value, "JAX asks for a reduction that is not served: sum, prod, min and max are");
}

// A reduction that the core does not have, made piece by piece in bounded memory.
class Reduction {
 public:
  // `total` elements of `size` bytes each are cut into one block of `block` elements for each rank; the last block may
  // be shorter.
  Reduction(Group& group, engine::Communicator& ranks, Combine combine, std::size_t size, std::size_t total,
            std::size_t block)
      : lock_(group.in_pieces),
        ranks_(ranks),
        combine_(combine),
        size_(size),
        total_(total),
        block_(block),
        piece_(std::min(block, std::max(most_bytes / size, std::size_t{1}))),
        sent_(count() * piece_ * size),
        got_(count() * piece_ * size) {}

  // Calls use(offset, elements, reduced) for every piece of this rank's block, in order.
  template <class Use>
  void run(const std::byte* input, const Use& use) {
    for (std::size_t offset = 0; offset < block_; offset += piece_) {
      const std::size_t elements = std::min(piece_, block_ - offset);
      for (std::size_t rank = 0; rank < count(); ++rank) {
        std::memcpy(sent_.data() + rank * elements * size_, input + place(rank, offset) * size_,
                    inside(rank, offset, elements) * size_);
      }
      alltoall(ranks_, sent_.data(), got_.data(), elements * size_);
      for (std::size_t rank = 1; rank < count(); ++rank) {
        combine_(got_.data(), got_.data() + rank * elements * size_, elements);
      }
      use(offset, elements, got_.data());
    }
  }

  // Sends this rank's reduced piece to all ranks, and writes the pieces of all ranks to their places in `output`.
  void share(std::size_t offset, std::size_t elements, std::byte* output) {
    allgather(ranks_, got_.data(), sent_.data(), elements * size_);
    for (std::size_t rank = 0; rank < count(); ++rank) {
      std::memcpy(output + place(rank, offset) * size_, sent_.data() + rank * elements * size_,
                  inside(rank, offset, elements) * size_);
    }
  }

 private:
  static constexpr std::size_t most_bytes = std::size_t{1} << 20;  // largest size of a piece

  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(ranks_.size()); }
  // Return the first element of the piece at `offset` of a rank's block, and its number of elements inside the tensor.
  [[nodiscard]] std::size_t place(std::size_t rank, std::size_t offset) const {
    return std::min(rank * block_ + offset, total_);
  }
  [[nodiscard]] std::size_t inside(std::size_t rank, std::size_t offset, std::size_t elements) const {
    return std::min(elements, total_ - place(rank, offset));
  }

  std::lock_guard<std::mutex> lock_;
  engine::Communicator& ranks_;
  Combine combine_;
  std::size_t size_;
  std::size_t total_;
  std::size_t block_;
  std::size_t piece_;
  std::vector<std::byte> sent_;
  std::vector<std::byte> got_;
};

void reduce_for_all(Group& group, const void* input, void* output, std::size_t count, Type type, Op op) {
  engine::Communicator& ranks = job().ranks(group);
  if (const auto core = alike(type, op)) {
    return allreduce(ranks, input, output, count * core->elements, core->dtype, core_op(op));
  }
  const auto parts = static_cast<std::size_t>(ranks.size());
  Reduction reduction(group, ranks, combine_of(type, op), size_of(type), count, (count + parts - 1) / parts);
  reduction.run(static_cast<const std::byte*>(input), [&](std::size_t offset, std::size_t elements, const std::byte*) {
    reduction.share(offset, elements, static_cast<std::byte*>(output));
  });
}

void reduce_blocks(Group& group, const void* input, void* output, std::size_t count, Type type, Op op) {
  engine::Communicator& ranks = job().ranks(group);
  if (const auto core = alike(type, op)) {
    return reduce_scatter(ranks, input, output, count * core->elements, core->dtype, core_op(op));
  }
  const auto parts = static_cast<std::size_t>(ranks.size());
  Reduction reduction(group, ranks, combine_of(type, op), size_of(type), count * parts, count);
  reduction.run(
      static_cast<const std::byte*>(input), [&](std::size_t offset, std::size_t elements, const std::byte* reduced) {
        std::memcpy(static_cast<std::byte*>(output) + offset * size_of(type), reduced, elements * size_of(type));
      });
}

}  // namespace
}  // namespace gradientflow::mpiabi

using namespace gradientflow::mpiabi;  // NOLINT(google-build-using-namespace): its C functions are below

MPIABI_FUNCTION MPIABI_Allreduce(const void* input, void* output, int count, Type type, Op op, Group* group) {
  return guarded([&] {
    const bool is_in_place = reinterpret_cast<Word>(input) == in_place;
    reduce_for_all(*group, is_in_place ? output : input, output, count_of(count), type, op);
  });
}

MPIABI_FUNCTION MPIABI_Reduce_scatter_block(const void* input, void* output, int count, Type type, Op op,
                                            Group* group) {
  return guarded([&] { reduce_blocks(*group, input, output, count_of(count), type, op); });
}

MPIABI_FUNCTION MPIABI_Reduce_scatter(const void* input, void* output, const int* counts, Type type, Op op,
                                      Group* group) {
  return guarded([&] {
    const auto ranks = static_cast<std::ptrdiff_t>(job().ranks(*group).size());
    if (std::any_of(counts, counts + ranks, [counts](int count) { return count != counts[0]; })) {
      throw gradientflow::Error(gradientflow::ErrorKind::value, "blocks of different sizes are not served");
    }
    reduce_blocks(*group, input, output, count_of(counts[0]), type, op);
  });
}
