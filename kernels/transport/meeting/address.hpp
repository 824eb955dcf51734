// Lookup of host names, and choice of the address at which other hosts reach this one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../../base/error.hpp"
#include "../address.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// Error of kind system: the lookup has succeeded, and the name is unknown.
class UnknownName : public Error {
 public:
  using Error::Error;
};

// Returns the addresses of a place, at least one. Throws UnknownName, or Error(system), Error(timeout) where the name
// could not be looked up.
[[nodiscard]] std::vector<SocketAddress> resolve(const HostPort& place, const Until& until);

// Waits until a name of these places is known, or might be. Throws UnknownName if none is for three seconds, in which a
// container that is started at the same moment gets its name; where names may come late, only when the time is up.
void await_name(const std::vector<HostPort>& places, const Until& until);

// Returns true in Kubernetes, where a pod has a name once it is placed.
[[nodiscard]] bool names_may_come_late();

// Returns the source address of packets from this host to `other`; nothing without a route. Sends nothing.
[[nodiscard]] std::optional<SocketAddress> source_towards(const SocketAddress& other);

// Chooses the address at which other hosts reach this one. The setting `interface` decides: one or several with commas,
// or, after ^, some to leave out. For "auto": the source address toward `near` (places as in parse_host_ports, or
// empty), else that of the default route, else the first of an interface that is up, else loopback. Throws Error(value)
// where nothing fits the setting.
[[nodiscard]] std::string choose_address(const std::string& interface, const std::string& near, const Until& until);

// Returns an id that is equal for processes that reach each other by loopback.
[[nodiscard]] std::string network_id();

}  // namespace gradientflow::transport
