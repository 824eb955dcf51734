// How ranks that have no messages yet tell each other something.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../endpoint.hpp"
#include "store.hpp"
#include "until.hpp"

namespace gradientflow::transport {

class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  // Every rank's bytes, in the order of the ranks. Collective. Throws where not all ranks come in time.
  [[nodiscard]] virtual std::vector<std::string> all(const std::string& mine, const Until& until) = 0;
};

// Over an endpoint, whose own timeout holds.
class EndpointExchange : public Exchange {
 public:
  explicit EndpointExchange(const Endpoint& endpoint) : endpoint_(endpoint) {}

  [[nodiscard]] std::vector<std::string> all(const std::string& mine, const Until& until) override;

 private:
  const Endpoint& endpoint_;
};

// Over a store. All who come get the same: the bytes of all ranks, or the same Error: (timeout) that names the ranks
// that have not come, (mismatch) where two processes have the same rank, or the ranks differ about their number. Ranks
// may meet again and again: each time is a meeting of its own, and who comes late to one that failed hears why.
//
// `prefix` begins the names of all values. Once all have met, the store keeps only the last meeting's number and end.
class StoreExchange : public Exchange {
 public:
  // `replaces`: this process was started in place of one that has ended, and may have come already.
  StoreExchange(Store& store, int rank, int size, std::string prefix = "gradientflow", bool replaces = false);

  [[nodiscard]] std::vector<std::string> all(const std::string& mine, const Until& until) override;

  // For whoever knows that a rank will not come: ends a meeting under way with Error(peer).
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
  int meeting_ = 0;  // its number
};

// Texts as one, and back. The latter throws Error(mismatch) where it is none.
[[nodiscard]] std::string pack(const std::vector<std::string>& texts);
[[nodiscard]] std::vector<std::string> unpack(const std::string& packed);

}  // namespace gradientflow::transport
