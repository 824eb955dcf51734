// The exchanges of gradients of one layout, for the calls of `average` with all states.
//
// XLA starts calls in any order unless one needs the result of another, and each rank has an order of its own. Calls
// with one state follow each other, since each has the token of the call before it. States have numbers, which are the
// same on all ranks. Calls with the first state have an exchange to themselves, in the thread of XLA's that makes them:
// most programs have no other. All other states share a second exchange, whose calls wait in a queue: no thread of
// XLA's waits, since it may be needed for the call that the other ranks are at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "../../engine/calls/communicator.hpp"
#include "call_frame.hpp"
#include "token.hpp"

namespace gradientflow::jax {

// An exchange of gradients: what a call of `average` does.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  // Operands: the token, the gradients, further state. Results: the same, in the same order. One call at a time.
  // `refused`: this rank throws afterwards, and those that make the same call are to throw, too.
  virtual void run(const Buffers& buffers, bool refused) = 0;
};

// Makes calls one after the other. With one number, in one execution of a program, each call needs the state that the
// one before has given: else nothing orders them, other ranks may have taken one for the other, and the call is
// refused. Only where both write to the same memory, XLA itself makes one after the other, as in a loop.
class Channel {
 public:
  explicit Channel(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  void run(const Buffers& buffers, std::int64_t run);

 private:
  struct Given {
    std::int64_t run;
    const std::byte* place;
    Token token;
  };

  std::shared_ptr<Exchange> exchange_;
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, Given> given_;  // by the numbers of states
};

class Queue;

class Exchanges {
 public:
  // What makes the communicator of the queue, and the seconds that a call waits there for its turn. Collective.
  struct Order {
    std::shared_ptr<engine::Communicator> communicator;
    double timeout;
  };
  using Meet = std::function<Order()>;

  Exchanges(std::shared_ptr<Exchange> first, std::shared_ptr<Exchange> others, Meet meet);

  void run(CallFrame& frame);

 private:
  Channel first_;
  std::shared_ptr<Queue> others_;
};

}  // namespace gradientflow::jax
