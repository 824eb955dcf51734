// Worker of a parameter server: pushes gradients as they become ready, and pulls weights.
//
// Pushes are written, in the wire's dtype, to two slots in turn. Servers of this node read the push in place. A range
// is sent to other servers as soon as this range and all earlier ranges are complete. A slot is free again when its
// messages have been sent and the servers of this node have applied the push; a worker that needs the slot earlier
// waits.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../../compute/store.hpp"
#include "../exchange/ready_tensors.hpp"
#include "server.hpp"

namespace gradientflow::engine {

class ServerWorker {
 public:
  using Seconds = std::optional<double>;

  // `poll_signals`: called several times a second by a waiting thread; may throw.
  ServerWorker(Server::Shared& shared, double timeout, std::function<void()> poll_signals);

  // Sets the server of this rank, which the worker helps while it waits. Call it before anything else.
  void help(Server* server) { server_ = server; }

  // Makes waits end as soon as a rank is lost. With `is_bounded` a push waits until all earlier pushes except the last
  // one are safe. On all workers, before any push.
  void make_recoverable(bool is_bounded);

  // Returns the address where gradient `tensor` of the current push may be written, in the wire's dtype, until `push`
  // ends that push. Waits for a free slot, as `ready` does. The address alternates between the two slots from push to
  // push.
  [[nodiscard]] std::byte* gradient(std::size_t tensor, Seconds timeout);

  // Adds gradient `tensor` to the current push: copies it, unless it is at the address that `gradient` returns.
  // `nonfinite`: set to the number of its elements that are not finite in the wire's dtype. Throws Error(value) if
  // there is no such tensor, if it is ready already, or if `gradient` is in the slot at a different address.
  void ready(std::size_t tensor, const void* gradient, DType dtype, std::size_t* nonfinite = nullptr);

  // Ends the current push. A tensor that is not ready counts as zeros if another push of its round has it; otherwise
  // the round leaves it alone. Pushes of several threads take turns. `gradients`: one or none for each tensor, instead
  // of `ready`; if any argument is refused, no tensor becomes ready. `settings`: one for each tensor, or one for all.
  // `with_pull`: also pulls, in the same message. The pull brings the weights at the moment when this worker may
  // continue, without any worker's later pushes. `nonfinite`: the tensor whose gradient is not finite, because of which
  // the push is to be skipped, or -1; other workers of the round are told.
  struct Pushed {
    std::uint64_t push;
    std::uint64_t pull;  // 0: no pull
  };
  enum class WithPull { no, rounded, exact };
  struct Gradient {
    const void* data;
    DType dtype;
  };
  Pushed push(std::span<const ServerSettings> settings, float loss_scale, Skip skip, WithPull with_pull = WithPull::no,
              std::span<const std::optional<Gradient>> gradients = {}, std::int64_t nonfinite = -1);

  // Waits until the policy lets this worker continue after a push. Returns the reason if the push was skipped. Throws
  // Error(value) for a push older than the last `most_skipped` skipped pushes: older records are dropped.
  static constexpr std::size_t most_skipped = 1024;
  SkippedPush wait_for_push(std::uint64_t push, Seconds timeout);
  [[nodiscard]] bool is_released(std::uint64_t push);

  // Asks for the weights as of the moment when this worker may continue after all its pushes so far; `exact`: in
  // float32, whatever the wire. Returns the number of the pull, which replaces the previous pull. Throws Error(value)
  // while the previous pull is under way.
  std::uint64_t pull(bool exact);
  void wait_for_pull(std::uint64_t pull, Seconds timeout);
  [[nodiscard]] bool has_come(std::uint64_t pull);

  // Copies a tensor of a pull as its ranges arrive. Throws Error(value) if another pull has begun meanwhile.
  void take(std::uint64_t pull, std::size_t tensor, float* weights, Seconds timeout);

  // Waits for a whole pull, and returns the address and dtype of a tensor: in the version of a server of this node if
  // the tensor is contiguous there, otherwise in this worker's pull buffer. The data does not change before the next
  // pull or `close`. Throws as `take`.
  struct Weights {
    const std::byte* data;  // nullptr if the tensor is empty
    DType dtype;
  };
  [[nodiscard]] Weights weights(std::uint64_t pull, std::size_t tensor, Seconds timeout);

  // Announces that this worker makes no push until all workers have announced the same and all pushes are applied. Then
  // pulls the exact weights; returns the number of the pull.
  std::uint64_t finish(Seconds timeout);

  // Load and save arrays of the servers (see ServerShard::array), tensor by tensor.
  void load(std::size_t array, std::span<const float* const> tensors);
  void save(std::size_t array, std::span<float* const> tensors, Seconds timeout);

  // Returns a report of server 0: see Server::report and ServerLog.
  enum class Query : std::uint64_t { statistics, trace };
  [[nodiscard]] std::vector<double> ask(Query what, Seconds timeout);

