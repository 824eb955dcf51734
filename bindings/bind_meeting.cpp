// gradientflow._core.Store and its kinds, and the rendezvous of a job's ranks at a store.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/base/config.hpp"
#include "../kernels/transport/meeting/address.hpp"
#include "../kernels/transport/meeting/admission.hpp"
#include "../kernels/transport/meeting/exchange.hpp"
#include "../kernels/transport/meeting/file_store.hpp"
#include "../kernels/transport/meeting/meeting.hpp"
#include "../kernels/transport/meeting/random.hpp"
#include "../kernels/transport/meeting/tcp_store.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "bound_endpoint.hpp"
#include "gil.hpp"
#include "python_store.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using transport::FileStore;
using transport::Store;
using transport::TcpStore;
using transport::Until;

Until until(double seconds) {
  if (std::isnan(seconds)) {
    throw Error(ErrorKind::value, "timeout is not a number");
  }
  return Until(seconds, &poll_signals);
}

// Store with the default timeout of its calls.
class BoundStore {
 public:
  BoundStore(std::unique_ptr<Store> store, double timeout) : store_(std::move(store)), timeout_(timeout) {}

  [[nodiscard]] Store& get() const { return *store_; }
  [[nodiscard]] Until until_of(const Timeout& timeout) const { return until(timeout.value.value_or(timeout_)); }

 private:
  std::unique_ptr<Store> store_;
  double timeout_;
};

class BoundTcpStore : public BoundStore {
 public:
  BoundTcpStore(std::unique_ptr<TcpStore> store, double timeout)
      : BoundStore(std::move(store), timeout), address_(static_cast<TcpStore&>(get()).address()) {}

  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  std::string address_;
};

class BoundFileStore : public BoundStore {
 public:
  using BoundStore::BoundStore;
};

class BoundPythonStore : public BoundStore {
 public:
  using BoundStore::BoundStore;
};

constexpr const char* default_prefix = "gradientflow";

// Exchange of a job with a single rank.
class SingleRankExchange : public transport::TextExchange {
 public:
  [[nodiscard]] std::vector<std::string> all(const std::string& mine, const Until& /*until*/) override {
    return {mine};
  }
};

std::unique_ptr<transport::TextExchange> exchange_of(const py::object& given, int rank, int size,
                                                     const std::string& prefix, bool replaces) {
  if (py::isinstance<BoundStore>(given)) {
    return std::make_unique<transport::StoreTextExchange>(given.cast<BoundStore&>().get(), rank, size, prefix,
                                                          replaces);
  }
  if (!given.is_none()) {
    throw Error(ErrorKind::type, "ranks meet at a store, not by " + py::repr(given).cast<std::string>());
  }
  if (size != 1) {
    throw Error(ErrorKind::value, std::to_string(size) + " ranks need a store to meet");
  }
  return std::make_unique<SingleRankExchange>();
}

std::string meeting_place(const py::object& exchange) {
  return py::isinstance<BoundTcpStore>(exchange) ? exchange.cast<BoundTcpStore&>().address() : "";
}

std::unique_ptr<BoundEndpoint> meet(int rank, int size, const py::object& exchange,
                                    const std::optional<std::string>& near,
                                    const std::map<std::string, std::string>& overrides, const std::string& prefix,
                                    bool replaces) {
  const Config config = read_config(overrides);
  const std::unique_ptr<transport::TextExchange> text_exchange = exchange_of(exchange, rank, size, prefix, replaces);
  const std::string place = near ? *near : meeting_place(exchange);
  const WithoutGil release;
  return std::make_unique<BoundEndpoint>(transport::meet(*text_exchange, rank, config, place, &poll_signals));
}

std::vector<py::bytes> exchange(const BoundStore& store, int rank, int size, const py::bytes& mine,
                                const Timeout& timeout, const std::string& prefix) {
  const std::string text = mine;
  std::vector<std::string> texts;
  {
    const WithoutGil release;
    texts = transport::StoreTextExchange(store.get(), rank, size, prefix).all(text, store.until_of(timeout));
  }
  return {texts.begin(), texts.end()};
}

void fail_meeting(const BoundStore& store, const std::string& why, const Timeout& timeout, const std::string& prefix) {
  const WithoutGil release;
  transport::StoreTextExchange::fail(store.get(), why, store.until_of(timeout), prefix);
}

