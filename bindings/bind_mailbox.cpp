// gradientflow._core.Mailbox, Transfer, Arrival: messages by the address of their memory. See gradientflow/mailbox.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/engine/calls/communicator.hpp"
#include "../kernels/transport/messages/mailbox.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "bound_endpoint.hpp"
#include "gil.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using Arrival = transport::Mailbox::Arrival;
using transport::Mailbox;
using transport::Tags;
using transport::Transfer;
using Clock = Mailbox::Clock;
using Tag = Argument<"tag", "a whole number", std::int64_t>;
using Source = Argument<"source", "the number of a rank, or None", std::optional<int>>;

constexpr auto between_signals = std::chrono::milliseconds(50);

// Python objects that no transfer needs any more. Transfers end in any thread, with or without the GIL, and perhaps
// after the interpreter has ended. So the objects are released by the main thread, or by the next thread that starts a
// transfer.
class DeferredReleases {
 public:
  void add(PyObject* object) {
    const std::lock_guard lock(mutex_);
    objects_.push_back(object);
  }
  void release() {
    std::vector<PyObject*> objects;
    {
      const std::lock_guard lock(mutex_);
      objects.swap(objects_);
    }
    for (PyObject* const object : objects) {
      Py_DECREF(object);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<PyObject*> objects_;
};

DeferredReleases& deferred_releases() {
  static auto* const all = new DeferredReleases;  // NOLINT(*-owning-memory): lives as long as any thread
  return *all;
}

void drop(PyObject* object) {
  deferred_releases().add(object);
  if (Py_IsInitialized() != 0) {
    const auto release = [](void*) {
      deferred_releases().release();
      return 0;
    };
    Py_AddPendingCall(release, nullptr);  // if this call fails, the next transfer releases the objects
  }
}

transport::Owner owner_of(const py::object& object) {
  deferred_releases().release();
  PyObject* const held = py::object(object).release().ptr();
  return {held, [](const PyObject* each) { drop(const_cast<PyObject*>(each)); }};  // NOLINT(*-const-cast): mutable
}

int rank_of(const Source& source) {
  if (source.value && *source.value < 0) {
    throw Error(ErrorKind::value, "source is the number of a rank, or None, not " + std::to_string(*source.value));
  }
  return source.value.value_or(Mailbox::any_source);
}

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): an address from Python
}

Mailbox::Deadline after(std::optional<double> seconds) {
  if (!seconds) {
    return std::nullopt;
  }
  if (std::isnan(*seconds)) {
    throw Error(ErrorKind::value, "timeout is not a number");
  }
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(*seconds, 0.0, 1e9)));
}

// Waits in steps, between which the main thread polls signals: step(deadline) returns true if the wait is over. Returns
// false if the deadline passes first.
template <class Step>
bool wait_in_steps(const Mailbox::Deadline& deadline, Step step) {
  while (true) {
    const auto soon = Clock::now() + between_signals;
    const bool is_last = deadline && *deadline <= soon;
    if (step(is_last ? *deadline : soon)) {
      return true;
    }
    if (is_last) {
      return false;
    }
    poll_signals();
  }
}

// Transfer with its mailbox. The Python object of the mailbox must stay alive to be closed when the interpreter exits.
struct BoundTransfer {
  py::object box;
  std::shared_ptr<Mailbox> mailbox;
  std::shared_ptr<Transfer> transfer;
};

// Binds the transfer that `start` begins without the GIL.
template <class Start>
BoundTransfer bound(const std::shared_ptr<Mailbox>& mailbox, const Start& start) {
  std::shared_ptr<Transfer> transfer;
  {
    const WithoutGil release;
    transfer = start();
  }
  return {py::cast(mailbox), mailbox, std::move(transfer)};
}

bool done(const BoundTransfer& self) {
  if (!self.transfer->ended()) {
    const WithoutGil release;
    self.mailbox->poll();
  }
  return self.transfer->ended();
}

bool ended_by(const BoundTransfer& self, const Timeout& timeout) {
  const WithoutGil release;
  return wait_in_steps(after(timeout.value),
                       [&](Clock::time_point until) { return self.mailbox->ended_by(*self.transfer, until); });
}

void wait(const BoundTransfer& self, const Timeout& timeout) {
  if (ended_by(self, timeout)) {
    self.transfer->check();
  } else {
    throw self.mailbox->timeout_error(*self.transfer, timeout.value.value_or(0.0));
  }
}

