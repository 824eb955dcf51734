#include "address.hpp"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>

#include "../base/error.hpp"

namespace gradientflow::transport {
namespace {

HostPort parse_place(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  const char* const last = text.data() + text.size();
  const char* const first = colon == std::string::npos ? last : text.data() + colon + 1;
  int port = -1;
  const auto [end, error] = std::from_chars(first, last, port);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[] ") != std::string::npos) {
    host.clear();  // such as an IPv6 address without brackets, whose last part is no port
  }
  if (host.empty() || error != std::errc() || end != last || port < 0 || port > 65535) {
    throw Error(ErrorKind::value,
                "'" + text +
                    "' is no place to meet: a host and a port, such as host0:29400, 10.0.0.1:29400 or [fd00::1]:29400");
  }
  return {host, port};
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length) noexcept
    : length_(std::min<socklen_t>(length, sizeof storage_)) {
  std::memcpy(&storage_, address, length_);
}

SocketAddress SocketAddress::of_socket(int socket) {
  SocketAddress address;
  address.length_ = sizeof address.storage_;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_) != 0) {
    throw system_error("cannot ask for the address of a socket", errno);
  }
  return address;
}

int SocketAddress::port() const noexcept {
  return family() == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port)
                             : ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
}

void SocketAddress::set_port(int port) noexcept {
  const auto number = htons(static_cast<std::uint16_t>(port));
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = number;
  } else {
    reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = number;
  }
}

std::string SocketAddress::host() const {
  std::array<char, NI_MAXHOST> text{};
  const int error = getnameinfo(get(), length_, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "unknown";
}

std::string SocketAddress::text() const { return HostPort{host(), port()}.text(); }

std::string SocketAddress::bytes() const {
  const auto copy = [](const auto& address) {
    return std::string(reinterpret_cast<const char*>(&address), sizeof address);
  };
  return family() == AF_INET ? copy(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr)
                             : copy(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

bool SocketAddress::is_loopback() const noexcept {
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == 127;
  }
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

bool SocketAddress::is_any() const noexcept {
  return family() == AF_INET
             ? reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == htonl(INADDR_ANY)
             : IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr) != 0;
}

bool SocketAddress::is_link_local() const noexcept {
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

std::string HostPort::text() const {
  const bool has_colon = host.find(':') != std::string::npos;
  return (has_colon ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::vector<HostPort> parse_host_ports(const std::string& text) {
  std::vector<HostPort> places;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    places.push_back(parse_place(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return places;
}

std::optional<SocketAddress> parse_address(const std::string& host, int port) {
  const HostAddresses found = look_up(host, port, AI_NUMERICHOST);
  return found.error == 0 ? std::optional(found.addresses.front()) : std::nullopt;
}

SocketAddress numeric_address(const std::string& host, int port) {
  if (const auto address = parse_address(host, port)) {
    return *address;
  }
  throw Error(ErrorKind::value, "'" + host + "' is no address");
}

SocketAddress numeric_address(const std::string& text) {
  const HostPort place = parse_place(text);
  return numeric_address(place.host, place.port);
}

HostAddresses look_up(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  HostAddresses found;
  found.error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  found.system = errno;
  for (const addrinfo* each = list; found.error == 0 && each != nullptr; each = each->ai_next) {
    if (each->ai_family == AF_INET || each->ai_family == AF_INET6) {
      found.addresses.emplace_back(each->ai_addr, each->ai_addrlen);
    }
  }
  if (list != nullptr) {
    freeaddrinfo(list);
  }
  if (found.error == 0 && found.addresses.empty()) {
    found.error = EAI_NONAME;
  }
  return found;
}

}  // namespace gradientflow::transport
