#include "point_to_point.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "../../base/error.hpp"
#include "../../transport/buffer.hpp"
#include "../call/partition.hpp"

namespace gradientflow::collective {
namespace {

using transport::Purpose;
using transport::Request;

constexpr std::size_t part_bytes = std::size_t{1} << 30;  // largest part of a tensor in one message

struct Header {
  std::uint64_t count = 0;
  DType dtype = DType::uint8;
};

std::string describe(const Header& header) {
  return std::to_string(header.count) + " " + std::string(name_of(header.dtype));
}

}  // namespace

PointToPoint::PointToPoint(transport::Messages& messages)
    : messages_(messages),
      to_(static_cast<std::size_t>(messages.size())),
      from_(static_cast<std::size_t>(messages.size())) {}

void PointToPoint::send(int to, const void* data, std::size_t count, DType dtype) {
  const Header header{count, dtype};
  const std::string what = "send of " + describe(header) + " to rank " + std::to_string(to);
  const std::size_t bytes = count * size_of(dtype);
  const auto* const from = static_cast<const std::byte*>(data);
  const transport::Buffer head(messages_.endpoint(), sizeof header);
  std::memcpy(head.data(), &header, sizeof header);
  std::vector<Request> sent;
  {
    const std::lock_guard lock(to_[static_cast<std::size_t>(to)]);
    sent.push_back(messages_.send(to, Purpose::user, head.data(), sizeof header));
    for (std::size_t k = 0; k < pieces(bytes, part_bytes); ++k) {
      const Range part = piece({0, bytes}, part_bytes, k);
      sent.push_back(messages_.send(to, Purpose::user, from + part.begin, part.size()));
    }
  }
  for (Request& message : sent) {
    messages_.wait_user_message(message, what);
  }
}

void PointToPoint::receive(int from, void* data, std::size_t count, DType dtype) {
  const Header expected{count, dtype};
  const std::string what = "receive of " + describe(expected) + " from rank " + std::to_string(from);
  const std::lock_guard lock(from_[static_cast<std::size_t>(from)]);
  const transport::Buffer head(messages_.endpoint(), sizeof(Header));
  Request first = messages_.receive(from, Purpose::user, head.data(), sizeof(Header));
  messages_.wait_user_message(first, what);
  Header header;
  std::memcpy(&header, head.data(), sizeof header);
  const bool fits = header.count == expected.count && header.dtype == expected.dtype;
  const std::size_t bytes = header.count * size_of(header.dtype);
  const transport::Buffer unwanted(messages_.endpoint(), fits ? 0 : std::min(bytes, part_bytes));
  for (std::size_t k = 0; k < pieces(bytes, part_bytes); ++k) {
    const Range part = piece({0, bytes}, part_bytes, k);
    std::byte* const to = fits ? static_cast<std::byte*>(data) + part.begin : unwanted.data();
    Request message = messages_.receive(from, Purpose::user, to, part.size());
    messages_.wait_user_message(message, what);
  }
  if (!fits) {
    throw Error(ErrorKind::mismatch, "rank " + std::to_string(from) + " sent " + describe(header) + ", but rank " +
                                         std::to_string(messages_.rank()) + " receives " + describe(expected));
  }
}

}  // namespace gradientflow::collective
