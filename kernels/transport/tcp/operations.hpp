// Sends, receives and arrived messages, as the engine keeps them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "../../base/error.hpp"
#include "../endpoint.hpp"

namespace gradientflow::transport::tcp {

class Connection;
struct Inbox;

// Operation behind a request. An operation that was given up belongs to the engine.
struct Operation {
  std::atomic<bool> has_ended{false};
  std::optional<Error> error;  // failure of the peer: "has died: ..."
  std::size_t bytes = 0;       // number of bytes sent or received
  int peer = -1;               // numbered as in the job
};

struct Arrived;

struct Sending : Operation {
  const std::byte* data = nullptr;
  std::uint64_t number = 0;  // number under which it was announced
  bool is_given_up = false;
  Arrived* arrived = nullptr;         // a message of this process to itself
  Owner owner;                        // owner of abandoned data
  std::unique_ptr<std::byte[]> copy;  // copy of abandoned data
};

struct Receiving : Operation {
  std::byte* data = nullptr;
  std::size_t capacity = 0;
  int tag = 0;
  Inbox* inbox = nullptr;            // inbox where it is posted
  Connection* connection = nullptr;  // connection that fills it
  std::uint64_t number = 0;          // number of the announced message that it fetches
};

// Message that arrived before a receive was posted for it.
struct Arrived {
  int source = -1;  // numbered as in the job
  int tag = 0;
  std::size_t bytes = 0;
  std::uint64_t number = 0;             // number of an announced message; 0: it came whole
  Sending* own = nullptr;               // send of this process to itself, if announced
  std::unique_ptr<std::byte[]> memory;  // memory of a whole message
  Connection* connection = nullptr;     // connection that fills the memory
  std::size_t cost = 0;                 // cost in credit
  bool is_broken = false;               // its sender died before it was complete
};

}  // namespace gradientflow::transport::tcp
