// A rank's access to the tensors of the ranks of its node during a call.
//
// One interface serves three kinds: the payload of the announcement (small tensors), node memory (mapped by every
// rank), and direct reads of another process (large ordinary arrays) into a buffer of the reader.
#pragma once

#include <cstddef>

#include "../../base/short_array.hpp"
#include "../../transport/node/node.hpp"
#include "../call/call.hpp"

namespace gradientflow::collective {

// The two tensors that a rank announces.
enum class Tensor { input, output };

class PeerMemory {
 public:
  // Accesses the inputs in the announcements of the call under way.
  static PeerMemory payloads(const transport::Node& node);

  // Accesses the tensors of all ranks in `segment`, at their announced offsets.
  static PeerMemory mapped(const transport::Node& node, Tensor tensor, const transport::Segment& segment);

  // Accesses the inputs of all ranks in their processes' ordinary memory.
  static PeerMemory direct(const transport::Node& node);

  // Tells if this rank may read and write at the address at() of another rank; direct reads need view() or fetch().
  [[nodiscard]] bool is_mapped() const { return mapped_; }

  // Returns the address of rank `local`'s tensor in this process; with direct reads, in the process of that rank.
  [[nodiscard]] std::byte* at(int local) const { return addresses_[static_cast<std::size_t>(local)]; }

  // Returns `bytes` bytes of rank `local`'s tensor, from byte `offset` on: in place if mapped, otherwise read into
  // `buffer`.
  [[nodiscard]] const std::byte* view(int local, std::size_t offset, std::size_t bytes, std::byte* buffer) const;

  // Copies the same bytes to `destination`.
  void fetch(int local, std::size_t offset, std::size_t bytes, std::byte* destination, compute::Store store) const;

 private:
  PeerMemory(const transport::Node& node, bool mapped)
      : node_(&node), mapped_(mapped), addresses_(static_cast<std::size_t>(node.size())) {}

  const transport::Node* node_;
  bool mapped_;
  ShortArray<std::byte*> addresses_;
};

}  // namespace gradientflow::collective
