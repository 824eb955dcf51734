// One worker of a parameter server: pushes gradients as they become ready, and pulls weights.
//
// A push goes into one of two slots, in the dtype in which it travels. Servers of this node read it there; to others a
// range is sent as soon as all of it and all ranges before it are there. A slot is free again when its messages have
// been sent and the servers of the node have applied it: until then a worker that pushes on waits.
//
// For any thread.
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

  // `attend`: called several times a second by a thread that waits; it may throw.
  ServerWorker(Server::Shared& shared, double timeout, std::function<void()> attend);

  // The server of this rank, whom it helps while it waits. To be called before anything else.
  void help(Server* server) { server_ = server; }

  // Where gradient `tensor` of the push that begins or has begun can be written to, in the dtype of the wire: until
  // that push. Waits, as `ready` does. Push after push it is one of two addresses, in turn.
  [[nodiscard]] std::byte* gradient(std::size_t tensor, Seconds timeout);

  // Gradient `tensor` of the push that begins or has begun, to be copied unless it lies where `gradient` says. Throws
  // Error(value) where there is no such tensor, it is ready already, or it lies in the place of another one.
  void ready(std::size_t tensor, const void* gradient, DType dtype, std::size_t* nonfinite = nullptr);

  // Ends the push; what is not ready is zeros. Pushes of several threads take turns. `gradients`: of all tensors, in
  // place of `ready`; none is ready where anything given is refused. `settings`: of each tensor, or one for all.
  // `with_pull`: as `pull`, asked for along with the push. So its weights are those of the moment at which this worker
  // may go on, and nobody's later pushes are in them. `nonfinite`: the tensor for which the push is to be skipped, or
  // -1; others of the round are told.
  struct Pushed {
    std::uint64_t push;
    std::uint64_t pull;  // 0: without
  };
  enum class WithPull { no, rounded, exact };
  struct Gradient {
    const void* data;
    DType dtype;
  };
  Pushed push(std::span<const ServerSettings> settings, float loss_scale, Skip skip, WithPull with_pull = WithPull::no,
              std::span<const Gradient> gradients = {}, std::int64_t nonfinite = -1);

  // Waits until the policy lets this worker go on after a push. Returns whether its round was skipped, and why. Throws
  // Error(value) for one that is older than the last `most_skipped` which were: whether it was is not known any more.
  static constexpr std::size_t most_skipped = 1024;
  SkippedPush wait_for_push(std::uint64_t push, Seconds timeout);
  [[nodiscard]] bool may_go_on(std::uint64_t push);

  // Asks for the weights that include all pushes so far; `exact`: in float32 whatever the wire. It ends the pull
  // before it. Returns its number. Throws Error(value) while the last one is under way.
  std::uint64_t pull(bool exact);
  void wait_for_pull(std::uint64_t pull, Seconds timeout);
  [[nodiscard]] bool has_come(std::uint64_t pull);

  // Copies a tensor of a pull, as its ranges come. Throws Error(value) where another one has been begun meanwhile.
  void take(std::uint64_t pull, std::size_t tensor, float* weights, Seconds timeout);

  // Where a tensor of a pull lies, once all of the pull has come, and in which dtype: in the version of a server of
  // this node that holds all of it, else in this worker's place. It stays as it is until the next pull, or until this
  // is closed. Throws as `take`.
  struct Weights {
    const std::byte* data;  // nullptr where the tensor is empty
    DType dtype;
  };
  [[nodiscard]] Weights weights(std::uint64_t pull, std::size_t tensor, Seconds timeout);

  // This worker pushes no more until all have said so, and everything is applied: then weights are pulled, exactly.
  std::uint64_t finish(Seconds timeout);

  // Arrays of the servers (see ServerShard), tensor by tensor.
  void load(std::size_t array, std::span<const float* const> tensors);
  void save(std::size_t array, std::span<float* const> tensors, Seconds timeout);

  // What server 0 knows: see Server::report and ServerLog.
  enum class Report : std::uint64_t { statistics, trace };
  [[nodiscard]] std::vector<double> report(Report what, Seconds timeout);

  [[nodiscard]] std::size_t ready_count() const;
  [[nodiscard]] std::uint64_t pushes() const;
  [[nodiscard]] std::optional<Error> failure() const;  // after which it can do nothing any more

  void close(bool orderly);  // tells the servers

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;
  using Letters = std::vector<std::shared_ptr<transport::Letter>>;

  // What does not fit into the caches is not read again while it is there.
  [[nodiscard]] static compute::Store store_for(std::size_t bytes) {
    return bytes >= 4 * mib ? compute::Store::streaming : compute::Store::cached;
  }
  [[nodiscard]] static bool have_ended(const Letters& letters) {
    return std::all_of(letters.begin(), letters.end(),
                       [](const auto& letter) { return letter == nullptr || letter->ended(); });
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
  [[nodiscard]] Error naming_the_missing(const Error& error);
  template <class Work>
  auto or_naming_the_missing(Work work) -> decltype(work()) {
    try {
      return work();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::timeout) {
        throw;
      }
      throw naming_the_missing(error);
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
  [[nodiscard]] const std::shared_ptr<transport::Letter>& letter_of(const TensorPart& part) const {
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
  std::function<void()> attend_;

  mutable std::mutex mutex_;
  std::optional<Error> failure_;
  int losses_ = 0;
  bool closed_ = false;

  std::mutex pushing_;             // locked before mutex_
  std::uint64_t pushes_ = 0;       // that have ended
  ReadyTensors ready_;             // of the one that has begun
  std::vector<std::size_t> left_;  // by range: elements that are not there
  std::size_t sent_ = 0;           // ranges
  int copying_ = 0;                // threads
  std::condition_variable copied_;
  Letters sends_[2];                      // by slot
  std::vector<ServerSettings> settings_;  // the last ones
  std::uint64_t released_ = 0;
  std::uint64_t round_ = 0;
  std::map<std::uint64_t, SkippedPush> skipped_;  // the last ones
  std::uint64_t forgotten_ = 0;                   // the last push of which it is not known any more

  std::uint64_t pulls_ = 0;
  std::uint64_t ends_ = 0;
  std::optional<std::uint64_t> finishing_;  // the pull of a finish that has not come yet
  bool exact_ = false;                      // the last pull
  std::size_t answers_;                     // to it, of servers
  std::vector<bool> has_answered_;          // by server
  std::vector<bool> gathered_;              // by tensor: what it has in this node has been brought to the place
  bool has_place_ = false;
  Letters answers_under_way_;  // by server, then by range; nothing where none has to come
  std::uint64_t reports_asked_ = 0;
  std::uint64_t reports_come_ = 0;
  std::vector<double> report_;  // the last one
  std::mutex reporting_;
  std::mutex taking_;
};

}  // namespace gradientflow::engine
