#include "address.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>

#include "../../base/text.hpp"
#include "../../base/thread.hpp"
#include "../../base/waits.hpp"
#include "../descriptor.hpp"

namespace gradientflow::transport {
namespace {

// Addresses of the networks reserved for examples: the route to them is the default route.
constexpr std::array<const char*, 2> somewhere = {"192.0.2.1", "2001:db8::1"};

constexpr std::chrono::milliseconds between_lookups{100};

struct InterfaceAddress {
  std::string interface;
  SocketAddress address;
};

// Returns the addresses of interfaces that are up, in the order of the system.
std::vector<InterfaceAddress> addresses_of_interfaces() {
  std::vector<InterfaceAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    throw system_error("cannot list the network interfaces", errno);
  }
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const int family = each->ifa_addr == nullptr ? AF_UNSPEC : each->ifa_addr->sa_family;
    if ((each->ifa_flags & IFF_UP) != 0 && (family == AF_INET || family == AF_INET6)) {
      const auto length = static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      found.push_back({each->ifa_name, SocketAddress(each->ifa_addr, length)});
    }
  }
  freeifaddrs(list);
  return found;
}

// Reports whether an address and a network agree in their first `bits` bits.
bool is_within(const std::string& address, const std::string& network, int bits) {
  if (address.size() != network.size()) {
    return false;
  }
  for (std::size_t i = 0; i < address.size() && bits > 0; ++i, bits -= 8) {
    const auto mask = static_cast<unsigned char>(bits >= 8 ? 0xff : 0xff << (8 - bits));
    if (((static_cast<unsigned char>(address[i]) ^ static_cast<unsigned char>(network[i])) & mask) != 0) {
      return false;
    }
  }
  return true;
}

// Reports whether an address belongs to an interface, or to a network, by one name of the setting `interface`.
bool is_named(const InterfaceAddress& each, const std::string& name) {
  const std::size_t slash = name.find('/');
  const std::optional<SocketAddress> network = parse_address(name.substr(0, slash), 0);
  int bits = network && network->family() == AF_INET ? 32 : 128;
  const int most = bits;
  bool is_wrong = slash != std::string::npos && !network;
  if (slash != std::string::npos) {
    const char* const last = name.data() + name.size();
    const auto [end, error] = std::from_chars(name.data() + slash + 1, last, bits);
    is_wrong = is_wrong || error != std::errc() || end != last || bits < 0 || bits > most;
  }
  if (is_wrong) {
    throw Error(ErrorKind::value,
                "interface (GRADIENTFLOW_INTERFACE): '" + name + "' is no network, such as 10.0.0.0/24 or fd00::/64");
  }
  return network ? is_within(each.address.bytes(), network->bytes(), bits) : each.interface == name;
}

// `usual`: the address chosen without the setting; empty unless the setting names interfaces to leave out.
std::string address_by_setting(const std::string& interface, const std::string& usual) {
  std::vector<InterfaceAddress> all = addresses_of_interfaces();
  // The usual address comes first, then IPv4, then addresses that need no interface beside them.
  std::stable_sort(all.begin(), all.end(), [&](const InterfaceAddress& one, const InterfaceAddress& other) {
    const auto order = [&](const SocketAddress& address) {
      return address.host() == usual ? -1 : address.family() == AF_INET ? 0 : address.is_link_local() ? 2 : 1;
    };
    return order(one.address) < order(other.address);
  });
  const bool leaves_out = interface.starts_with('^');
  std::vector<InterfaceAddress> left = all;
  std::string chosen;
  for (const std::string& name : split_list(interface.substr(leaves_out ? 1 : 0))) {
    const auto fits = [&](const InterfaceAddress& each) { return is_named(each, name); };
    const auto first = std::find_if(all.begin(), all.end(), fits);  // throws if the name is wrong
    if (leaves_out) {
      std::erase_if(left, fits);
    } else if (first != all.end() && chosen.empty()) {
      chosen = first->address.host();
    }
  }
  if (!chosen.empty()) {
    return chosen;
  }
  const auto leads_out = [](const InterfaceAddress& each) {
    return !each.address.is_loopback() && !each.address.is_link_local();
  };
  if (const auto found = std::find_if(left.begin(), left.end(), leads_out); leaves_out && found != left.end()) {
    return found->address.host();
  }
  std::string there;
  for (const InterfaceAddress& each : all) {
    there += (there.empty() ? "" : ", ") + each.interface + " (" + each.address.host() + ")";
  }
  throw Error(ErrorKind::value, "interface (GRADIENTFLOW_INTERFACE): this host has no address of '" + interface +
                                    "'; it has " + (there.empty() ? "none at all" : there));
}

