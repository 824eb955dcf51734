// gradientflow._core.RunningPolicy: policies of parameter servers. See gradientflow/policies/.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/base/error.hpp"
#include "../kernels/policy/asp.hpp"
#include "../kernels/policy/bsp.hpp"
#include "../kernels/policy/checked.hpp"
#include "../kernels/policy/dssp.hpp"
#include "../kernels/policy/elastic_bsp.hpp"
#include "../kernels/policy/simulation.hpp"
#include "../kernels/policy/ssp.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "policy.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using policy::Answer;
using policy::Checked;

using Seconds = Argument<"seconds", "a number", double>;
using Workers = Argument<"workers", "a whole number", int>;

py::object class_of_answers() { return py::module_::import("gradientflow.policies").attr("Answer"); }

py::object for_python(const Answer& answer) { return class_of_answers()(answer.apply, answer.go_on); }

// A user's object, which has the methods pushed and departed.
class OfUser : public policy::Policy {
 public:
  OfUser(std::string name, const py::object& object) : name_(std::move(name)), object_(object.inc_ref().ptr()) {}
  OfUser(const OfUser&) = delete;
  OfUser& operator=(const OfUser&) = delete;
  ~OfUser() override {
    if (Py_IsInitialized() != 0) {  // otherwise its memory goes with the process
      with_gil([this] { Py_DECREF(object_); });
    }
  }

  Answer pushed(int worker, double seconds) override { return ask("pushed", worker, seconds); }
  Answer departed(int worker, double seconds) override { return ask("departed", worker, seconds); }

 private:
  Answer ask(const char* method, int worker, double seconds) {
    return with_gil([&]() -> Answer {
      try {
        const py::object answer = py::handle(object_).attr(method)(worker, seconds);
        if (!py::isinstance(answer, class_of_answers())) {
          throw Error(ErrorKind::type, "the policy " + name_ + " answers with a " +
                                           py::str(py::type::of(answer).attr("__name__")).cast<std::string>() +
                                           " from " + method + ": what is needed is a gradientflow.policies.Answer");
        }
        return {.apply = answer.attr("apply").cast<decltype(Answer::apply)>(),
                .go_on = answer.attr("go_on").cast<decltype(Answer::go_on)>()};
      } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_Exception)) {
          throw;
        }
        const std::string what = py::str(error.value());
        throw Error(ErrorKind::value, "the policy " + name_ + " fails in " + method + ": " +
                                          py::str(error.type().attr("__name__")).cast<std::string>() + ": " + what);
      }
    });
  }

  // In any thread. At the end of the interpreter, Python before 3.14 ends a thread where it asks for the lock: see
  // WithoutGil.
  template <class Work>
  static auto with_gil(Work work) -> decltype(work()) {
    std::unique_ptr<py::gil_scoped_acquire> gil;
    try {
      gil = std::make_unique<py::gil_scoped_acquire>();
    } catch (...) {
      while (true) {
        pause();
      }
    }
    return work();
  }

  std::string name_;
  PyObject* object_;
};

std::shared_ptr<Checked> checked(const char* name, const Workers& workers, std::shared_ptr<policy::Policy> policy) {
  return std::make_shared<Checked>(name, workers.value, std::move(policy));
}

// `lengths`: contiguous arrays of float64.
py::dict simulate(const py::object& running, const std::vector<py::buffer>& lengths, double until, bool keep_events) {
  const std::shared_ptr<policy::Policy> policy = policy_of(running, static_cast<int>(lengths.size()));
  std::vector<py::buffer_info> views;
  std::vector<std::span<const double>> spans;
  for (const py::buffer& each : lengths) {
    views.push_back(each.request());
    spans.emplace_back(static_cast<const double*>(views.back().ptr), static_cast<std::size_t>(views.back().size));
  }
  policy::Simulation found;
  {
    const WithoutGil release;
    found = policy::simulate(*policy, spans, until, keep_events);
  }
  py::list pushes;
  py::list computed;
  py::list waited;
  for (const policy::Simulation::Worker& worker : found.workers) {
    pushes.append(worker.pushes);
    computed.append(worker.computed);
    waited.append(worker.waited);
  }
  py::list events;
  for (const policy::Event& event : found.events) {
    events.append(py::make_tuple(event.worker, event.seconds, event.is_departure ? "departure" : "push",
                                 for_python(event.answer)));
  }
  py::dict result;
  result["pushes"] = pushes;
  result["computed"] = computed;
  result["waited"] = waited;
  result["staleness"] = found.staleness;
  result["barriers"] = found.barriers;
  result["seconds"] = found.seconds;
  result["events"] = events;
  return result;
}

}  // namespace

