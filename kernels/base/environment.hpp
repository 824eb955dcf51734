// Variables of the environment that look like settings and are none: most often a name that was misspelt.
#pragma once

#include <string>
#include <vector>

namespace gradientflow {

// A sentence for each variable GRADIENTFLOW_... that neither the library nor its build knows, with the name that was
// perhaps meant.
[[nodiscard]] std::vector<std::string> unknown_variables();

}  // namespace gradientflow