std::optional<py::bytes> bytes_of(const std::optional<std::string>& value) {
  return value ? std::optional<py::bytes>(py::bytes(*value)) : std::nullopt;
}

std::optional<std::string> text_of(const std::optional<py::bytes>& value) {
  return value ? std::optional<std::string>(std::string(*value)) : std::nullopt;
}

void bind_stores(py::module_& module) {
  py::class_<BoundStore>(module, "Store", "Values by name that processes share. Keys are text or bytes, values bytes.")
      .def(
          "set",
          [](const BoundStore& self, const std::string& key, const py::bytes& value, const Timeout& timeout) {
            const std::string text = value;
            const WithoutGil release;
            self.get().set(key, text, self.until_of(timeout));
          },
          py::arg("key"), py::arg("value"), py::arg("timeout") = py::none())
      .def(
          "get",
          [](const BoundStore& self, const std::string& key, const Timeout& timeout) {
            const Until limit = self.until_of(timeout);
            std::optional<std::string> value;
            {
              const WithoutGil release;
              value = self.get().get(key, limit);
            }
            if (!value) {
              throw Error(ErrorKind::timeout, self.get().name() + " has no value of '" + key + "'");
            }
            return py::bytes(*value);
          },
          py::arg("key"), py::arg("timeout") = py::none(), "The value; waits until there is one.")
      .def(
          "add",
          [](const BoundStore& self, const std::string& key, std::int64_t amount, const Timeout& timeout) {
            const WithoutGil release;
            return self.get().add(key, amount, self.until_of(timeout));
          },
          py::arg("key"), py::arg("amount"), py::arg("timeout") = py::none(),
          "Adds to a value that is a decimal number, 0 if there is none; gives the sum.")
      .def(
          "compare_set",
          [](const BoundStore& self, const std::string& key, const std::optional<py::bytes>& expected,
             const py::bytes& desired, const Timeout& timeout) {
            const std::optional<std::string> before = text_of(expected);
            const std::string after = desired;
            std::optional<std::string> value;
            {
              const WithoutGil release;
              value = self.get().compare_set(key, before, after, self.until_of(timeout));
            }
            return bytes_of(value);
          },
          py::arg("key"), py::arg("expected"), py::arg("desired"), py::arg("timeout") = py::none(),
          "Sets the value if it is `expected` (None: if there is none); gives the value that there is then, or None.")
      .def(
          "remove",
          [](const BoundStore& self, const std::string& key, const Timeout& timeout) {
            const WithoutGil release;
            return self.get().remove(key, self.until_of(timeout));
          },
          py::arg("key"), py::arg("timeout") = py::none(), "Removes a value; tells whether there was one.")
      .def("exchange", &exchange, py::arg("rank"), py::arg("size"), py::arg("mine"), py::arg("timeout") = py::none(),
           py::arg("prefix") = default_prefix,
           "The bytes of all ranks, in their order, once all have come. `prefix`: begins the names of all values; what "
           "has another one does not meet. Collective.")
      .def("fail_meeting", &fail_meeting, py::arg("why"), py::arg("timeout") = py::none(),
           py::arg("prefix") = default_prefix,
           "Ends a meeting of ranks that is under way, because a rank will not come: all get a PeerError.")
      .def("__repr__", [](const BoundStore& self) { return "<" + self.get().name() + ">"; });

  py::class_<BoundTcpStore, BoundStore>(module, "TcpStore")
      .def(py::init([](const std::string& address, bool serve, double timeout, const std::string& token) {
             const WithoutGil release;
             return std::make_unique<BoundTcpStore>(std::make_unique<TcpStore>(address, serve, token, until(timeout)),
                                                    timeout);
           }),
           py::arg("address"), py::arg("serve") = false, py::arg("timeout") = Config().timeout, py::arg("token") = "",
           "A store at `address`: HOST:PORT, or several with commas between them, which are tried in turn. `serve`: "
           "this process serves it, at the first of them that is here and free, as long as the object lives; port 0 is "
           "a free one.")
      .def_property_readonly("address", &BoundTcpStore::address);

  py::class_<BoundFileStore, BoundStore>(module, "FileStore")
      .def(py::init([](const std::string& path, double timeout) {
             return std::make_unique<BoundFileStore>(std::make_unique<FileStore>(path), timeout);
           }),
           py::arg("path"), py::arg("timeout") = Config().timeout, "A store in a file that all processes can write.");

  py::class_<BoundPythonStore, BoundStore>(module, "PythonStore")
      .def(py::init([](const py::object& store, const std::string& name, bool serve, double timeout) {
             return std::make_unique<BoundPythonStore>(std::make_unique<PythonStore>(store, name, serve), timeout);
           }),
           py::arg("store"), py::arg("name"), py::arg("serve") = false, py::arg("timeout") = Config().timeout,
           "A store of the program, with set, add and compare_set, and perhaps delete_key, as PyTorch's have them. "
           "`name`: what it is in errors. `serve`: it may end with this process.");
}

