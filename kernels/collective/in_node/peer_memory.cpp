#include "peer_memory.hpp"

namespace gradientflow::collective {
namespace {

const transport::Location& announced(const transport::Node& node, int local, Tensor tensor) {
  const transport::Announcement& announcement = node.announcement(local);
  return tensor == Tensor::input ? announcement.input : announcement.output;
}

}  // namespace

PeerMemory PeerMemory::payloads(const transport::Node& node) {
  PeerMemory memory(node, true);
  for (int local = 0; local < node.size(); ++local) {
    // Payloads are only read; one address type serves all three kinds.
    memory.addresses_[static_cast<std::size_t>(local)] =
        const_cast<std::byte*>(node.payload(local));  // NOLINT(*-const-cast)
  }
  return memory;
}

PeerMemory PeerMemory::mapped(const transport::Node& node, Tensor tensor, const transport::Segment& segment) {
  PeerMemory memory(node, true);
  for (int local = 0; local < node.size(); ++local) {
    memory.addresses_[static_cast<std::size_t>(local)] = segment.part(local) + announced(node, local, tensor).offset;
  }
  return memory;
}

PeerMemory PeerMemory::direct(const transport::Node& node) {
  PeerMemory memory(node, false);
  for (int local = 0; local < node.size(); ++local) {
    memory.addresses_[static_cast<std::size_t>(local)] =
        reinterpret_cast<std::byte*>(node.announcement(local).input.address);  // NOLINT
  }
  return memory;
}

const std::byte* PeerMemory::view(int local, std::size_t offset, std::size_t bytes, std::byte* buffer) const {
  const std::byte* const address = at(local) + offset;
  if (mapped_ || local == node_->rank()) {
    return address;
  }
  node_->read(local, buffer, address, bytes);
  return buffer;
}

void PeerMemory::fetch(int local, std::size_t offset, std::size_t bytes, std::byte* destination,
                       compute::Store store) const {
  if (mapped_ || local == node_->rank()) {
    compute::copy(destination, at(local) + offset, bytes, store);
  } else {
    node_->read(local, destination, at(local) + offset, bytes);
  }
}

}  // namespace gradientflow::collective
