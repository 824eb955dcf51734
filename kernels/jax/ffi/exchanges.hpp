// Exchanges of gradients of one layout, for the calls of `average` with all states.
//
// XLA starts calls in any order unless a call needs the result of another call, and the order differs from rank to
// rank. Calls with one state follow each other, since each takes the token of the call before it. States have numbers,
// the same on all ranks. Calls with the first state have a separate exchange, in XLA's thread that makes the call: most
// programs have only that state. All further states share a second exchange, whose calls wait in a queue. No thread of
// XLA waits for them, since the call that other ranks have reached may need it.
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

// An exchange of gradients: the work of a call of `average`.
class GradientExchange {
 public:
  GradientExchange() = default;
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;
  virtual ~GradientExchange() = default;

  // Makes a call; one call at a time. Operands: the token, the gradients, further state. Results: the same, in the same
  // order. `refused`: this rank throws afterwards, and all ranks that make the same call must throw too.
  virtual void run(const Buffers& buffers, bool refused) = 0;
};

// A channel makes calls one after another. In one execution of a program, a call must take the state that the last call
// with the same number has given. Otherwise nothing orders the two calls, other ranks may have swapped them, and the
// call is refused. If both calls write to the same memory, as in a loop, XLA itself orders them.
class Channel {
 public:
  explicit Channel(std::shared_ptr<GradientExchange> exchange) : exchange_(std::move(exchange)) {}

  void run(const Buffers& buffers, std::int64_t run);

 private:
  struct Given {
    std::int64_t run;
    const std::byte* place;
    Token token;
  };

  std::shared_ptr<GradientExchange> exchange_;
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, Given> given_;  // last calls by the states' numbers
};

class Queue;

class ExchangeSet {
 public:
  // Communicator of the queue, and the seconds that a call waits there for its turn.
  struct Order {
    std::shared_ptr<engine::Communicator> communicator;
    double timeout;
  };
  using Meet = std::function<Order()>;  // collective

  ExchangeSet(std::shared_ptr<GradientExchange> first, std::shared_ptr<GradientExchange> others, Meet meet);

  void run(CallFrame& frame);

 private:
  Channel first_;
  std::shared_ptr<Queue> others_;
};

}  // namespace gradientflow::jax
