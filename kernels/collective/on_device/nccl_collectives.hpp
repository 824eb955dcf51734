// Collectives of NCCL, for tensors on CUDA devices, one device for each rank.
//
// All work is put into the call's stream. No host waits for a device, except in an allreduce with a wire dtype, which
// counts the nonfinite elements of the result. The caller orders calls in different streams by events, in the order in
// which they are made. A watch (nccl_watch.hpp) looks after calls under way: if NCCL reports an error, a rank dies or a
// call takes too long, it aborts the communicators. Then streams continue, with undefined results, and every later call
// throws; after waiting for a stream, call check().
//
// The results are NCCL's own: sums are added in its order, in the dtype of the tensors, so they differ from other
// algorithms' sums in their last bits; a mean is a sum of values divided beforehand; max and min of floats ignore a NaN
// if other ranks have a number.
//
//   allreduce, reduce, broadcast, allgather   NCCL's own
//   reduce_scatter                            NCCL's if all blocks have the same size, else a reduce of each block
//   allgatherv                                NCCL's allgather if all counts are equal, else a broadcast of each part
//   alltoall, gather, scatter                 sends and receives together; a rank's own block is copied
//   hierarchical allreduce                    reduce in the node, allreduce among the nodes' first ranks, broadcast
//   allreduce with a wire dtype               cast to it, already divided for a mean; allreduce; cast back
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "../../compute/cuda/owned.hpp"
#include "../../transport/nccl/nccl_communicator.hpp"
#include "../call/call.hpp"
#include "../group.hpp"
#include "nccl_watch.hpp"

namespace gradientflow::collective {

class NcclCollectives {
 public:
  // Creates a communicator of all ranks on the current device; the first hierarchical call creates the communicators of
  // the levels. Collective. Throws, on all ranks, if any rank fails: see NcclCommunicator::make.
  NcclCollectives(Group& group, std::shared_ptr<const transport::NcclLibrary> library);
  NcclCollectives(const NcclCollectives&) = delete;
  NcclCollectives& operator=(const NcclCollectives&) = delete;
  // Waits for calls under way, unless they have been aborted.
  ~NcclCollectives();

  // Serves a call, after an agreement on it. `hierarchical` is for allreduce. With a wire dtype, returns the number of
  // elements of the result that are not finite. Throws the error of an earlier call. If this call fails, the
  // communicators are aborted.
  std::optional<std::size_t> run(const Call& call, bool hierarchical);

  // Throws the error of a failed call, if any.
  void check() const { watch_.check(); }

  // Aborts all calls without waiting: streams continue, and later calls throw Error(closed). For any thread.
  void abort() noexcept;

 private:
  using Communicator = transport::NcclCommunicator;

  // Two levels of a hierarchical allreduce, and the operators of a mean in the node: sums of divided values.
  struct Levels {
    std::shared_ptr<Communicator> node;
    std::shared_ptr<Communicator> leaders;  // communicator of the first ranks of the nodes only
    std::array<std::optional<transport::nccl::Op>, dtype_count> divided_sum;
  };

  // Arguments of an allreduce by NCCL.
  struct Reduced {
    const std::byte* input;
    std::byte* output;
    std::size_t count;
    DType dtype;
    ReduceOp op;
  };

  void serve(const Call& call, bool hierarchical);
  void allreduce(const Reduced& what, bool hierarchical, compute::cuda::Stream stream);
  void allreduce_in_levels(const Reduced& what, compute::cuda::Stream stream);
  void allreduce_in_wire(const Call& call, bool hierarchical);
  void broadcast(const Call& call);
  void reduce(const Call& call);
  void allgather(const Call& call);
  void reduce_scatter(const Call& call);
  void alltoall(const Call& call);
  void gather(const Call& call);
  void scatter(const Call& call);
  void allgatherv(const Call& call);
  void make_levels();
  [[nodiscard]] transport::nccl::Op divided_sum(DType dtype);
  [[nodiscard]] std::size_t wait_for_nonfinite(const Call& call);

  Group& group_;
  std::shared_ptr<const transport::NcclLibrary> library_;
  std::shared_ptr<Communicator> all_;
  std::unique_ptr<Levels> levels_;         // created by the first call that needs them
  compute::cuda::DeviceMemory wire_;       // buffer of one call at a time: each call waits for its own end
  compute::cuda::DeviceMemory nonfinite_;  // one number
  NcclWatch watch_;                        // destroyed first, because it also holds the communicators
};

}  // namespace gradientflow::collective
