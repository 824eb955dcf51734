// Sends, receives and messages that have come, as the engine keeps them.
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

// What a request stands for. Its memory is that of the engine once it has been given up.
struct Operation {
  std::atomic<bool> has_ended{false};
  std::optional<Error> error;  // what happened to the rank: "has died: ..."
  std::size_t bytes = 0;       // sent, or received
  int peer = -1;               // as a rank of the job
};

struct Arrived;

struct Sending : Operation {
  const std::byte* data = nullptr;
  std::uint64_t number = 0;  // where it was announced
  bool is_given_up = false;
  Arrived* arrived = nullptr;         // a message of this process to itself
  Owner owner;                        // of data that was given up
  std::unique_ptr<std::byte[]> copy;  // the same
};

struct Receiving : Operation {
  std::byte* data = nullptr;
  std::size_t capacity = 0;
  int tag = 0;
  Inbox* inbox = nullptr;            // in which it is posted
  Connection* connection = nullptr;  // out of which it is being filled
  std::uint64_t number = 0;          // of the announced message that it fetches
};

// A message that came before anybody had posted a receive for it.
struct Arrived {
  int source = -1;  // as a rank of the job
  int tag = 0;
  std::size_t bytes = 0;
  std::uint64_t number = 0;             // of one that has only been announced; 0: it has come whole
  Sending* own = nullptr;               // one that this process has announced to itself
  std::unique_ptr<std::byte[]> memory;  // of one that came whole
  Connection* connection = nullptr;     // out of which the memory is being filled
  std::size_t cost = 0;                 // of credit
  bool is_broken = false;               // its sender died before it was there
};

}  // namespace gradientflow::transport::tcp
