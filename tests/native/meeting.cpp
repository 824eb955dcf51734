// What ranks meet by, one part at a time: what a store and a process say to each other, a store with other limits, an
// exchange, what ranks say of themselves, and what they choose by it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <gradientflow/base/version.hpp>
#include <gradientflow/transport/meeting/address.hpp>
#include <gradientflow/transport/meeting/exchange.hpp>
#include <gradientflow/transport/meeting/file_store.hpp>
#include <gradientflow/transport/meeting/introduction.hpp>
#include <gradientflow/transport/meeting/reach.hpp>
#include <gradientflow/transport/meeting/store_protocol.hpp>
#include <gradientflow/transport/meeting/store_server.hpp>
#include <gradientflow/transport/meeting/tcp_store.hpp>
#include <gradientflow/transport/meeting/transport_choice.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "native.hpp"

namespace gradientflow::native {
namespace {

namespace py = pybind11;
using namespace transport;  // NOLINT(google-build-using-namespace): all of it is tested

std::vector<py::bytes> all_bytes(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

template <class Message>
py::object parsed(const Parsed<Message>& found, const py::object& message) {
  const char* const state = found.state == Parsed<Message>::ParseStatus::complete ? "complete"
                            : found.state == Parsed<Message>::ParseStatus::wrong  ? "wrong"
                                                                                  : "incomplete";
  return py::make_tuple(state, found.bytes, message);
}

py::object bytes_or_none(const std::optional<std::string>& text) {
  return text ? py::object(py::bytes(*text)) : py::none();
}

void bind_protocol(py::module_& functions) {
  functions.def("encode_hello", [](std::uint32_t version, const std::string& token) {
    return py::bytes(encode(Hello{version, token}));
  });
  functions.def("parse_hello", [](const std::string& bytes) {
    const auto found = parse_hello(bytes);
    return parsed(found, py::make_tuple(found.message.version, py::bytes(found.message.token)));
  });
  functions.def("encode_welcome", [](std::uint32_t version, std::uint32_t admission) {
    return py::bytes(encode(Welcome{version, static_cast<Admission>(admission)}));
  });
  functions.def("parse_welcome", [](const std::string& bytes) {
    const auto found = parse_welcome(bytes);
    return parsed(found, py::make_tuple(found.message.version, static_cast<std::uint32_t>(found.message.admission)));
  });
  functions.def("encode_request", [](int kind, const std::string& key, const std::string& value,
                                     const std::optional<std::string>& expected, std::int64_t amount) {
    return py::bytes(encode(StoreRequest{static_cast<StoreRequest::Kind>(kind), key, value, expected, amount}));
  });
  functions.def("parse_request", [](const std::string& bytes) {
    const auto found = parse_request(bytes);
    const StoreRequest& request = found.message;
    return parsed(found, py::make_tuple(static_cast<int>(request.kind), py::bytes(request.key),
                                        py::bytes(request.value), bytes_or_none(request.expected), request.amount));
  });
  functions.def("encode_answer", [](std::uint32_t kind, const std::string& value) {
    return py::bytes(encode_head(static_cast<StoreAnswer::Kind>(kind), value.size()) + value);
  });
  functions.def("parse_answer", [](const std::string& bytes) {
    const auto found = parse_answer(bytes);
    return parsed(found,
                  py::make_tuple(static_cast<std::uint32_t>(found.message.kind), py::bytes(found.message.value)));
  });
  functions.def("same_token", [](const std::string& one, const std::string& other) { return same_token(one, other); });
  functions.def("pack", [](const std::vector<std::string>& texts) { return py::bytes(pack(texts)); });
  functions.def("unpack", [](const std::string& packed) { return all_bytes(unpack(packed)); });
  functions.attr("version") = library_version();
  functions.attr("store_version") = store_version;
  functions.attr("longest_token") = longest_token;
  functions.attr("longest_key") = longest_key;
  functions.attr("longest_value") = longest_value;
}

// At HOST:PORT, or in a file where there is no colon.
std::unique_ptr<Store> store_at(const std::string& place, double timeout) {
  if (place.find(':') == std::string::npos) {
    return std::make_unique<FileStore>(place);
  }
  return std::make_unique<TcpStore>(place, false, "", Until(timeout));
}

// Gives the addresses and the token. The rank listens at `address`, or cannot, for the reason `trouble`.
std::pair<std::vector<std::string>, py::bytes> introduce_rank(const std::string& place, int rank, int size,
                                                              const std::string& address, const std::string& trouble,
                                                              double timeout) {
  Introduction met;
  {
    const py::gil_scoped_release release;
    const std::unique_ptr<Store> store = store_at(place, timeout);
    StoreTextExchange exchange(*store, rank, size);
    const auto listen = [&] {
      if (!trouble.empty()) {
        throw Error(ErrorKind::system, trouble);
      }
      return address;
    };
    met = introduce(exchange, rank, listen, Until(timeout));
  }
  return {met.addresses, py::bytes(reinterpret_cast<const char*>(met.token.data()), met.token.size())};
}

void bind_choice(py::module_& functions) {
  py::class_<Candidate>(functions, "Candidate", py::module_local())
      .def(py::init([](const std::string& asked, std::size_t host_key, const std::string& host,
                       const std::string& device, const std::string& objection,
                       bool threads) { return Candidate{asked, host_key, host, device, objection, threads}; }),
           py::arg("asked") = "auto", py::arg("host_key") = 0, py::arg("host") = "", py::arg("device") = "",
           py::arg("objection") = "", py::arg("threads") = true);
  functions.def("choose_transport", [](const std::vector<Candidate>& ranks) {
    const TransportChoice choice = choose_transport(ranks);
    return std::pair(choice.transport().name, choice.why);
  });
  // The device, the setting `interface`, and the objection.
  functions.def(
      "candidate",
      [](const std::string& classes, const std::string& interface) {
        Config config;
        config.interface = interface;
        const Candidate found = candidate(config, Until(config.timeout), classes);
        return std::tuple(found.device, config.interface, found.objection);
      },
      py::arg("classes"), py::arg("interface") = "auto");
  functions.def("find_unreached", [](const std::vector<std::string>& addresses, double seconds) {
    return find_unreached(addresses, Until(seconds));
  });
}

void bind_meeting(py::module_& functions) {
  bind_protocol(functions);
  bind_choice(functions);
  functions.def("introduce", &introduce_rank, py::arg("place"), py::arg("rank"), py::arg("size"), py::arg("address"),
                py::arg("trouble") = "", py::arg("timeout") = 30.0);
  functions.def("parse_host_ports", [](const std::string& text) {
    std::vector<std::pair<std::string, int>> found;
    for (const HostPort& each : parse_host_ports(text)) {
      found.emplace_back(each.host, each.port);
    }
    return found;
  });
  py::class_<StoreServer>(functions, "StoreServer", py::module_local())
      .def(py::init([](const std::string& host, const std::string& token, std::size_t unauthenticated, double seconds,
                       std::size_t bytes) {
             return std::make_unique<StoreServer>(HostPort{host, 0}, token,
                                                  StoreServer::Limits{unauthenticated, seconds, bytes});
           }),
           py::arg("host") = "127.0.0.1", py::arg("token") = "", py::arg("unauthenticated") = 8,
           py::arg("seconds") = 0.5, py::arg("bytes") = 1 << 20)
      .def_property_readonly("port", &StoreServer::port);
}

}  // namespace
}  // namespace gradientflow::native

PYBIND11_MODULE(meeting, module) {
  gradientflow::native::translate_errors();
  gradientflow::native::bind_meeting(module);
}
