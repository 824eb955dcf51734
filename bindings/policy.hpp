// Policies that were started in Python, for the core.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "../kernels/policy/policy.hpp"

namespace gradientflow::bindings {

// What `start` of a gradientflow.policies.Policy returned, as a policy whose events and answers are checked. To be
// called with Python's lock. A policy of the core stays what it is, and needs no lock; a user's object is asked with
// the lock, in whatever thread, and lives until the policy is gone; what it raises becomes an Error(value). So nobody
// waits for a thread that asks the policy while having the lock. Throws Error(type) for what has not the two methods,
// Error(value) for a policy of the core that was started for another number of workers.
[[nodiscard]] std::shared_ptr<policy::Policy> policy_of(const pybind11::object& running, int workers);

}  // namespace gradientflow::bindings
