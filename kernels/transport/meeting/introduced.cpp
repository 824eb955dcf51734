#include "introduced.hpp"

#include <charconv>
#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../../base/error.hpp"
#include "../../base/version.hpp"
#include "../../base/waits.hpp"
#include "exchange.hpp"
#include "introduction.hpp"
#include "meeting.hpp"
#include "reach.hpp"
#include "transport_choice.hpp"

namespace gradientflow::transport {
namespace {

// Why TCP was not usable before: hosts that could not connect to each other do not try again.
struct Failure {
  std::mutex mutex;
  std::string why;
};

Failure& failure() {
  static Failure of_process;
  return of_process;
}

std::string earlier_failure() {
  const std::lock_guard lock(failure().mutex);
  return failure().why;
}

void note_failure(const std::string& why, int rank) {
  const std::lock_guard lock(failure().mutex);
  if (failure().why.empty() && rank == 0) {
    const std::string line = "gradientflow: messages travel over MPI, as TCP is not usable: " + why +
                             "; let the ranks' ports through between the hosts, or set GRADIENTFLOW_TRANSPORT=mpi\n";
    std::fputs(line.c_str(), stderr);
  }
  failure().why = why;
}

std::vector<Candidate> all_candidates(Exchange& exchange, const Candidate& mine, const Until& until) {
  std::vector<std::vector<std::string>> cards;
  std::vector<std::string> versions;
  const std::string card =
      pack({library_version(), mine.asked, std::to_string(mine.host_key), mine.host, mine.device, mine.objection});
  for (const std::string& each : exchange.all(card, until)) {
    cards.push_back(unpack(each));
    versions.push_back(cards.back().empty() ? "?" : cards.back().front());
  }
  check_versions(versions);
  std::vector<Candidate> ranks;
  for (const std::vector<std::string>& each : cards) {
    Candidate& found = ranks.emplace_back(Candidate{each[1], 0, each[3], each[4], each[5]});
    std::from_chars(each[2].data(), each[2].data() + each[2].size(), found.host_key);
  }
  return ranks;
}

// The first rank of each host tries those of all others, so that a firewall is found in either direction. Returns what
// has gone wrong, the same on all ranks.
std::string try_connections(Exchange& exchange, const std::vector<Candidate>& ranks,
                            const std::vector<std::string>& addresses, int rank, const Until& until) {
  const auto me = static_cast<std::size_t>(rank);
  std::unordered_set<std::size_t> hosts;
  std::vector<std::string> others;
  bool tries = false;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (hosts.insert(ranks[r].host_key).second) {
      tries = tries || r == me;
      others.push_back(addresses[r]);
    }
  }
  std::string why = tries ? find_unreached(others, until.anew(waits::connections.seconds())) : "";
  for (const std::string& each : exchange.all(why.empty() ? why : ranks[me].host + ' ' + why, until)) {
    if (!each.empty()) {
      return each;
    }
  }
  return "";
}

}  // namespace

std::unique_ptr<Endpoint> introduced(std::unique_ptr<Endpoint> by_mpi, const Config& config, const Until::Check& check,
                                     const std::string& classes) {
  const Until until(config.timeout, check);
  const int rank = by_mpi->rank();
  Config settings = config;
  Candidate mine = candidate(settings, until, classes);
  if (mine.objection.empty()) {
    mine.objection = by_mpi->can_lose_ranks() ? "MPI goes on without ranks that have died" : earlier_failure();
  }
  EndpointExchange exchange(*by_mpi);
  const std::vector<Candidate> ranks = all_candidates(exchange, mine, until);
  TransportChoice choice = choose_transport(ranks);
  if (choice.kind == TransportKind::tcp) {
    std::string failed;
    try {
      auto over_tcp = meet(exchange, rank, settings, "", check);
      if (!choice.is_asked_for) {
        failed = try_connections(exchange, ranks, over_tcp->invitation().addresses, rank, until);
      }
      if (failed.empty()) {
        if (by_mpi->limits().threads) {
          over_tcp->keep(std::move(by_mpi));
        }
        over_tcp->set_remark(choice.why);
        return over_tcp;
      }
    } catch (const Unreachable& error) {
      if (choice.is_asked_for || error.kind() == ErrorKind::value) {
        throw;
      }
      failed = error.what();
    }
    note_failure(failed, rank);
    choice.why = failed;
  }
  by_mpi->set_remark(choice.why);
  return by_mpi;
}

}  // namespace gradientflow::transport
