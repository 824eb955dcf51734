// The calls of the kernels on raw addresses as Python makes them, on the CPU and on devices alike: this file has the
// fields of each call, in the order of Python's arguments, and the list of the steps.
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

template <class Visit>
void each_field(compute::UpdateResidual& call, Visit visit) {
  visit("gradient", call.gradient);
  visit("dtype", call.dtype);
  visit("residual", call.residual);
  visit("next_residual", call.next_residual);
  visit("count", call.count);
  visit("scale", call.scale);
  visit("momentum", call.momentum);
  visit("streaming", call.store);
}

template <class Visit>
void each_field(compute::Gather& call, Visit visit) {
  visit("gradient", call.gradient);
  visit("dtype", call.dtype);
  visit("residual", call.residual);
  visit("buffer", call.buffer);
  visit("count", call.count);
  visit("scale", call.scale);
}

template <class Visit>
void each_field(compute::Scatter& call, Visit visit) {
  visit("gradient", call.gradient);
  visit("dtype", call.dtype);
  visit("buffer", call.buffer);
  visit("count", call.count);
  visit("scale", call.scale);
}

template <class Visit>
void each_field(compute::MomentumStep& call, Visit visit) {
  visit("weight", call.weight);
  visit("gradient", call.gradient);
  visit("gradient_dtype", call.gradient_dtype);
  visit("momentum", call.momentum);
  visit("count", call.count);
  visit("parameter", call.parameter);
  visit("parameter_dtype", call.parameter_dtype);
  visit("gradient_scale", call.gradient_scale);
  visit("weight_decay", call.weight_decay);
  visit("factor", call.factor);
  visit("inner_rate", call.inner_rate);
  visit("outer_rate", call.outer_rate);
}

template <class Visit>
void each_field(compute::AdamStep& call, Visit visit) {
  visit("weight", call.weight);
  visit("gradient", call.gradient);
  visit("gradient_dtype", call.gradient_dtype);
  visit("mean", call.mean);
  visit("mean_square", call.mean_square);
  visit("count", call.count);
  visit("parameter", call.parameter);
  visit("parameter_dtype", call.parameter_dtype);
  visit("gradient_scale", call.gradient_scale);
  visit("weight_decay", call.weight_decay);
  visit("rate", call.rate);
  visit("root", call.root);
  visit("beta_1", call.beta_1);
  visit("alpha_1", call.alpha_1);
  visit("beta_2", call.beta_2);
  visit("alpha_2", call.alpha_2);
  visit("epsilon", call.epsilon);
  visit("keep", call.keep);
}

template <class Visit>
void each_field(compute::GluStep& call, Visit visit) {
  visit("weight", call.weight);
  visit("pre_weight", call.pre_weight);
  visit("gradient", call.gradient);
  visit("gradient_dtype", call.gradient_dtype);
  visit("count", call.count);
  visit("refreshes", call.refreshes);
  visit("rate", call.rate);
  visit("gradient_scale", call.gradient_scale);
  visit("weight_decay", call.weight_decay);
  visit("alpha", call.alpha);
  visit("beta", call.beta);
  visit("global_scale", call.global_scale);
}

template <class Visit>
void each_field(compute::DcStep& call, Visit visit) {
  visit("weight", call.weight);
  visit("mean_square", call.mean_square);
  visit("gradient_weight", call.gradient_weight);
  visit("gradient", call.gradient);
  visit("gradient_dtype", call.gradient_dtype);
  visit("count", call.count);
  visit("rate", call.rate);
  visit("gradient_scale", call.gradient_scale);
  visit("weight_decay", call.weight_decay);
  visit("lambda_0", call.lambda_0);
  visit("decay", call.decay);
  visit("epsilon", call.epsilon);
}

template <class Visit>
void each_field(compute::ReplicaStep& call, Visit visit) {
  visit("weight", call.weight);
  visit("before", call.before);
  visit("sum", call.sum);
  visit("gradient", call.gradient);
  visit("gradient_dtype", call.gradient_dtype);
  visit("count", call.count);
  visit("rate", call.rate);
  visit("gradient_scale", call.gradient_scale);
  visit("weight_decay", call.weight_decay);
}

template <class Visit>
void each_field(compute::RoundStep& call, Visit visit) {
  visit("weight", call.weight);
  visit("before", call.before);
  visit("mean", call.mean);
  visit("sum", call.sum);
  visit("gradient", call.gradient);
  visit("gradient_dtype", call.gradient_dtype);
  visit("count", call.count);
  visit("rate", call.rate);
  visit("gradient_scale", call.gradient_scale);
  visit("weight_decay", call.weight_decay);
}

// define.operator()<Step>(name) for each step.
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

// The call with these values of its first fields and these by name; others keep their defaults.
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
