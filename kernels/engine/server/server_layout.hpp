// Where the tensors of a parameter server lie, and which server has which part of them.
//
// The tensors lie one after the other in one flat vector. The vector is cut into ranges: several whole tensors fused
// (see `fuse`), or a part of a large one. Every range is cut into one piece per server, of nearly equal size, so all
// servers are busy all the time, whatever the sizes of the tensors. The shard of a server is all of its pieces, one
// after the other.
#pragma once

#include <cstddef>
#include <vector>

#include "../../base/dtype.hpp"

namespace gradientflow::engine {

// All in elements.
struct FlatRange {
  std::size_t begin;
  std::size_t end;
};
struct Piece {
  std::size_t flat;   // where it begins in the flat vector,
  std::size_t shard;  // and in the shard
  std::size_t count;
};

// The intersection of a piece and a tensor.
struct TensorPart {
  std::size_t tensor;
  std::size_t server;
  std::size_t range;
  std::size_t begin;  // in the tensor,
  std::size_t flat;   // in the flat vector,
  std::size_t shard;  // and in the shard
  std::size_t count;
};

class ServerLayout {
 public:
  // `threshold`: bytes of a range, in the dtype `wire`. Throws Error(value) where one of several servers has no shard.
  ServerLayout(std::vector<std::size_t> counts, std::size_t servers, std::size_t threshold, DType wire);

  // The largest number of servers, up to `most`, that can have a shard each.
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
  std::vector<std::size_t> offsets_;  // one more than tensors
  std::vector<FlatRange> ranges_;
  std::vector<std::size_t> elements_;
  std::vector<Piece> pieces_;  // by range, then by server
  std::vector<std::size_t> shard_sizes_;
  std::vector<std::vector<TensorPart>> of_server_;
  std::vector<std::vector<TensorPart>> of_tensor_;
};

}  // namespace gradientflow::engine
