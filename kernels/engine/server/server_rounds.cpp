#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "../../base/text.hpp"
#include "server.hpp"

namespace gradientflow::engine {

Server::Round Server::gather(const std::vector<int>& workers) {
  const Push& first = worker(workers.front()).pushes.front();
  Round round{.contributions = {}, .scale = 1.0F / first.scale, .settings = first.settings, .has = first.has};
  for (const int w : workers) {
    const Worker& of = worker(w);
    const Skip skip = of.pushes.front().skip;
    const Presence& has = of.pushes.front().has;
    round.has.resize(std::min(round.has.size(), has.size()));
    std::transform(round.has.begin(), round.has.end(), has.begin(), round.has.begin(), std::bit_or<std::uint8_t>());
    if (skip > round.skip || (skip == round.skip && skip != Skip::no && w < round.skipping)) {
      round.skip = skip;
      round.skipping = w;
    }
    round.contributions.push_back(is_here(w) ? Contribution{shared_.memory.slot(w, of.applied + 1), true}
                                             : Contribution{of.received.get(), false});
  }
  return round;
}

// True if all norms needed for the next round are here; only LARS needs them. Sends this server's norms to its peers.
bool Server::has_norms(const Round& round) {
  const bool is_local = std::any_of(round.settings->begin(), round.settings->end(),
                                    [](const ServerSettings& each) { return each.trust != 0.0F; });
  if (!is_local || round.skip != Skip::no) {
    return true;
  }
  auto& norms = norms_[rounds_ + 1];
  if (!norms.contains(number_)) {
    norms[number_] = shard_.norms(round.contributions, *round.settings, round.scale);
    for (std::size_t s = 0; s < shared_.roles.servers.size(); ++s) {
      if (s != number_) {
        send_note(*shared_.mailbox, shared_.roles.servers[s], shared_.tags.to_server,
                  {.kind = NoteKind::norms, .number = number_, .round = rounds_ + 1},
                  std::as_bytes(std::span(norms[number_])));
      }
    }
  }
  return norms.size() == shared_.roles.servers.size();
}

// Returns the rate of each tensor; no rate for a tensor without a gradient in any push of the round. Adds norms in the
// order of the servers, so that all servers get the same sums.
std::vector<std::optional<float>> Server::rates_of(const Round& round) {
  std::vector<std::optional<float>> rates;
  const auto norms = norms_.extract(rounds_ + 1);
  for (std::size_t i = 0; i < round.settings->size(); ++i) {
    const ServerSettings& setting = (*round.settings)[i];
    const bool is_there = round.has.empty() || round.has[i] != 0;
    rates.push_back(is_there ? std::optional(setting.rate) : std::nullopt);
    if (!is_there || setting.trust == 0.0F || norms.empty()) {
      continue;
    }
    double weights = 0.0;
    double gradient = 0.0;
    for (const auto& [server, sums] : norms.mapped()) {
      weights += sums[2 * i];
      gradient += sums[2 * i + 1];
    }
    weights = std::sqrt(weights);
    gradient = std::sqrt(gradient);
    if (weights > 0.0 && gradient > 0.0) {
      const double rate = static_cast<double>(setting.rate) * static_cast<double>(setting.trust) * weights /
                          (gradient + static_cast<double>(setting.weight_decay) * weights);
      rates.back() = static_cast<float>(std::min(rate, static_cast<double>(std::numeric_limits<float>::max())));
    }
  }
  return rates;
}

void Server::apply_round(const std::vector<int>& workers) {
  const Round round = gather(workers);
  const std::vector<std::optional<float>> rates = rates_of(round);
  ++rounds_;
  const std::vector<ReceivedNote> pulls = pulls_after_round();
  std::size_t ranges = 0;  // number of ranges sent
  const auto send_to_all = [&](std::size_t end) {
    for (; ranges < end; ++ranges) {
      for (const ReceivedNote& pull : pulls) {
        send_weights(pull.source, pull.note.exact, ranges);
        worker(pull.source).has_weights = true;
      }
    }
  };
  if (round.skip == Skip::no) {
    ++changes_;
    if (pulls.empty()) {
      shard_.apply(round.contributions, *round.settings, rates, round.scale);
    } else {
      shard_.apply(round.contributions, *round.settings, rates, round.scale, send_to_all);
    }
  }
  send_to_all(shared_.layout.ranges().size());
  const std::int64_t tensor = round.skip == Skip::no ? -1 : worker(round.skipping).pushes.front().tensor;
  for (const int w : workers) {
    Worker& of = worker(w);
    of.pushes.pop_front();
    ++of.applied;
    if (round.skip != Skip::no) {
      of.skipped.push_back({of.applied, static_cast<std::uint64_t>(round.skip), round.skipping, tensor});
    }
    if (is_here(w)) {
      shared_.memory.word(number_, w).applied.store(of.applied, std::memory_order_release);
    } else {
      expect_push(w);
    }
  }
  keep_copy(false);
}

void Server::check_settings(const std::vector<int>& round) {
  const Push& first = worker(round.front()).pushes.front();
  const auto refuse = [&](int other, const std::string& what, float one, float two) {
    throw Error(ErrorKind::mismatch, "the pushes of one round have different settings: " + what + " is " +
                                         format_number(one) + " on rank " + std::to_string(round.front()) + " and " +
                                         format_number(two) + " on rank " + std::to_string(other));
  };
  for (const int w : round) {
    const Push& push = worker(w).pushes.front();
    if (push.scale != first.scale) {
      refuse(w, "loss_scale", first.scale, push.scale);
    }
    if (push.settings == first.settings) {
      continue;
    }
    for (std::size_t i = 0; i < push.settings->size(); ++i) {
      const ServerSettings& one = (*first.settings)[i];
      const ServerSettings& two = (*push.settings)[i];
      const std::string of = " of " + shared_.name_of_tensor(i);
      if (one.rate != two.rate) {
        refuse(w, "rate" + of, one.rate, two.rate);
      }
      if (one.momentum != two.momentum) {
        refuse(w, "momentum" + of, one.momentum, two.momentum);
      }
      if (one.weight_decay != two.weight_decay) {
        refuse(w, "weight_decay" + of, one.weight_decay, two.weight_decay);
      }
      if (one.trust != two.trust) {
        refuse(w, "trust" + of, one.trust, two.trust);
      }
    }
  }
}

}  // namespace gradientflow::engine
