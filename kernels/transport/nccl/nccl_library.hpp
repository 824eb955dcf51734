// NCCL, loaded when tensors of CUDA devices are to be sent for the first time. Nothing is linked to it, so one build
// runs with and without it, and with every version from oldest_nccl on.
//
// The declarations are from the C interface of oldest_nccl, which later versions have kept. Streams are CUDA's.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "../../base/config.hpp"
#include "../../compute/cuda/stream.hpp"

namespace gradientflow::transport {

namespace nccl {

struct Comm;  // opaque

enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum class Type : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  int64 = 4,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

// Operators. Higher numbers are operators made by a program.
enum class Op : int { sum = 0, prod = 1, max = 2, min = 3, avg = 4 };

enum class Residence : int { device = 0, host_immediate = 1 };  // place of a scalar

struct UniqueId {
  char bytes[128];
};

// Settings of a communicator. Their size and version tell a newer NCCL that its later fields are not there.
struct Settings {
  std::size_t size = sizeof(Settings);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

struct Functions {
  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank_config)(Comm**, int ranks, UniqueId, int rank, Settings*);
  Result (*comm_finalize)(Comm*);
  Result (*comm_destroy)(Comm*);
  Result (*comm_abort)(Comm*);
  Result (*comm_get_async_error)(Comm*, Result*);
  const char* (*get_error_string)(Result);
  const char* (*get_last_error)(Comm*);
  Result (*group_start)();
  Result (*group_end)();
  Result (*all_reduce)(const void*, void*, std::size_t, Type, Op, Comm*, compute::cuda::Stream);
  Result (*broadcast)(const void*, void*, std::size_t, Type, int root, Comm*, compute::cuda::Stream);
  Result (*reduce)(const void*, void*, std::size_t, Type, Op, int root, Comm*, compute::cuda::Stream);
  Result (*all_gather)(const void*, void*, std::size_t, Type, Comm*, compute::cuda::Stream);
  Result (*reduce_scatter)(const void*, void*, std::size_t, Type, Op, Comm*, compute::cuda::Stream);
  Result (*send)(const void*, std::size_t, Type, int peer, Comm*, compute::cuda::Stream);
  Result (*recv)(void*, std::size_t, Type, int peer, Comm*, compute::cuda::Stream);
  Result (*red_op_create_pre_mul_sum)(Op*, void* scalar, Type, Residence, Comm*);
};

}  // namespace nccl

inline constexpr int oldest_nccl = 21400;  // first version with non-blocking communicators and their settings

class NcclLibrary {
 public:
  // Loads the library named by config.nccl_library. For auto, the first of: a library that the process has loaded
  // already, say PyTorch's, so that there are not two; the library of the package nvidia-nccl-cu13 or nvidia-nccl-cu12
  // beside this one; the system's. Returns nothing if no library can be used; `unavailable_reason` then tells why. The
  // library stays loaded for good, because its threads may still run when the process ends.
  [[nodiscard]] static std::shared_ptr<const NcclLibrary> load(const Config& config, std::string& unavailable_reason);

  [[nodiscard]] int version() const { return version_; }  // 22705
  [[nodiscard]] std::string version_text() const;         // "2.27.5"
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const nccl::Functions& functions() const { return functions_; }

 private:
  NcclLibrary() = default;

  std::string path_;
  int version_ = 0;
  nccl::Functions functions_{};
};

// Returns "2.27.5" for 22705.
[[nodiscard]] std::string nccl_version_text(int version);

}  // namespace gradientflow::transport
