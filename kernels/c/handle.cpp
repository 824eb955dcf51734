// Handles of asynchronous calls.
#include "../engine/handle.hpp"

#include <unistd.h>

#include <cmath>
#include <optional>

#include "objects.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

// Throws in a process that was forked off the one that made the call: nobody there would ever finish it.
const engine::Handle& usable(const gf_handle* handle) {
  const gf_handle& one = given(handle, "handle");
  if (one.process != getpid()) {
    throw Error(ErrorKind::closed, "the call belongs to the process that this one was forked from");
  }
  return *one.engine;
}

}  // namespace
}  // namespace gradientflow::c

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): the functions below are its outside

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
    if (std::isnan(timeout)) {
      throw gradientflow::Error(gradientflow::ErrorKind::value, "timeout is not a number");
    }
    handle->engine->wait(timeout < 0 ? std::nullopt : std::optional(timeout));
    handle->engine->synchronize();
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
  // After a fork, a thread that does not exist any more may count as waiting for it: it is left alone.
  if (handle != nullptr && handle->process == getpid()) {
    delete handle;
  }
}
