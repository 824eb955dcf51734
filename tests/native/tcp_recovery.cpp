// Ranks that are threads of this process end at random moments, and the others agree on who is left, again and again,
// while threads of theirs send on other endpoints: to be run under sanitizers. Arguments: ranks, jobs, a seed. Prints
// what is wrong, and ends with 1.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <gradientflow/transport/recovery/agreement.hpp>
#include <gradientflow/transport/recovery/verdict.hpp>
#include <gradientflow/transport/tcp/network.hpp>
#include <memory>
#include <numeric>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gradientflow::Error;
using gradientflow::transport::Decision;
using gradientflow::transport::Endpoint;
using gradientflow::transport::Liveness;
using gradientflow::transport::Patience;
using gradientflow::transport::Request;
using gradientflow::transport::Stage;
namespace tcp = gradientflow::transport::tcp;

constexpr tcp::Token token{std::byte{7}, std::byte{8}};
constexpr double seconds_to_come = 60.0;  // far more than anything takes, even under a sanitizer

std::atomic<bool> is_wrong{false};

void complain(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  is_wrong = true;
}

// Sends to the next rank and receives from the one before, until one of them is gone.
void chatter(Endpoint& endpoint, const std::stop_token& stop) {
  try {
    while (!stop.stop_requested()) {
      std::vector<std::byte> out(5000);
      std::vector<std::byte> in(5000);
      Request sent = endpoint.send((endpoint.rank() + 1) % endpoint.size(), 1, out.data(), out.size());
      Request received =
          endpoint.receive((endpoint.rank() + endpoint.size() - 1) % endpoint.size(), 1, in.data(), in.size());
      Patience patience(1.0);
      while (!stop.stop_requested() && !(endpoint.test(received) && endpoint.test(sent))) {
        endpoint.pause(patience);
        if (!received.under_way() || !sent.under_way()) {
          break;
        }
      }
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the other one has ended
  }
}

class Job {
 public:
  Job(int ranks, std::uint64_t seed) : random_(seed) {
    for (int r = 0; r < ranks; ++r) {
      networks_.push_back(tcp::Network::listen({.address = "127.0.0.1", .timeout = seconds_to_come}));
      addresses_.push_back(networks_.back()->address());
      ends_after_.push_back(static_cast<int>(random_() % 4));
    }
    ends_after_[random_() % static_cast<std::size_t>(ranks)] = ranks;  // one stays to the end
  }

  void run() {
    std::vector<std::thread> running;
    for (int r = 0; r < static_cast<int>(addresses_.size()); ++r) {
      running.emplace_back([this, r, network = std::exchange(networks_[static_cast<std::size_t>(r)], nullptr),
                            wait = random_() % 3000]() mutable {
        try {
          live(r, std::move(network), std::chrono::microseconds(wait));
        } catch (const std::exception& error) {
          complain("rank " + std::to_string(r) + ": " + error.what());
        }
      });
    }
    for (std::thread& each : running) {
      each.join();
    }
  }

 private:
  void live(int rank, std::shared_ptr<tcp::Network> network, std::chrono::microseconds wait) {
    const auto whole = network->join(rank, addresses_, token);
    network.reset();
    std::vector<int> names(addresses_.size());
    std::iota(names.begin(), names.end(), 0);
    const auto group = whole->among(names, Stage::work);
    const std::jthread chatting([&](const std::stop_token& stop) { chatter(*group, stop); });
    auto talk = whole->among(names, Stage::agree);
    for (int times = 0; times < ends_after_[static_cast<std::size_t>(rank)]; ++times) {
      std::this_thread::sleep_for(wait);
      const Decision decision = gradientflow::transport::agree(*talk, "", {.timeout = seconds_to_come});
      for (const auto& member : decision.members) {
        if (member.liveness != Liveness::alive && member.liveness != Liveness::dead) {
          complain("rank " + std::to_string(rank) + " takes one that has ended for silent: it " + member.why);
        }
      }
      const std::vector<int> left = gradientflow::transport::survivors(decision.members, names, 1);
      talk = talk->among(left, Stage::agree);
      std::vector<int> kept;
      for (const int each : left) {
        kept.push_back(names[static_cast<std::size_t>(each)]);
      }
      names = std::move(kept);
      if (names.size() == 1) {
        return;
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<std::shared_ptr<tcp::Network>> networks_;
  std::vector<std::string> addresses_;
  std::vector<int> ends_after_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    return 2;
  }
  const auto seed = std::stoull(argv[3]);
  for (int job = 0; job < std::stoi(argv[2]); ++job) {
    Job(std::stoi(argv[1]), seed + static_cast<std::uint64_t>(job)).run();
  }
  return is_wrong ? 1 : 0;
}
