#include "same_on_all_ranks.hpp"

#include <algorithm>
#include <vector>

#include "request.hpp"

namespace gradientflow::engine {

void check_same_on_all_ranks(Communicator& communicator, const std::string& things, std::string description) {
  constexpr std::size_t length = 256;
  description.resize(length, '\0');
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::string all(ranks * length, '\0');
  const auto array = [](std::string& text) { return Array{reinterpret_cast<std::byte*>(text.data()), text.size()}; };
  communicator.run(make_call(
      communicator, {.kind = transport::CallKind::allgather, .input = array(description), .output = array(all)}));
  std::vector<std::string> of_each;
  std::vector<int> numbers;
  for (std::size_t r = 0; r < ranks; ++r) {
    of_each.emplace_back(all.data() + r * length);
    numbers.push_back(static_cast<int>(r));
  }
  if (std::any_of(of_each.begin(), of_each.end(), [&](const auto& theirs) { return theirs != of_each.front(); })) {
    throw transport::difference_error(things, of_each, numbers);
  }
}

}  // namespace gradientflow::engine
