// Binding functions: one for each file, which adds its part to the module gradientflow._core.
#pragma once

#include <pybind11/pybind11.h>

namespace gradientflow::bindings {

void bind_errors(pybind11::module_& module);
void bind_config(pybind11::module_& module);
void bind_device(pybind11::module_& module);
void bind_machine(pybind11::module_& module);
void bind_endpoint(pybind11::module_& module);
void bind_communicator(pybind11::module_& module);
void bind_process_group(pybind11::module_& module);
void bind_mailbox(pybind11::module_& module);
void bind_meeting(pybind11::module_& module);
void bind_gradient_pool(pybind11::module_& module);
void bind_sparse_pool(pybind11::module_& module);
void bind_top_k_pool(pybind11::module_& module);
void bind_optimizer(pybind11::module_& module);
void bind_server(pybind11::module_& module);
void bind_policy(pybind11::module_& module);
void bind_local_updates(pybind11::module_& module);
void bind_limit(pybind11::module_& module);
void bind_selector(pybind11::module_& module);
void bind_jax(pybind11::module_& module);
void bind_recorder(pybind11::module_& module);

// Sets a function that adds to the text of an error that another rank has caused, or all ranks together.
void explain_errors_by(pybind11::object explain);

}  // namespace gradientflow::bindings
