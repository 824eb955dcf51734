// Server of a parameter server: receives pushes of the workers, applies them in the rounds that the policy decides, and
// answers pulls. It runs in its own thread, and in threads of the same rank's worker while they wait.
//
// Only server 0 asks the policy. The answers become a list of decisions, which all servers carry out in the same order.
// A server carries out a decision as soon as its pushes have arrived, so all servers agree, whatever the timing.
//
// A worker's pushes are taken in order. The server has memory for one push of each worker of another node, and receives
// the next push after applying the current one. Until then the next push stays in either of the worker's two slots;
// when both slots are full, the worker waits. So no worker can fill the server's memory.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../policy/policy.hpp"
#include "../../transport/messages/mailbox.hpp"
#include "notes.hpp"
#include "server_log.hpp"
#include "server_memory.hpp"
#include "server_shard.hpp"

namespace gradientflow::engine {

class Server {
 public:
  using MakePolicy = std::function<std::shared_ptr<policy::Policy>()>;

  // State that the server and the worker of a rank share.
  struct Shared {
    Shared(std::shared_ptr<transport::Mailbox> its_mailbox, const ServerTags& its_tags, ServerLayout its_layout,
           ServerRoles its_roles, DType its_wire, ServerOptimizer its_optimizer, std::vector<std::string> its_names,
           ServerMemory its_memory)
        : mailbox(std::move(its_mailbox)),
          tags(its_tags),
          layout(std::move(its_layout)),
          roles(std::move(its_roles)),
          wire(its_wire),
          optimizer(std::move(its_optimizer)),
          names(std::move(its_names)),
          memory(std::move(its_memory)) {}
    std::shared_ptr<transport::Mailbox> mailbox;
    ServerTags tags;
    ServerLayout layout;
    ServerRoles roles;
    [[nodiscard]] std::string name_of_tensor(std::size_t tensor) const {
      return names.empty() ? "tensor " + std::to_string(tensor) : "'" + names[tensor] + "'";
    }
    DType wire;
    ServerOptimizer optimizer;
    std::vector<std::string> names;
    ServerMemory memory;
  };

  // `threads`: number of threads that share an update. `make_policy`: called by server 0, first in this constructor and
  // again whenever all workers have departed; the policies answer as policy::Checked demands.
  Server(Shared& shared, std::size_t number, std::size_t threads, MakePolicy make_policy);

  // Serves until all workers have closed, or `stop` is called. `poll_signals` is called several times a second, and may
  // throw. After an error, tells the workers and throws the error.
  void run(const std::function<void()>& poll_signals = {});
  void stop() noexcept { stops_ = true; }  // thread-safe, as all functions below

  // Keeps copies of the last `rounds` rounds from now on; call it before any push. See server_copies.cpp. With 0, keeps
  // only the state at this server's end; the server that keeps its copies also has the last copy.
  void make_recoverable(std::size_t rounds);

  // Return, after the server's end, the copied servers with the first and the last round of their copies; and an array
  // of a copy, tensor by tensor.
  struct Holding {
    std::size_t server;
    std::uint64_t first;
    std::uint64_t last;
  };
  [[nodiscard]] std::vector<Holding> holdings();
  void read_copy(std::size_t server, std::uint64_t round, std::size_t array, std::span<float* const> tensors) const;

  // Returns the error that ended `run`, if any.
  [[nodiscard]] std::optional<Error> failure() const;

  // Serves in the thread of a waiting worker of this rank, which saves a thread switch: the server's own thread stays
  // asleep. Called repeatedly, from any thread, while a Helper exists; an error here ends `run`.
  void help() noexcept;
  class Helper {
   public:
    explicit Helper(Server* server) : server_(server) { add(1); }
    Helper(const Helper&) = delete;
    Helper& operator=(const Helper&) = delete;
    ~Helper() { add(-1); }

   private:
    void add(int number) {
      if (server_ != nullptr) {
        server_->helpers_ += number;
      }
    }
    Server* server_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds between_looks{50};
  using Settings = std::shared_ptr<const std::vector<ServerSettings>>;

  struct Push {
    Skip skip;
    std::int64_t tensor;
    float scale;
    Settings settings;
    Presence has;
  };
  struct Worker {
    std::deque<ReceivedNote> notes;    // received, not yet processed, in order
    std::deque<Push> pushes;           // complete, not yet applied
    std::uint64_t applied = 0;         // number of applied pushes
    std::uint64_t released = 0;        // number of the last push after which the worker may continue
    std::vector<SkippedPush> skipped;  // skipped pushes since the last release
    Settings settings = std::make_shared<const std::vector<ServerSettings>>();  // last received settings
    std::shared_ptr<std::byte[]> received;                                      // push from another node
    std::vector<std::shared_ptr<transport::Transfer>> parts;                    // pieces of that push, being received
    std::vector<ReceivedNote> pulls;                                            // not yet answered
    bool has_weights = false;  // worker of another node: true if its next due pull was already answered
    bool departed = false;
    bool closed = false;
  };
  struct Decision {
    enum class Kind : std::int32_t { round, release, end } kind;
    std::vector<int> workers;
  };

