// Python module gradientflow._core: converts arguments, releases the GIL, and nothing else.
#include "bindings.hpp"

PYBIND11_MODULE(_core, module) {
  using namespace gradientflow::bindings;  // NOLINT(google-build-using-namespace)
  module.doc() = "The native core of GradientFlow.";
  bind_errors(module);
  bind_config(module);
  bind_device(module);
  bind_machine(module);
  bind_endpoint(module);
  bind_communicator(module);
  bind_process_group(module);
  bind_mailbox(module);
  bind_meeting(module);
  bind_optimizer(module);
  bind_gradient_pool(module);
  bind_sparse_pool(module);
  bind_top_k_pool(module);
  bind_server(module);
  bind_policy(module);
  bind_local_updates(module);
  bind_limit(module);
  bind_selector(module);
  bind_jax(module);
  bind_recorder(module);
}
