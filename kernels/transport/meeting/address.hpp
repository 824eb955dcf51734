// Hosts whose names are looked up, and the address at which this one is reached.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../../base/error.hpp"
#include "../address.hpp"
#include "until.hpp"

namespace gradientflow::transport {

// Of kind system: the system has asked whom it asks for names, and none knows this one.
class UnknownName : public Error {
 public:
  using Error::Error;
};

// The addresses of a place, of which there is at least one. Throws UnknownName; Error(system), Error(timeout) where the
// name could not be looked up.
[[nodiscard]] std::vector<SocketAddress> resolve(const Place& place, const Until& until);

// Returns once a name of these places is known, or might be. Throws UnknownName if none is for three seconds, in which
// a container that is started at the same moment gets its name; where names may come late, only when the time is up.
void await_name(const std::vector<Place>& places, const Until& until);

// In Kubernetes, a pod has a name once it is placed.
[[nodiscard]] bool names_may_come_late();

// The address of this host from which packets to `other` come; nothing if there is no way to it. Sends nothing.
[[nodiscard]] std::optional<SocketAddress> source_towards(const SocketAddress& other);

// The address at which other hosts reach this one: by the setting `interface`, one or several with commas, or after ^
// those to leave out; else the one that leads to `near`, one or several places as in parse_places, or empty; else that
// of the default route; else the first of an interface that is up; else loopback. Throws Error(value) where nothing
// fits the setting.
[[nodiscard]] std::string choose_address(const std::string& interface, const std::string& near, const Until& until);

// Alike for processes that reach each other by loopback.
[[nodiscard]] std::string network_id();

}  // namespace gradientflow::transport
