// The ranks of a communicator as the collectives see them, and the way from a call to the algorithm that serves it.
#pragma once

#include <memory>
#include <string>

#include "../base/config.hpp"
#include "../transport/mpi.hpp"
#include "../transport/node.hpp"
#include "../transport/topology.hpp"
#include "call.hpp"
#include "selector.hpp"

namespace gradientflow::collective {

class Group {
 public:
  // Finds the nodes, shares memory inside them, and checks that all ranks have the same configuration. Collective.
  Group(MPI_Comm comm, const Config& config);

  // Serves one call; returns which way it went. Not thread-safe: one call at a time, in the same order on all ranks.
  // A failed call leaves the tensors undefined if it throws anything but Error(mismatch), Error(value), Error(type).
  Path run(const Call& call);

  // Which way a call of this kind would go.
  [[nodiscard]] Path path_of(const transport::Signature& signature, bool in_node_memory) const;

  std::shared_ptr<transport::Segment> allocate(std::size_t bytes);

  // Whether MPI may still write to tensors of a call that was given up.
  [[nodiscard]] bool stuck() const { return mpi_.stuck(); }

  // Makes a call that waits, in another thread, throw Error(closed).
  void interrupt() noexcept;

  [[nodiscard]] const transport::Topology& topology() const { return topology_; }
  [[nodiscard]] transport::MpiCommunicator& mpi() { return mpi_; }
  [[nodiscard]] transport::Node& node() { return *node_; }
  [[nodiscard]] const transport::Node& node() const { return *node_; }
  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] const std::string& direct_read_remark() const { return direct_read_remark_; }

 private:
  void check_configuration() const;
  void probe_direct_reads();
  [[nodiscard]] bool in_node_memory(const transport::Signature& signature) const;
  void run_over_mpi(const Call& call);
  static void run_alone(const Call& call);
  void run_inline(const Call& call);
  Path run_in_node(const Call& call);

  Config config_;
  transport::MpiCommunicator mpi_;
  transport::Topology topology_;
  std::unique_ptr<transport::Node> node_;
  bool direct_read_allowed_ = false;
  std::string direct_read_remark_;
};

}  // namespace gradientflow::collective
