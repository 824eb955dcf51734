// The version of the library: "0.1.0".
#pragma once

namespace gradientflow {

[[nodiscard]] const char* library_version();

}  // namespace gradientflow