std::shared_ptr<policy::Policy> policy_of(const py::object& running, int workers) {
  if (py::isinstance<Checked>(running)) {
    auto policy = running.cast<std::shared_ptr<Checked>>();
    if (policy->workers() != workers) {
      throw Error(ErrorKind::value, "the policy was started for " + std::to_string(policy->workers()) +
                                        " workers: what is needed is one for " + std::to_string(workers));
    }
    return policy;
  }
  const auto name = py::str(py::type::of(running).attr("__name__")).cast<std::string>();
  for (const char* const method : {"pushed", "departed"}) {
    if (PyCallable_Check(py::getattr(running, method, py::none()).ptr()) == 0) {
      throw Error(ErrorKind::type, "a policy was started as a " + name + ", which has no method " + method +
                                       ": what is needed are pushed(worker, seconds) and departed(worker, seconds)");
    }
  }
  return std::make_shared<Checked>(name, workers, std::make_shared<OfUser>(name, running));
}

void bind_policy(py::module_& module) {
  py::class_<Checked, std::shared_ptr<Checked>>(module, "RunningPolicy")
      .def_static(
          "bsp",
          [](const Workers& workers) { return checked("bsp", workers, std::make_shared<policy::Bsp>(workers.value)); },
          py::arg("workers"))
      .def_static(
          "asp", [](const Workers& workers) { return checked("asp", workers, std::make_shared<policy::Asp>()); },
          py::arg("workers"))
      .def_static(
          "ssp",
          [](const Workers& workers, std::int64_t staleness) {
            return checked("ssp", workers, std::make_shared<policy::Ssp>(workers.value, staleness));
          },
          py::arg("workers"), py::arg("staleness"))
      .def_static(
          "dssp",
          [](const Workers& workers, std::int64_t low, std::int64_t high, bool judges_all) {
            return checked(
                "dssp", workers,
                std::make_shared<policy::Dssp>(workers.value, low, high,
                                               judges_all ? policy::Dssp::Judged::all : policy::Dssp::Judged::fastest));
          },
          py::arg("workers"), py::arg("low"), py::arg("high"), py::arg("judges_all"))
      .def_static(
          "elastic_bsp",
          [](const Workers& workers, std::int64_t lookahead) {
            return checked("elastic_bsp", workers, std::make_shared<policy::ElasticBsp>(workers.value, lookahead));
          },
          py::arg("workers"), py::arg("lookahead"))
      .def(
          "pushed",
          [](Checked& self, const Rank<"worker">& worker, const Seconds& seconds) {
            return for_python(self.pushed(worker.value, seconds.value));
          },
          py::arg("worker"), py::arg("seconds"))
      .def(
          "departed",
          [](Checked& self, const Rank<"worker">& worker, const Seconds& seconds) {
            return for_python(self.departed(worker.value, seconds.value));
          },
          py::arg("worker"), py::arg("seconds"))
      .def_property_readonly("workers", &Checked::workers);

  // A running policy with checks: of a user's object, those that the server makes, too.
  module.def(
      "checked_policy",
      [](const py::object& running, const Workers& workers) {
        return std::static_pointer_cast<Checked>(policy_of(running, workers.value));
      },
      py::arg("running"), py::arg("workers"));

  module.def("simulate_policy", &simulate, py::arg("running"), py::arg("lengths"), py::arg("until"),
             py::arg("keep_events"));
}

}  // namespace gradientflow::bindings
