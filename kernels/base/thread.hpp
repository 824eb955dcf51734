// Start of a thread, which the operating system may refuse, and its scheduling.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "error.hpp"

namespace gradientflow {

// Starts a thread. Throws Error(system) with its name if it cannot be started.
template <class Body>
[[nodiscard]] std::thread start_thread(const std::string& name, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw system_error("cannot start " + name, error.code().value());
  }
}

// Asks the system to let this thread run soon after it wakes, for a short time: other ranks wait for its messages while
// the cores compute. Linux 6.12 and later need no privilege for this; on other systems nothing changes.
void take_short_turns() noexcept;

}  // namespace gradientflow
