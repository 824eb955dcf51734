#include "call_log.hpp"

#include <algorithm>
#include <bit>
#include <ctime>
#include <utility>

namespace gradientflow::engine {
namespace {

constexpr std::size_t most_sources = 1024;

constexpr std::array<std::string_view, call_form_count> forms = {"blocking", "background", "prepared", "send",
                                                                 "receive",  "ready",      "wait"};

std::int64_t now() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

thread_local constinit CallSite site_of_thread;

}  // namespace

CallSite& call_site() noexcept { return site_of_thread; }

std::string_view name_of(CallForm form) { return forms.at(static_cast<std::size_t>(form)); }

std::atomic<bool> CallLog::is_on_{false};

CallLog& CallLog::of_process() noexcept {
  static auto* const log = new CallLog();  // NOLINT(*-owning-memory,*-at-new)
  return *log;
}

int CallLog::add(Source source) {
  const std::lock_guard lock(mutex_);
  source.number = source_count_++;
  sources_.push_back(std::move(source));
  if (sources_.size() > most_sources) {
    const auto gone = std::find_if(sources_.begin(), sources_.end(), [](const Source& each) { return each.is_gone; });
    sources_.erase(gone, gone == sources_.end() ? gone : gone + 1);
  }
  is_on_ = true;
  return sources_.back().number;
}

void CallLog::remove(int number) noexcept {
  const std::lock_guard lock(mutex_);
  for (Source& each : sources_) {
    each.is_gone = each.is_gone || each.number == number;
  }
}

std::vector<CallLog::Source> CallLog::sources() const {
  const std::lock_guard lock(mutex_);
  return {sources_.begin(), sources_.end()};
}

std::uint64_t CallLog::begin(int source, std::uint32_t sequence, CallForm form,
                             const transport::Signature& signature) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  const std::uint64_t number = last_.fetch_add(1, relaxed) + 1;
  Slot& slot = slots_[number % capacity];
  const auto words = std::bit_cast<std::array<std::uint64_t, 3>>(signature);
  const CallSite& site = site_of_thread;
  slot.number.store(0, relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.began.store(now(), relaxed);
  slot.code.store(site.code, relaxed);
  slot.offset.store(site.offset, relaxed);
  slot.sequence.store(sequence, relaxed);
  slot.source_and_form.store(static_cast<std::uint32_t>(source) << 8U | static_cast<std::uint32_t>(form), relaxed);
  for (std::size_t i = 0; i < words.size(); ++i) {
    slot.signature[i].store(words[i], relaxed);
  }
  slot.state.store(State::under_way, relaxed);
  slot.number.store(number, std::memory_order_release);
  return number;
}

// A slot overwritten between the two steps would get the state of the earlier call: 1,024 calls would have to begin in
// that instant.
void CallLog::end(std::uint64_t number, State state) noexcept {
  Slot& slot = slots_[number % capacity];
  if (slot.number.load(std::memory_order_relaxed) == number) {
    slot.state.store(state, std::memory_order_relaxed);
  }
}

std::vector<CallLog::Entry> CallLog::entries() const {
  constexpr auto relaxed = std::memory_order_relaxed;
  std::vector<Entry> found;
  for (const Slot& slot : slots_) {
    Entry entry;
    entry.number = slot.number.load(std::memory_order_acquire);
    entry.began = slot.began.load(relaxed);
    entry.site = {slot.code.load(relaxed), slot.offset.load(relaxed)};
    entry.sequence = slot.sequence.load(relaxed);
    const std::uint32_t word = slot.source_and_form.load(relaxed);
    entry.source = static_cast<int>(word >> 8U);
    entry.form = static_cast<CallForm>(word & 0xFFU);
    std::array<std::uint64_t, 3> words{};
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = slot.signature[i].load(relaxed);
    }
    entry.state = slot.state.load(relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (entry.number != 0 && slot.number.load(relaxed) == entry.number) {
      entry.signature = std::bit_cast<transport::Signature>(words);
      found.push_back(entry);
    }
  }
  std::sort(found.begin(), found.end(), [](const Entry& a, const Entry& b) { return a.number < b.number; });
  return found;
}

LoggedCalls::LoggedCalls(CallLog::Source source, bool is_on) : identity_(source.identity) {
  if (is_on) {
    source_ = log_.add(std::move(source));
  }
}

LoggedCalls::~LoggedCalls() {
  if (source_ >= 0) {
    log_.remove(source_);
  }
}

std::string LoggedCalls::next_identity() const { return identity_ + "." + std::to_string(++made_); }

std::string LoggedCalls::first_identity() {
  static std::atomic<int> made{0};
  return std::to_string(++made);
}

}  // namespace gradientflow::engine
