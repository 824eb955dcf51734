// Endpoints over TCP, several of which may live in one process, and the checks of what travels between them.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <gradientflow/transport/endpoint.hpp>
#include <gradientflow/transport/recovery/agreement.hpp>
#include <gradientflow/transport/tcp/network.hpp>
#include <gradientflow/transport/tcp/wire.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native.hpp"

namespace gradientflow::native {
namespace {

namespace py = pybind11;
namespace tcp = transport::tcp;
using Memory = std::shared_ptr<std::vector<std::byte>>;
using SharedEndpoint = std::shared_ptr<transport::Endpoint>;

py::bytes to_bytes(const std::vector<std::byte>& data, std::size_t count) {
  return {reinterpret_cast<const char*>(data.data()), std::min(count, data.size())};
}

Memory memory_of(const std::string& data) {
  auto memory = std::make_shared<std::vector<std::byte>>(data.size());
  std::copy_n(reinterpret_cast<const std::byte*>(data.data()), data.size(), memory->begin());
  return memory;
}

// A send or receive with its memory.
class Transfer {
 public:
  Transfer(SharedEndpoint endpoint, Memory memory, transport::Request request)
      : endpoint_(std::move(endpoint)), memory_(std::move(memory)), request_(std::move(request)) {}
  Transfer(Transfer&&) = default;
  Transfer& operator=(Transfer&&) = delete;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() { give_up(false); }

  [[nodiscard]] bool test() {
    if (!count_) {
      count_ = endpoint_->test(request_);
    }
    return count_.has_value();
  }

  // What has been received; nothing for a send.
  [[nodiscard]] py::bytes data() const {
    return to_bytes(*memory_, request_.kind() == transport::Request::Kind::receive ? count_.value_or(0) : 0);
  }

  // What is not kept for the transport is written over, as its user may do.
  void give_up(bool keep) {
    if (!request_.under_way()) {
      return;
    }
    request_.give_up(keep ? memory_ : nullptr);
    if (!keep) {
      std::fill(memory_->begin(), memory_->end(), std::byte{0xee});
    }
  }

  // Of a receive that was given up: whether its memory has been written to since.
  [[nodiscard]] bool is_untouched() const {
    return std::all_of(memory_->begin(), memory_->end(), [](std::byte each) { return each == std::byte{0xee}; });
  }

  [[nodiscard]] bool wait(double seconds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    transport::Patience patience(seconds);
    while (!test()) {
      endpoint_->pause(patience);
      if (std::chrono::steady_clock::now() > deadline) {
        return false;
      }
    }
    return true;
  }

 private:
  SharedEndpoint endpoint_;
  Memory memory_;
  transport::Request request_;
  std::optional<std::size_t> count_;
};

// A message for which nobody had posted a receive.
class Message {
 public:
  Message(SharedEndpoint endpoint, transport::Arrival arrival)
      : endpoint_(std::move(endpoint)), arrival_(std::make_unique<transport::Arrival>(std::move(arrival))) {}

  [[nodiscard]] const transport::Envelope& envelope() const { return arrival_->envelope(); }
  [[nodiscard]] Transfer receive() {
    auto memory = std::make_shared<std::vector<std::byte>>(arrival_->envelope().bytes);
    std::byte* const data = memory->data();
    return {endpoint_, std::move(memory), endpoint_->receive(*arrival_, data)};
  }
  void discard() { arrival_.reset(); }

