// Random traffic between ranks that are threads of this process, then random talk of a stranger with the token: to
// be run under sanitizers. Arguments: ranks, threads of each, rounds, a seed. Prints what is wrong, and ends with 1.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <gradientflow/transport/tcp/network.hpp>
#include <gradientflow/transport/tcp/wire.hpp>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using gradientflow::Error;
using gradientflow::transport::Endpoint;
using gradientflow::transport::Patience;
using gradientflow::transport::Request;
namespace tcp = gradientflow::transport::tcp;
using Random = std::mt19937_64;

constexpr double patience = 120.0;  // seconds: far more than anything takes, even under a sanitizer
constexpr tcp::Token token{std::byte{7}, std::byte{8}};

std::atomic<bool> is_wrong{false};

void complain(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  is_wrong = true;
}

std::size_t below(Random& random, std::size_t bound) { return random() % bound; }

std::vector<std::byte> content(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> data(bytes);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (std::byte& each : data) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    each = static_cast<std::byte>(state >> 56U);
  }
  return data;
}

void wait(Endpoint& endpoint, Request& request) {
  Patience waiting(patience);
  while (!endpoint.test(request)) {
    if (endpoint.pause(waiting) && waiting.over()) {
      throw Error(gradientflow::ErrorKind::timeout, "stuck");
    }
  }
}

struct Message {
  int from, to, tag;
  std::size_t bytes;
  bool until_taken;
  std::uint64_t seed;
};

// The same on all ranks.
std::vector<Message> draw(Random& random, int ranks) {
  std::vector<Message> messages(1 + below(random, 40));
  for (Message& each : messages) {
    const std::size_t kind = below(random, 10);
    const std::size_t largest = kind < 4 ? 300 : kind < 8 ? 100'000 : 3'000'000;
    each = {.from = static_cast<int>(below(random, ranks)),
            .to = static_cast<int>(below(random, ranks)),
            .tag = static_cast<int>(below(random, 3)),
            .bytes = below(random, largest),
            .until_taken = below(random, 4) == 0,
            .seed = random()};
  }
  return messages;
}

// Each rank sends and receives its part, in an order of its own; some receives are posted late, or never: then the
// message is taken out of what has come.
void exchange(Endpoint& endpoint, std::uint64_t seed, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    Random common(seed + static_cast<std::uint64_t>(round));
    const auto messages = draw(common, endpoint.size());
    Random own(common() + static_cast<std::uint64_t>(endpoint.rank()));
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in;
    std::vector<Request> requests;
    out.reserve(messages.size());
    in.reserve(messages.size());
    const auto send_all = [&] {
      for (const Message& each : messages) {
        if (each.from == endpoint.rank()) {
          out.push_back(content(each.bytes, each.seed));
          requests.push_back(endpoint.send(each.to, each.tag, out.back().data(), each.bytes, each.until_taken));
        }
      }
    };
    const auto receive_all = [&] {
      for (const Message& each : messages) {
        if (each.to == endpoint.rank()) {
          in.emplace_back(each.bytes);
          requests.push_back(endpoint.receive(each.from, each.tag, in.back().data(), each.bytes));
        }
      }
    };
    if (below(own, 2) == 0) {
      receive_all();
      send_all();
    } else {
      send_all();
      Patience short_while(1.0);
      for (std::size_t i = below(own, 30); i > 0; --i) {
        endpoint.pause(short_while);
      }
      receive_all();
    }
    for (Request& each : requests) {
      wait(endpoint, each);
    }
    std::size_t received = 0;
    for (const Message& each : messages) {
      if (each.to == endpoint.rank() && in[received++] != content(each.bytes, each.seed)) {
        complain("wrong bytes from rank " + std::to_string(each.from) + " in round " + std::to_string(round));
      }
    }
  }
}

void guarded(const std::string& who, const auto& work) {
  try {
    work();
  } catch (const std::exception& error) {
    complain(who + ": " + error.what());
  }
}

void traffic(int ranks, int threads, int rounds, std::uint64_t seed) {
  std::vector<std::shared_ptr<tcp::Network>> networks;
  std::vector<std::string> addresses;
  for (int r = 0; r < ranks; ++r) {
    networks.push_back(tcp::Network::listen({.address = "127.0.0.1", .timeout = patience}));
    addresses.push_back(networks.back()->address());
  }
  std::vector<std::thread> running;
  for (int r = 0; r < ranks; ++r) {
    running.emplace_back([&, r, network = std::exchange(networks[static_cast<std::size_t>(r)], nullptr)]() mutable {
      guarded("rank " + std::to_string(r), [&] {
        const auto whole = network->join(r, addresses, token);
        network.reset();
        std::vector<std::unique_ptr<Endpoint>> groups;
        std::vector<std::thread> others;
        for (int t = 1; t < threads; ++t) {
          groups.push_back(whole->duplicate());
          others.emplace_back([&group = *groups.back(), t, rounds, seed] {
            guarded("thread", [&] { exchange(group, seed + 1000 * static_cast<std::uint64_t>(t), rounds); });
          });
        }
        const auto part = whole->split(r % 2, -r, {});
        exchange(*whole, seed, rounds);
        exchange(*part, seed + 77, rounds);
        for (std::thread& each : others) {
          each.join();
        }
        static_cast<void>(whole->allgather(r));  // the last thing that it does
      });
    });
  }
  for (std::thread& each : running) {
    each.join();
  }
}

