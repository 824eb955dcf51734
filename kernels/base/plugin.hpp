// Libraries that come with this one, beside it, and are loaded when they are first used: what needs CUDA or MPI.
#pragma once

#include <string>
#include <string_view>

namespace gradientflow {

// The path of a file beside the library that contains this function.
[[nodiscard]] std::string path_beside(std::string_view name);

// A function that a library exports; or why there is none, in words that follow "of GradientFlow".
struct PluginEntry {
  void* function = nullptr;
  std::string why;
};

// The library is never unloaded: what it has begun may still be under way when the process ends.
[[nodiscard]] PluginEntry open_plugin(const std::string& path, const char* entry);

}  // namespace gradientflow
