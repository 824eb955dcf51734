// Admission of a new process to ranks that it has not met: it publishes its address, and receives an invitation or a
// refusal.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../../base/config.hpp"
#include "../endpoint.hpp"
#include "../tcp/network.hpp"
#include "until.hpp"

namespace gradientflow::transport {

class Joiner {
 public:
  // Listens at the address that choose_address finds for `near`.
  Joiner(const Config& config, const std::string& near, const Until& until);

  [[nodiscard]] std::string card() const;

  // Joins the endpoint of the invitation, whose earlier ranks come first. Throws Error(mismatch) with the reason if the
  // answer is a refusal. Call it once.
  struct JoinedEndpoint {
    std::unique_ptr<Endpoint> endpoint;
    int former = 0;  // number of earlier ranks; they come first
  };
  [[nodiscard]] JoinedEndpoint enter(const std::string& answer) const;

  // Returns the endpoint of the processes that listen at these addresses; this one is `rank`. All processes are given
  // the same addresses, and the same secret of 32 bytes. Collective. Throws Error(timeout) with the missing ranks, and
  // Error(peer). Call it once.
  [[nodiscard]] std::unique_ptr<Endpoint> meet(int rank, std::vector<std::string> addresses, const std::string& secret,
                                               const Until& until) const;

 private:
  std::shared_ptr<tcp::Network> network_;
};

// For the ranks of the job. objection_to() returns why the joiner with this card cannot take part; empty if it can.
// address_on() returns the card's address. invitation_for() returns the answer to joiner `number` of `joiners`, the new
// ranks of `widened`. refusal() returns the answer to a joiner that is refused.
[[nodiscard]] std::string objection_to(const std::string& card);
[[nodiscard]] std::string address_on(const std::string& card);
[[nodiscard]] std::string invitation_for(const Endpoint& widened, int joiners, int number);
[[nodiscard]] std::string refusal(const std::string& why);

}  // namespace gradientflow::transport
