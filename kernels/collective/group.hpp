// Collectives of the ranks of a communicator: selects the algorithm of a call, and runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../base/config.hpp"
#include "../transport/endpoint.hpp"
#include "../transport/messages/messages.hpp"
#include "../transport/node/node.hpp"
#include "../transport/topology.hpp"
#include "between/agreement.hpp"
#include "between/lane.hpp"
#include "between/pairwise_allreduce.hpp"
#include "call/call.hpp"
#include "select/selector.hpp"

namespace gradientflow::collective {

// Facts about a served call.
struct CallResult {
  std::string_view path;                    // name of its path
  std::optional<std::size_t> nonfinite;     // nonfinite elements, if rounded for the wire
  std::optional<std::uint64_t> bytes_sent;  // bytes in messages; unknown if the MPI library sends them
  bool idle = false;                        // true if every rank announced that it adds only zeros
};

// Buffers of calls.
struct Workspace {
  Scratch scratch;
  std::shared_ptr<transport::Segment> stretches;  // staging for ordinary arrays between nodes, made on first use
};

class Group {
 public:
  // Finds the nodes, shares memory inside them, and checks that all ranks have the same configuration. Collective.
  Group(std::unique_ptr<transport::Endpoint> endpoint, const Config& config);

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();

  // Serves one call. Not thread-safe: one call at a time, in the same order on all ranks. A failed call leaves the
  // tensors undefined, unless it throws Error(mismatch), Error(value) or Error(type).
  CallResult run(const Call& call);

  // Serve a small call inside a node in two parts. Once begin() has announced the call, peers do not need this rank any
  // more. begin() does not wait; the next call follows finish().
  [[nodiscard]] static bool can_begin(const Call& call);
  void begin(const Call& call);
  CallResult finish(const Call& call, const std::function<void()>& before_more = {});  // see Node::confirm
  [[nodiscard]] bool is_confirmed() const { return node_->is_confirmed(); }  // true if finish() would not wait
  [[nodiscard]] bool is_confirmed_soon() const { return node_->is_confirmed_soon(); }  // the same after some polls
  // Tells if a call that begin() has begun can be slow only by the wait in finish().
  [[nodiscard]] static bool is_short(const Call& call);

  // Return the selector's input for a call of this kind, and its choice.
  [[nodiscard]] Situation situation(const transport::Signature& signature, bool in_node_memory) const;
  [[nodiscard]] Choice choose(const transport::Signature& signature, bool in_node_memory) const {
    return select(situation(signature, in_node_memory), config_);
  }

  // Checks that all ranks make the same call, whose data other code moves. Throws Error(mismatch), on every rank, if
  // calls differ. Tells if all ranks are idle.
  bool agree_on(const Call& call);

  std::shared_ptr<transport::Segment> allocate(std::size_t bytes, transport::Pages pages = transport::Pages::now,
                                               const std::function<void()>& attend = {});

  // Offset of this rank's clock.
  struct Clock {
    std::uint64_t run;  // random number, the same on all ranks
    double offset;      // seconds from this rank's steady clock to rank 0's
  };
  // Collective.
  Clock compare_clocks();

  // Returns an endpoint of the ranks with the same `color` of 0 or more, ordered by `key`; nullptr for a negative
  // color. Collective.
  std::unique_ptr<transport::Endpoint> split(int color, int key);

  // Tells if the endpoint may still write to the tensors of an abandoned call.
  [[nodiscard]] bool has_abandoned_requests() const { return endpoint_->has_abandoned_requests(); }

  // Ends a call that waits in another thread: that call throws Error(closed).
  void interrupt() noexcept;

  // Tell all ranks not to wait for this rank any more.
  void close() noexcept;
  void fail(const Error& reason) noexcept;

  // Releases memory and descriptors that only calls need, after close(), once no call is under way.
  void release() noexcept;

  [[nodiscard]] const transport::Topology& topology() const { return topology_; }
  [[nodiscard]] transport::Endpoint& endpoint() { return *endpoint_; }
  [[nodiscard]] const transport::Endpoint& endpoint() const { return *endpoint_; }
  [[nodiscard]] transport::Messages& messages() { return *messages_; }
  [[nodiscard]] const transport::Messages& messages() const { return *messages_; }
  [[nodiscard]] transport::Node& node() { return *node_; }
  [[nodiscard]] const transport::Node& node() const { return *node_; }
  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] const std::string& direct_read_remark() const { return direct_read_remark_; }

 private:
  Path serve(const Call& call, CallResult& outcome);
  void check_configuration() const;
  void probe_direct_reads();
  void report(const Call& call, const Choice& choice) const;
  [[nodiscard]] bool in_node_memory(const transport::Signature& signature) const;
  static void run_alone(const Call& call);
  void announce_inline(const Call& call);
  void finish_inline(const Call& call, const std::function<void()>& before_more = {});
  Choice run_in_node(const Call& call, Choice choice);
  std::optional<std::size_t> run_over_messages(const Call& call, const Choice& choice);

  // Data that travel with the agreement: none, the tensor to reduce, a block to gather, or parts of the tensor, a
  // different part to each rank.
  enum class Payload { nothing, tensor, block, parts };

  // Announces the call to all ranks. Throws Error(mismatch), on all ranks, if calls differ. Tells if, on every node,
  // the tensors lie in memory that the node's ranks share.
  bool announce(const Call& call, Payload payload, PairwiseAllreduce* exchange = nullptr);
  Statement agree(const Call& call, bool same, Payload payload, PairwiseAllreduce* exchange);
  void conclude_payload(const Call& call, std::span<std::byte> payload, std::span<const void* const> sources);
  std::optional<std::size_t> allreduce_over_messages(const Call& call, const Choice& choice);
  void pairwise_over_messages(const Call& call, const Lane& everybody, Operands& operands);
  [[nodiscard]] PartialReduction partial_reduction_of(const transport::Signature& signature) const;
  [[nodiscard]] std::span<std::byte> payload_of(const Call& call);
  void gather_by_agreement(const Call& call);
  [[noreturn]] void raise_mismatch(const Call& call);
  std::size_t run_hierarchical(const Call& call, const Choice& choice, bool mapped);
  [[nodiscard]] Segments segments() const;

  Config config_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  transport::Topology topology_;
  std::unique_ptr<transport::Node> node_;
  std::unique_ptr<transport::Messages> messages_;
  std::unique_ptr<Agreement> agreement_;
  std::vector<int> all_ranks_;
  int smallest_node_ = 1;
  int largest_node_ = 1;
  bool direct_read_allowed_ = false;
  bool all_idle_ = false;  // all ranks are idle in the announced call
  std::string direct_read_remark_;
  std::unique_ptr<Workspace> work_ = std::make_unique<Workspace>();
};

}  // namespace gradientflow::collective
