// How a process comes to others that it has not met: it says where it listens, and is told what it has to know.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../../base/config.hpp"
#include "../endpoint.hpp"
#include "../tcp/network.hpp"
#include "until.hpp"

namespace gradientflow::transport {

class Newcomer {
 public:
  // Listens at an address that leads to `near`, as in choose_address.
  Newcomer(const Config& config, const std::string& near, const Until& until);

  [[nodiscard]] std::string card() const;

  // The endpoint that it has been invited to, among ranks that were there before. Throws Error(mismatch) with the
  // reason where it has been refused. Once.
  struct Place {
    std::unique_ptr<Endpoint> endpoint;
    int former = 0;  // how many of the ranks, the first ones, were there before
  };
  [[nodiscard]] Place enter(const std::string& answer) const;

  // The endpoint of the processes that listen at these addresses, by rank, of which this one is `rank`. All have the
  // same addresses and secret, of 32 bytes, from elsewhere. Collective. Throws Error(timeout), which names who has not
  // come, and Error(peer). Once.
  [[nodiscard]] std::unique_ptr<Endpoint> meet(int rank, std::vector<std::string> addresses, const std::string& secret,
                                               const Until& until) const;

 private:
  std::shared_ptr<tcp::Network> network_;
};

// For the ranks of the job. Why a newcomer cannot take part, for one with this card; empty if it can. The address at
// which it listens. And the answers: to the newcomer with this number of those whom `widened` has taken in; and no.
[[nodiscard]] std::string objection_to(const std::string& card);
[[nodiscard]] std::string address_on(const std::string& card);
[[nodiscard]] std::string invitation_for(const Endpoint& widened, int newcomers, int number);
[[nodiscard]] std::string refusal(const std::string& why);

}  // namespace gradientflow::transport
