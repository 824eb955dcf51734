// Starting a thread, which the operating system may refuse, and how soon it runs.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "error.hpp"

namespace gradientflow {

// Throws Error(system) with the name of the thread that cannot be started.
template <class Body>
[[nodiscard]] std::thread start_thread(const std::string& name, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw system_error("cannot start " + name, error.code().value());
  }
}

// Asks the system to let this thread run soon after it wakes, for a short time: others wait for what it sends, while
// their cores compute. Linux 6.12 and later do so without a privilege; elsewhere nothing changes.
void take_short_turns() noexcept;

}  // namespace gradientflow
