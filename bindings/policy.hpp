// Policies that were started in Python, for the core.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "../kernels/policy/policy.hpp"

namespace gradientflow::bindings {

// Returns the result of `start` of a gradientflow.policies.Policy as a policy whose events and answers are checked.
// Needs the GIL. A policy of the core is returned unchanged, and asked without the GIL. A user's object is asked with
// the GIL, in any thread, and lives as long as the returned policy; its exceptions become Error(value). So no thread
// may hold the GIL while it waits for a thread that asks the policy. Throws Error(type) for an object without the two
// methods, Error(value) for a policy of the core that was started for another number of workers.
[[nodiscard]] std::shared_ptr<policy::Policy> policy_of(const pybind11::object& running, int workers);

}  // namespace gradientflow::bindings
