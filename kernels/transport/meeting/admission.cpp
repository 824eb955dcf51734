#include "admission.hpp"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "../../base/error.hpp"
#include "../../base/version.hpp"
#include "../gathering.hpp"
#include "../tcp/inbox.hpp"
#include "address.hpp"
#include "exchange.hpp"

namespace gradientflow::transport {
namespace {

constexpr const char* invited = "invited";
constexpr const char* refused = "refused";

// Parts of a joiner's card: the version of its library (the first part in every version), its address, its network.
constexpr std::size_t card_parts = 3;

// Parts of an invitation: the word `invited`, the token, the id of the endpoint, the joiner's rank in the job, the
// number of joiners, the ranks, and the addresses.
constexpr std::size_t answer_parts = 7;

// The last of the 2^20 tags: an endpoint's other gatherings count up from the first one.
constexpr int tag_of_meeting = tcp::first_gathering_tag + (1 << 20) - 1;

[[noreturn]] void throw_nonsense() {
  throw Error(ErrorKind::mismatch, "what has come from a job to join cannot be read: it runs another version");
}

template <class Number>
Number number_of(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw_nonsense();
  }
  return number;
}

tcp::Token token_of(const std::string& secret) {
  tcp::Token token{};
  if (secret.size() != token.size()) {
    throw_nonsense();
  }
  std::memcpy(token.data(), secret.data(), token.size());
  return token;
}

}  // namespace

Joiner::Joiner(const Config& config, const std::string& near, const Until& until)
    : network_(tcp::Network::listen({.address = choose_address(config.interface, near, until),
                                     .timeout = config.timeout,
                                     .host_timeout = config.host_timeout,
                                     .congestion = config.congestion == "auto" ? "" : config.congestion})) {}

std::string Joiner::card() const { return pack({library_version(), network_->address(), network_id()}); }

Joiner::JoinedEndpoint Joiner::enter(const std::string& answer) const {
  const std::vector<std::string> parts = unpack(answer);
  if (parts.size() == 2 && parts[0] == refused) {
    throw Error(ErrorKind::mismatch, "this process cannot join the job: " + parts[1]);
  }
  if (parts.size() != answer_parts || parts[0] != invited) {
    throw_nonsense();
  }
  std::vector<int> members;
  for (const std::string& each : unpack(parts[5])) {
    members.push_back(number_of<int>(each));
  }
  std::vector<std::string> addresses = unpack(parts[6]);
  const int rank = number_of<int>(parts[3]);
  const int former = static_cast<int>(members.size()) - number_of<int>(parts[4]);
  return {network_->join(rank, std::move(addresses), token_of(parts[1]), std::move(members),
                         number_of<std::uint64_t>(parts[2])),
          former};
}

std::unique_ptr<Endpoint> Joiner::meet(int rank, std::vector<std::string> addresses, const std::string& secret,
                                       const Until& until) const {
  const std::string what = "a meeting of " + std::to_string(addresses.size()) + " ranks";
  std::unique_ptr<Endpoint> endpoint = network_->join(rank, std::move(addresses), token_of(secret));
  static_cast<void>(gather(*endpoint, tag_of_meeting, {nullptr, 0, what, until.seconds(), 1},
                           [&] { static_cast<void>(until.step()); }));
  return endpoint;
}

std::string objection_to(const std::string& card) {
  const std::vector<std::string> parts = unpack(card);
  if (parts.empty() || parts[0] != library_version() || parts.size() != card_parts) {
    return "it runs version " + (parts.empty() ? "?" : parts[0]) + " of GradientFlow, and the job " + library_version();
  }
  const auto address = parse_address(parse_host_ports(parts[1]).front().host, 0);
  if (parts[2] != network_id() && address && address->is_loopback()) {
    return "it listens at " + parts[1] +
           ", where processes on other hosts do not reach it: set GRADIENTFLOW_INTERFACE to an interface or a network "
           "that joins them, such as eth0 or 10.0.0.0/24";
  }
  return "";
}

std::string address_on(const std::string& card) { return unpack(card).at(1); }

std::string invitation_for(const Endpoint& widened, int joiners, int number) {
  const Invitation invitation = widened.invitation();
  std::vector<std::string> members;
  for (const int rank : invitation.members) {
    members.push_back(std::to_string(rank));
  }
  const auto own = invitation.members.size() - static_cast<std::size_t>(joiners - number);
  return pack({invited, invitation.token, std::to_string(invitation.id), members[own], std::to_string(joiners),
               pack(members), pack(invitation.addresses)});
}

std::string refusal(const std::string& why) { return pack({refused, why}); }

}  // namespace gradientflow::transport