// Runs in a thread of the core. While the interpreter ends, Python ends a thread that asks for the GIL, by an exception
// that must not be swallowed: see WithoutGil.
void call_back(PyObject* callback) {
  try {
    const py::gil_scoped_acquire gil;
    const auto called = py::reinterpret_steal<py::object>(callback);
    try {
      called();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a callback of a message");
    }
  } catch (...) {
    while (true) {
      pause();
    }
  }
}

std::shared_ptr<Mailbox> make(const std::shared_ptr<engine::Communicator>& communicator, BoundEndpoint& endpoint,
                              std::string name) {
  return Mailbox::make(endpoint.take(), std::move(name),
                       [communicator](int rank) { return communicator->is_alive(rank); });
}

}  // namespace

void bind_mailbox(py::module_& module) {
  py::class_<Tags>(module, "Tags")
      .def(
          "at", [](const Tags& self, const Tag& number) { return self.at(number.value); }, py::arg("number"))
      .def_readonly("count", &Tags::count);

  py::class_<Arrival>(module, "Arrival")
      .def_property_readonly("source", [](const Arrival& self) { return self.envelope().source; })
      .def_property_readonly("tag", [](const Arrival& self) { return self.envelope().tag; })
      .def_property_readonly("nbytes", [](const Arrival& self) { return self.envelope().bytes; });

  py::class_<BoundTransfer>(module, "Transfer")
      .def_property_readonly("done", &done)
      .def_property_readonly("device_done", &done)
      .def_property_readonly(
          "source",
          [](const BoundTransfer& self) { return self.transfer->ended() ? self.transfer->envelope().source : -1; })
      .def("wait", &wait, py::arg("timeout") = py::none())
      .def("ended_by", &ended_by, py::arg("timeout") = py::none())
      .def(
          "cancel", [](const BoundTransfer& self) { return self.mailbox->cancel(self.transfer); },
          py::call_guard<WithoutGil>())
      .def(
          "when_ended",
          [](const BoundTransfer& self, const py::object& callback) {
            PyObject* const held = py::object(callback).release().ptr();
            const WithoutGil release;
            self.mailbox->when_ended(self.transfer, [held] { call_back(held); });
          },
          py::arg("callback"));

  py::class_<Mailbox, std::shared_ptr<Mailbox>>(module, "Mailbox")
      .def(py::init(&make), py::arg("communicator"), py::arg("endpoint"), py::arg("name"))
      .def("draw", &Mailbox::draw, py::arg("count"))
      .def("draw_rest", &Mailbox::draw_rest)
      .def(
          "send",
          [](const std::shared_ptr<Mailbox>& self, std::uintptr_t address, std::size_t nbytes, const py::object& owner,
             const Rank<"dest">& to, const Tag& tag) {
            transport::Owner held = owner_of(owner);
            return bound(self,
                         [&] { return self->send(to.value, tag.value, pointer(address), nbytes, std::move(held)); });
          },
          py::arg("address"), py::arg("nbytes"), py::arg("owner"), py::arg("dest"), py::arg("tag"))
      .def(
          "receive",
          [](const std::shared_ptr<Mailbox>& self, std::uintptr_t address, std::size_t nbytes, const py::object& owner,
             const Source& from, const Tag& tag) {
            transport::Owner held = owner_of(owner);
            return bound(self, [&] {
              return self->receive(rank_of(from), tag.value, pointer(address), nbytes, std::move(held));
            });
          },
          py::arg("address"), py::arg("nbytes"), py::arg("owner"), py::arg("source"), py::arg("tag"))
      .def(
          "next",
          [](Mailbox& self, const Tags& tags, const Source& from, const Timeout& timeout) {
            const WithoutGil release;
            std::unique_ptr<Arrival> found;
            wait_in_steps(after(timeout.value), [&](Clock::time_point until) {
              found = self.next(rank_of(from), tags, until);
              return found != nullptr;
            });
            return found ? std::optional(std::move(found)) : std::nullopt;
          },
          py::arg("tags"), py::arg("source") = py::none(), py::arg("timeout") = py::none())
      .def(
          "take",
          [](const std::shared_ptr<Mailbox>& self, Arrival& arrival, std::uintptr_t address, const py::object& owner) {
            transport::Owner held = owner_of(owner);
            return bound(self, [&] { return self->receive(arrival, pointer(address), std::move(held)); });
          },
          py::arg("arrival"), py::arg("address"), py::arg("owner"))
      .def(
          "close", [](Mailbox& mailbox, bool orderly) { mailbox.close(orderly); }, py::arg("orderly"),
          py::call_guard<WithoutGil>());
}

}  // namespace gradientflow::bindings