// What a rank may say, and what it may not.
std::vector<std::byte> talk(Random& random, std::uint64_t group) {
  std::vector<std::byte> said;
  const auto say = [&](const auto& value) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    said.insert(said.end(), bytes, bytes + sizeof value);
  };
  tcp::Greeting greeting;
  greeting.from = 1;
  greeting.token = token;
  say(greeting);
  std::uint64_t announced = 0;
  for (std::size_t i = below(random, 60); i > 0; --i) {
    tcp::Header header{.kind = static_cast<tcp::Header::Kind>(below(random, 7)),
                       .tag = static_cast<int>(below(random, 3)),
                       .group = below(random, 10) == 0 ? random() : group,
                       .number = 1 + below(random, 3)};
    if (header.kind == tcp::Header::Kind::announced) {
      header.number = ++announced;
    }
    if (header.kind <= tcp::Header::Kind::piece) {
      header.bytes = header.kind == tcp::Header::Kind::fetch || header.kind == tcp::Header::Kind::dropped ? 0
                     : below(random, 2) == 0 ? 2000
                                             : 1 + below(random, 60'000);
    }
    say(header);
    if (header.kind == tcp::Header::Kind::message || header.kind == tcp::Header::Kind::piece) {
      const auto data = content(header.bytes, random());
      said.insert(said.end(), data.begin(), data.end());
    }
  }
  for (std::size_t i = below(random, 3); i > 0 && said.size() > sizeof greeting; --i) {
    said[sizeof greeting + below(random, said.size() - sizeof greeting)] ^= std::byte{1} << below(random, 8);
  }
  return said;
}

int connect_to(const std::string& address) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  return connect(made, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0 ? made : -1;
}

// A rank whose only peer is a stranger with the token, and which receives, sends and gives up what it can.
void listen_to_nonsense(std::uint64_t seed) {
  Random random(seed);
  auto network = tcp::Network::listen({.address = "127.0.0.1", .timeout = 1.0});
  const auto peer = tcp::Network::listen({.address = "127.0.0.1"});  // connected to, and never answers
  const auto endpoint = network->join(0, {network->address(), peer->address()}, token);
  const int unauthenticated = connect_to(network->address());
  std::uint64_t group = 0;
  std::memcpy(&group, token.data(), sizeof group);
  const auto said = talk(random, group);
  std::vector<std::vector<std::byte>> memory;
  memory.reserve(1000);
  std::vector<Request> requests;
  Patience moment(1.0);
  std::size_t done = 0;
  for (int turn = 0; turn < 300 && done < said.size(); ++turn) {
    const std::size_t step = std::min(said.size() - done, 1 + below(random, turn % 2 == 0 ? 40 : 30'000));
    const ssize_t sent = send(unauthenticated, said.data() + done, step, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
      break;
    }
    done += sent < 0 ? 0 : static_cast<std::size_t>(sent);
    if (below(random, 4) == 0) {
      memory.emplace_back(below(random, 2) == 0 ? 2000 : 60'000);
      const int tag = static_cast<int>(below(random, 3));
      requests.push_back(below(random, 3) == 0
                             ? endpoint->send(1, tag, memory.back().data(), memory.back().size(), below(random, 2) == 0)
                             : endpoint->receive(1, tag, memory.back().data(), memory.back().size()));
    }
    if (auto arrival = endpoint->next(); arrival && below(random, 2) == 0) {
      memory.emplace_back(arrival->envelope().bytes);
      requests.push_back(endpoint->receive(*arrival, memory.back().data()));
    }
    endpoint->pause(moment);
    if (!requests.empty() && below(random, 3) == 0) {
      Request& chosen = requests[below(random, requests.size())];
      try {
        if (chosen.under_way() && !endpoint->test(chosen) && below(random, 2) == 0) {
          chosen.give_up();
        }
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the stranger has been sent away, or was too wordy
      }
    }
  }
  close(unauthenticated);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: %s RANKS THREADS ROUNDS SEED\n", arguments[0]);
    return 2;
  }
  const auto number = [&](int i) { return std::stoi(arguments[i]); };
  const auto seed = static_cast<std::uint64_t>(number(4));
  guarded("traffic", [&] { traffic(number(1), number(2), number(3), seed); });
  for (int i = 0; i < 10 * number(3); ++i) {
    guarded("nonsense", [&] { listen_to_nonsense(seed + static_cast<std::uint64_t>(i)); });
  }
  return is_wrong ? 1 : 0;
}
