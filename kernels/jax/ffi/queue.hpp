// A queue of calls with several states. The calls are made one after another in the order of rank 0, which announces
// each call to all ranks. A separate thread makes them; it exists while there are calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "call_frame.hpp"
#include "exchanges.hpp"

namespace gradientflow::jax {

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  Queue(std::shared_ptr<GradientExchange> exchange, ExchangeSet::Meet meet)
      : channel_(std::move(exchange)), meet_(std::move(meet)) {}

  // Adds a call, which is answered once it is made.
  void put(CallFrame& frame);

 private:
  struct Call {
    std::uint32_t state;
    std::int64_t run;
    Buffers buffers;
    LateAnswer answer;
  };

  void serve();
  [[nodiscard]] bool has_calls();
  [[nodiscard]] const ExchangeSet::Order& order();
  [[nodiscard]] std::uint32_t agree_on_state();
  [[nodiscard]] Call take(std::uint32_t state);
  [[nodiscard]] Call take_first();

  Channel channel_;
  ExchangeSet::Meet meet_;
  std::optional<ExchangeSet::Order> order_;  // used only by the serving thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;
  bool served_ = false;
};

}  // namespace gradientflow::jax
