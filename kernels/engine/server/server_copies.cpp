// Copies that let training continue when ranks are lost: of this server's shard after the last rounds, and of another
// server's shard, received from it.
//
// No worker pushes more than two rounds past a push that is safe at all servers. So under a policy whose rounds have a
// push of every worker, servers are at most two rounds apart. A server that keeps copies of three rounds therefore has
// a copy of the last round that all servers have.
#include <algorithm>
#include <memory>
#include <utility>

#include "server.hpp"

namespace gradientflow::engine {

void Server::make_recoverable(std::size_t rounds) {
  const std::lock_guard held(serving_);
  recovery_ = {.is_on = true, .rounds = rounds};
  keep_copy(true);
}

// Copies the shard, after a round or a change by `load`.
void Server::keep_copy(bool is_loaded) {
  const int holder = shared_.roles.copy_holders.empty() ? -1 : shared_.roles.copy_holders[number_];
  if (!recovery_.is_on || !has_weights_ || (recovery_.rounds == 0 && holder < 0)) {
    return;
  }
  ShardCopy copy = shard_.copy(rounds_, std::move(spare_));
  const Note note{
      .kind = NoteKind::copy, .number = number_, .round = copy.round, .tensor = static_cast<std::int64_t>(copy.arrays)};
  Unconfirmed sent{.is_loaded = is_loaded, .applied = {}};
  std::transform(workers_.begin(), workers_.end(), std::back_inserter(sent.applied),
                 [](const Worker& each) { return each.applied; });
  unconfirmed_.push_back(std::move(sent));
  if (holder < 0) {
    confirm();
  } else {
    const int rank = shared_.roles.servers[static_cast<std::size_t>(holder)];
    send_note(*shared_.mailbox, rank, shared_.tags.to_server, note, std::as_bytes(std::span(copy.updates)));
    static_cast<void>(shared_.mailbox->send(rank, shared_.tags.copied(), copy.values->data(), copy.bytes(), copy.values,
                                            transport::Route::in_parts));
    loads_under_way_ += is_loaded ? 1 : 0;
  }
  keep(number_, std::move(copy));
}

void Server::keep(std::size_t server, ShardCopy copy) {
  auto& kept = copies_of_[server];
  if (!kept.empty() && kept.back().round == copy.round) {
    kept.pop_back();
  }
  kept.push_back(std::move(copy));
  const std::size_t most = server == number_ ? recovery_.rounds : std::max<std::size_t>(recovery_.rounds, 1);
  while (kept.size() > most) {
    if (kept.front().values.use_count() == 1) {
      spare_ = std::move(kept.front().values);
    }
    kept.pop_front();
  }
}

// Marks the oldest unconfirmed copy as safe.
void Server::confirm() {
  if (unconfirmed_.empty()) {
    return;
  }
  const Unconfirmed sent = std::move(unconfirmed_.front());
  unconfirmed_.pop_front();
  for (int w = 0; w < shared_.roles.workers; ++w) {
    send_note(*shared_.mailbox, w, shared_.tags.to_worker,
              {.kind = NoteKind::safe, .number = number_, .pushes = sent.applied[static_cast<std::size_t>(w)]});
  }
  if (!sent.is_loaded || loads_under_way_ == 0) {
    return;
  }
  --loads_under_way_;
  if (loads_under_way_ == 0) {
    for (int w = 0; w < shared_.roles.workers; ++w) {
      answer_pulls(w);
    }
  }
}

void Server::expect_copy(const ReceivedNote& received) {
  const auto server = static_cast<std::size_t>(received.note.number);
  const auto arrays = static_cast<std::size_t>(received.note.tensor);
  const auto values = std::make_shared<std::vector<float>>(arrays * shared_.layout.shard_size(server));
  ShardCopy copy{.round = received.note.round,
                 .updates = received.payload_as<std::uint64_t>(),
                 .arrays = arrays,
                 .values = values};
  const std::size_t bytes = copy.bytes();
  arriving_.push_back({server, std::move(copy),
                       shared_.mailbox->receive(received.source, shared_.tags.copied(), values->data(), bytes, values,
                                                transport::Route::in_parts)});
}

bool Server::has_copy_arrived() const { return !arriving_.empty() && arriving_.front().transfer->ended(); }

bool Server::take_copies() {
  bool any = false;
  for (; has_copy_arrived(); arriving_.pop_front()) {
    Arriving& arrived = arriving_.front();
    any = true;
    try {
      arrived.transfer->check();
    } catch (const Error&) {  // the server that sent the copy is lost: earlier copies count
      continue;
    }
    keep(arrived.server, std::move(arrived.copy));
    send_note(*shared_.mailbox, shared_.roles.servers[arrived.server], shared_.tags.to_server,
              {.kind = NoteKind::copied});
  }
  return any;
}

std::vector<Server::Holding> Server::holdings() {
  const std::lock_guard held(serving_);
  if (recovery_.is_on && has_weights_ && recovery_.rounds == 0) {
    copies_of_[number_] = {shard_.copy(rounds_, nullptr)};
  }
  std::vector<Holding> found;
  for (const auto& [server, kept] : copies_of_) {
    if (!kept.empty()) {
      found.push_back({server, kept.front().round, kept.back().round});
    }
  }
  return found;
}

const ShardCopy* Server::copy_of(std::size_t server, std::uint64_t round) const {
  if (const auto kept = copies_of_.find(server); kept != copies_of_.end()) {
    for (const ShardCopy& each : kept->second) {
      if (each.round == round) {
        return &each;
      }
    }
  }
  return nullptr;
}

void Server::read_copy(std::size_t server, std::uint64_t round, std::size_t array,
                       std::span<float* const> tensors) const {
  const std::lock_guard held(serving_);
  const ShardCopy* const found = copy_of(server, round);
  if (found == nullptr) {
    throw Error(ErrorKind::value,
                "this rank has no copy of server " + std::to_string(server) + " after round " + std::to_string(round));
  }
  const bool is_count = array > shard_.states();
  for (const TensorPart& part : shared_.layout.parts_of_server(server)) {
    float* const to = tensors[part.tensor] + part.begin;
    if (is_count || array >= found->arrays) {
      std::fill_n(to, part.count, is_count ? static_cast<float>(found->updates[part.tensor]) : 0.0F);
    } else {
      std::copy_n(found->values->data() + array * shared_.layout.shard_size(server) + part.shard, part.count, to);
    }
  }
}

}  // namespace gradientflow::engine
