#include "reach.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "../../base/text.hpp"
#include "../address.hpp"
#include "../descriptor.hpp"

namespace gradientflow::transport {

std::string find_unreached(const std::vector<std::string>& addresses, const Until& until) {
  const auto unreached = [&](std::size_t number, const std::string& how) {
    return "could not connect to " + addresses[number] + how;
  };
  const auto why = [](int code) { return ": " + std::generic_category().message(code); };
  std::vector<Descriptor> sockets;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const SocketAddress address = numeric_address(addresses[i]);
    const Descriptor& made =
        sockets.emplace_back(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if ((!made || connect(made.get(), address.get(), address.length()) != 0) && errno != EINPROGRESS) {
      return unreached(i, why(errno));
    }
  }
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    int code = 0;
    socklen_t length = sizeof code;
    if (!until.ready(sockets[i].get(), POLLOUT)) {
      return unreached(i, " within " + format_number(until.seconds()) + " s");
    }
    getsockopt(sockets[i].get(), SOL_SOCKET, SO_ERROR, &code, &length);
    if (code != 0) {
      return unreached(i, why(code));
    }
  }
  return "";
}

}  // namespace gradientflow::transport
