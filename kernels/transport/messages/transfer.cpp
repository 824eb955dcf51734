#include "transfer.hpp"

#include "../../base/error.hpp"

namespace gradientflow::transport {

std::string rank_text(int rank) { return rank < 0 ? "any rank" : "rank " + std::to_string(rank); }

int Tags::at(std::int64_t number) const {
  if (number < 0 || number >= count) {
    throw Error(ErrorKind::value,
                "tag " + std::to_string(number) + " is not between 0 and " + std::to_string(count - 1));
  }
  return first + static_cast<int>(number);
}

void Transfer::check() const {
  if (error_) {
    throw Error(*error_);
  }
}

std::string Transfer::what() const {
  return (kind_ == Kind::send ? "the send to " : "the receive from ") + rank_text(peer_) + " with tag " +
         std::to_string(tag_);
}

}  // namespace gradientflow::transport
