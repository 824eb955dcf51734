// How ranks agree on who is left, without any transport.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <gradientflow/base/error.hpp>
#include <gradientflow/transport/recovery/consensus.hpp>
#include <gradientflow/transport/recovery/verdict.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace gradientflow::native {
namespace {

namespace py = pybind11;
using transport::Consensus;
using transport::Liveness;
using transport::Members;

using Decided = std::tuple<std::vector<std::string>, std::vector<py::bytes>>;

std::vector<std::string> standings(const Members& members) {
  std::vector<std::string> found;
  for (const auto& each : members) {
    constexpr std::array names{"alive", "silent", "left", "dead", "excluded_us"};
    found.emplace_back(names.at(static_cast<std::size_t>(each.liveness)));
  }
  return found;
}

Liveness standing_of(const std::string& name) {
  return name == "alive"    ? Liveness::alive
         : name == "silent" ? Liveness::silent
         : name == "left"   ? Liveness::left
         : name == "dead"   ? Liveness::dead
                            : Liveness::excluded_us;
}

std::optional<Decided> decision(const Consensus& self) {
  if (!self.decision()) {
    return std::nullopt;
  }
  return Decided{standings(self.decision()->members), {self.decision()->values.begin(), self.decision()->values.end()}};
}

// The text of the error, or nothing where the ranks that are alive may go on.
std::optional<std::string> refusal(const std::vector<std::string>& names, std::optional<int> min_ranks) {
  Members members;
  std::vector<int> ranks;
  for (const std::string& each : names) {
    ranks.push_back(static_cast<int>(members.size()));
    members.push_back({standing_of(each), "is " + each});
  }
  try {
    static_cast<void>(transport::survivors(members, ranks, min_ranks));
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace

PYBIND11_MODULE(recovery, module) {
  py::class_<Consensus>(module, "Consensus")
      .def(py::init<int, int, std::string>(), py::arg("rank"), py::arg("size"), py::arg("value"))
      .def("note", [](Consensus& self, int rank, const std::string& standing,
                      const std::string& why) { self.note({rank, standing_of(standing), why}); })
      .def("hear", &Consensus::hear)
      .def("propose", &Consensus::propose)
      .def("take_message",
           [](Consensus& self) -> std::optional<py::bytes> {
             if (const auto message = self.take_message()) {
               return py::bytes(*message);
             }
             return std::nullopt;
           })
      .def("lacks", &Consensus::lacks)
      .def_property_readonly("standings", [](const Consensus& self) { return standings(self.members()); })
      .def_property_readonly("decision", &decision);
  module.def("refusal", &refusal, py::arg("standings"), py::arg("min_ranks") = py::none());
}

}  // namespace gradientflow::native
