// Inbox of a group of ranks: receives that wait for messages, and messages that wait for receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "operations.hpp"

namespace gradientflow::transport::tcp {

inline constexpr int first_gathering_tag = 1 << 30;  // lower tags are for users of an endpoint

// Ranks of peers are numbered as in the job.
struct Inbox {
  explicit Inbox(std::uint64_t group) : id(group) {}

  std::uint64_t id;
  std::unordered_map<int, std::deque<Receiving*>> posted;  // receives of each source, the oldest first
  std::list<std::unique_ptr<Arrived>> arrived;             // the oldest first

  // Takes the oldest receive for a message, or the oldest message for a receive, out of the inbox.
  [[nodiscard]] Receiving* take_posted(int source, int tag);
  [[nodiscard]] std::unique_ptr<Arrived> take_arrived(int source, int tag);
  [[nodiscard]] std::unique_ptr<Arrived> take_oldest(std::optional<int> tag);
  void forget(const Receiving& receiving);
};

}  // namespace gradientflow::transport::tcp
