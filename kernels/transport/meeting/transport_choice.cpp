#include "transport_choice.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "../../base/error.hpp"
#include "../../base/host.hpp"
#include "../../base/text.hpp"
#include "../topology.hpp"
#include "address.hpp"

namespace gradientflow::transport {
namespace {

constexpr const char* devices_of_ucx = "UCX_NET_DEVICES";

// Variables by which users choose interfaces for MPI, each with the prefix for its list in the setting `interface`.
// Variables of launchers are left out, as their messages may take another network.
constexpr std::array<std::pair<const char*, const char*>, 4> variables_of_mpi = {
    {{"OMPI_MCA_btl_tcp_if_include", ""},
     {devices_of_ucx, ""},
     {"FI_TCP_IFACE", ""},
     {"OMPI_MCA_btl_tcp_if_exclude", "^"}}};

std::string value_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr || std::string(text) == "all" ? "" : text;
}

// Reports whether a list with commas has the name; entries of UCX end with the port of a device.
bool has_name(const std::string& list, const std::string& name) {
  const std::vector<std::string> entries = split_list(list);
  return std::any_of(entries.begin(), entries.end(),
                     [&](const std::string& each) { return each.substr(0, each.find(':')) == name; });
}

// Reports whether the user lets MPI use an RDMA device.
bool is_allowed(const std::string& device) {
  const std::string chosen = value_of(devices_of_ucx);
  const bool leaves_out = chosen.starts_with('^');
  const bool is_on_tcp = value_of("OMPI_MCA_pml") == "ob1" && has_name(value_of("OMPI_MCA_btl"), "tcp");
  return !is_on_tcp && (chosen.empty() || has_name(chosen.substr(leaves_out ? 1 : 0), device) != leaves_out);
}

}  // namespace

TransportChoice choose_transport(const std::vector<Candidate>& ranks) {
  const auto first = [&](auto is_so) { return std::find_if(ranks.begin(), ranks.end(), is_so); };
  const auto asks_for = [&](const char* transport) {
    return first([&](const Candidate& each) { return each.asked == transport; });
  };
  const auto asked = [&](auto rank) {
    return "rank " + std::to_string(rank - ranks.begin()) + " asks for " + rank->asked;
  };
  const auto mpi = asks_for("mpi");
  const auto tcp = asks_for("tcp");
  if (mpi != ranks.end() && tcp != ranks.end()) {
    throw Error(ErrorKind::mismatch, "the ranks differ about the transport (GRADIENTFLOW_TRANSPORT, or an argument): " +
                                         asked(mpi) + ", " + asked(tcp));
  }
  if (mpi != ranks.end() || tcp != ranks.end()) {
    return {tcp != ranks.end(), true, asked(mpi != ranks.end() ? mpi : tcp)};
  }
  const auto elsewhere = first([&](const Candidate& each) { return each.host_key != ranks.front().host_key; });
  if (elsewhere == ranks.end()) {
    return {false, false, "all ranks are on one host"};
  }
  const auto with = first([](const Candidate& each) { return !each.device.empty(); });
  const auto without = first([](const Candidate& each) { return each.device.empty(); });
  if (without == ranks.end()) {
    return {false, false, "every host has an RDMA device: " + with->host + " has " + with->device};
  }
  const auto objects = first([](const Candidate& each) { return !each.objection.empty(); });
  if (objects != ranks.end()) {
    return {false, false, objects->objection};
  }
  const auto single = first([](const Candidate& each) { return !each.threads; });
  if (single != ranks.end()) {
    return {false, false,
            "rank " + std::to_string(single - ranks.begin()) + " has started MPI without MPI_THREAD_MULTIPLE"};
  }
  return {true, false,
          with == ranks.end() ? "no host has an RDMA device"
                              : without->host + " has no RDMA device, though " + with->host + " has " + with->device};
}

Candidate candidate(Config& config, const Until& until, const std::string& classes) {
  Candidate mine;
  mine.asked = config.transport;
  mine.host_key = host_key();
  mine.host = host_name();
  const std::vector<std::string> devices = rdma_devices(classes);
  if (const auto found = std::find_if(devices.begin(), devices.end(), is_allowed); found != devices.end()) {
    mine.device = *found;
  }
  for (const auto& [variable, prefix] : variables_of_mpi) {
    const std::string value = value_of(variable);
    if (value.empty() || config.interface != "auto") {
      continue;
    }
    try {
      static_cast<void>(choose_address(prefix + value, "", until));
      config.interface = prefix + value;
    } catch (const Error&) {
      mine.objection = std::string(variable) + " is " + value + ", and " + mine.host + " has no such interface of TCP";
      break;
    }
  }
  return mine;
}

}  // namespace gradientflow::transport
