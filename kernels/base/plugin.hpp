// Libraries that need CUDA or MPI. They are installed beside this library, and loaded when they are first used.
#pragma once

#include <string>
#include <string_view>

namespace gradientflow {

// Returns the path of a file beside the library that contains this function.
[[nodiscard]] std::string path_beside(std::string_view name);

// A function that a library exports, or the reason why it is missing, worded to follow "of GradientFlow".
struct PluginEntry {
  void* function = nullptr;
  std::string why;
};

// Loads a library. It is never unloaded, because its work may still be under way when the process ends.
[[nodiscard]] PluginEntry open_plugin(const std::string& path, const char* entry);

}  // namespace gradientflow
