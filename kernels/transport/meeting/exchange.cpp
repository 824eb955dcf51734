#include "exchange.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>
#include <utility>

#include "../../base/error.hpp"
#include "../../base/text.hpp"
#include "../../base/waits.hpp"
#include "../process.hpp"
#include "../signature.hpp"
#include "random.hpp"

namespace gradientflow::transport {
namespace {

template <class Number = int>
Number number_in(const std::string& text) {
  Number number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Clocks of hosts may differ a little. Then a process may wait in vain for ranks that have failed before, or be told of
// a failure from before its start.
std::int64_t milliseconds_now() noexcept {
  using std::chrono::milliseconds;
  return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}
const std::int64_t start_of_library = milliseconds_now();

// Returns the time when this process began, long before its imports were done; or when the library was loaded, if the
// system does not tell.
std::int64_t start_of_process() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));  // a name may hold anything
  std::string field;
  for (int number = 3; number <= 22; ++number) {
    fields >> field;
  }
  const auto ticks = fields ? number_in<std::int64_t>(field) : -1;
  timespec since_boot{};
  const long ticks_a_second = sysconf(_SC_CLK_TCK);
  if (ticks <= 0 || ticks_a_second <= 0 || clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) {
    return start_of_library;
  }
  const std::int64_t age = since_boot.tv_sec * 1000 + since_boot.tv_nsec / 1'000'000 - ticks * 1000 / ticks_a_second;
  return age < 0 ? start_of_library : milliseconds_now() - age;
}

constexpr auto nap_for_others = std::chrono::milliseconds(1);

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

