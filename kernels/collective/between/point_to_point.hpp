// Messages with a tensor from one rank to another. They are not collective: only the two ranks take part, and several
// threads may call at once. A header has count and dtype, so a receiver that expects another count or dtype gets an
// error and no data.
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

  // Returns when `data` may be overwritten, perhaps before it is received. Throws Error(peer), Error(timeout).
  void send(int to, const void* data, std::size_t count, DType dtype);

  // Throws Error(mismatch) if the sender's tensor has another count or dtype; that tensor is then lost.
  void receive(int from, void* data, std::size_t count, DType dtype);

 private:
  transport::Messages& messages_;
  std::vector<std::mutex> to_;    // one per rank: keeps a tensor's messages together
  std::vector<std::mutex> from_;  // likewise
};

}  // namespace gradientflow::collective
