// Layout of the tensors of a parameter server, and their distribution over the servers.
//
// The tensors are concatenated in one flat vector. The vector is cut into ranges: several whole tensors fused (see
// `fuse`), or a part of a large one. Every range is cut into pieces of nearly equal size, one for each server. So all
// servers are busy all the time, whatever the sizes of the tensors. A server's shard is the concatenation of its
// pieces.
#pragma once

#include <cstddef>
#include <vector>

#include "../../base/dtype.hpp"

namespace gradientflow::engine {

// Range of the flat vector; all units are elements.
struct FlatRange {
  std::size_t begin;
  std::size_t end;
};
struct Piece {
  std::size_t flat;   // start in the flat vector
  std::size_t shard;  // start in the shard
  std::size_t count;
};

// Intersection of a piece and a tensor.
struct TensorPart {
  std::size_t tensor;
  std::size_t server;
  std::size_t range;
  std::size_t begin;  // start in the tensor
  std::size_t flat;   // start in the flat vector
  std::size_t shard;  // start in the shard
  std::size_t count;
};

class ServerLayout {
 public:
  // `threshold`: bytes of a range, in the dtype `wire`. Throws Error(value) if any of several servers has no shard.
  ServerLayout(std::vector<std::size_t> counts, std::size_t servers, std::size_t threshold, DType wire);

  // Returns the largest number of servers, up to `most`, that can have a shard each.
  [[nodiscard]] static std::size_t servers_for(const std::vector<std::size_t>& counts, std::size_t most,
                                               std::size_t threshold, DType wire);

  [[nodiscard]] std::size_t tensors() const { return counts_.size(); }
  [[nodiscard]] const std::vector<std::size_t>& counts() const { return counts_; }
  [[nodiscard]] std::size_t offset(std::size_t tensor) const { return offsets_[tensor]; }
  [[nodiscard]] std::size_t size() const { return offsets_.back(); }
  [[nodiscard]] std::size_t servers() const { return servers_; }
  [[nodiscard]] const std::vector<FlatRange>& ranges() const { return ranges_; }
  [[nodiscard]] std::size_t elements_of(std::size_t range) const { return elements_[range]; }  // without padding
  [[nodiscard]] const Piece& piece(std::size_t range, std::size_t server) const {
    return pieces_[range * servers_ + server];
  }
  [[nodiscard]] std::size_t shard_size(std::size_t server) const { return shard_sizes_[server]; }
  [[nodiscard]] const std::vector<TensorPart>& parts_of_server(std::size_t server) const { return of_server_[server]; }
  [[nodiscard]] const std::vector<TensorPart>& parts_of_tensor(std::size_t tensor) const { return of_tensor_[tensor]; }

 private:
  void cut();
  void list_parts(std::size_t range, std::size_t server);

  std::vector<std::size_t> counts_;
  std::size_t servers_;
  std::vector<std::size_t> offsets_;  // start of each tensor; then the end of the last
  std::vector<FlatRange> ranges_;
  std::vector<std::size_t> elements_;
  std::vector<Piece> pieces_;  // sorted by range, then by server
  std::vector<std::size_t> shard_sizes_;
  std::vector<std::vector<TensorPart>> of_server_;
  std::vector<std::vector<TensorPart>> of_tensor_;
};

}  // namespace gradientflow::engine
