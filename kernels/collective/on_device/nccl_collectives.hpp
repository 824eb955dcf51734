// The collectives of NCCL, for tensors on CUDA devices, one to each rank.
//
// All work is put into the call's stream, and no host waits for a device, but for an allreduce with a wire dtype, whose
// result is counted. Calls in different streams have to be ordered by events, in the order in which they are made. What
// is under way is looked after by a watch: where NCCL reports an error, a rank dies or a call takes too long, it aborts
// the communicators, so that streams go on, with undefined results, and every later call throws; whoever has waited for
// a stream asks check().
//
// The results are NCCL's own: sums are added in its order, in the dtype of the tensors, so they differ in their last
// bits from those of other algorithms; a mean is a sum of values divided beforehand; max and min of floats pass a NaN
// over where the other ranks have a number.
//
//   allreduce, reduce, broadcast, allgather   NCCL's
//   reduce_scatter                            NCCL's where all blocks have the same size, else a reduce of each block
//   allgatherv                                NCCL's allgather where all counts are equal, else a broadcast of each
//   part alltoall, gather, scatter                 sends and receives together; a rank's own block is copied
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
  // On the current device. Makes a communicator of all ranks; those that the hierarchical form needs are made with its
  // first call. Collective. Throws, on all ranks, where that fails on one: see NcclCommunicator::make.
  NcclCollectives(Group& group, std::shared_ptr<const transport::NcclLibrary> library);
  NcclCollectives(const NcclCollectives&) = delete;
  NcclCollectives& operator=(const NcclCollectives&) = delete;
  // Waits for what is under way, unless it has been aborted.
  ~NcclCollectives();

  // Serves a call, after an agreement on it. `hierarchical` is for allreduce. Returns how many elements of the result
  // are not finite where there is a wire dtype. Throws what an earlier call failed with; where this one fails, the
  // communicators are aborted.
  std::optional<std::size_t> run(const Call& call, bool hierarchical);

  // Throws what a call has failed with.
  void check() const { watch_.check(); }

  // Ends everything without waiting: streams go on, and later calls throw Error(closed). For any thread.
  void abort() noexcept;

 private:
  using Communicator = transport::NcclCommunicator;

  // The two levels of the hierarchical form, and the operators by which the ranks of a node divide what they add.
  struct Levels {
    std::shared_ptr<Communicator> node;
    std::shared_ptr<Communicator> leaders;  // of the first ranks of the nodes only
    std::array<std::optional<transport::nccl::Op>, dtype_count> divided_sum;
  };

  // An allreduce as NCCL is to do it.
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
  std::unique_ptr<Levels> levels_;         // made with the first call that needs them
  compute::cuda::DeviceMemory wire_;       // used by one call at a time, for each waits for its end
  compute::cuda::DeviceMemory nonfinite_;  // a number
  NcclWatch watch_;                        // the first to go: it has the communicators, too
};

}  // namespace gradientflow::collective
