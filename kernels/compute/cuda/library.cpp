#include <dlfcn.h>
#include <unistd.h>

#include <string>

#include "../../base/config.hpp"
#include "../../base/error.hpp"
#include "runtime.hpp"

namespace gradientflow::compute::cuda {
namespace {

struct Loaded {
  const Runtime* runtime = nullptr;
  std::string unavailable_reason;
};

// As configured, or beside the library that contains this function.
std::string path_of_library() {
  std::string path = read_config().cuda_library;
  Dl_info here{};
  if (path == "auto" && dladdr(reinterpret_cast<const void*>(&path_of_library), &here) != 0) {
    path = here.dli_fname;
    path.erase(path.rfind('/') + 1);
    path += "libgradientflow_cuda.so";
  }
  return path;
}

Loaded load() {
  const std::string path = path_of_library();
  if (access(path.c_str(), R_OK) != 0) {
    return {nullptr, "GradientFlow was built without CUDA: there is no " + path +
                         "; install it on a machine with nvcc to use CUDA tensors"};
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {nullptr, std::string("the CUDA part of GradientFlow cannot be loaded: ") + dlerror()};
  }
  auto* const make = reinterpret_cast<MakeRuntime*>(dlsym(library, make_runtime_name));
  if (make == nullptr) {
    return {nullptr, path + " is not the CUDA part of GradientFlow"};
  }
  return {make(), {}};
}

// Never unloaded: kernels may still be under way when the process ends.
const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

std::string unavailable_reason() {
  const Loaded& library = loaded();
  return library.runtime == nullptr ? library.unavailable_reason : library.runtime->unavailable_reason();
}

const Runtime& runtime() {
  static const std::string reason = unavailable_reason();
  const Runtime* const runtime = loaded().runtime;
  if (runtime == nullptr || !reason.empty()) {
    throw Error(ErrorKind::system, reason);
  }
  return *runtime;
}

bool is_built() { return loaded().runtime != nullptr; }

int device_count() { return is_built() ? loaded().runtime->device_count() : 0; }

}  // namespace gradientflow::compute::cuda
