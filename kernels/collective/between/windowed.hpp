// Pipeline of the algorithms over messages: segments are sent in order, and a window of segments is under way at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "../../transport/messages/messages.hpp"

namespace gradientflow::collective {

// Receives and sends segments 0 ... total - 1, `window` of each at once. post(t) starts to receive segment t, send(t)
// starts to send it; both return the message, or an empty request if there is no message. take(t) uses received segment
// t, once sent segment t may be overwritten. post(t + window) and send(t + window) follow, so data of take(t) can be
// sent as any segment from t + window on.
template <class Post, class Take, class Send>
void run_windowed(transport::Messages& messages, std::size_t total, std::size_t window, Post post, Take take,
                  Send send) {
  window = std::max<std::size_t>(std::min(window, total), 1);
  std::vector<transport::Request> incoming(window);
  std::vector<transport::Request> outgoing(window);
  for (std::size_t t = 0; t < std::min(window, total); ++t) {
    incoming[t] = post(t);
  }
  for (std::size_t t = 0; t < std::min(window, total); ++t) {
    outgoing[t] = send(t);
  }
  for (std::size_t t = 0; t < total; ++t) {
    messages.wait(incoming[t % window]);
    messages.wait(outgoing[t % window]);
    take(t);
    if (t + window < total) {
      incoming[t % window] = post(t + window);
      outgoing[t % window] = send(t + window);
    }
  }
}

}  // namespace gradientflow::collective
