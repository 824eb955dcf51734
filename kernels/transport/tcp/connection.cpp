#include "connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../../base/error.hpp"

namespace gradientflow::transport::tcp {
namespace {

constexpr std::size_t most_parts = 32;                    // parts of one system call
constexpr std::size_t most_bytes = std::size_t{1} << 20;  // bytes of one system call
constexpr std::size_t large = std::size_t{64} << 10;      // data worth a separate call
constexpr std::size_t much = std::size_t{128}
                             << 10;  // least input to wake for: a third less processor time on slow links
constexpr std::size_t spill_behind_large = std::size_t{4} << 10;  // the next header, and perhaps a small message

}  // namespace

Connection::Outgoing Connection::with_head(const void* head, std::size_t bytes) {
  Outgoing outgoing{{}, bytes, nullptr, 0, 0, 0, false};
  std::memcpy(outgoing.head.data(), head, bytes);
  return outgoing;
}

void Connection::put(const Greeting& greeting) { urgent_.push_back(with_head(&greeting, sizeof greeting)); }

void Connection::put(const Header& header, Sending* sending, std::size_t offset, std::size_t length) {
  Outgoing outgoing = with_head(&header, sizeof header);
  outgoing.sending = sending;
  outgoing.offset = offset;
  outgoing.length = length;
  queue_.push_back(outgoing);
}

void Connection::put_urgent(const Header& header) { urgent_.push_back(with_head(&header, sizeof header)); }

void Connection::put_pieces(const Header& first, Sending& sending) {
  put(first, &sending, 0, first.bytes);
  queue_.back().is_piece = true;
}

void Connection::finish(const Outgoing& outgoing, std::vector<Sending*>& sent) {
  Sending* const sending = outgoing.sending;
  if (sending == nullptr) {
    return;
  }
  const std::size_t end = outgoing.offset + outgoing.length;
  if (!outgoing.is_piece || end == sending->bytes) {
    sent.push_back(sending);
    return;
  }
  Header next;
  std::memcpy(&next, outgoing.head.data(), sizeof next);
  next.bytes = std::min(largest_piece, sending->bytes - end);
  put(next, sending, end, next.bytes);
  queue_.back().is_piece = true;
}

// Counts `bytes` as sent, in the order of sending: a message that has begun goes first, then urgent messages.
void Connection::advance(std::size_t bytes, std::vector<Sending*>& sent) {
  while (bytes > 0) {
    const bool is_begun = !queue_.empty() && queue_.front().done > 0;
    auto& from = is_begun || urgent_.empty() ? queue_ : urgent_;
    Outgoing& front = from.front();
    const std::size_t step = std::min(bytes, front.head_bytes + front.length - front.done);
    front.done += step;
    bytes -= step;
    if (front.done == front.head_bytes + front.length) {
      const Outgoing finished = front;
      from.pop_front();
      finish(finished, sent);
    }
  }
}

Connection::IoStatus Connection::flush(std::vector<Sending*>& sent) {
  while (has_to_send()) {
    std::array<iovec, most_parts> parts;
    std::size_t count = 0;
    std::size_t total = 0;
    const auto add = [&](void* data, std::size_t bytes) {
      if (bytes > 0) {
        parts.at(count++) = {data, bytes};
        total += bytes;
      }
    };
    const auto add_all = [&](std::deque<Outgoing>& from, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < std::min(end, from.size()) && count + 2 <= most_parts && total < most_bytes;
           ++i) {
        Outgoing& each = from[i];
        const std::size_t of_head = std::min(each.done, each.head_bytes);
        const std::size_t of_data = each.done - of_head;
        add(each.head.data() + of_head, each.head_bytes - of_head);
        if (each.sending != nullptr) {
          add(const_cast<std::byte*>(each.sending->data) + each.offset + of_data,  // NOLINT(*-const-cast): only read
              each.length - of_data);
        }
      }
    };
    const bool is_begun = !queue_.empty() && queue_.front().done > 0;
    add_all(queue_, 0, is_begun ? 1 : 0);
    add_all(urgent_, 0, urgent_.size());
    add_all(queue_, is_begun ? 1 : 0, queue_.size());
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent_bytes = sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent_bytes < 0) {
      if (errno == EINTR) {
        continue;
      }
      return errno == EAGAIN ? IoStatus::blocked : IoStatus::failed;
    }
    has_sent_ = true;
    advance(static_cast<std::size_t>(sent_bytes), sent);
    if (static_cast<std::size_t>(sent_bytes) < total) {
      return IoStatus::blocked;
    }
  }
  return IoStatus::done;
}

void Connection::take_unsent(std::vector<Sending*>& unsent) {
  for (const Outgoing& each : queue_) {
    if (each.sending != nullptr) {
      unsent.push_back(each.sending);
    }
  }
  queue_.clear();
  urgent_.clear();
}

// Takes headers, and the data behind them, out of the spill.
void Connection::consume(std::span<const std::byte> bytes, Receiver& receiver) {
  while (!bytes.empty()) {
    if (landing_.left > 0) {
      const std::size_t step = std::min(bytes.size(), landing_.left);
      if (landing_.to != nullptr) {
        std::memcpy(landing_.to, bytes.data(), step);
        landing_.to += step;
      }
      landing_.left -= step;
      bytes = bytes.subspan(step);
      if (landing_.left == 0) {
        receiver.take_landed(*this);
      }
      continue;
    }
    const std::size_t step = std::min(bytes.size(), head_.size() - head_bytes_);
    std::memcpy(head_.data() + head_bytes_, bytes.data(), step);
    head_bytes_ += step;
    bytes = bytes.subspan(step);
    if (head_bytes_ == head_.size()) {
      head_bytes_ = 0;
      Header header;
      std::memcpy(&header, head_.data(), sizeof header);
      receiver.take_header(*this, header);
    }
  }
}

// While at least `much` of a message is still to come, has the system wake no thread for less.
void Connection::ask_for_much() {
  const int wanted = landing_.left >= much ? static_cast<int>(much) : 1;
  if (wanted != least_worth_reading_) {
    least_worth_reading_ = wanted;
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
  }
}

Connection::IoStatus Connection::read(std::span<std::byte> spill, Receiver& receiver) {
  std::array<iovec, 2> parts;
  std::size_t count = 0;
  const std::size_t direct = landing_.to != nullptr ? std::min(landing_.left, most_bytes) : 0;
  if (direct > 0) {
    parts.at(count++) = {landing_.to, direct};
  }
  const bool reaches_next = direct == landing_.left || landing_.to == nullptr;
  const std::size_t behind = !reaches_next ? 0 : direct >= large ? spill_behind_large : spill.size();
  if (behind > 0) {
    parts.at(count++) = {spill.data(), behind};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t received = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (received < 0) {
    return errno == EINTR ? IoStatus::more : errno == EAGAIN ? IoStatus::done : IoStatus::failed;
  }
  if (received == 0) {
    return IoStatus::closed;
  }
  const auto bytes = static_cast<std::size_t>(received);
  const std::size_t landed = std::min(bytes, direct);
  if (landed > 0) {
    landing_.to += landed;
    landing_.left -= landed;
    if (landing_.left == 0) {
      receiver.take_landed(*this);
    }
  }
  consume(spill.first(bytes - landed), receiver);
  ask_for_much();
  return bytes == direct + behind ? IoStatus::more : IoStatus::done;
}

}  // namespace gradientflow::transport::tcp
