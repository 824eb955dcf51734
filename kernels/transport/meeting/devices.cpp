#include "devices.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace gradientflow::transport {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  for (fs::directory_iterator each(folder, none), last; each != last; each.increment(none)) {
    found.push_back(each->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_active(const fs::path& port) {
  std::string state;  // "4: ACTIVE"
  std::getline(std::ifstream(port / "state"), state);
  return state.ends_with(" ACTIVE");
}

}  // namespace

std::vector<std::string> rdma_devices(const std::string& classes) {
  std::vector<std::string> found;
  for (const fs::path& device : entries(fs::path(classes) / "infiniband")) {
    const std::vector<fs::path> ports = entries(device / "ports");
    if (std::any_of(ports.begin(), ports.end(), is_active)) {
      found.push_back(device.filename());
    }
  }
  for (const fs::path& device : entries(fs::path(classes) / "cxi")) {  // Slingshot devices have no ports there
    found.push_back(device.filename());
  }
  return found;
}

}  // namespace gradientflow::transport
