#include "memory_limits.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace gradientflow::transport {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

// Mount of the memory controller: `folder` shows the group `top` and all below it.
struct Mount {
  std::string top;
  std::string folder;
};

// Mounts of one version, and this process's group there, as the kernel reports it.
struct Hierarchy {
  std::optional<std::string> group;
  std::vector<Mount> mounts;
};

bool contains(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

// Decodes a path, in which the kernel writes spaces and the like as \ooo.
std::string unescape(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string digits = text.substr(i, 4);
    if (digits.size() == 4 && digits[0] == '\\' && digits.find_first_not_of("01234567", 1) == std::string::npos) {
      plain += static_cast<char>(std::stoi(digits.substr(1), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Reads lines "ID:CONTROLLERS:GROUP" of /proc/self/cgroup; version 2 has neither a number nor controllers there.
void read_groups(const std::string& path, Hierarchy& divided, Hierarchy& unified) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (contains(controllers, "memory")) {
      divided.group = line.substr(second + 1);
    } else if (line.starts_with("0::")) {
      unified.group = line.substr(second + 1);
    }
  }
}

// Reads lines "ID PARENT MAJOR:MINOR TOP FOLDER OPTIONS FIELDS... - TYPE SOURCE OPTIONS" of /proc/self/mountinfo.
void read_mounts(const std::string& path, Hierarchy& divided, Hierarchy& unified) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (dash - fields.begin() < 6 || fields.end() - dash < 4) {
      continue;
    }
    const Mount mount{unescape(fields[3]), unescape(fields[4])};
    if (dash[1] == "cgroup2") {
      unified.mounts.push_back(mount);
    } else if (dash[1] == "cgroup" && contains(dash[3], "memory")) {
      divided.mounts.push_back(mount);
    }
  }
}

// Returns `group` as seen from `top`: "" for `top` itself, "/..." below it, nothing elsewhere.
std::optional<std::string> below(const std::string& top, const std::string& group) {
  const std::string above = top == "/" ? "" : top;
  const std::string own = group == "/" ? "" : group;
  if (own != above && !own.starts_with(above + "/")) {
    return {};
  }
  return own.substr(above.size());
}

// Returns the visible folders of the group and of all above it. A container may show its group under another name than
// the kernel reports: then only the mount's own folder is known.
std::vector<std::string> folders_of(const Hierarchy& hierarchy) {
  std::optional<std::string> inside;
  const Mount* chosen = nullptr;
  for (const Mount& mount : hierarchy.mounts) {
    const auto found = hierarchy.group ? below(mount.top, *hierarchy.group) : std::nullopt;
    if (found && (!inside || found->size() > inside->size())) {
      inside = found;
      chosen = &mount;
    }
  }
  if (!hierarchy.group || hierarchy.mounts.empty()) {
    return {};
  }
  if (chosen == nullptr || !inside) {
    return {hierarchy.mounts.front().folder};
  }
  std::vector<std::string> folders;
  for (std::string path = *inside; true; path.erase(path.rfind('/'))) {
    folders.push_back(chosen->folder + path);
    if (path.empty()) {
      return folders;
    }
  }
}

std::optional<std::size_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;  // "max", or no such file
}

// Returns the sum of the numbers with these names, in lines of "NAME NUMBER".
std::size_t read_sum(const std::string& path, const std::array<std::string_view, 2>& names) {
  std::size_t sum = 0;
  std::ifstream file(path);
  std::string name;
  for (std::size_t value = 0; file >> name >> value;) {
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      sum += value;
    }
  }
  return sum;
}

}  // namespace

MemoryLimits::MemoryLimits(std::string root) : root_(std::move(root)) {
  Hierarchy divided;
  Hierarchy unified;
  read_groups(root_ + "/proc/self/cgroup", divided, unified);
  read_mounts(root_ + "/proc/self/mountinfo", divided, unified);
  for (const bool version_2 : {false, true}) {
    for (const std::string& folder : folders_of(version_2 ? unified : divided)) {
      const ControlGroup group{root_ + folder, version_2};
      if (limit_of(group) != unlimited) {
        groups_.push_back(group);
      }
    }
  }
}

// Version 1 writes "no limit" as the largest number of whole pages.
std::size_t MemoryLimits::limit_of(const ControlGroup& group) const {
  constexpr std::size_t no_limit = std::size_t{1} << 62;
  const auto limit = read_number(group.folder + (group.unified ? "/memory.max" : "/memory.limit_in_bytes"));
  return limit && *limit < no_limit ? *limit : unlimited;
}

std::size_t MemoryLimits::used_of(const ControlGroup& group) const {
  const auto used = read_number(group.folder + (group.unified ? "/memory.current" : "/memory.usage_in_bytes"));
  const std::size_t files = group.unified
                                ? read_sum(group.folder + "/memory.stat", {"active_file", "inactive_file"})
                                : read_sum(group.folder + "/memory.stat", {"total_active_file", "total_inactive_file"});
  return used.value_or(0) - std::min(files, used.value_or(0));
}

std::size_t MemoryLimits::of_machine(const std::string& name) const {
  std::ifstream file(root_ + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string found;
    std::size_t kib = 0;
    if (words >> found >> kib && found == name + ":") {
      return kib * 1024;
    }
  }
  return unlimited;
}

std::size_t MemoryLimits::total() const {
  std::size_t total = of_machine("MemTotal");
  for (const ControlGroup& group : groups_) {
    total = std::min(total, limit_of(group));
  }
  return total;
}

std::size_t MemoryLimits::available() const {
  std::size_t available = of_machine("MemAvailable");
  for (const ControlGroup& group : groups_) {
    const std::size_t limit = limit_of(group);
    available = std::min(available, limit - std::min(used_of(group), limit));
  }
  return available;
}

}  // namespace gradientflow::transport
