// Numbers as text, for messages.
#pragma once

#include <string>

namespace gradientflow {

// The shortest text that reads back as the same number: "3", "0.2", "1e-07".
[[nodiscard]] std::string format_number(double value);

}  // namespace gradientflow
