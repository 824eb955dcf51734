#include <algorithm>
#include <memory>
#include <utility>

#include "../calls/waiting.hpp"
#include "server_worker.hpp"

namespace gradientflow::engine {

void ServerWorker::load(std::size_t array, std::span<const float* const> tensors) {
  const Lock lock(mutex_);
  check_usable();
  for (std::size_t s = 0; s < servers(); ++s) {
    const std::size_t size = shared_.layout.shard_size(s);
    auto values = std::make_shared<float[]>(std::max<std::size_t>(size, 1));
    for (const TensorPart& part : shared_.layout.parts_of_server(s)) {
      std::copy_n(tensors[part.tensor] + part.begin, part.count, values.get() + part.shard);
    }
    send_to(s, {.kind = NoteKind::load, .number = array});
    const float* const data = values.get();
    static_cast<void>(shared_.mailbox->send(shared_.roles.servers[s], shared_.tags.loaded(), data, size * sizeof(float),
                                            std::move(values)));
  }
}

void ServerWorker::save(std::size_t array, std::span<float* const> tensors, Seconds timeout) {
  check_timeout(timeout);
  Lock lock(mutex_);
  check_usable();
  std::vector<std::shared_ptr<float[]>> shards;
  Transfers transfers;
  for (std::size_t s = 0; s < servers(); ++s) {
    const std::size_t size = shared_.layout.shard_size(s);
    shards.push_back(std::make_shared_for_overwrite<float[]>(std::max<std::size_t>(size, 1)));
    transfers.push_back(shared_.mailbox->receive(shared_.roles.servers[s], shared_.tags.state(), shards.back().get(),
                                                 size * sizeof(float), shards.back()));
  }
  ask_all({.kind = NoteKind::state, .number = array, .pushes = pushes_});
  wait(lock, timeout, "the request for the state", [&] { return have_ended(transfers); });
  for (std::size_t s = 0; s < servers(); ++s) {
    transfers[s]->check();
    for (const TensorPart& part : shared_.layout.parts_of_server(s)) {
      std::copy_n(shards[s].get() + part.shard, part.count, tensors[part.tensor] + part.begin);
    }
  }
}

// Asks server 0 for a report. Answers come in the order of the requests; an answer that is no longer awaited is
// ignored.
std::vector<double> ServerWorker::ask(Query what, Seconds timeout) {
  check_timeout(timeout);
  const std::lock_guard one_at_a_time(reporting_);
  Lock lock(mutex_);
  check_usable();
  ++reports_asked_;
  send_to(0, {.kind = NoteKind::report, .number = static_cast<std::uint64_t>(what)});
  wait(lock, timeout, "the request for a report", [this] { return reports_come_ == reports_asked_; });
  return std::exchange(report_, {});
}

}  // namespace gradientflow::engine
