// Addresses of sockets and hosts, and their written form.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

namespace gradientflow::transport {

// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length) noexcept;
  // Returns the address of a socket. Throws Error(system).
  [[nodiscard]] static SocketAddress of_socket(int socket);

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const noexcept { return length_; }
  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  [[nodiscard]] int port() const noexcept;
  void set_port(int port) noexcept;
  [[nodiscard]] std::string host() const;  // "10.0.0.2", "fe80::1%eth0"
  [[nodiscard]] std::string text() const;  // "10.0.0.2:41234", "[fe80::1%eth0]:41234"
  [[nodiscard]] bool is_loopback() const noexcept;
  [[nodiscard]] bool is_any() const noexcept;  // 0.0.0.0 or ::
  [[nodiscard]] bool is_link_local() const noexcept;

  // Returns the bytes of the address alone: 4 or 16, most significant first.
  [[nodiscard]] std::string bytes() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// Host, by name or address, and port, as a user writes them.
struct HostPort {
  std::string host;
  int port = 0;

  [[nodiscard]] std::string text() const;  // "host0:29400", "[::1]:29400"
};

// Parses places such as "host0:29400" or "10.0.0.1:29400,[fd00::1]:29400". Throws Error(value).
[[nodiscard]] std::vector<HostPort> parse_host_ports(const std::string& text);

// Parses an address written as numbers; returns nothing for a name.
[[nodiscard]] std::optional<SocketAddress> parse_address(const std::string& host, int port);

// Parses such an address, or a text of SocketAddress::text. Throws Error(value) for a name.
[[nodiscard]] SocketAddress numeric_address(const std::string& host, int port);
[[nodiscard]] SocketAddress numeric_address(const std::string& text);

// Addresses of a host, or the error of its lookup.
struct HostAddresses {
  int error = 0;   // error of getaddrinfo
  int system = 0;  // errno, for EAI_SYSTEM
  std::vector<SocketAddress> addresses;
};

// Looks up a host; may ask other hosts for many seconds. `flags`: see getaddrinfo.
[[nodiscard]] HostAddresses look_up(const std::string& host, int port, int flags);

}  // namespace gradientflow::transport
