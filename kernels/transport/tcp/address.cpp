#include "address.hpp"

#include <netdb.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "../../base/error.hpp"

namespace gradientflow::transport::tcp {

Address::Address(const std::string& host, int port) { resolve(host, std::to_string(port)); }

Address::Address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const bool is_bracketed = text.starts_with('[') && colon != std::string::npos && colon >= 2 && text[colon - 1] == ']';
  if (colon == std::string::npos) {
    throw Error(ErrorKind::value, "'" + text + "' is no address with a port, such as 10.0.0.2:4000 or [fe80::1]:4000");
  }
  resolve(is_bracketed ? text.substr(1, colon - 2) : text.substr(0, colon), text.substr(colon + 1));
}

void Address::resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (code != 0 || found == nullptr) {
    throw Error(ErrorKind::value, "'" + host + "' with port " + port + " is no address: " + gai_strerror(code));
  }
  std::memcpy(&storage_, found->ai_addr, found->ai_addrlen);
  length_ = found->ai_addrlen;
  freeaddrinfo(found);
}

Address Address::of_socket(int socket) {
  Address address;
  address.length_ = sizeof address.storage_;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_) != 0) {
    throw system_error("cannot ask for the address of a socket", errno);
  }
  return address;
}

std::string Address::text() const {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(get(), length_, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  const std::string name = host.data();
  return (family() == AF_INET6 ? "[" + name + "]" : name) + ":" + port.data();
}

}  // namespace gradientflow::transport::tcp
