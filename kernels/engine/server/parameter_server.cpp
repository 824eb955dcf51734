#include "parameter_server.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "../../base/forks.hpp"
#include "../../base/text.hpp"
#include "../../base/thread.hpp"
#include "../../collective/call/call.hpp"
#include "../calls/same_on_all_ranks.hpp"

namespace gradientflow::engine {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t default_threshold = 4 * mib;  // a piece of it is large enough for any link

ServerRoles roles_of(int size, const std::vector<std::size_t>& counts, std::size_t threshold, DType wire,
                     const ParameterServer::Options& options) {
  ServerRoles roles{options.workers.value_or(size), {}};
  if (roles.workers < 1 || roles.workers > size) {
    throw Error(ErrorKind::value, "a parameter server has 1 to " + std::to_string(size) + " workers, not " +
                                      std::to_string(roles.workers));
  }
  if (roles.workers < size) {
    roles.servers.resize(static_cast<std::size_t>(size - roles.workers));
    std::iota(roles.servers.begin(), roles.servers.end(), roles.workers);
    return roles;
  }
  const auto workers = static_cast<std::size_t>(roles.workers);
  const std::size_t servers = options.servers.value_or(ServerLayout::servers_for(counts, workers, threshold, wire));
  if (servers < 1 || servers > workers) {
    throw Error(ErrorKind::value, "servers is 1 to " + std::to_string(workers) +
                                      ", as many as there are workers, not " + std::to_string(servers));
  }
  for (std::size_t s = 0; s < servers; ++s) {
    roles.servers.push_back(static_cast<int>(s * workers / servers));
  }
  return roles;
}

// Returns, for each server, the server that keeps copies of it. The distance is the same for all servers, so that the
// work is shared equally; as many servers as possible have their copies on a different node.
std::vector<int> copy_holders_of(const std::vector<int>& servers, const std::vector<int>& node_of) {
  const std::size_t count = servers.size();
  const auto elsewhere = [&](std::size_t places) {
    std::size_t found = 0;
    for (std::size_t s = 0; s < count; ++s) {
      const auto node = [&](std::size_t server) { return node_of[static_cast<std::size_t>(servers[server])]; };
      found += node(s) == node((s + places) % count) ? 0 : 1;
    }
    return found;
  };
  std::size_t best = 1;
  for (std::size_t places = 2; places < count; ++places) {
    best = elsewhere(places) > elsewhere(best) ? places : best;
  }
  std::vector<int> copy_holders;
  for (std::size_t s = 0; s < count; ++s) {
    copy_holders.push_back(static_cast<int>((s + best) % count));
  }
  return copy_holders;
}

// Parameter servers of this process: the open ones, and closed servers that still serve other ranks.
struct Registry {
  std::mutex mutex;
  std::set<const ParameterServer*> open;
  std::vector<std::shared_ptr<ParameterServer>> serving;
};

// Is never destroyed: servers still in use have threads.
Registry& registry() {
  static auto* const all = new Registry;  // NOLINT(*-owning-memory)
  return *all;
}

std::string described(const ServerOptimizer& optimizer) {
  if (!optimizer.is_adam()) {
    return optimizer.name + (optimizer.rate_in_momentum ? ", the rate in the momentum" : "");
  }
  return optimizer.name + "(" + format_number(optimizer.beta_1) + ", " + format_number(optimizer.beta_2) + ", " +
         format_number(optimizer.epsilon) + ")";
}

std::string text_of(const std::vector<std::size_t>& shape) {
  std::string text = "(";
  for (const std::size_t length : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(length);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

// Returns the settings that must be the same on all ranks.
Entries entries_of(const std::vector<std::size_t>& counts, const ServerRoles& roles, std::size_t threshold,
                   const ParameterServer::Options& options) {
  Entries entries;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::string tensor = " of tensor " + std::to_string(i);
    entries.emplace_back("the number of elements" + tensor, std::to_string(counts[i]));
    if (i < options.shapes.size()) {
      entries.back() = {"the shape" + tensor, text_of(options.shapes[i])};
    }
    if (i < options.names.size()) {
      entries.emplace_back("the name" + tensor, "'" + options.names[i] + "'");
    }
  }
  entries.emplace_back("the number of workers", std::to_string(roles.workers));
  entries.emplace_back("the number of servers", std::to_string(roles.servers.size()));
  entries.emplace_back("the fusion threshold", std::to_string(threshold));
  entries.emplace_back("the wire", std::string(traits_of(options.wire).name));
  entries.emplace_back("the policy", options.policy);
  entries.emplace_back("the optimizer", described(options.optimizer));
  entries.emplace_back("the number of replicas", std::to_string(options.replicas));
  return entries;
}

}  // namespace

ParameterServer::ParameterServer(Communicator& everybody, const std::vector<std::size_t>& counts,
                                 const Options& options, Server::MakePolicy make_policy)
    : poll_signals_(options.poll_signals), forks_(count_forks()) {
  const std::size_t threshold = options.fusion_threshold.value_or(default_threshold);
  const DType wire = dtype_of(options.wire, "a parameter server");
  const ServerOptimizer& optimizer = options.optimizer;
  if (optimizer.name != "sgd" && optimizer.name != "lars" && !optimizer.is_adam()) {
    throw Error(ErrorKind::value, "optimizer is 'sgd', 'lars' or 'adam', not '" + optimizer.name + "'");
  }
  ServerRoles roles = roles_of(everybody.size(), counts, threshold, wire, options);
  const ServerLayout layout(counts, roles.servers.size(), threshold, wire);
  if (options.replicas < 0 || options.replicas > 1) {
    throw Error(ErrorKind::value, "replicas is 0 or 1, not " + std::to_string(options.replicas));
  }
  if (options.replicas > 0 && everybody.size() > 1) {
    if (roles.servers.size() == 1) {
      const bool was_chosen = options.servers || roles.workers < everybody.size();
      const std::string why = was_chosen ? "" : ": so few elements are not divided among ranks";
      throw Error(ErrorKind::value,
                  "replicas=1 needs two servers, which keep copies of each other's weights, and there is one" + why);
    }
    roles.copy_holders = copy_holders_of(roles.servers, everybody.group().topology().node_of);
  }
  communicator_ = everybody.duplicate("parameter server", transport::MadeFor::parameter_server);
  communicator_->count_as_sent({});  // transfers of a mailbox are not counted
  check_same_on_all_ranks(*communicator_, "parameter servers", entries_of(counts, roles, threshold, options));
  auto mailbox =
      transport::Mailbox::make(communicator_->split(0, communicator_->rank()), "the parameter server",
                               [communicator = communicator_](int rank) { return communicator->is_alive(rank); });
  ServerTags tags(*mailbox);
  shared_ = std::make_unique<Server::Shared>(std::move(mailbox), tags, layout, roles, wire, optimizer, options.names,
                                             ServerMemory(*communicator_, layout, roles, wire));
  const double timeout = communicator_->group().config().timeout;
  if (communicator_->rank() < roles.workers) {
    worker_ = std::make_unique<ServerWorker>(*shared_, timeout, options.poll_signals);
  }
  if (const int number = roles.server_at(communicator_->rank()); number >= 0) {
    const auto here = static_cast<std::size_t>(std::count_if(
        roles.servers.begin(), roles.servers.end(), [this](int rank) { return shared_->memory.is_here(rank); }));
    const std::size_t threads = std::max<std::size_t>(communicator_->group().node().cores().size() / here, 1);
    server_ = std::make_unique<Server>(*shared_, static_cast<std::size_t>(number), threads, std::move(make_policy));
    if (worker_ != nullptr) {
      serves_ = true;
      worker_->help(server_.get());
      thread_ = start_thread("a server", [this] {
        take_short_turns();
        try {
          server_->run();
        } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the workers have been told
        }
        serves_ = false;
      });
    }
  }
  end_finished_servers();
  const std::lock_guard lock(registry().mutex);
  registry().open.insert(this);
}