  [[nodiscard]] std::size_t ready_count() const;
  [[nodiscard]] std::uint64_t pushes() const;
  [[nodiscard]] std::optional<Error> failure() const;  // set: this worker is unusable

  void close(bool orderly);  // also tells the servers

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;
  using Transfers = std::vector<std::shared_ptr<transport::Transfer>>;

  // Returns streaming for data too large for the caches, which would be evicted before they are read again.
  [[nodiscard]] static compute::Store store_for(std::size_t bytes) {
    return bytes >= 4 * mib ? compute::Store::streaming : compute::Store::cached;
  }
  [[nodiscard]] static bool have_ended(const Transfers& transfers) {
    return std::all_of(transfers.begin(), transfers.end(),
                       [](const auto& transfer) { return transfer == nullptr || transfer->ended(); });
  }
  [[nodiscard]] int rank() const { return shared_.mailbox->rank(); }
  [[nodiscard]] std::size_t servers() const { return shared_.roles.servers.size(); }
  [[nodiscard]] bool is_here(std::size_t server) const { return shared_.memory.is_here(shared_.roles.servers[server]); }
  [[nodiscard]] std::byte* slot_of_tensor(std::size_t tensor) const;
  void check_usable() const;
  void check_tensor(std::size_t tensor) const;
  void check_not_finishing() const;
  void take_notes();
  void check_losses(const std::string& what);
  void wait(Lock& lock, Seconds timeout, const std::string& what, const std::function<bool()>& done);
  [[nodiscard]] Error with_slowest_ranks(const Error& error);
  template <class Work>
  auto or_naming_the_missing(Work work) -> decltype(work()) {
    try {
      return work();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::timeout) {
        throw;
      }
      throw with_slowest_ranks(error);
    }
  }
  [[nodiscard]] bool slot_is_free();
  void await_slot(Lock& lock, Seconds timeout = {});
  bool check_gradient(std::size_t tensor, const void* gradient, DType dtype) const;
  void begin_ranges();
  void send_ranges();
  void send_to(std::size_t server, const Note& note, std::span<const std::byte> payload = {});
  void ask_all(const Note& note);
  void check_settings(std::span<const ServerSettings> settings) const;
  void check_no_pull() const;
  void expect_answers(bool exact);
  std::uint64_t begin_pull(bool exact, std::uint64_t end);
  void check_pull(std::uint64_t pull) const;
  [[nodiscard]] bool has_come() const;
  [[nodiscard]] const std::shared_ptr<transport::Transfer>& transfer_of(const TensorPart& part) const {
    return answers_under_way_[part.server * shared_.layout.ranges().size() + part.range];
  }
  [[nodiscard]] DType pulled() const { return exact_ ? DType::float32 : shared_.wire; }
  void await_pull(Lock& lock, std::uint64_t pull, Seconds timeout);
  void await_part(Lock& lock, std::uint64_t pull, const TensorPart& part, Seconds timeout);
  [[nodiscard]] const std::byte* address_of(const TensorPart& part) const;
  void give_back_leases();

  Server::Shared& shared_;
  double timeout_;
  Server* server_ = nullptr;
  std::function<void()> poll_signals_;

  mutable std::mutex mutex_;
  bool is_recoverable_ = false;
  bool is_bounded_ = false;
  std::vector<std::uint64_t> safe_;  // last safe push of each server
  std::optional<Error> failure_;
  int losses_ = 0;
  bool closed_ = false;

  std::mutex pushing_;             // locked before mutex_
  std::uint64_t pushes_ = 0;       // number of ended pushes
  ReadyTensors ready_;             // tensors of the current push
  std::vector<std::size_t> left_;  // missing elements of each range
  std::size_t sent_ = 0;           // sent ranges of the current push
  int copying_ = 0;                // number of copying threads
  std::condition_variable copied_;
  Transfers sends_[2];                    // transfers of each slot
  std::vector<ServerSettings> settings_;  // settings of the last push
  std::uint64_t released_ = 0;
  std::uint64_t round_ = 0;
  std::map<std::uint64_t, SkippedPush> skipped_;  // last skipped pushes
  std::uint64_t forgotten_ = 0;                   // last skipped push whose record is dropped

  std::uint64_t pulls_ = 0;
  std::uint64_t ends_ = 0;
  std::optional<std::uint64_t> finishing_;  // pull of a finish that has not completed
  bool exact_ = false;                      // true if the last pull is exact
  std::size_t answers_;                     // number of servers that have answered the last pull
  std::vector<bool> has_answered_;          // answer of each server
  std::vector<bool> gathered_;              // tensors whose parts at servers of this node are copied to the pull buffer
  bool has_pull_buffer_pages_ = false;
  Transfers answers_under_way_;  // transfers by server, then by range; null: none expected
  std::uint64_t reports_asked_ = 0;
  std::uint64_t reports_come_ = 0;
  std::vector<double> report_;  // last report
  std::mutex reporting_;
  std::mutex taking_;
};

}  // namespace gradientflow::engine
