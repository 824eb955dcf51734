// Exchange of texts between ranks that cannot send messages yet.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../endpoint.hpp"
#include "store.hpp"
#include "until.hpp"

namespace gradientflow::transport {

class TextExchange {
 public:
  TextExchange() = default;
  TextExchange(const TextExchange&) = delete;
  TextExchange& operator=(const TextExchange&) = delete;
  virtual ~TextExchange() = default;

  // Returns every rank's bytes, in the order of the ranks. Collective. Throws if not all ranks come in time.
  [[nodiscard]] virtual std::vector<std::string> all(const std::string& mine, const Until& until) = 0;
};

// Exchange over an endpoint, whose own timeout applies.
class EndpointTextExchange : public TextExchange {
 public:
  explicit EndpointTextExchange(const Endpoint& endpoint) : endpoint_(endpoint) {}

  [[nodiscard]] std::vector<std::string> all(const std::string& mine, const Until& until) override;

 private:
  const Endpoint& endpoint_;
};

// Exchange over a store. All ranks that come get the same result: the bytes of all ranks, or the same Error.
// Error(timeout) names the missing ranks. Error(mismatch): two processes have the same rank, or ranks differ about the
// number of ranks. Ranks may meet repeatedly, in separate meetings; a rank that comes late to a failed meeting is told
// why it failed.
//
// `prefix` begins the names of all values. Once all have met, the store keeps only the last meeting's number and end.
class StoreTextExchange : public TextExchange {
 public:
  // `replaces`: this process replaces a process that has ended, perhaps after it had come.
  StoreTextExchange(Store& store, int rank, int size, std::string prefix = "gradientflow", bool replaces = false);

  [[nodiscard]] std::vector<std::string> all(const std::string& mine, const Until& until) override;

  // Ends a meeting under way with Error(peer), for a caller that knows that a rank will not come.
  static void fail(Store& store, const std::string& why, const Until& until,
                   const std::string& prefix = "gradientflow");

 private:
  struct Verdict;

  [[nodiscard]] std::string key(const std::string& of_what) const { return key(meeting_, of_what); }
  [[nodiscard]] std::string key(int meeting, const std::string& of_what) const;
  void open_meeting(const Until& until);
  std::optional<std::string> come(const std::string& mine, const Until& until);
  [[nodiscard]] std::string decide(const Verdict& verdict, const Until& until);
  [[nodiscard]] std::string collect(const Until& until);
  [[nodiscard]] std::vector<int> missing(const Until& until);
  void leave(bool have_met, const Until& until);
  void await_others(int count, const Until& until);
  void clean(const Until& until);

  Store& store_;
  int rank_;
  int size_;
  std::string prefix_;
  bool replaces_;
  int meeting_ = 0;  // number of the current meeting
};

// Pack texts into one, and unpack it. unpack() throws Error(mismatch) where the text was not packed.
[[nodiscard]] std::string pack(const std::vector<std::string>& texts);
[[nodiscard]] std::vector<std::string> unpack(const std::string& packed);

}  // namespace gradientflow::transport
