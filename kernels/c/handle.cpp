// Handles of asynchronous calls.
#include "../engine/calls/handle.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "../base/text.hpp"
#include "objects.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

// Returns the handle. Throws in a fork of the process that made the call: in the fork, the call would never end.
const engine::Handle& usable(const gf_handle* handle) {
  const gf_handle& one = given(handle, "handle");
  if (one.process != getpid()) {
    throw Error(ErrorKind::closed, "the call belongs to the process that this one was forked from");
  }
  return *one.engine;
}

void check_timeout(double timeout) {
  if (std::isnan(timeout)) {
    throw Error(ErrorKind::value, "timeout is not a number");
  }
}

using Deadline = std::optional<engine::Times::Clock::time_point>;

Deadline deadline_after(double timeout) {
  check_timeout(timeout);
  if (timeout < 0) {
    return std::nullopt;
  }
  constexpr double longest = 1e9;
  return engine::Times::Clock::now() + std::chrono::duration_cast<engine::Times::Clock::duration>(
                                           std::chrono::duration<double>(std::min(timeout, longest)));
}

// Calls of an array without its NULL entries, and the index of each call in the array.
struct Calls {
  std::vector<engine::Handle*> handles;
  std::vector<std::size_t> places;
};

Calls calls_of(gf_handle* const* handles, std::size_t number) {
  Calls calls;
  for (std::size_t i = 0; i < number; ++i) {
    if ((&given(handles, "handles"))[i] != nullptr) {
      usable(handles[i]);
      calls.handles.push_back(handles[i]->engine.get());
      calls.places.push_back(i);
    }
  }
  return calls;
}

// Waits until a call has ended, also on its device. Throws its error.
void end(engine::Handle& handle) {
  handle.wait(std::nullopt);
  handle.synchronize();
}

}  // namespace
}  // namespace gradientflow::c

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

gf_status gf_handle_test(const gf_handle* handle, int* done) {
  return guarded([&] {
    int& result = given(done, "done");
    result = 0;
    result = usable(handle).device_done() ? 1 : 0;
  });
}

gf_status gf_handle_wait(gf_handle* handle, double timeout) {
  return guarded([&] {
    usable(handle);
    check_timeout(timeout);
    handle->engine->wait(timeout < 0 ? std::nullopt : std::optional(timeout));
    handle->engine->synchronize();
  });
}

gf_status gf_wait_all(gf_handle* const* handles, size_t number, double timeout) {
  return guarded([&] {
    const Deadline deadline = deadline_after(timeout);
    const Calls calls = calls_of(handles, number);
    for (auto* const call : calls.handles) {
      if (!call->done_by(deadline)) {
        const auto late =
            std::count_if(calls.handles.begin(), calls.handles.end(), [](const auto* each) { return !each->done(); });
        throw gradientflow::Error(gradientflow::ErrorKind::timeout,
                                  std::to_string(late) + " of " + std::to_string(calls.handles.size()) +
                                      " calls were not done within " + gradientflow::format_number(timeout) +
                                      " s; they go on");
      }
    }
    std::optional<gradientflow::Error> failure;
    for (auto* const call : calls.handles) {
      try {
        end(*call);
      } catch (const gradientflow::Error& error) {
        failure = failure.value_or(error);
      }
    }
    if (failure) {
      throw gradientflow::Error(*failure);
    }
  });
}

gf_status gf_wait_any(gf_handle* const* handles, size_t number, double timeout, size_t* index) {
  return guarded([&] {
    size_t& result = given(index, "index");
    result = number;
    const Deadline deadline = deadline_after(timeout);
    const Calls calls = calls_of(handles, number);
    if (calls.handles.empty()) {
      return;
    }
    const auto done = gradientflow::engine::Handle::any_done_by(calls.handles, deadline);
    if (!done) {
      throw gradientflow::Error(gradientflow::ErrorKind::timeout,
                                "no call was done within " + gradientflow::format_number(timeout) + " s; they go on");
    }
    result = calls.places[*done];
    end(*calls.handles[*done]);
  });
}

gf_status gf_handle_nonfinite(const gf_handle* handle, int64_t* count) {
  return guarded([&] {
    int64_t& result = given(count, "count");
    result = -1;
    const gradientflow::engine::Handle& call = usable(handle);
    const auto found = call.done() ? call.outcome().nonfinite : std::nullopt;
    if (found) {
      result = static_cast<int64_t>(*found);
    }
  });
}

void gf_handle_free(gf_handle* handle) {
  // A forked process does not free the handle: a thread that no longer exists may count as its waiter.
  if (handle != nullptr && handle->process == getpid()) {
    delete handle;
  }
}
