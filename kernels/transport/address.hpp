// Addresses of sockets and hosts, and how they are written.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

namespace gradientflow::transport {

// An address of IPv4 or IPv6, with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length) noexcept;
  // That of a socket. Throws Error(system).
  [[nodiscard]] static SocketAddress of_socket(int socket);

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const noexcept { return length_; }
  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  [[nodiscard]] int port() const noexcept;
  void set_port(int port) noexcept;
  [[nodiscard]] std::string host() const;  // "10.0.0.2", "fe80::1%eth0"
  [[nodiscard]] std::string text() const;  // "10.0.0.2:41234", "[fe80::1%eth0]:41234"
  [[nodiscard]] bool is_loopback() const noexcept;
  [[nodiscard]] bool is_any() const noexcept;  // 0.0.0.0, ::
  [[nodiscard]] bool is_link_local() const noexcept;

  // The bytes of the address alone: 4 or 16, most significant first.
  [[nodiscard]] std::string bytes() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// What a user writes: a host, by name or address, and a port.
struct Place {
  std::string host;
  int port = 0;

  [[nodiscard]] std::string text() const;  // "host0:29400", "[::1]:29400"
};

// "host0:29400", "10.0.0.1:29400,[fd00::1]:29400". Throws Error(value).
[[nodiscard]] std::vector<Place> parse_places(const std::string& text);

// An address that is written as numbers; nothing for a name.
[[nodiscard]] std::optional<SocketAddress> parse_address(const std::string& host, int port);

// The same, also of a text as SocketAddress::text writes it. Throws Error(value) for a name.
[[nodiscard]] SocketAddress numeric_address(const std::string& host, int port);
[[nodiscard]] SocketAddress numeric_address(const std::string& text);

// What the system knows of a host. It may ask other hosts, for many seconds.
struct HostAddresses {
  int error = 0;   // of getaddrinfo
  int system = 0;  // errno, for EAI_SYSTEM
  std::vector<SocketAddress> addresses;
};

// `flags`: of getaddrinfo.
[[nodiscard]] HostAddresses look_up(const std::string& host, int port, int flags);

}  // namespace gradientflow::transport
