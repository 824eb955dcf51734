#include "plugin.hpp"

#include <dlfcn.h>

namespace gradientflow {

std::string path_beside(std::string_view name) {
  Dl_info here{};
  std::string path;
  if (dladdr(reinterpret_cast<const void*>(&path_beside), &here) != 0) {
    path = here.dli_fname;
    path.erase(path.rfind('/') + 1);
  }
  return path.append(name);
}

PluginEntry open_plugin(const std::string& path, const char* entry) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {nullptr, std::string("of GradientFlow cannot be loaded: ") + dlerror()};
  }
  void* const function = dlsym(library, entry);
  return {function, function == nullptr ? "of GradientFlow is not " + path : ""};
}

}  // namespace gradientflow
