// Calls of the kernels on raw addresses, as Python makes them, for the CPU and devices alike: the fields of each call,
// in the order of Python's arguments, and the list of the steps.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <gradientflow/base/dtype.hpp>
#include <gradientflow/compute/chunks.hpp>
#include <gradientflow/compute/steps/steps.hpp>
#include <string>

#include "native.hpp"

namespace gradientflow::native {

// Visits a field of `call` by its name.
#define FIELD(name) visit(#name, call.name)

template <class Visit>
void each_field(compute::UpdateResidual& call, Visit visit) {
  FIELD(gradient), FIELD(dtype), FIELD(residual), FIELD(next_residual), FIELD(count), FIELD(scale), FIELD(momentum),
      visit("streaming", call.store);
}

template <class Visit>
void each_field(compute::Gather& call, Visit visit) {
  FIELD(gradient), FIELD(dtype), FIELD(residual), FIELD(buffer), FIELD(count), FIELD(scale);
}

template <class Visit>
void each_field(compute::Scatter& call, Visit visit) {
  FIELD(gradient), FIELD(dtype), FIELD(buffer), FIELD(count), FIELD(scale);
}

template <class Visit>
void each_field(compute::MomentumStep& call, Visit visit) {
  FIELD(weight), FIELD(gradient), FIELD(gradient_dtype), FIELD(momentum), FIELD(count), FIELD(parameter),
      FIELD(parameter_dtype), FIELD(gradient_scale), FIELD(weight_decay), FIELD(factor), FIELD(inner_rate),
      FIELD(outer_rate);
}

template <class Visit>
void each_field(compute::AdamStep& call, Visit visit) {
  FIELD(weight), FIELD(gradient), FIELD(gradient_dtype), FIELD(mean), FIELD(mean_square), FIELD(count),
      FIELD(parameter), FIELD(parameter_dtype), FIELD(gradient_scale), FIELD(weight_decay), FIELD(rate), FIELD(root),
      FIELD(beta_1), FIELD(alpha_1), FIELD(beta_2), FIELD(alpha_2), FIELD(epsilon), FIELD(keep);
}

template <class Visit>
void each_field(compute::GluStep& call, Visit visit) {
  FIELD(weight), FIELD(pre_weight), FIELD(gradient), FIELD(gradient_dtype), FIELD(count), FIELD(refreshes), FIELD(rate),
      FIELD(gradient_scale), FIELD(weight_decay), FIELD(alpha), FIELD(beta), FIELD(global_scale);
}

template <class Visit>
void each_field(compute::DcStep& call, Visit visit) {
  FIELD(weight), FIELD(mean_square), FIELD(gradient_weight), FIELD(gradient), FIELD(gradient_dtype), FIELD(count),
      FIELD(rate), FIELD(gradient_scale), FIELD(weight_decay), FIELD(lambda_0), FIELD(decay), FIELD(epsilon);
}

template <class Visit>
void each_field(compute::ReplicaStep& call, Visit visit) {
  FIELD(weight), FIELD(before), FIELD(sum), FIELD(gradient), FIELD(gradient_dtype), FIELD(count), FIELD(rate),
      FIELD(gradient_scale), FIELD(weight_decay);
}

template <class Visit>
void each_field(compute::RoundStep& call, Visit visit) {
  FIELD(weight), FIELD(before), FIELD(mean), FIELD(sum), FIELD(gradient), FIELD(gradient_dtype), FIELD(count),
      FIELD(rate), FIELD(gradient_scale), FIELD(weight_decay);
}

#undef FIELD

// Calls define.operator()<Step>(name) for each step.
template <class Define>
void each_step(Define define) {
  define.template operator()<compute::MomentumStep>("momentum_step");
  define.template operator()<compute::AdamStep>("adam_step");
  define.template operator()<compute::GluStep>("glu_step");
  define.template operator()<compute::DcStep>("dc_step");
  define.template operator()<compute::ReplicaStep>("replica_step");
  define.template operator()<compute::RoundStep>("round_step");
}

template <class T>
void set(T& field, const pybind11::handle& value) {
  field = value.cast<T>();
}
template <class T>
void set(T*& field, const pybind11::handle& value) {
  field = pointer_to<T>(value.cast<std::uintptr_t>());
}
inline void set(DType& field, const pybind11::handle& value) { field = dtype_from_name(value.cast<std::string>()); }
inline void set(compute::Store& field, const pybind11::handle& value) {
  field = value.cast<bool>() ? compute::Store::streaming : compute::Store::cached;
}

template <class Call>
std::string field_names() {
  Call call{};
  std::string names;
  each_field(call, [&names](const char* name, const auto& /*field*/) {
    names += (names.empty() ? "" : ", ") + std::string(name);
  });
  return names;
}

// Returns the call with these values of its first fields and `named` fields; the remaining ones keep their defaults.
template <class Call>
Call call_of(const pybind11::tuple& values, const pybind11::dict& named = {}) {
  Call call{};
  std::size_t given = 0;
  std::size_t used = 0;
  each_field(call, [&](const char* name, auto& field) {
    if (given < values.size()) {
      set(field, PyTuple_GET_ITEM(values.ptr(), given++));
    } else if (!named.empty() && named.contains(name)) {
      set(field, named[name]);
      ++used;
    }
  });
  if (given < values.size() || used < named.size()) {
    throw pybind11::type_error("arguments that this kernel does not have: it has " + field_names<Call>());
  }
  return call;
}

}  // namespace gradientflow::native
