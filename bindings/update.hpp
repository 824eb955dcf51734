// Input of an optimizer's step as a Python object, which keeps the memory of the gradients alive.
#pragma once

#include <pybind11/pybind11.h>

#include "../kernels/engine/update/update.hpp"

namespace gradientflow::bindings {

struct BoundUpdate {
  engine::Update update;
  pybind11::object memory;
};

}  // namespace gradientflow::bindings
