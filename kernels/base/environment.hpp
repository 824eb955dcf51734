// Environment variables that look like settings but are none: most often misspelt names.
#pragma once

#include <string>
#include <vector>

namespace gradientflow {

// A sentence for each variable GRADIENTFLOW_... that is unknown to the library and its build, with the name that was
// probably meant.
[[nodiscard]] std::vector<std::string> unknown_variables();

}  // namespace gradientflow