 private:
  SharedEndpoint endpoint_;
  std::unique_ptr<transport::Arrival> arrival_;
};

Transfer send(const SharedEndpoint& endpoint, int to, int tag, const std::string& data, bool until_taken) {
  const Memory memory = memory_of(data);
  return {endpoint, memory, endpoint->send(to, tag, memory->data(), memory->size(), until_taken)};
}

Transfer receive(const SharedEndpoint& endpoint, int from, int tag, std::size_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes, std::byte{0xee});
  std::byte* const data = memory->data();
  return {endpoint, std::move(memory), endpoint->receive(from, tag, data, bytes)};
}

std::unique_ptr<Message> next(const SharedEndpoint& endpoint, std::optional<int> tag) {
  auto arrival = endpoint->next(tag);
  return arrival ? std::make_unique<Message>(endpoint, std::move(*arrival)) : nullptr;
}

// Carries on what there is to be carried on.
void make_progress(transport::Endpoint& endpoint, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  transport::Patience patience(seconds);
  do {
    endpoint.pause(patience);
  } while (std::chrono::steady_clock::now() < deadline);
}

std::vector<std::pair<int, std::string>> dead(transport::Endpoint& endpoint) {
  std::vector<std::pair<int, std::string>> found;
  for (const transport::Death& each : endpoint.dead()) {
    found.emplace_back(each.rank, each.how);
  }
  return found;
}

std::vector<py::bytes> allgather(const transport::Endpoint& endpoint, const std::string& mine, int timeouts) {
  std::vector<std::byte> all;
  {
    const py::gil_scoped_release released;
    all = endpoint.allgather(mine.data(), mine.size(), timeouts);
  }
  std::vector<py::bytes> each;
  for (std::size_t begin = 0; begin < all.size(); begin += mine.size()) {
    each.emplace_back(reinterpret_cast<const char*>(all.data()) + begin, mine.size());
  }
  return each;
}

// The ranks that are not left, and why; `is_alive` is asked about each rank again and again.
std::map<int, std::string> agree(transport::Endpoint& endpoint, double timeout,
                                 const transport::Endpoint::IsAlive& is_alive) {
  std::map<int, std::string> lost;
  const auto members = transport::agree(endpoint, "", {.timeout = timeout, .is_alive = is_alive}).members;
  for (std::size_t r = 0; r < members.size(); ++r) {
    if (members[r].liveness != transport::Liveness::alive) {
      lost.emplace(static_cast<int>(r), members[r].why);
    }
  }
  return lost;
}

tcp::Token token_of(const std::string& bytes) {
  tcp::Token token{};
  std::memcpy(token.data(), bytes.data(), std::min(bytes.size(), token.size()));
  return token;
}

std::shared_ptr<tcp::Network> listen(const std::string& address, double timeout, double host_timeout) {
  return tcp::Network::listen({.address = address, .timeout = timeout, .host_timeout = host_timeout});
}

SharedEndpoint join(tcp::Network& network, int rank, std::vector<std::string> addresses, const std::string& token) {
  return network.join(rank, std::move(addresses), token_of(token));
}

// Of as many bytes as a header (greeting) has, otherwise nothing.
template <class T>
std::optional<T> from_bytes(const std::string& bytes) {
  T value;
  if (bytes.size() != sizeof value) {
    return std::nullopt;
  }
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

bool is_header(const std::string& bytes) {
  const auto header = from_bytes<tcp::Header>(bytes);
  return header && header->is_valid();
}

bool is_greeting(const std::string& bytes, int to, int size, const std::string& token) {
  const auto greeting = from_bytes<tcp::Greeting>(bytes);
  return greeting && greeting->is_valid(to, size, token_of(token));
}

void bind_tcp(py::module_& module) {
  module.attr("largest_whole") = tcp::largest_whole;
  module.attr("largest_piece") = tcp::largest_piece;
  module.attr("credit") = tcp::credit_of_a_peer;
  module.def("is_header", &is_header, "Whether a peer may have sent these bytes.");
  module.def("is_greeting", &is_greeting, py::arg("bytes"), py::arg("to"), py::arg("size"), py::arg("token"),
             "Whether these bytes are the greeting of a rank of the job to this one.");

  py::class_<Transfer>(module, "Transfer", py::module_local())
      .def("test", &Transfer::test, without_gil, "Whether it has ended.")
      .def("wait", &Transfer::wait, py::arg("seconds"), without_gil, "Whether it has ended by then.")
      .def("give_up", &Transfer::give_up, py::arg("keep") = false, without_gil)
      .def_property_readonly("data", &Transfer::data)
      .def_property_readonly("is_untouched", &Transfer::is_untouched);

  py::class_<Message>(module, "Message", py::module_local())
      .def_property_readonly("source", [](const Message& message) { return message.envelope().source; })
      .def_property_readonly("tag", [](const Message& message) { return message.envelope().tag; })
      .def_property_readonly("bytes", [](const Message& message) { return message.envelope().bytes; })
      .def("receive", &Message::receive, without_gil)
      .def("discard", &Message::discard, without_gil);

  py::class_<transport::Endpoint, SharedEndpoint>(module, "Endpoint", py::module_local())
      .def_property_readonly("rank", &transport::Endpoint::rank)
      .def_property_readonly("size", &transport::Endpoint::size)
      .def_property_readonly("interrupted", &transport::Endpoint::interrupted)
      .def("send", &send, py::arg("to"), py::arg("tag"), py::arg("data"), py::arg("until_taken") = false, without_gil)
      .def("receive", &receive, py::arg("source"), py::arg("tag"), py::arg("bytes"), without_gil)
      .def("next", &next, py::arg("tag") = py::none(), without_gil)
      .def("make_progress", &make_progress, py::arg("seconds") = 0.0, without_gil)
      .def("dead", &dead, without_gil)
      .def("allgather", &allgather, py::arg("mine"), py::arg("timeouts") = 1)
      .def("agree", &agree, py::arg("timeout"), py::arg("is_alive") = py::none(), without_gil)
      .def(
          "split",
          [](const transport::Endpoint& endpoint, int color, int key) -> SharedEndpoint {
            return endpoint.split(color, key, {});
          },
          py::arg("color"), py::arg("key"), without_gil)
      .def(
          "duplicate", [](const transport::Endpoint& endpoint) -> SharedEndpoint { return endpoint.duplicate(); },
          without_gil)
      .def("interrupt", &transport::Endpoint::interrupt)
      .def("close", [](transport::Endpoint& endpoint) { endpoint.close({}, 0, false); }, without_gil);

  py::class_<tcp::Network, std::shared_ptr<tcp::Network>>(module, "Network", py::module_local())
      .def(py::init(&listen), py::arg("address") = "127.0.0.1", py::arg("timeout") = 30.0,
           py::arg("host_timeout") = 3.0)
      .def_property_readonly("address", &tcp::Network::address)
      .def("join", &join, py::arg("rank"), py::arg("addresses"), py::arg("token"));
}

}  // namespace
}  // namespace gradientflow::native

PYBIND11_MODULE(tcp, module) {
  gradientflow::native::translate_errors();
  gradientflow::native::bind_tcp(module);
}
