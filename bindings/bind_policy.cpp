// gradientflow._core.RunningPolicy: policies of parameter servers. See gradientflow/policies/.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/base/error.hpp"
#include "../kernels/policy/account.hpp"
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

py::object for_python(const Answer& answer) { return class_of_answers()(answer.apply, answer.release); }

Answer from_python(const py::handle& answer) {
  return {.apply = answer.attr("apply").cast<decltype(Answer::apply)>(),
          .release = answer.attr("release").cast<decltype(Answer::release)>()};
}

// Policy that asks a user's object with the methods pushed and departed.
class UserPolicy : public policy::Policy {
 public:
  UserPolicy(std::string name, const py::object& object) : name_(std::move(name)), object_(object.inc_ref().ptr()) {}
  UserPolicy(const UserPolicy&) = delete;
  UserPolicy& operator=(const UserPolicy&) = delete;
  ~UserPolicy() override {
    if (Py_IsInitialized() != 0) {  // otherwise its memory goes with the process
      with_gil([this] { Py_DECREF(object_); });
    }
  }

  Answer pushed(int worker, double seconds) override { return ask("pushed", worker, seconds); }
  Answer departed(int worker, double seconds) override { return ask("departed", worker, seconds); }
  [[nodiscard]] bool is_for_any_thread() const override { return false; }

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
        return from_python(answer);
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

  std::string name_;
  PyObject* object_;
};

std::shared_ptr<Checked> checked(const char* name, const Workers& workers, std::shared_ptr<policy::Policy> policy) {
  return std::make_shared<Checked>(name, workers.value, std::move(policy));
}

// Returns the fields of a gradientflow.policies.Simulation.
py::dict dict_of(const policy::Account& account, int workers, double seconds,
                 const std::vector<policy::Event>& events) {
  py::list pushes;
  py::list waited;
  for (int worker = 0; worker < workers; ++worker) {
    pushes.append(account.pushes(worker));
    waited.append(account.waited(worker, seconds));
  }
  py::list told;
  for (const policy::Event& event : events) {
    told.append(py::make_tuple(event.worker, event.seconds, event.is_departure ? "departure" : "push",
                               for_python(event.answer)));
  }
  py::dict result;
  result["pushes"] = pushes;
  result["waited"] = waited;
  result["staleness"] = account.staleness();
  result["barriers"] = account.barriers();
  result["seconds"] = seconds;
  result["events"] = told;
  return result;
}

// Simulates a policy. `lengths`: a contiguous array of float64 for each worker.
py::dict simulate(const py::object& running, const std::vector<py::buffer>& lengths, double until, bool keep_events) {
  const std::shared_ptr<policy::Policy> policy = policy_of(running, static_cast<int>(lengths.size()));
  std::vector<py::buffer_info> views;
  std::vector<std::span<const double>> spans;
  for (const py::buffer& each : lengths) {
    views.push_back(each.request());
    spans.emplace_back(static_cast<const double*>(views.back().ptr), static_cast<std::size_t>(views.back().size));
  }
  std::optional<policy::Simulation> found;
  {
    const WithoutGil release;
    found.emplace(policy::simulate(*policy, spans, until, keep_events));
  }
  py::dict result = dict_of(found->account, static_cast<int>(lengths.size()), found->seconds, found->events);
  result["computed"] = found->computed;
  return result;
}

// Returns the nanoseconds that a policy takes to decide about each push; pushes are given by their workers and times.
std::vector<double> time_decisions(Checked& policy, const std::vector<int>& workers,
                                   const std::vector<double>& seconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> taken;
  taken.reserve(workers.size());
  for (std::size_t push = 0; push < workers.size(); ++push) {
    const auto begin = Clock::now();
    static_cast<void>(policy.pushed(workers[push], seconds.at(push)));
    taken.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  return taken;
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
  return std::make_shared<Checked>(name, workers, std::make_shared<UserPolicy>(name, running));
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

  // Checks a running policy: a user's object in the same way as the server does.
  module.def(
      "checked_policy",
      [](const py::object& running, const Workers& workers) {
        return std::static_pointer_cast<Checked>(policy_of(running, workers.value));
      },
      py::arg("running"), py::arg("workers"));

  // Accounts for events of Python up to the last one, with times from `began` on.
  module.def(
      "account_of",
      [](int workers, const std::vector<py::tuple>& events, double began) {
        policy::Account account(workers);
        std::vector<policy::Event> told;
        for (const py::tuple& each : events) {
          told.push_back({.worker = each[0].cast<int>(),
                          .seconds = each[1].cast<double>() - began,
                          .is_departure = each[2].cast<std::string>() == "departure",
                          .answer = from_python(each[3])});
          account.note(told.back());
        }
        return dict_of(account, workers, account.last(), told);
      },
      py::arg("workers"), py::arg("events"), py::arg("began"));

  module.def("simulate_policy", &simulate, py::arg("running"), py::arg("lengths"), py::arg("until"),
             py::arg("keep_events"));
  module.def("time_decisions", &time_decisions, py::arg("policy"), py::arg("workers"), py::arg("seconds"));
}

}  // namespace gradientflow::bindings
