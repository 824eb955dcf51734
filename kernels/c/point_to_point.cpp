// Tensors from one rank to another.
#include "../engine/calls/communicator.hpp"
#include "../engine/calls/request.hpp"
#include "arguments.hpp"
#include "objects.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

// Returns the dtype of a tensor, after checking that its data are given and fit into memory.
DType check_tensor(const void* data, std::size_t count, int dtype) {
  const DType type = dtype_of(dtype);
  engine::check_fits(count, size_of(type));
  if (count > 0) {
    given(static_cast<const char*>(data), "data");
  }
  return type;
}

}  // namespace
}  // namespace gradientflow::c

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

gf_status gf_send(gf_communicator* communicator, const void* data, size_t count, gf_dtype dtype, int to) {
  return guarded([&, type = int{dtype}] {
    given(communicator, "communicator").engine->send(to, data, count, check_tensor(data, count, type));
  });
}

gf_status gf_recv(gf_communicator* communicator, void* data, size_t count, gf_dtype dtype, int from) {
  return guarded([&, type = int{dtype}] {
    given(communicator, "communicator").engine->receive(from, data, count, check_tensor(data, count, type));
  });
}
