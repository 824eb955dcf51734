// Addresses of sockets, and their text: "10.0.0.2:41234", "[fe80::1%eth0]:41234".
#pragma once

#include <sys/socket.h>

#include <string>

namespace gradientflow::transport::tcp {

class Address {
 public:
  // Of a host, given by number, and a port. Throws Error(value).
  Address(const std::string& host, int port);
  // Of "HOST:PORT", as text() writes it. Throws Error(value).
  explicit Address(const std::string& text);
  // That of a socket. Throws Error(system).
  static Address of_socket(int socket);

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const noexcept { return length_; }
  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  [[nodiscard]] std::string text() const;

 private:
  Address() = default;
  void resolve(const std::string& host, const std::string& port);

  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

}  // namespace gradientflow::transport::tcp
