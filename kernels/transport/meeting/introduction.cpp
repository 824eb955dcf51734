#include "introduction.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "../../base/error.hpp"
#include "../../base/version.hpp"
#include "address.hpp"
#include "random.hpp"

namespace gradientflow::transport {
namespace {

// Description of one rank. The version comes first in all versions.
struct Card {
  std::string version = library_version();
  std::string address;
  std::string network = network_id();
  std::string token;  // token of the job, on rank 0
  std::string error;  // reason why it cannot take part
  int error_kind = 0;

  [[nodiscard]] std::string packed() const {
    return pack({version, address, network, token, error, std::to_string(error_kind)});
  }

  // Unpacks a card; for another version, only the version.
  static Card from(const std::string& packed) {
    std::vector<std::string> parts = unpack(packed);
    Card card;
    card.version = parts.empty() ? "?" : parts.front();
    if (card.version == library_version() && parts.size() == 6) {
      card.address = parts[1];
      card.network = parts[2];
      card.token = parts[3];
      card.error = parts[4];
      std::from_chars(parts[5].data(), parts[5].data() + parts[5].size(), card.error_kind);
    }
    return card;
  }
};

constexpr const char* remedy =
    "set GRADIENTFLOW_INTERFACE to an interface or a network that joins them, such as eth0 or 10.0.0.0/24";

std::string name_of_rank(std::size_t rank) { return "rank " + std::to_string(rank); }

void check_cards(const std::vector<Card>& cards) {
  std::vector<std::string> versions;
  for (const Card& each : cards) {
    versions.push_back(each.version);
  }
  check_versions(versions);
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (!cards[r].error.empty()) {
      throw Unreachable(static_cast<ErrorKind>(cards[r].error_kind),
                        name_of_rank(r) + " cannot be reached by others: " + cards[r].error);
    }
  }
  const auto elsewhere =
      std::find_if(cards.begin(), cards.end(), [&](const Card& each) { return each.network != cards.front().network; });
  for (std::size_t r = 0; r < cards.size() && elsewhere != cards.end(); ++r) {
    const std::vector<HostPort> places = parse_host_ports(cards[r].address);
    if (const auto address = parse_address(places.front().host, 0); address && address->is_loopback()) {
      throw Unreachable(
          ErrorKind::mismatch,
          name_of_rank(r) + " listens at " + cards[r].address +
              ", where processes on other hosts do not reach it, and the ranks are on several hosts: " + remedy);
    }
  }
}

// Checks addresses with a zone, such as [fe80::1%eth0]:41234. Only these may be valid on some ranks and invalid on
// others.
void check_zones(TextExchange& exchange, const std::vector<std::string>& addresses, const Until& until) {
  if (std::none_of(addresses.begin(), addresses.end(), [](const auto& each) { return each.find('%') != each.npos; })) {
    return;
  }
  std::string mine;
  try {
    for (const std::string& each : addresses) {
      static_cast<void>(numeric_address(each));
    }
  } catch (const Error& error) {
    mine = error.what();
  }
  const std::vector<std::string> all = exchange.all(mine, until);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].empty()) {
      throw Unreachable(ErrorKind::mismatch,
                        name_of_rank(r) + " cannot connect to all others: " + all[r] + " there: " + remedy);
    }
  }
}

}  // namespace

void check_versions(const std::vector<std::string>& versions) {
  const auto other =
      std::find_if(versions.begin(), versions.end(), [&](const auto& v) { return v != versions.front(); });
  if (other != versions.end()) {
    throw Error(ErrorKind::mismatch, "the ranks run different versions of GradientFlow: " + versions.front() +
                                         " on rank 0, " + *other + " on " +
                                         name_of_rank(static_cast<std::size_t>(other - versions.begin())));
  }
}

Introduction introduce(TextExchange& exchange, int rank, const std::function<std::string()>& listen,
                       const Until& until) {
  Card mine;
  Introduction result;
  if (rank == 0) {
    const RandomBits bits = random_bits();
    mine.token.assign(reinterpret_cast<const char*>(bits.data()), bits.size());
  }
  try {
    mine.address = listen();
  } catch (const Error& error) {
    mine.error = error.what();
    mine.error_kind = static_cast<int>(error.kind());
  }
  std::vector<Card> cards;
  for (const std::string& each : exchange.all(mine.packed(), until)) {
    cards.push_back(Card::from(each));
  }
  check_cards(cards);
  for (const Card& each : cards) {
    result.addresses.push_back(each.address);
  }
  check_zones(exchange, result.addresses, until);
  const std::string& token = cards.front().token;
  if (token.size() != result.token.size()) {
    throw Error(ErrorKind::internal, "rank 0 has given no token");
  }
  std::memcpy(result.token.data(), token.data(), token.size());
  return result;
}

}  // namespace gradientflow::transport