  [[nodiscard]] bool leads() const { return number_ == 0; }
  [[nodiscard]] int rank() const { return shared_.mailbox->rank(); }
  [[nodiscard]] Worker& worker(int number) { return workers_[static_cast<std::size_t>(number)]; }
  [[nodiscard]] bool is_here(int number) const { return shared_.memory.is_here(number); }
  void serve(const std::function<void()>& poll_signals);
  bool step(bool helps);
  [[nodiscard]] bool may_be_helped() const { return policy_ == nullptr || policy_->is_for_any_thread(); }
  [[nodiscard]] bool is_end_due() const {
    return !decisions_.empty() && decisions_.front().kind == Decision::Kind::end;
  }
  bool take_notes();
  void take(ReceivedNote received);
  void load(const ReceivedNote& received);
  void expect_push(int number);
  [[nodiscard]] bool is_whole(const Worker& of) const;
  bool process_notes(int number);
  void process_push(int number, const ReceivedNote& received);
  void ask_policy(int number, bool departed);
  void decide(std::vector<Decision> decisions);
  [[nodiscard]] bool can_do(const Decision& decision);
  void carry_out(const Decision& decision);
  struct Round {
    std::vector<Contribution> contributions;
    Skip skip = Skip::no;
    int skipping = -1;  // worker whose push causes the skip
    float scale = 1.0F;
    Settings settings;
    Presence has;  // tensors in any of its pushes
  };
  [[nodiscard]] Round gather(const std::vector<int>& workers);
  void apply_round(const std::vector<int>& workers);
  [[nodiscard]] bool has_norms(const Round& round);
  [[nodiscard]] std::vector<std::optional<float>> rates_of(const Round& round);
  void check_settings(const std::vector<int>& round);
  void release(int number);
  void report(int number, std::uint64_t what);
  void end_epoch();
  void answer_pulls(int number);
  [[nodiscard]] bool answer_due(int number);
  void tell_answer(int number);
  [[nodiscard]] bool is_due(const ReceivedNote& pull, std::uint64_t released) const;
  void answer(int number, const ReceivedNote& pull);
  [[nodiscard]] std::vector<ReceivedNote> pulls_after_round();
  struct Copy {
    std::shared_ptr<std::byte[]> values;
    std::size_t ranges = 0;     // number of first ranges copied
    std::uint64_t changes = 0;  // value of changes_ when it was made
  };
  void send_weights(int number, bool exact, std::size_t range);
  void send_array(int number, std::size_t array);
  void keep_copy(bool is_loaded);
  void keep(std::size_t server, ShardCopy copy);
  void confirm();
  [[nodiscard]] const ShardCopy* copy_of(std::size_t server, std::uint64_t round) const;
  void expect_copy(const ReceivedNote& received);
  [[nodiscard]] bool has_copy_arrived() const;
  bool take_copies();
  void check_closed_workers() const;
  [[nodiscard]] static bool has_closing_note(const Worker& of);
  void check_losses();
  void fail(const Error& error) noexcept;

  Shared& shared_;
  std::size_t number_;
  MakePolicy make_policy_;
  std::shared_ptr<policy::Policy> policy_;
  ServerShard shard_;
  std::vector<Worker> workers_;
  std::deque<Decision> decisions_;
  std::uint64_t rounds_ = 0;
  std::map<std::uint64_t, std::map<std::size_t, std::vector<double>>> norms_;  // norms by round, then by server
  std::array<Copy, 2> copies_;  // weights in the wire's dtype and in float32, for workers of other nodes
  std::uint64_t changes_ = 0;   // number of changes of the weights
  std::uint64_t ends_ = 0;
  ServerLog log_;
  bool has_weights_ = false;
  struct Recovery {
    bool is_on = false;
    std::size_t rounds = 0;
  } recovery_;
  struct Unconfirmed {  // copy of this shard that may not be safe yet
    bool is_loaded;
    std::vector<std::uint64_t> applied;  // pushes applied for each worker
  };
  struct Arriving {  // copy of another server's shard
    std::size_t server;
    ShardCopy copy;
    std::shared_ptr<transport::Transfer> transfer;
  };
  std::map<std::size_t, std::deque<ShardCopy>> copies_of_;  // copies by server
  std::shared_ptr<std::vector<float>> spare_;               // memory for the next copy
  std::deque<Unconfirmed> unconfirmed_;
  int loads_under_way_ = 0;  // copies of loaded arrays; pulls wait until they are confirmed
  std::deque<Arriving> arriving_;
  int losses_ = 0;
  std::atomic<bool> stops_{false};
  std::atomic<int> helpers_{0};
  mutable std::mutex serving_;  // held by the serving thread
  bool serves_ = false;
  std::exception_ptr helper_error_;  // error of a helper
  mutable std::mutex failing_;
  std::optional<Error> failure_;
};

}  // namespace gradientflow::engine