void bind_admission(py::module_& module) {
  using transport::Joiner;
  py::class_<Joiner>(module, "Joiner", "A process that comes to others that it has not met.")
      .def(py::init([](const std::string& near, const std::map<std::string, std::string>& overrides) {
             const Config config = read_config(overrides);
             const WithoutGil release;
             return std::make_unique<Joiner>(config, near, until(config.timeout));
           }),
           py::arg("near"), py::arg("overrides"))
      .def_property_readonly("card", [](const Joiner& self) { return py::bytes(self.card()); })
      .def(
          "enter",
          [](const Joiner& self, const py::bytes& answer) {
            Joiner::JoinedEndpoint place = self.enter(answer);
            return py::make_tuple(std::make_unique<BoundEndpoint>(std::move(place.endpoint)), place.former);
          },
          py::arg("answer"), "The endpoint that the answer invites to, and how many of its ranks are no joiners.")
      .def(
          "meet",
          [](const Joiner& self, int rank, std::vector<std::string> addresses, const std::string& secret,
             double timeout) {
            const WithoutGil release;
            return std::make_unique<BoundEndpoint>(self.meet(rank, std::move(addresses), secret, until(timeout)));
          },
          py::arg("rank"), py::arg("addresses"), py::arg("secret"), py::arg("timeout"),
          "An endpoint of the processes at these addresses, by rank; all give the same ones, and the same secret of 32 "
          "bytes. Collective. Once.");
  module.def(
      "objection_to", [](const py::bytes& card) { return transport::objection_to(card); }, py::arg("card"),
      "Why the process with this card cannot join; empty if it can.");
  module.def("address_on", [](const py::bytes& card) { return transport::address_on(card); }, py::arg("card"));
  module.def(
      "invitation_for",
      [](const BoundEndpoint& widened, int joiners, int number) {
        return py::bytes(transport::invitation_for(widened.get(), joiners, number));
      },
      py::arg("widened"), py::arg("joiners"), py::arg("number"));
  module.def("refusal", [](const std::string& why) { return py::bytes(transport::refusal(why)); }, py::arg("why"));
}

}  // namespace

void bind_meeting(py::module_& module) {
  bind_stores(module);
  bind_admission(module);
  module.def(
      "meet", &meet, py::arg("rank"), py::arg("size"), py::arg("exchange"), py::arg("near") = py::none(),
      py::arg("overrides") = py::dict(), py::arg("prefix") = default_prefix, py::arg("replaces") = false,
      "An endpoint of `size` ranks over TCP. They meet at a `Store`; None: there is one rank. "
      "`near`: where they meet, HOST:PORT, by which the address is chosen; None: the address of the store. `prefix`: "
      "as for `Store.exchange`. `replaces`: this process was started in place of one that may have come to the store. "
      "Collective.");
  module.def(
      "await_name",
      [](const std::string& places, double timeout) {
        const WithoutGil release;
        transport::await_name(transport::parse_host_ports(places), until(timeout));
      },
      py::arg("places"), py::arg("timeout"),
      "Returns once a name of these places is known; a SystemCallError if nobody knows any.");
  module.def("random_token", &transport::random_hex, "256 random bits, as 64 digits.");
  module.def(
      "own_address",
      [](const std::string& near, const std::map<std::string, std::string>& overrides) {
        const Config config = read_config(overrides);
        const WithoutGil release;
        return transport::choose_address(config.interface, near, until(config.timeout));
      },
      py::arg("near") = "", py::arg("overrides") = py::dict(),
      "The address at which other hosts reach this one: by the setting `interface`, or the one that leads to `near`.");
}

}  // namespace gradientflow::bindings
