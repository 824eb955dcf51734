// Parameter server: servers with disjoint shards of the weights, and workers that push gradients and pull weights.
//
// If all N ranks are workers, server s of S is a thread of rank s * N / S. Otherwise the workers are the first ranks of
// the communicator, and every remaining rank is a server, which calls `serve`.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../calls/communicator.hpp"
#include "server.hpp"
#include "server_worker.hpp"

namespace gradientflow::engine {

// Parameter server of this rank; owned by shared pointers.
class ParameterServer : public std::enable_shared_from_this<ParameterServer> {
 public:
  struct Options {
    std::optional<int> workers = {};  // number of workers, the first ranks; the rest are servers. By default all
    std::optional<std::size_t> servers =
        {};  // number of servers, threads in the workers; by default as many as can have a shard each
    std::optional<std::size_t> fusion_threshold = {};   // bytes of a range; see `fuse`
    Wire wire = Wire::float32;                          // format of gradients and weights in messages
    std::vector<std::string> names = {};                // names of the tensors, for error messages; may be empty
    std::vector<std::vector<std::size_t>> shapes = {};  // shapes of the tensors, the same on all ranks; may be empty
    ServerOptimizer optimizer = {};
    std::string policy = "bsp";               // description of the policy, the same on all ranks
    int replicas = 0;                         // 1: another server keeps copies of each server
    std::function<void()> poll_signals = {};  // called several times a second by waiting threads; may throw
  };

  // `counts`: elements of each tensor, in the order in which gradients become ready. Collective over `everybody`.
  // Servers answer pulls once worker 0 has loaded weights.
  ParameterServer(Communicator& everybody, const std::vector<std::size_t>& counts, const Options& options,
                  Server::MakePolicy make_policy);
  ParameterServer(const ParameterServer&) = delete;
  ParameterServer& operator=(const ParameterServer&) = delete;
  ~ParameterServer();

  [[nodiscard]] const ServerLayout& layout() const { return shared_->layout; }
  [[nodiscard]] DType wire() const { return shared_->wire; }
  [[nodiscard]] int workers() const { return shared_->roles.workers; }

  // Returns the owner of the memory behind ServerWorker::gradient and ServerWorker::weights.
  [[nodiscard]] std::shared_ptr<const void> memory() const { return shared_->memory.owner(); }

  // Throws Error(closed) once this object or its communicator is closed, Error(value) on a rank that serves only.
  [[nodiscard]] ServerWorker& worker() const;

  // Starts keeping copies of the servers' state, see Server::make_recoverable. On all ranks, before any push.
  void make_recoverable(std::size_t rounds);

  // Forward to this rank's server, after the server has ended: see Server.
  [[nodiscard]] std::vector<Server::Holding> holdings() const;
  void read_copy(std::size_t server, std::uint64_t round, std::size_t array, std::span<float* const> tensors) const;

  // Serves until all workers have closed. For a rank that serves only.
  void serve();

  // `orderly`: a rank that serves waits until all workers have closed, at most as long as a call may wait. While this
  // process has other parameter servers open, the rank does not wait but continues to serve; closing the last parameter
  // server waits for all of them, so ranks may close them in different orders. After an error, or if not orderly, the
  // rank does not wait, but tells the peers that it has given up, with the error, which they throw.
  void close(bool orderly) noexcept;
  [[nodiscard]] bool closed() const;

 private:
  using Clock = std::chrono::steady_clock;
  static void end_finished_servers() noexcept;
  void end(bool orderly, Clock::time_point deadline) noexcept;
  [[nodiscard]] bool is_forked() const noexcept;
  [[nodiscard]] std::optional<Error> failure() const;  // error of the server or the worker of this rank

  std::shared_ptr<Communicator> communicator_;  // the server's duplicate
  std::function<void()> poll_signals_;
  int forks_;
  std::unique_ptr<Server::Shared> shared_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<ServerWorker> worker_;
  std::thread thread_;
  std::atomic<bool> serves_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace gradientflow::engine
