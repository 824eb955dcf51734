// Local work of every rank. If it fails on any rank, all ranks throw, and no rank waits for the failed rank.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "../../base/error.hpp"
#include "../../transport/endpoint.hpp"

namespace gradientflow::collective {

// Throws "rank 2 WHAT: why" if the work of rank 2 fails, the same on all ranks: Error(memory) if that rank lacks
// memory, otherwise Error(value). Collective. Nothing was sent, and the communicator stays usable.
template <class Work>
void on_all_ranks(const transport::Endpoint& endpoint, const std::string& what, Work work) {
  struct Failure {
    std::array<char, 400> text;
    bool of_memory;
  };
  Failure failure{};
  try {
    work();
  } catch (const Error& error) {
    std::string_view(error.what()).copy(failure.text.data(), failure.text.size() - 1);
    failure.of_memory = error.kind() == ErrorKind::memory;
  }
  const auto failures = endpoint.size() == 1 ? std::vector{failure} : endpoint.allgather(failure);
  const auto failed =
      std::find_if(failures.begin(), failures.end(), [](const auto& each) { return each.text[0] != '\0'; });
  if (failed != failures.end()) {
    throw Error(failed->of_memory ? ErrorKind::memory : ErrorKind::value,
                "rank " + std::to_string(failed - failures.begin()) + " " + what + ": " + failed->text.data());
  }
}

}  // namespace gradientflow::collective
