#include "same_on_all_ranks.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>

#include "../../base/error.hpp"
#include "request.hpp"

namespace gradientflow::engine {
namespace {

// Returns the concatenated texts of all ranks, of equal length.
std::string gather(Communicator& communicator, std::string mine) {
  std::string all(mine.size() * static_cast<std::size_t>(communicator.size()), '\0');
  const auto array = [](std::string& text) { return Array{reinterpret_cast<std::byte*>(text.data()), text.size()}; };
  communicator.run(
      make_call(communicator, {.kind = transport::CallKind::allgather, .input = array(mine), .output = array(all)}));
  return all;
}

// Returns the entries as one text, with a zero byte after each name and each value.
std::string joined(const Entries& entries) {
  std::string text;
  for (const auto& [name, entry] : entries) {
    text.append(name).append(1, '\0').append(entry).append(1, '\0');
  }
  return text;
}

Entries split(const std::string& text) {
  Entries entries;
  std::istringstream stream(text);
  std::string name;
  std::string entry;
  while (std::getline(stream, name, '\0') && std::getline(stream, entry, '\0')) {
    entries.emplace_back(name, entry);
  }
  return entries;
}

// Describes the difference between the entries of rank `other` and rank 0.
std::string difference(const Entries& first, const Entries& others, int other) {
  const std::string rank = "rank " + std::to_string(other);
  const auto [here, there] = std::mismatch(first.begin(), first.end(), others.begin(), others.end());
  const auto is_in_others = [&](const std::string& name) {
    return std::any_of(others.begin(), others.end(), [&](const auto& each) { return each.first == name; });
  };
  if (here != first.end() && there != others.end() && here->first == there->first) {
    return here->first + " is " + there->second + " on " + rank + " and " + here->second + " on rank 0";
  }
  if (there == others.end() || (here != first.end() && !is_in_others(here->first))) {
    return rank + " has no " + here->first + ", which rank 0 has";
  }
  return rank + " has " + there->first + ", which rank 0 has not";
}

}  // namespace

void check_same_on_all_ranks(Communicator& communicator, const std::string& things, std::string description) {
  constexpr std::size_t length = 256;
  description.resize(length, '\0');
  const std::string all = gather(communicator, description);
  std::vector<std::string> of_each;
  std::vector<int> numbers;
  for (int r = 0; r < communicator.size(); ++r) {
    of_each.emplace_back(all.data() + static_cast<std::size_t>(r) * length);
    numbers.push_back(r);
  }
  if (std::any_of(of_each.begin(), of_each.end(), [&](const auto& theirs) { return theirs != of_each.front(); })) {
    throw transport::difference_error(things, of_each, numbers);
  }
}

void check_same_on_all_ranks(Communicator& communicator, const std::string& things, const Entries& entries) {
  std::string mine = joined(entries);
  using Summary = std::array<std::uint64_t, 2>;
  const Summary summary{mine.size(), std::hash<std::string>{}(mine)};
  const std::string gathered = gather(communicator, {reinterpret_cast<const char*>(summary.data()), sizeof summary});
  std::vector<Summary> all(static_cast<std::size_t>(communicator.size()));
  std::copy(gathered.begin(), gathered.end(), reinterpret_cast<char*>(all.data()));
  const auto odd = std::find_if(all.begin(), all.end(), [&](const Summary& each) { return each != all.front(); });
  if (odd == all.end()) {
    return;
  }
  const std::size_t longest = (*std::max_element(all.begin(), all.end()))[0];
  mine.resize(longest, '\0');
  const std::string texts = gather(communicator, mine);
  const auto of = [&](std::size_t rank) { return split(texts.substr(rank * longest, all[rank][0])); };
  const auto other = static_cast<std::size_t>(odd - all.begin());
  throw Error(ErrorKind::mismatch,
              "the ranks made different " + things + ": " + difference(of(0), of(other), static_cast<int>(other)));
}

}  // namespace gradientflow::engine
