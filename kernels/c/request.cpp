// Prepared calls for C.
#include <unistd.h>

#include <optional>

#include "objects.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

// Returns the prepared call. Throws in a fork of the process that prepared it.
engine::PreparedCall& usable(gf_request* request) {
  gf_request& one = given(request, "request");
  one.engine.communicator().check_process();
  return one.engine;
}

}  // namespace
}  // namespace gradientflow::c

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

gf_status gf_request_start(gf_request* request) {
  return guarded([&] { usable(request).start(); });
}

gf_status gf_request_wait(gf_request* request, double timeout) {
  return guarded([&] {
    gradientflow::engine::PreparedCall& call = usable(request);
    call.wait(timeout < 0 ? std::nullopt : std::optional(timeout));
    if (call.call().placement) {
      call.handle()->synchronize();
    }
  });
}

gf_status gf_request_test(gf_request* request, int* done) {
  return guarded([&] {
    int& result = given(done, "done");
    result = 0;
    result = usable(request).done() ? 1 : 0;
  });
}

gf_status gf_request_nonfinite(const gf_request* request, int64_t* count) {
  return guarded([&] {
    int64_t& result = given(count, "count");
    const auto found = given(request, "request").engine.outcome().nonfinite;
    result = found ? static_cast<int64_t>(*found) : -1;
  });
}

void gf_request_free(gf_request* request) {
  // A forked process does not free the request: a thread that no longer exists may count as its waiter.
  if (request != nullptr && request->process == getpid()) {
    delete request;
  }
}
