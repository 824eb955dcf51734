// What a step uses, as an object of Python: it keeps the memory of the gradients.
#pragma once

#include <pybind11/pybind11.h>

#include "../kernels/engine/update/update.hpp"

namespace gradientflow::bindings {

struct BoundUpdate {
  engine::Update update;
  pybind11::object memory;
};

}  // namespace gradientflow::bindings
