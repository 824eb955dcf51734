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

// Returns the addresses of a place, at least one. Throws UnknownName; Error(system) or Error(timeout) if the name could
// not be looked up.
[[nodiscard]] std::vector<SocketAddress> resolve(const HostPort& place, const Until& until);

// Waits until a name of these places is known, or its lookup fails otherwise. Throws UnknownName if all names stay
// unknown for three seconds, in which a container that is started at the same moment gets its name. Where names may
// come late, throws it only when the time is up.
void await_name(const std::vector<HostPort>& places, const Until& until);

// Adds a cause to the causes in a message, unless it is there already: places often fail in the same way.
void add_cause(std::string& causes, const std::string& cause);

// Returns true in Kubernetes, where a pod has a name once it is placed.
[[nodiscard]] bool names_may_come_late();

// Returns the source address of packets from this host to `other`; nothing without a route. Sends nothing.
[[nodiscard]] std::optional<SocketAddress> source_towards(const SocketAddress& other);

// Chooses the address at which other hosts reach this one. The setting `interface` decides: it lists interfaces with
// commas or, after ^, interfaces to leave out. "auto" takes the first of these that exists: the source address toward
// `near` (places as in parse_host_ports, or empty), the source address of the default route, the first address of an
// interface that is up, loopback. Throws Error(value) if nothing fits the setting.
[[nodiscard]] std::string choose_address(const std::string& interface, const std::string& near, const Until& until);

// Returns an id that is equal for processes that reach each other by loopback.
[[nodiscard]] std::string network_id();

}  // namespace gradientflow::transport
