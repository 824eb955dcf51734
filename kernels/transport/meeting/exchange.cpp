#include "exchange.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "../../base/error.hpp"
#include "../../base/text.hpp"
#include "../signature.hpp"
#include "random.hpp"

namespace gradientflow::transport {
namespace {

// Clocks of hosts may differ a little: then a process waits for the others in vain, or hears of their failure in vain.
std::int64_t milliseconds_now() noexcept {
  using std::chrono::milliseconds;
  return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}
const std::int64_t start_of_process = milliseconds_now();

constexpr double seconds_to_find_the_missing = 5.0;
constexpr double seconds_to_await_others = 2.0;

// How a process is called in errors.
std::string own_name() {
  std::array<char, 256> host{};
  const bool is_named = gethostname(host.data(), host.size() - 1) == 0;
  return "process " + std::to_string(getpid()) + " on " + (is_named ? host.data() : "an unnamed host");
}

template <class Number = int>
Number number_in(const std::string& text) {
  Number number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

std::string pack(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    packed += std::to_string(text.size());
    packed += ':';
    packed += text;
  }
  return packed;
}

std::vector<std::string> unpack(const std::string& packed) {
  std::vector<std::string> texts;
  const char* at = packed.data();
  const char* const last = at + packed.size();
  while (at != last) {
    std::size_t bytes = 0;
    const auto [end, error] = std::from_chars(at, last, bytes);
    if (error != std::errc() || end == last || *end != ':' || bytes > static_cast<std::size_t>(last - end - 1)) {
      throw Error(ErrorKind::mismatch,
                  "what another process says at the meeting cannot be read: it runs another version of GradientFlow");
    }
    texts.emplace_back(end + 1, bytes);
    at = end + 1 + bytes;
  }
  return texts;
}

std::vector<std::string> EndpointExchange::all(const std::string& mine, const Until& /*until*/) {
  const std::vector<std::uint64_t> lengths = endpoint_.allgather(std::uint64_t{mine.size()});
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = mine;
  padded.resize(longest);
  const std::vector<std::byte> raw = endpoint_.allgather(static_cast<const void*>(padded.data()), padded.size());
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(raw.data()) + r * longest, lengths[r]);
  }
  return texts;
}

// How a meeting ends, for all alike: whoever sets its verdict first decides.
struct StoreExchange::Verdict {
  ErrorKind kind = ErrorKind::internal;
  std::string error;               // empty: all have come
  std::vector<std::string> texts;  // of all ranks
  std::int64_t time = milliseconds_now();

  [[nodiscard]] std::string packed() const {
    return pack({std::to_string(static_cast<int>(kind)), error, pack(texts), std::to_string(time)});
  }
  static Verdict from(const std::string& packed) {
    std::vector<std::string> parts = unpack(packed);
    parts.resize(4);
    return {static_cast<ErrorKind>(number_in(parts[0])), parts[1], unpack(parts[2]), number_in<std::int64_t>(parts[3])};
  }
};

StoreExchange::StoreExchange(Store& store, int rank, int size) : store_(store), rank_(rank), size_(size) {
  if (size < 1 || rank < 0) {
    throw Error(ErrorKind::value, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                      " ranks: there is at least one rank, and the first is rank 0");
  }
}

std::string StoreExchange::key(const std::string& of_what) const { return "gradientflow/" + meeting_ + "/" + of_what; }

std::vector<std::string> StoreExchange::all(const std::string& mine, const Until& until) {
  open_meeting(until);
  come(mine, until);
  std::optional<std::string> verdict = store_.get(key("verdict"), until);
  if (!verdict) {
    const std::vector<int> absent = missing(until.anew(seconds_to_find_the_missing));
    const std::string who = absent.empty() ? "their meeting did not end" : "no sign of " + name_ranks(absent);
    verdict = decide({ErrorKind::timeout,
                      std::to_string(size_) + " ranks did not meet at " + store_.name() + " within " +
                          format_number(until.seconds()) + " s (GRADIENTFLOW_TIMEOUT): " + who,
                      {}},
                     until);
  }
  await_others(until);
  Verdict end = Verdict::from(*verdict);
  if (!end.error.empty()) {
    throw Error(end.kind, end.error);
  }
  return std::move(end.texts);
}