// Leaks the parts in a forked process: that process lacks the server's thread, and locks held by the thread stay
// locked.
ParameterServer::~ParameterServer() {
  if (is_forked()) {
    if (thread_.joinable()) {
      thread_.detach();
    }
    static_cast<void>(server_.release());
    static_cast<void>(worker_.release());
    static_cast<void>(shared_.release());
    return;
  }
  close(false);
}

bool ParameterServer::is_forked() const noexcept { return forks_ != count_forks(); }

ServerWorker& ParameterServer::worker() const {
  communicator_->check_process();
  if (worker_ == nullptr) {
    throw Error(ErrorKind::value, "rank " + std::to_string(communicator_->rank()) + " serves only: it is no worker");
  }
  if (closed_) {
    throw Error(ErrorKind::closed, "the parameter server has been closed");
  }
  communicator_->check_open();
  return *worker_;
}

void ParameterServer::make_recoverable(std::size_t rounds) {
  communicator_->check_process();
  if (worker_ != nullptr) {
    worker_->make_recoverable(rounds > 0 || !shared_->roles.copy_holders.empty());
  }
  if (server_ != nullptr) {
    server_->make_recoverable(rounds);
  }
}

std::vector<Server::Holding> ParameterServer::holdings() const {
  return server_ == nullptr ? std::vector<Server::Holding>{} : server_->holdings();
}

