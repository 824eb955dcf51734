// Successors of a communicator: without dead ranks, or with joiners.
#include <algorithm>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "../../base/text.hpp"
#include "../../transport/recovery/agreement.hpp"
#include "../../transport/recovery/verdict.hpp"
#include "communicator.hpp"

namespace gradientflow::engine {
namespace {

using transport::Decision;
using transport::Liveness;
using transport::Stage;

// Prefix of the value that a rank proposes in welcome().
constexpr std::string_view admits = "admits, ";

std::string text_of(std::optional<int> min_ranks) { return min_ranks ? std::to_string(*min_ranks) : "None"; }

void check_min_ranks(const Decision& decision) {
  const std::vector<int> ranks = transport::alive(decision.members);
  const auto value = [&](int rank) {
    const std::string& said = decision.values[static_cast<std::size_t>(rank)];
    return said.starts_with(admits) ? said.substr(admits.size()) : said;
  };
  for (const int rank : ranks) {
    if (value(rank) != value(ranks.front())) {
      throw Error(ErrorKind::mismatch, "min_ranks of recover() differs between ranks: " + value(ranks.front()) +
                                           " on rank " + std::to_string(ranks.front()) + ", " + value(rank) +
                                           " on rank " + std::to_string(rank));
    }
  }
}

// Throws the error that the first failing rank met while setting up, if any.
void check_set_up(const Decision& decision, const std::vector<int>& names) {
  for (std::size_t r = 0; r < names.size(); ++r) {
    if (!decision.values[r].empty()) {
      throw Error(ErrorKind::peer, "the ranks that are left could not set up a communicator: on rank " +
                                       std::to_string(names[r]) + ": " + decision.values[r]);
    }
  }
}

}  // namespace

void Communicator::check_recoverable(std::optional<int> min_ranks) const {
  check_process();
  if (turns_.is_polling_here() || turns_.is_closed()) {
    turns_.check_usable();  // throws
  }
  if (min_ranks && *min_ranks < 1) {
    throw Error(ErrorKind::value, "min_ranks is a number of 1 or more, not " + std::to_string(*min_ranks));
  }
  if (!group_->endpoint().can_lose_ranks()) {
    throw Error(ErrorKind::value,
                "a communicator of a job of MPI cannot be recovered here: start the job with `mpirun --with-ft ulfm` "
                "of Open MPI 5 or newer, or over TCP with `gradientflow run --transport tcp --min-ranks`");
  }
}

// Closes this communicator. The result holds the resources that peers need for the new one.
std::unique_ptr<Communicator, Communicator::ReleaseOnExit> Communicator::close_for_successor(const char* why) {
  turns_.break_off(Error(ErrorKind::closed, why));
  if (!leave(false)) {
    throw Error(ErrorKind::closed, "the communicator is closed");  // closed, or recovered by another thread
  }
  return std::unique_ptr<Communicator, ReleaseOnExit>(this);
}

// Agrees on the survivors, and sets up their communicator.
std::shared_ptr<Communicator> Communicator::recover(std::optional<int> min_ranks) {
  check_recoverable(min_ranks);
  const auto timeline = recorder_.timeline();  // stays open for the new communicator
  const auto until_renewed = close_for_successor("it recovers the communicator, to go on without ranks that have died");
  const transport::Endpoint::IsAlive is_alive_here = [this](int rank) { return is_alive(rank); };
  return renew(agree_with_all(text_of(min_ranks), min_ranks), group_->config(), is_alive_here, poll_signals_);
}

int Communicator::job_size() {
  check_process();
  return turns_.run([&] { return group_->endpoint().job_size(); });
}

std::unique_ptr<transport::Endpoint> Communicator::widen(std::span<const std::string> addresses, int first) {
  check_process();
  return turns_.run([&] { return group_->endpoint().widen(addresses, first); });
}

std::shared_ptr<Communicator> Communicator::welcome(std::unique_ptr<transport::Endpoint> widened,
                                                    std::optional<int> min_ranks, const std::function<void()>& invite) {
  check_recoverable(min_ranks);
  const auto timeline = recorder_.timeline();
  const auto until_renewed =
      close_for_successor("it makes a communicator of this one's ranks and of others, that have come to the job");
  const transport::Endpoint::IsAlive is_alive_here = [this](int rank) { return is_alive(rank); };
  PendingMembership left = agree_with_all(std::string(admits) + text_of(min_ranks), min_ranks);
  const bool all_admit = std::all_of(left.decision.values.begin(), left.decision.values.end(),
                                     [](const std::string& said) { return said.starts_with(admits); });
  if (!all_admit || transport::alive(left.decision.members).size() < left.names.size()) {
    return renew(std::move(left), group_->config(), is_alive_here, poll_signals_);
  }
  invite();
  return renew(PendingMembership::of_all(std::move(widened), size(), min_ranks), group_->config(), is_alive_here,
               poll_signals_);
}

// Agrees with all ranks of the closed communicator: some of them may call recover(), some welcome().
Communicator::PendingMembership Communicator::agree_with_all(const std::string& said, std::optional<int> min_ranks) {
  std::vector<int> names(static_cast<std::size_t>(size()));
  std::iota(names.begin(), names.end(), 0);
  auto talk = group_->endpoint().among(names, Stage::begin);
  Decision decision = transport::agree(*talk, said,
                                       {group_->config().timeout, [this](int rank) { return is_alive(rank); },
                                        [this] { return closed_elsewhere(); }, poll_signals_});
  check_min_ranks(decision);
  return {std::move(talk), std::move(decision), std::move(names), min_ranks};
}

std::shared_ptr<Communicator> Communicator::enter(std::unique_ptr<transport::Endpoint> widened, int former,
                                                  std::optional<int> min_ranks, const Config& config,
                                                  const std::function<void()>& poll_signals) {
  return renew(PendingMembership::of_all(std::move(widened), former, min_ranks), config, {}, poll_signals);
}

Communicator::PendingMembership Communicator::PendingMembership::of_all(std::unique_ptr<transport::Endpoint> talk,
                                                                        int former, std::optional<int> min_ranks) {
  const auto size = static_cast<std::size_t>(talk->size());
  std::vector<int> names(size, joiner);
  std::iota(names.begin(), names.begin() + former, 0);
  return {std::move(talk), {transport::Members(size), std::vector<std::string>(size)}, std::move(names), min_ranks};
}

// Sets up a communicator and agrees that all ranks have done so. Otherwise tries again without ranks that died
// meanwhile, or without joiners if setup with joiners fails.
std::shared_ptr<Communicator> Communicator::renew(PendingMembership renewal, const Config& config,
                                                  const transport::Endpoint::IsAlive& is_alive,
                                                  const std::function<void()>& poll_signals) {
  auto& [talk, decision, names, min_ranks] = renewal;
  const transport::Terms terms{config.timeout,
                               [&](int rank) {
                                 const int name = names[static_cast<std::size_t>(rank)];
                                 return name == joiner || !is_alive || is_alive(name);
                               },
                               {},
                               poll_signals};
  Origin origin;
  while (true) {
    const std::vector<int> left = transport::survivors(decision.members, names, min_ranks);
    std::vector<int> kept;
    for (std::size_t r = 0; r < names.size(); ++r) {
      if (decision.members[r].liveness == Liveness::alive) {
        kept.push_back(names[r]);
      } else if (names[r] != joiner) {
        origin.lost.emplace_back(names[r], decision.members[r].why);
      }
    }
    names = std::move(kept);
    std::shared_ptr<Communicator> made;
    std::string trouble;
    try {
      made = make(talk->among(left, Stage::work), config, nullptr);
    } catch (const Error& error) {
      trouble = error.what();
    } catch (const std::bad_alloc&) {
      trouble = "not enough memory";
    }
    talk = talk->among(left, Stage::agree);
    decision = transport::agree(*talk, trouble, terms);
    if (transport::alive(decision.members).size() < names.size() || exclude_joiners(renewal)) {
      continue;
    }
    check_set_up(decision, names);
    std::erase(names, joiner);
    std::sort(origin.lost.begin(), origin.lost.end());
    origin.ranks = std::move(names);
    made->origin_ = std::move(origin);
    made->poll_signals_ = poll_signals;
    return made;
  }
}

// Excludes joiners after a failed setup. Returns true if there were any; throws if this process is a joiner.
bool Communicator::exclude_joiners(PendingMembership& renewal) {
  auto& [talk, decision, names, min_ranks] = renewal;
  const auto trouble = std::find_if(decision.values.begin(), decision.values.end(),
                                    [](const std::string& each) { return !each.empty(); });
  if (trouble == decision.values.end()) {
    return false;
  }
  if (names[static_cast<std::size_t>(talk->rank())] == joiner) {
    throw Error(ErrorKind::mismatch, "this process cannot join the job: " + *trouble);
  }
  bool are_some = false;
  for (std::size_t r = 0; r < names.size(); ++r) {
    if (names[r] == joiner) {
      decision.members[r] = {Liveness::dead, "could not join"};
      are_some = true;
    }
  }
  return are_some;
}

}  // namespace gradientflow::engine