std::optional<std::string> address_towards(const HostPort& place, const Until& until) {
  std::vector<SocketAddress> addresses;
  try {
    addresses = resolve(place, until);
  } catch (const Error&) {  // other ways are left
    return std::nullopt;
  }
  // A name that means loopback here is this host's own name, and does not tell how other hosts reach this one.
  const bool is_loopback_meant = place.host == "localhost" || parse_address(place.host, 0);
  for (SocketAddress& each : addresses) {
    const std::optional<SocketAddress> source = source_towards(each);
    if (source && (is_loopback_meant || !source->is_loopback())) {
      return source->host();
    }
  }
  return std::nullopt;
}

}  // namespace

// Looks the name up in a thread, because the system may ask other hosts for many seconds and takes no time limit.
std::vector<SocketAddress> resolve(const HostPort& place, const Until& until) {
  if (const auto address = parse_address(place.host, place.port)) {
    return {*address};
  }
  struct Answer {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<HostAddresses> found;
  };
  const auto answer = std::make_shared<Answer>();
  start_thread("a thread that looks up " + place.host, [answer, place] {
    HostAddresses found = look_up(place.host, place.port, AI_ADDRCONFIG);
    if (found.error != 0) {  // without a network, loopback is left
      found = look_up(place.host, place.port, 0);
    }
    const std::lock_guard lock(answer->mutex);
    answer->found = std::move(found);
    answer->changed.notify_all();
  }).detach();
  while (true) {
    const auto wait = until.step();
    std::unique_lock lock(answer->mutex);
    answer->changed.wait_for(lock, wait, [&] { return answer->found.has_value(); });
    if (answer->found) {
      break;
    }
    if (wait.count() == 0) {
      throw Error(ErrorKind::timeout,
                  "the name " + place.host + " was not looked up within " + format_number(until.seconds()) + " s");
    }
  }
  if (answer->found->error != 0) {
    const HostAddresses& found = *answer->found;
    const std::string what = "the name " + place.host + " is unknown here: " +
                             (found.error == EAI_SYSTEM ? std::strerror(found.system) : gai_strerror(found.error));
    if (found.error == EAI_NONAME || found.error == EAI_NODATA) {
      throw UnknownName(ErrorKind::system, what);
    }
    throw Error(ErrorKind::system, what);
  }
  return answer->found->addresses;
}

void await_name(const std::vector<HostPort>& places, const Until& until) {
  const Until soon = until.from_now(names_may_come_late() ? until.remaining() : waits::known_name.seconds());
  while (true) {
    std::string causes;
    for (const HostPort& place : places) {
      try {
        static_cast<void>(resolve(place, until));
        return;
      } catch (const UnknownName& error) {
        add_cause(causes, error.what());
      } catch (const Error&) {  // the error may pass
        return;
      }
    }
    if (!soon.sleep(between_lookups) || until.over()) {
      throw UnknownName(ErrorKind::system, causes);
    }
  }
}

void add_cause(std::string& causes, const std::string& cause) {
  if (causes.find(cause) == std::string::npos) {
    causes += (causes.empty() ? "" : "; ") + cause;
  }
}

bool names_may_come_late() { return std::getenv("KUBERNETES_SERVICE_HOST") != nullptr; }

std::optional<SocketAddress> source_towards(const SocketAddress& other) {
  const Descriptor socket(::socket(other.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress target = other;
  if (target.port() == 0) {
    target.set_port(9);
  }
  sockaddr_storage source{};
  socklen_t length = sizeof source;
  if (!socket || connect(socket.get(), target.get(), target.length()) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&source), &length) != 0) {
    return std::nullopt;
  }
  const SocketAddress found(reinterpret_cast<sockaddr*>(&source), length);
  return found.is_any() ? std::nullopt : std::optional(found);
}

std::string choose_address(const std::string& interface, const std::string& near, const Until& until) {
  if (interface != "auto") {
    return address_by_setting(interface, interface.starts_with('^') ? choose_address("auto", near, until) : "");
  }
  if (!near.empty()) {
    for (const HostPort& place : parse_host_ports(near)) {
      if (const auto found = address_towards(place, until)) {
        return *found;
      }
    }
  }
  for (const char* const host : somewhere) {
    if (const auto source = source_towards(numeric_address(host, 9)); source && !source->is_loopback()) {
      return source->host();
    }
  }
  for (const InterfaceAddress& each : addresses_of_interfaces()) {
    if (!each.address.is_loopback() && !each.address.is_link_local()) {
      return each.address.host();
    }
  }
  return "127.0.0.1";
}

std::string network_id() {
  std::string id;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, id);
  std::array<char, 64> space{};
  if (id.empty() || readlink("/proc/self/ns/net", space.data(), space.size() - 1) <= 0) {
    utsname host{};
    uname(&host);
    return static_cast<const char*>(host.nodename);
  }
  return id + '/' + space.data();
}

}  // namespace gradientflow::transport
