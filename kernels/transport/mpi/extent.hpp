// Sizes beyond 2 GiB, which MPI cannot count in bytes.
#pragma once

#include <mpi.h>

#include <climits>
#include <cstddef>

#include "mpi.hpp"

namespace gradientflow::transport {

// Number of bytes in the form that MPI takes, a count in an int and a type. From 2 GiB on, the count is one element of
// a type made of blocks.
class Extent {
 public:
  explicit Extent(std::size_t bytes) {
    if (bytes <= INT_MAX) {
      count_ = static_cast<int>(bytes);
      return;
    }
    MPI_Datatype block = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(static_cast<int>(block_bytes), MPI_BYTE, &block), "MPI_Type_contiguous");
    const std::size_t blocks = bytes / block_bytes;
    const int lengths[] = {static_cast<int>(blocks), static_cast<int>(bytes % block_bytes)};
    const MPI_Aint places[] = {0, static_cast<MPI_Aint>(blocks * block_bytes)};
    const MPI_Datatype types[] = {block, MPI_BYTE};
    check_mpi(MPI_Type_create_struct(2, lengths, places, types, &type_), "MPI_Type_create_struct");
    MPI_Type_free(&block);
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
    count_ = 1;
  }
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;
  ~Extent() {
    if (type_ != MPI_BYTE) {
      MPI_Type_free(&type_);  // takes effect once MPI is done with it
    }
  }
  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] MPI_Datatype type() const noexcept { return type_; }

 private:
  static constexpr std::size_t block_bytes = std::size_t{1} << 20;

  MPI_Datatype type_ = MPI_BYTE;
  int count_ = 0;
};

}  // namespace gradientflow::transport