// The meetings of a store are numbered. The current one is that of whoever comes, until it has ended. After a failure,
// who has not come to that meeting still does, and hears of it, once; but not processes that were started afterwards:
// somebody tries again with these.
void StoreExchange::open_meeting(const Until& until) {
  const std::string current = "gradientflow/meeting";
  meeting_ = store_.compare_set(current, std::nullopt, "1", until).value_or("1");
  while (const auto verdict = store_.look(key("verdict"), until)) {
    const Verdict end = Verdict::from(*verdict);
    if (!end.error.empty() && start_of_process < end.time && !store_.look(key(std::to_string(rank_)), until)) {
      return;
    }
    const std::string next = std::to_string(number_in(meeting_) + 1);
    meeting_ = store_.compare_set(current, meeting_, next, until).value_or(next);
  }
}

// Says that this rank has come. The last one ends the meeting, as does one that sees why it must fail.
void StoreExchange::come(const std::string& mine, const Until& until) {
  const std::string rank = "rank " + std::to_string(rank_);
  const std::string size = std::to_string(size_);
  const std::vector<std::string> own = {own_name(), size, rank, random_hex(), mine};
  const auto fail = [&](const std::string& why) {
    const std::string verdict = decide({ErrorKind::mismatch, why, {}}, until);
    if (Verdict::from(verdict).error.empty()) {  // the others have met without it
      throw Error(ErrorKind::mismatch, why);
    }
  };
  const auto first = unpack(store_.compare_set(key("first"), std::nullopt, pack(own), until).value_or(pack(own)));
  if (first.size() != own.size() || first[1] != size) {
    fail("the ranks differ about their number: " + (first.size() > 2 ? first[1] + " on " + first[2] : "?") + ", " +
         size + " on " + rank);
    return;
  }
  if (rank_ >= size_) {
    fail("there is no " + rank + " among " + size + " ranks, which are numbered from 0, but " + own[0] +
         " was told to be it");
    return;
  }
  const auto present =
      unpack(store_.compare_set(key(std::to_string(rank_)), std::nullopt, pack(own), until).value_or(pack(own)));
  if (present != own) {
    fail("two processes were told to be " + rank + ": " + present.front() + ", and " + own[0]);
    return;
  }
  if (store_.add(key("come"), 1, until) == size_) {
    static_cast<void>(decide({ErrorKind::internal, "", unpack(collect(until))}, until));
  }
}

std::string StoreExchange::decide(const Verdict& verdict, const Until& until) {
  const std::string wanted = verdict.packed();
  return store_.compare_set(key("verdict"), std::nullopt, wanted, until).value_or(wanted);
}

std::string StoreExchange::collect(const Until& until) {
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r) {
    const auto theirs = store_.look(key(std::to_string(r)), until);
    texts.push_back(theirs ? unpack(*theirs).back() : "");
  }
  return pack(texts);
}

std::vector<int> StoreExchange::missing(const Until& until) {
  std::vector<int> ranks;
  for (int r = 0; r < size_ && !until.over(); ++r) {
    if (!store_.look(key(std::to_string(r)), until)) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

// Where the store ends with this process, it stays until all have read the verdict, or for a moment.
void StoreExchange::await_others(const Until& until) {
  try {
    if (store_.add(key("gone"), 1, until) >= size_) {
      store_.set(key("empty"), "", until);
    }
    if (store_.is_served_here()) {
      static_cast<void>(store_.get(key("empty"), until.anew(seconds_to_await_others)));
    }
  } catch (const Error&) {  // the meeting has ended, whatever has become of the store
  }
}

}  // namespace gradientflow::transport
