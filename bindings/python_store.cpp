#include "python_store.hpp"

#include <utility>

#include "../kernels/base/error.hpp"
#include "gil.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using transport::Until;

// Placeholder that no value equals. A store that is asked to replace this placeholder by itself returns the present
// value and changes nothing.
constexpr const char* no_value = "GradientFlow: no value";

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Makes a call of the store.
template <class Call>
auto asked(const std::string& name, const Call& call) {
  return with_gil([&] {
    try {
      return call();
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_OSError)) {
        throw;
      }
      throw Error(ErrorKind::peer, name + " does not answer any more; the rank that serves it may have ended: " +
                                       first_line(py::str(error.value())));
    }
  });
}

std::optional<std::string> value_of(const py::object& given) {
  if (given.is_none()) {
    return std::nullopt;
  }
  if (!py::isinstance<py::bytes>(given)) {
    throw Error(ErrorKind::type, "compare_set of a store returns bytes, not " + py::repr(given).cast<std::string>());
  }
  std::string value = py::reinterpret_borrow<py::bytes>(given);
  return value.empty() || value == no_value ? std::nullopt : std::optional(std::move(value));
}

}  // namespace

PythonStore::PythonStore(py::object store, std::string name, bool is_served_here)
    : store_(std::move(store)),
      name_(std::move(name)),
      is_served_here_(is_served_here),
      can_remove_(py::hasattr(store_, "delete_key")) {}

void PythonStore::set(const std::string& key, const std::string& value, const Until& /*until*/) {
  asked(name_, [&] { store_.attr("set")(key, py::bytes(value)); });
}

std::optional<std::string> PythonStore::look(const std::string& key, const Until& until) {
  return compare_set(key, no_value, no_value, until);
}

std::int64_t PythonStore::add(const std::string& key, std::int64_t amount, const Until& /*until*/) {
  return asked(name_, [&] { return store_.attr("add")(key, amount).cast<std::int64_t>(); });
}

std::optional<std::string> PythonStore::compare_set(const std::string& key, const std::optional<std::string>& expected,
                                                    const std::string& desired, const Until& /*until*/) {
  return asked(name_, [&] {
    return value_of(store_.attr("compare_set")(key, py::bytes(expected.value_or("")), py::bytes(desired)));
  });
}

bool PythonStore::remove(const std::string& key, const Until& /*until*/) {
  return can_remove_ && asked(name_, [&] { return store_.attr("delete_key")(key).cast<bool>(); });
}

}  // namespace gradientflow::bindings
