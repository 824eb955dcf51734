// Environment variables that look like settings but are none, most often misspelled names.
#pragma once

#include <string>
#include <vector>

namespace gradientflow {

// Returns a sentence for each GRADIENTFLOW_* variable that neither the library nor its build knows, with the name that
// was probably meant.
[[nodiscard]] std::vector<std::string> unknown_variables();

}  // namespace gradientflow
