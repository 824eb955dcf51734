// One rank's access to the tensors of the ranks of its node during a call.
//
// One interface for three kinds: the payload of the announcement (small tensors), node memory (mapped by every rank),
// and direct reads of another process (large ordinary arrays) into a buffer of the reader.
#pragma once

#include <cstddef>

#include "../../base/short_array.hpp"
#include "../../transport/node/node.hpp"
#include "../call/call.hpp"

namespace gradientflow::collective {

// One of the two tensors that a rank announces.
enum class Tensor { input, output };

class PeerMemory {
 public:
  // The inputs that came with the announcements of the call under way.
  static PeerMemory payloads(const transport::Node& node);

  // The tensors of all ranks in `segment`, at the offsets that they announced.
  static PeerMemory mapped(const transport::Node& node, Tensor tensor, const transport::Segment& segment);

  // The inputs of all ranks as ordinary memory of their processes.
  static PeerMemory direct(const transport::Node& node);

  // Whether at() of another rank may be read and written; direct reads need view() or fetch().
  [[nodiscard]] bool is_mapped() const { return mapped_; }

  // The address of rank `local`'s tensor, in this process or, with direct reads, in its own.
  [[nodiscard]] std::byte* at(int local) const { return addresses_[static_cast<std::size_t>(local)]; }

  // `bytes` bytes of rank `local`'s tensor, from byte `offset` on: in place where mapped, else read into `buffer`.
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
