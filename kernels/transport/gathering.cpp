#include "gathering.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "../base/error.hpp"
#include "../base/text.hpp"
#include "patience.hpp"
#include "signature.hpp"

namespace gradientflow::transport {
namespace {

constexpr double time_for_the_verdict = 1.0;
constexpr std::size_t longest_reason = 2048;

struct Verdict {  // rank 0's verdict; the gathered data, or a reason, follows
  std::uint32_t kind = 0;
  std::uint32_t is_complete = 1;
};

class Gathering {
 public:
  Gathering(Endpoint& endpoint, int tag, const Contribution& mine, const Endpoint::CheckPeers& check_peers)
      : endpoint_(endpoint),
        tag_(tag),
        mine_(mine),
        check_peers_(check_peers),
        ranks_(static_cast<std::size_t>(endpoint.size())) {}

  std::vector<std::byte> collect() {
    const auto reply = std::make_shared<std::vector<std::byte>>(sizeof(Verdict) + ranks_ * mine_.bytes);
    std::byte* const all = reply->data() + sizeof(Verdict);
    copy(all, mine_.data);
    std::vector<Request> receives(ranks_);
    for (std::size_t r = 1; r < ranks_; ++r) {
      receives[r] = endpoint_.receive(static_cast<int>(r), tag_, all + r * mine_.bytes, mine_.bytes);
    }
    const Verdict complete;
    std::memcpy(reply->data(), &complete, sizeof complete);
    try {
      wait(receives, mine_.timeouts * mine_.timeout);
    } catch (const Error& error) {
      const std::string_view reason = std::string_view(error.what()).substr(0, longest_reason);
      const Verdict failed{static_cast<std::uint32_t>(error.kind()), 0};
      const auto told = std::make_shared<std::vector<std::byte>>(sizeof failed + reason.size());
      std::memcpy(told->data(), &failed, sizeof failed);
      std::memcpy(told->data() + sizeof failed, reason.data(), reason.size());
      tell(told, 0);
      throw;
    }
    tell(reply, mine_.timeout);
    return {all, all + ranks_ * mine_.bytes};
  }

  // Rank 0 may arrive as late as any rank, and then wait for later ranks. If this rank gave up sooner, rank 0 would be
  // left behind in the call.
  std::vector<std::byte> contribute() {
    std::vector<Request> requests(ranks_);
    std::vector<std::byte> reply(sizeof(Verdict) + std::max(ranks_ * mine_.bytes, longest_reason));
    Request sent = endpoint_.send(0, tag_, mine_.data, mine_.bytes);
    requests[0] = endpoint_.receive(0, tag_, reply.data(), reply.size());
    const std::size_t bytes = wait(requests, (mine_.timeouts + 1) * mine_.timeout + time_for_the_verdict);
    Verdict verdict;
    std::memcpy(&verdict, reply.data(), sizeof verdict);
    const std::byte* const behind = reply.data() + sizeof verdict;
    if (verdict.is_complete == 0) {
      const std::string reason(reinterpret_cast<const char*>(behind), bytes - sizeof verdict);
      throw Error(static_cast<ErrorKind>(verdict.kind) == ErrorKind::timeout ? ErrorKind::timeout : ErrorKind::peer,
                  reason);
    }
    return {behind, behind + ranks_ * mine_.bytes};
  }

 private:
  void copy(std::byte* to, const void* from) const {
    if (mine_.bytes > 0) {
      std::memcpy(to, from, mine_.bytes);
    }
  }

  // Receivers fetch a long message, which may take some time. Sends that have not left after `seconds` continue by
  // themselves.
  void tell(const std::shared_ptr<std::vector<std::byte>>& reply, double seconds) {
    std::vector<Request> sends(ranks_);
    for (std::size_t r = 1; r < ranks_; ++r) {
      sends[r] = endpoint_.send(static_cast<int>(r), tag_, reply->data(), reply->size());
    }
    try {
      wait(sends, seconds);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): other ranks have answers; a missing one shows later
    }
    for (Request& each : sends) {
      each.give_up(reply);
    }
  }

  // Returns the size of the last message. Reads the clock before it looks for arrivals, because this process may be
  // stopped in between.
  std::size_t wait(std::vector<Request>& requests, double seconds) {
    Patience patience(seconds);
    std::size_t bytes = 0;
    const auto are_done = [&] {
      bool all = true;
      for (Request& request : requests) {
        if (request.under_way()) {
          const auto ended = endpoint_.test(request);
          bytes = ended.value_or(bytes);
          all = all && ended.has_value();
        }
      }
      return all;
    };
    while (!are_done()) {
      const bool is_over = patience.over();
      if (!endpoint_.pause(patience)) {
        continue;
      }
      if (endpoint_.interrupted()) {
        throw Error(ErrorKind::closed, "the communicator was closed during " + mine_.what);
      }
      if (check_peers_) {
        check_peers_();
      }
      if (is_over && !are_done()) {
        throw timeout_error(requests);
      }
    }
    return bytes;
  }

  [[nodiscard]] Error timeout_error(const std::vector<Request>& requests) const {
    std::vector<int> missing;
    for (std::size_t r = 0; r < requests.size(); ++r) {
      if (requests[r].under_way()) {
        missing.push_back(static_cast<int>(r));
      }
    }
    return {ErrorKind::timeout, mine_.what + " timed out after " + format_number(mine_.timeout) +
                                    " s (GRADIENTFLOW_TIMEOUT) on rank " + std::to_string(endpoint_.rank()) +
                                    ": no sign of " + name_ranks(missing)};
  }

  Endpoint& endpoint_;
  int tag_;
  const Contribution& mine_;
  const Endpoint::CheckPeers& check_peers_;
  std::size_t ranks_;
};

}  // namespace

std::vector<std::byte> gather(Endpoint& endpoint, int tag, const Contribution& mine,
                              const Endpoint::CheckPeers& check_peers) {
  Gathering gathering(endpoint, tag, mine, check_peers);
  return endpoint.rank() == 0 ? gathering.collect() : gathering.contribute();
}

std::vector<int> together(const std::vector<SplitArguments>& wishes, int rank) {
  const auto wish_of = [&](int r) { return wishes[static_cast<std::size_t>(r)]; };
  std::vector<int> ranks;
  for (int r = 0; r < static_cast<int>(wishes.size()); ++r) {
    if (wish_of(r).color == wish_of(rank).color) {
      ranks.push_back(r);
    }
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return wish_of(a).key < wish_of(b).key; });
  return ranks;
}

}  // namespace gradientflow::transport
