// The gradient pool: all gradient tensors of a model in one stretch of node memory, reduced there in one pass, without
// a copy (GradientFlow paper, section 3.1: gradients are written to where they are sent from).
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "communicator.hpp"

namespace gradientflow::engine {

class GradientPool {
 public:
  // `counts`: elements of each tensor, in the order in which they lie in memory; every tensor starts at a multiple of
  // 64 bytes and the padding between them is reduced along, as zeros. Collective. Throws Error(type) unless `dtype` is
  // a floating one.
  GradientPool(std::shared_ptr<Communicator> communicator, const std::vector<std::size_t>& counts, DType dtype);

  [[nodiscard]] std::size_t tensors() const { return offsets_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::byte* data() const { return segment_->mine(); }
  [[nodiscard]] std::size_t offset(std::size_t tensor) const { return offsets_[tensor]; }  // bytes
  [[nodiscard]] const std::shared_ptr<transport::Segment>& segment() const { return segment_; }

  // Tensor `tensor` is final for this iteration. From any thread. Throws Error(value) for an index out of range, or
  // said twice in one iteration.
  void ready(std::size_t tensor);
  [[nodiscard]] std::size_t ready_count() const;

  // Replaces every tensor by its mean over the ranks, whether ready was said or not, and starts the next iteration.
  void wait();

 private:
  std::shared_ptr<Communicator> communicator_;
  DType dtype_;
  std::vector<std::size_t> offsets_;
  std::size_t bytes_ = 0;
  std::shared_ptr<transport::Segment> segment_;
  mutable std::mutex mutex_;
  std::vector<bool> ready_;
  std::size_t ready_count_ = 0;
};

}  // namespace gradientflow::engine