void ParameterServer::read_copy(std::size_t server, std::uint64_t round, std::size_t array,
                                std::span<float* const> tensors) const {
  if (server_ == nullptr) {
    throw Error(ErrorKind::value, "rank " + std::to_string(communicator_->rank()) + " serves nothing");
  }
  server_->read_copy(server, round, array, tensors);
}

void ParameterServer::serve() {
  communicator_->check_process();
  if (worker_ != nullptr) {
    throw Error(ErrorKind::value,
                "rank " + std::to_string(communicator_->rank()) + " is a worker: it serves in a thread");
  }
  server_->run(poll_signals_);
}

// Returns the server's error first: the peers were told that error, and the worker's error may be a copy of it.
std::optional<Error> ParameterServer::failure() const {
  std::optional<Error> found = server_ != nullptr ? server_->failure() : std::nullopt;
  return found || worker_ == nullptr ? found : worker_->failure();
}

bool ParameterServer::closed() const { return closed_ || communicator_->closed(); }

void ParameterServer::close(bool orderly) noexcept {
  if (is_forked() || closed_.exchange(true)) {
    return;
  }
  if (worker_ != nullptr) {
    orderly = orderly && !worker_->failure();
    try {
      worker_->close(orderly);
    } catch (const std::exception&) {
      orderly = false;
    }
  }
  std::vector<std::shared_ptr<ParameterServer>> serving;
  {
    const std::lock_guard lock(registry().mutex);
    registry().open.erase(this);
    if (auto self = weak_from_this().lock(); self != nullptr && orderly && serves_ && !registry().open.empty()) {
      registry().serving.push_back(std::move(self));
      return;
    }
    if (registry().open.empty()) {
      serving.swap(registry().serving);
    }
  }
  const double timeout = std::min(communicator_->group().config().timeout, 1e9);
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
  end(orderly, deadline);
  for (const auto& each : serving) {
    each->end(orderly || !each->serves_, deadline);
  }
  end_finished_servers();
}

// Ends the closed parameter servers that no longer serve any rank.
void ParameterServer::end_finished_servers() noexcept {
  std::vector<std::shared_ptr<ParameterServer>> done;
  {
    const std::lock_guard lock(registry().mutex);
    auto& serving = registry().serving;
    const auto first =
        std::partition(serving.begin(), serving.end(), [](const auto& each) { return each->serves_.load(); });
    std::move(first, serving.end(), std::back_inserter(done));
    serving.erase(first, serving.end());
  }
  for (const auto& each : done) {
    each->end(true, Clock::now());
  }
}

void ParameterServer::end(bool orderly, Clock::time_point deadline) noexcept {
  while (orderly && serves_ && Clock::now() < deadline) {
    std::this_thread::sleep_for(1ms);
  }
  if (server_ != nullptr) {
    server_->stop();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  const std::optional<Error> reason = failure();
  shared_->mailbox->close(orderly && !reason, reason);
  communicator_->close(orderly);
}

}  // namespace gradientflow::engine
