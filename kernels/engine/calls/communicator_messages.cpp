// Messages between two ranks.
#include <string>
#include <utility>

#include "../../transport/buffer.hpp"
#include "communicator.hpp"

namespace gradientflow::engine {

namespace {

// Describes a message for the log: the root is the peer.
transport::Signature message_of(int peer, std::size_t count, DType dtype) {
  return {.count = count, .root = peer, .dtype = dtype};
}

}  // namespace

template <class Work>
void Communicator::run_with_peer(int peer, Work work) {
  check_process();
  check_rank(peer, "peer");
  if (peer == rank()) {
    throw Error(ErrorKind::value, "rank " + std::to_string(peer) + " cannot send to itself, nor receive from itself");
  }
  group_->endpoint().check_not_ended();
  if (!group_->endpoint().limits().threads) {
    turns_.run(std::move(work));
  } else {
    turns_.run_concurrently(std::move(work));
  }
}

void Communicator::send(int to, const void* data, std::size_t count, DType dtype,
                        const std::optional<collective::Placement>& placement) {
  const std::size_t bytes = count * size_of(dtype);
  log_.during(log_.begin(CallForm::send, message_of(to, count, dtype), 0), [&] {
    if (!placement) {
      run_with_peer(to, [&] { point_to_point_.send(to, data, count, dtype); });
    } else {
      const compute::cuda::UseDevice use(placement->device);
      const transport::Buffer copy(group_->endpoint(), bytes);
      compute::cuda::runtime().copy(copy.data(), data, bytes, placement->stream);
      compute::cuda::runtime().synchronize(placement->stream);
      run_with_peer(to, [&] { point_to_point_.send(to, copy.data(), count, dtype); });
    }
  });
  sent_->add(bytes);
}

void Communicator::receive(int from, void* data, std::size_t count, DType dtype,
                           const std::optional<collective::Placement>& placement) {
  log_.during(log_.begin(CallForm::receive, message_of(from, count, dtype), 0), [&] {
    if (!placement) {
      run_with_peer(from, [&] { point_to_point_.receive(from, data, count, dtype); });
      return;
    }
    const compute::cuda::UseDevice use(placement->device);
    const transport::Buffer copy(group_->endpoint(), count * size_of(dtype));
    run_with_peer(from, [&] { point_to_point_.receive(from, copy.data(), count, dtype); });
    compute::cuda::runtime().copy(data, copy.data(), count * size_of(dtype), placement->stream);
    compute::cuda::runtime().synchronize(placement->stream);
  });
}

}  // namespace gradientflow::engine
