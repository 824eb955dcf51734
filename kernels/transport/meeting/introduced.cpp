#include "introduced.hpp"

#include <algorithm>
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

constexpr std::size_t most_tried = 8;  // hosts that a host tries to connect to

// Earlier failure of hosts to connect to each other: they do not try again.
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

void tell(const std::string& why, const std::string& advice, int rank) {
  if (rank == 0) {
    const std::string line = "gradientflow: messages travel over MPI, as TCP is not usable: " + why + "; " + advice +
                             "set GRADIENTFLOW_TRANSPORT=mpi\n";
    std::fputs(line.c_str(), stderr);
  }
}

void note_failure(const std::string& why, int rank) {
  tell(why, "let the ranks' ports through between the hosts, or ", rank);
  const std::lock_guard lock(failure().mutex);
  failure().why = why;
}

std::vector<Candidate> all_candidates(TextExchange& exchange, const Candidate& mine, const Until& until) {
  std::vector<std::vector<std::string>> cards;
  std::vector<std::string> versions;
  const std::string card = pack({library_version(), mine.asked, std::to_string(mine.host_key), mine.host, mine.device,
                                 mine.objection, mine.threads ? "threads" : ""});
  for (const std::string& each : exchange.all(card, until)) {
    cards.push_back(unpack(each));
    versions.push_back(cards.back().empty() ? "?" : cards.back().front());
  }
  check_versions(versions);
  std::vector<Candidate> ranks;
  for (const std::vector<std::string>& each : cards) {
    Candidate& found = ranks.emplace_back(Candidate{each[1], 0, each[3], each[4], each[5], !each[6].empty()});
    std::from_chars(each[2].data(), each[2].data() + each[2].size(), found.host_key);
  }
  return ranks;
}

// Tries connections from the first rank of each host to the first ranks of the next `most_tried` hosts. A few hosts
// thus all try each other, so that a firewall is found in either direction. No rank accepts these connections yet: the
// limit lets a queue hold all of them. Returns the failure, the same on all ranks.
std::string try_connections(TextExchange& exchange, const std::vector<Candidate>& ranks, const Endpoint& over_tcp,
                            const Until& until) {
  const auto me = static_cast<std::size_t>(over_tcp.rank());
  std::unordered_set<std::size_t> hosts;
  std::vector<std::size_t> firsts;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (hosts.insert(ranks[r].host_key).second) {
      firsts.push_back(r);
    }
  }
  std::vector<std::string> others;
  if (const auto here = std::find(firsts.begin(), firsts.end(), me); here != firsts.end()) {
    const std::vector<std::string> addresses = over_tcp.invitation().addresses;
    std::rotate(firsts.begin(), here, firsts.end());
    for (std::size_t i = 1; i < std::min(firsts.size(), most_tried + 1); ++i) {
      others.push_back(addresses[firsts[i]]);
    }
  }
  const std::string why =
      find_unreached(others, until.from_now(std::min(waits::connections.seconds(), until.seconds() / 2)));
  for (const std::string& each :
       exchange.all(why.empty() ? why : "rank " + std::to_string(me) + " on " + ranks[me].host + ' ' + why, until)) {
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
  mine.threads = by_mpi->limits().threads;
  if (mine.objection.empty()) {
    mine.objection = by_mpi->can_lose_ranks() ? "MPI goes on without ranks that have died" : earlier_failure();
  }
  EndpointTextExchange exchange(*by_mpi);
  const std::vector<Candidate> ranks = all_candidates(exchange, mine, until);
  TransportChoice choice = choose_transport(ranks);
  if (choice.is_tcp) {
    std::unique_ptr<Endpoint> over_tcp;
    try {
      over_tcp = meet(exchange, rank, settings, "", check, choice.is_asked_for);
    } catch (const Unreachable& error) {  // thrown on all ranks
      if (choice.is_asked_for || error.kind() == ErrorKind::value) {
        throw;
      }
      tell(error.what(), "", rank);
      by_mpi->set_remark(error.what());
      return by_mpi;
    }
    const std::string failed = try_connections(exchange, ranks, *over_tcp, until);
    if (failed.empty()) {
      if (std::all_of(ranks.begin(), ranks.end(), [](const Candidate& each) { return each.threads; })) {
        over_tcp->keep(std::move(by_mpi));
      }
      over_tcp->set_remark(choice.why);
      return over_tcp;
    }
    if (choice.is_asked_for) {
      throw Error(ErrorKind::system, "messages cannot travel over TCP, as " + choice.why + ": " + failed +
                                         "; let the ranks' ports through between the hosts, or set "
                                         "GRADIENTFLOW_INTERFACE to a network that joins them");
    }
    note_failure(failed, rank);
    choice.why = failed;
  }
  by_mpi->set_remark(choice.why);
  return by_mpi;
}

}  // namespace gradientflow::transport
