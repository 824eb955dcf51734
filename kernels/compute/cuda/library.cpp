#include <unistd.h>

#include <string>

#include "../../base/config.hpp"
#include "../../base/error.hpp"
#include "../../base/plugin.hpp"
#include "runtime.hpp"

namespace gradientflow::compute::cuda {
namespace {

struct Loaded {
  const Runtime* runtime = nullptr;
  std::string unavailable_reason;
};

Loaded load() {
  std::string path = read_config().cuda_library;
  if (path == "auto") {
    path = path_beside("libgradientflow_cuda.so");
  }
  if (access(path.c_str(), R_OK) != 0) {
    return {nullptr, "GradientFlow was built without CUDA: there is no " + path +
                         "; install it on a machine with nvcc to use CUDA tensors"};
  }
  const PluginEntry entry = open_plugin(path, make_runtime_name);
  if (entry.function == nullptr) {
    return {nullptr, "the CUDA part " + entry.why};
  }
  return {reinterpret_cast<MakeRuntime*>(entry.function)(), {}};
}

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
