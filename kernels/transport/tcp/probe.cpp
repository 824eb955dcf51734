#include "probe.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace gradientflow::transport::tcp {
namespace {

constexpr auto between_questions = std::chrono::milliseconds(20);

}  // namespace

Probe::Answer Probe::look() {
  if (socket_.get() < 0) {
    return Clock::now() < next_ ? Answer::none : begin();
  }
  return has_greeted_ ? listen() : greet();
}

bool Probe::has_arrived() const {
  int unacknowledged = 0;
  return has_greeted_ && ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0;
}

Probe::Answer Probe::begin() {
  next_ = Clock::now() + between_questions;
  socket_ = Descriptor(::socket(address_.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket_.get() < 0) {
    return Answer::none;
  }
  has_greeted_ = false;
  received_ = 0;
  if (connect(socket_.get(), address_.get(), address_.length()) != 0 && errno != EINPROGRESS) {
    return failed(errno);
  }
  return greet();
}

Probe::Answer Probe::greet() {
  pollfd entry{socket_.get(), POLLOUT, 0};
  if (poll(&entry, 1, 0) <= 0) {
    return Answer::none;
  }
  int code = 0;
  socklen_t length = sizeof code;
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &code, &length);
  if (code == 0 && send(socket_.get(), &greeting_, sizeof greeting_, MSG_DONTWAIT | MSG_NOSIGNAL) !=
                       static_cast<ssize_t>(sizeof greeting_)) {
    code = errno;
  }
  if (code != 0) {
    return failed(code);
  }
  has_greeted_ = true;
  return listen();
}

Probe::Answer Probe::listen() {
  while (received_ < reply_.size()) {
    const ssize_t received = recv(socket_.get(), reply_.data() + received_, reply_.size() - received_, MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
      return Answer::none;
    }
    if (received == 0 && greeting_.purpose == Greeting::Purpose::exclude) {
      return Answer::closed;
    }
    if (received <= 0) {
      return failed(received < 0 ? errno : ECONNRESET);
    }
    received_ += static_cast<std::size_t>(received);
  }
  Header header;
  std::memcpy(&header, reply_.data(), sizeof header);
  return header.is_valid() && header.kind == Header::Kind::excluded ? Answer::excluded : Answer::none;
}

// A dying process may still listen when its connections have ended. Then the next question is refused.
Probe::Answer Probe::failed(int code) {
  socket_.close();
  has_greeted_ = false;
  switch (code) {
    case ECONNREFUSED:
      return Answer::refused;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ETIMEDOUT:
      return Answer::unreachable;
    default:
      return Answer::none;
  }
}

}  // namespace gradientflow::transport::tcp
