// Numbers and lists as text.
#pragma once

#include <string>
#include <vector>

namespace gradientflow {

// The shortest text that reads back as the same number: "3", "0.2", "1e-07".
[[nodiscard]] std::string format_number(double value);

// The parts of a text between commas, empty ones too: at least one.
[[nodiscard]] std::vector<std::string> split_list(const std::string& text);

}  // namespace gradientflow
