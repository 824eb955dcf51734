#include "environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "config.hpp"

namespace gradientflow {
namespace {

constexpr std::string_view prefix = "GRADIENTFLOW_";

// Other known variables, without the prefix: for setup.py and CMake, for meetings of ranks, for the settings file, and
// from `gradientflow run`, `gradientflow netlab`, `gradientflow tune` and the tests to the processes that they start.
constexpr std::array<std::string_view, 20> others = {"BUILD_TYPE", "CUDA",       "WERROR",      "SANITIZE", "MPI",
                                                     "MPICXX",     "MPI_PREFIX", "MPI_STAYS",   "MEET",     "RANK",
                                                     "SIZE",       "TOKEN",      "NETLAB",      "SERVERS",  "TEST_JOB",
                                                     "BIND",       "RESTARTS",   "CONFIG_FILE", "PATIENCE", "TERMINAL"};

// Returns the Levenshtein distance of two names.
std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t k = 0; k < to.size(); ++k) {
      const std::size_t replaced = diagonal + (from[i] == to[k] ? 0 : 1);
      diagonal = std::exchange(row[k + 1], std::min({row[k] + 1, row[k + 1] + 1, replaced}));
    }
  }
  return row.back();
}

// Returns the setting's variable that is nearest to this name, if it is near enough.
std::optional<std::string_view> nearest(std::string_view name) {
  std::string capitals(name);
  std::transform(capitals.begin(), capitals.end(), capitals.begin(), [](unsigned char c) { return std::toupper(c); });
  std::optional<std::string_view> found;
  std::size_t least = std::max<std::size_t>(2, (name.size() - prefix.size()) / 3) + 1;
  for (const ConfigField& field : config_fields()) {
    if (const std::size_t steps = distance(capitals, field.variable); steps < least) {
      least = steps;
      found = field.variable;
    }
  }
  return found;
}

bool is_known(std::string_view name) {
  const auto& fields = config_fields();
  return std::any_of(fields.begin(), fields.end(), [&](const ConfigField& field) { return field.variable == name; }) ||
         std::find(others.begin(), others.end(), name.substr(prefix.size())) != others.end();
}

}  // namespace

std::vector<std::string> unknown_variables() {
  std::vector<std::string> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(prefix) || is_known(name)) {
      continue;
    }
    std::string sentence = "the variable " + std::string(name) + " of the environment is no setting of GradientFlow";
    if (const auto meant = nearest(name)) {
      sentence += "; perhaps " + std::string(*meant) + " was meant";
    }
    found.push_back(sentence);
  }
  return found;
}

}  // namespace gradientflow
