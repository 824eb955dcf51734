// Binding of settings: gradientflow._core.config_fields() and read_config().
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <map>
#include <string>

#include "../kernels/base/config.hpp"
#include "../kernels/base/environment.hpp"
#include "bindings.hpp"

namespace gradientflow::bindings {

namespace py = pybind11;

void bind_config(py::module_& module) {
  module.def(
      "config_fields",
      [] {
        py::typing::List<py::typing::Tuple<py::str, py::str, py::str, py::str, py::str>> fields;
        const Config defaults;
        for (const ConfigField& field : config_fields()) {
          fields.append(
              py::make_tuple(field.name, field.variable, field.unit, get_field(defaults, field.name), field.meaning));
        }
        return fields;
      },
      "The settings: (name, variable, unit, default, meaning) of each.");
  module.def(
      "read_config",
      [](const std::map<std::string, std::string>& overrides) {
        const Config config = read_config(overrides);
        std::map<std::string, std::string> values;
        for (const ConfigField& field : config_fields()) {
          values[std::string(field.name)] = get_field(config, field.name);
        }
        return values;
      },
      py::arg("overrides"), "Defaults, then the environment, then `overrides`: {name: text} of every setting.");
  module.def("unknown_variables", &unknown_variables,
             "A sentence for each variable of the environment that looks like a setting and is none.");
  module.def("parse_bytes", &parse_bytes, py::arg("text"), "\"8MiB\" -> 8388608.");
}

}  // namespace gradientflow::bindings