std::vector<std::string> EndpointTextExchange::all(const std::string& mine, const Until& /*until*/) {
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

// End of a meeting, the same for all ranks: the first verdict that a rank sets.
struct StoreTextExchange::Verdict {
  ErrorKind kind = ErrorKind::internal;
  std::string error;               // empty: all have come
  std::vector<std::string> texts;  // bytes of all ranks
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

StoreTextExchange::StoreTextExchange(Store& store, int rank, int size, std::string prefix, bool replaces)
    : store_(store), rank_(rank), size_(size), prefix_(std::move(prefix)), replaces_(replaces) {
  if (size < 1 || rank < 0) {
    throw Error(ErrorKind::value, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                      " ranks: there is at least one rank, and the first is rank 0");
  }
}

std::string StoreTextExchange::key(int meeting, const std::string& of_what) const {
  return prefix_ + "/" + std::to_string(meeting) + "/" + of_what;
}

void StoreTextExchange::fail(Store& store, const std::string& why, const Until& until, const std::string& prefix) {
  const std::string number = store.compare_set(prefix + "/meeting", std::nullopt, "1", until).value_or("1");
  store.compare_set(prefix + "/" + number + "/verdict", std::nullopt, Verdict{ErrorKind::peer, why, {}}.packed(),
                    until);
}

std::vector<std::string> StoreTextExchange::all(const std::string& mine, const Until& until) {
  open_meeting(until);
  std::optional<std::string> verdict = come(mine, until);
  if (!verdict) {
    verdict = store_.get(key("verdict"), until);
  }
  if (!verdict) {
    const std::vector<int> absent = missing(until.from_now(waits::missing_ranks.seconds()));
    const std::string who = absent.empty() ? "their meeting did not end" : "no sign of " + name_ranks(absent);
    verdict = decide({ErrorKind::timeout,
                      std::to_string(size_) + " ranks did not meet at " + store_.name() + " within " +
                          format_number(until.seconds()) + " s (GRADIENTFLOW_TIMEOUT): " + who,
                      {}},
                     until);
  }
  Verdict end = Verdict::from(*verdict);
  leave(end.error.empty(), until);
  if (!end.error.empty()) {
    throw Error(end.kind, end.error + (end.kind == ErrorKind::timeout ? store_.remark() : ""));
  }
  if (end.texts[static_cast<std::size_t>(rank_)] != mine) {
    throw Error(ErrorKind::peer, "the ranks have met with the process in whose place this one was started");
  }
  return std::move(end.texts);
}

// Opens the current meeting, or the next one if the current meeting has ended. Meetings of a store are numbered. A rank
// that has not come to a failed meeting still enters it, once, and is told why it failed. A process started after the
// failure does not, because it belongs to a retry.
void StoreTextExchange::open_meeting(const Until& until) {
  const std::string current = prefix_ + "/meeting";
  meeting_ = number_in(store_.compare_set(current, std::nullopt, "1", until).value_or("1"));
  while (const auto verdict = store_.look(key("verdict"), until)) {
    const Verdict end = Verdict::from(*verdict);
    if (!end.error.empty() && start_of_process() < end.time && !store_.look(key(std::to_string(rank_)), until)) {
      return;
    }
    const std::string next = std::to_string(meeting_ + 1);
    meeting_ = number_in(store_.compare_set(current, std::to_string(meeting_), next, until).value_or(next));
  }
}

// Announces that this rank has come. Returns the verdict if this rank ends the meeting: because it is the last to come,
// or sees why the meeting must fail.
std::optional<std::string> StoreTextExchange::come(const std::string& mine, const Until& until) {
  const std::string rank = "rank " + std::to_string(rank_);
  const std::string size = std::to_string(size_);
  const std::vector<std::string> own = {name_of_this_process(), size, rank, random_hex(), mine};
  const auto fail = [&](const std::string& why) {
    std::string verdict = decide({ErrorKind::mismatch, why, {}}, until);
    if (Verdict::from(verdict).error.empty()) {  // too late: all have met without it
      throw Error(ErrorKind::mismatch, why);
    }
    return verdict;
  };
  const auto first = unpack(store_.compare_set(key("first"), std::nullopt, pack(own), until).value_or(pack(own)));
  if (first.size() != own.size() || first[1] != size) {
    return fail("the ranks differ about their number: " + (first.size() > 2 ? first[1] + " on " + first[2] : "?") +
                ", " + size + " on " + rank);
  }
  if (rank_ >= size_) {
    return fail("there is no " + rank + " among " + size + " ranks, which are numbered from 0, but " + own[0] +
                " was told to be it");
  }
  const auto present =
      unpack(store_.compare_set(key(std::to_string(rank_)), std::nullopt, pack(own), until).value_or(pack(own)));
  if (present != own && replaces_) {  // already counted
    store_.compare_set(key(std::to_string(rank_)), pack(present), pack(own), until);
    return std::nullopt;
  }
  if (present != own) {
    return fail("two processes were told to be " + rank + ": " + present.front() + ", and " + own[0]);
  }
  if (store_.add(key("come"), 1, until) == size_) {
    return decide({ErrorKind::internal, "", unpack(collect(until))}, until);
  }
  return std::nullopt;
}

std::string StoreTextExchange::decide(const Verdict& verdict, const Until& until) {
  const std::string wanted = verdict.packed();
  return store_.compare_set(key("verdict"), std::nullopt, wanted, until).value_or(wanted);
}

std::string StoreTextExchange::collect(const Until& until) {
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r) {
    const auto theirs = store_.look(key(std::to_string(r)), until);
    texts.push_back(theirs ? unpack(*theirs).back() : "");
  }
  return pack(texts);
}

std::vector<int> StoreTextExchange::missing(const Until& until) {
  std::vector<int> ranks;
  for (int r = 0; r < size_ && !until.over(); ++r) {
    if (!store_.look(key(std::to_string(r)), until)) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

// Leaves the meeting. Ignores errors of the store, because the meeting has ended already.
void StoreTextExchange::leave(bool have_met, const Until& until) {
  try {
    if (have_met) {
      store_.remove(key(std::to_string(rank_)), until);
    }
    const bool is_last = store_.add(key("gone"), 1, until) == size_;
    if (store_.is_served_here()) {
      const int absent = have_met ? 0 : static_cast<int>(missing(until.from_now(waits::others_leave.seconds())).size());
      await_others(size_ - absent, until.from_now(waits::others_leave.seconds()));
    }
    if (have_met && is_last) {
      clean(until);
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): see above
  }
}

// Waits until `count` ranks know how the meeting ended, or the time is up. Needed where the store ends with this
// process.
void StoreTextExchange::await_others(int count, const Until& until) {
  std::optional<std::string> gone;
  do {
    gone = store_.look(key("gone"), until);
  } while (gone && number_in(*gone) < count && until.sleep(nap_for_others));
}

// Removes the values of earlier meetings, and all values of this meeting except its verdict. No rank reads them any
// more: a rank that has yet to learn of this meeting's end takes part in the next meeting.
void StoreTextExchange::clean(const Until& until) {
  for (const char* const what : {"first", "come", "gone"}) {
    store_.remove(key(what), until);
  }
  for (int before = meeting_ - 1; before > 0 && store_.remove(key(before, "verdict"), until); --before) {
    if (!store_.remove(key(before, "first"), until)) {  // all had met there
      continue;
    }
    store_.remove(key(before, "come"), until);
    store_.remove(key(before, "gone"), until);
    for (int r = 0; r < size_; ++r) {
      store_.remove(key(before, std::to_string(r)), until);
    }
  }
}

}  // namespace gradientflow::transport
