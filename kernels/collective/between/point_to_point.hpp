// A tensor from one rank to another. Not a collective call: only the two take part, and calls of several threads go on
// at once. A header says what comes, so that a receiver who expects something else gets an error and no data.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "../../base/dtype.hpp"
#include "../../transport/messages/messages.hpp"

namespace gradientflow::collective {

class PointToPoint {
 public:
  explicit PointToPoint(transport::Messages& messages);

  // Returns when the memory may change, which may be before it is received. Throws Error(peer), Error(timeout).
  void send(int to, const void* data, std::size_t count, DType dtype);

  // Throws Error(mismatch) where the sender sends another number of elements or another dtype; what it sent is then
  // gone.
  void receive(int from, void* data, std::size_t count, DType dtype);

 private:
  transport::Messages& messages_;
  std::vector<std::mutex> to_;  // by rank: what one tensor consists of goes out, and comes in, in one go
  std::vector<std::mutex> from_;
};

}  // namespace gradientflow::collective
