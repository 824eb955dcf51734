// Numbers and lists as text.
#pragma once

#include <string>
#include <vector>

namespace gradientflow {

// Returns the shortest text that reads back as the same number: "3", "0.2", "1e-07".
[[nodiscard]] std::string format_number(double value);

// Returns the parts of a text between commas, empty parts included: at least one.
[[nodiscard]] std::vector<std::string> split_list(const std::string& text);

}  // namespace gradientflow
