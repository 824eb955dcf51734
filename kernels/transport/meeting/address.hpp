// Addresses of hosts: those that are written down, and the one at which this host is reached.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

#include "until.hpp"

namespace gradientflow::transport {

// An address of IPv4 or IPv6, with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length) noexcept;

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const noexcept { return length_; }
  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  [[nodiscard]] int port() const noexcept;
  void set_port(int port) noexcept;
  [[nodiscard]] std::string host() const;  // "10.0.0.2", "fe80::1%eth0"
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

// The same. Throws Error(value) for a name.
[[nodiscard]] SocketAddress numeric_address(const std::string& host, int port);

// The addresses of a place, of which there is at least one. Throws Error(system) with the cause, Error(timeout).
[[nodiscard]] std::vector<SocketAddress> resolve(const Place& place, const Until& until);

// The address of this host from which packets to `other` come; nothing if there is no way to it. Sends nothing.
[[nodiscard]] std::optional<SocketAddress> source_towards(const SocketAddress& other);

// The address at which other hosts reach this one: by the setting `interface`; else the one that leads to `near`, one
// or several places as in parse_places, or empty; else that of the default route; else the first of an interface that
// is up; else loopback. Throws Error(value) where nothing fits the setting.
[[nodiscard]] std::string choose_address(const std::string& interface, const std::string& near, const Until& until);

// Alike for processes that reach each other by loopback.
[[nodiscard]] std::string network_id();

}  // namespace gradientflow::transport
