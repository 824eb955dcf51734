// The pure functions behind the collectives: index arithmetic, the choice of a path, the grouping of ranks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <gradientflow/base/config.hpp>
#include <gradientflow/base/dtype.hpp>
#include <gradientflow/collective/between/recursive_doubling.hpp>
#include <gradientflow/collective/between/tree.hpp>
#include <gradientflow/collective/call/call_pieces.hpp>
#include <gradientflow/collective/call/partition.hpp>
#include <gradientflow/collective/select/device_selector.hpp>
#include <gradientflow/collective/select/selector.hpp>
#include <gradientflow/transport/topology.hpp>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "native.hpp"

namespace gradientflow::native {
namespace {

namespace py = pybind11;
using Bounds = std::pair<std::size_t, std::size_t>;

Bounds bounds(const collective::Range& range) { return {range.begin, range.end}; }

Bounds block(std::size_t count, std::size_t parts, std::size_t index) {
  return bounds(collective::block(count, parts, index));
}

Bounds slice(std::size_t count, std::size_t parts, std::size_t index, std::size_t grain) {
  return bounds(collective::slice(count, parts, index, grain));
}

Bounds piece(const Bounds& range, std::size_t length, std::size_t index) {
  return bounds(collective::piece({range.first, range.second}, length, index));
}

// With the default settings and `overrides`, whatever the environment says.
py::tuple select(const std::string& kind, const std::string& algorithm, std::size_t bytes,
                 const std::vector<int>& node_sizes, bool in_node_memory, bool direct_read_allowed, bool wire,
                 bool over_tcp, const std::map<std::string, std::string>& overrides) {
  Config config;
  for (const auto& [name, text] : overrides) {
    set_field(config, name, text);
  }
  const auto [smallest, largest] = std::minmax_element(node_sizes.begin(), node_sizes.end());
  const collective::Choice choice =
      collective::select({.kind = transport::kind_from_name(kind),
                          .algorithm = transport::algorithm_from_name(algorithm),
                          .bytes = bytes,
                          .wire = wire,
                          .ranks = std::accumulate(node_sizes.begin(), node_sizes.end(), 0),
                          .nodes = static_cast<int>(node_sizes.size()),
                          .smallest_node = *smallest,
                          .largest_node = *largest,
                          .in_node_memory = in_node_memory,
                          .direct_read_allowed = direct_read_allowed,
                          .transport = over_tcp ? transport::tcp_transport : transport::mpi_transport,
                          .has_mpi_communicator = !over_tcp},
                         config);
  return py::make_tuple(collective::name_of(choice.path), collective::name_of(choice.between));
}

// The same for tensors on devices.
std::string select_on_device(const std::string& kind, const std::string& algorithm, std::size_t bytes,
                             const std::vector<int>& node_sizes, bool in_device_memory, bool shares_device,
                             const std::string& no_nccl, const std::string& no_peers) {
  const auto [smallest, largest] = std::minmax_element(node_sizes.begin(), node_sizes.end());
  const collective::Situation call{.kind = transport::kind_from_name(kind),
                                   .algorithm = transport::algorithm_from_name(algorithm),
                                   .bytes = bytes,
                                   .wire = false,
                                   .ranks = std::accumulate(node_sizes.begin(), node_sizes.end(), 0),
                                   .nodes = static_cast<int>(node_sizes.size()),
                                   .smallest_node = *smallest,
                                   .largest_node = *largest,
                                   .in_node_memory = in_device_memory,
                                   .direct_read_allowed = false};
  return std::string(
      name_of(collective::select_on_device(
                  {.call = call, .shares_device = shares_device, .no_nccl = no_nccl, .no_peers = no_peers}, Config())
                  .path));
}

std::pair<std::optional<std::size_t>, std::vector<std::size_t>> branch(const std::string& shape, std::size_t ranks,
                                                                       std::size_t place) {
  const auto found =
      collective::branch_of(shape == "chain" ? collective::Shape::chain : collective::Shape::binomial, ranks, place);
  return {found.parent, found.children};
}

std::vector<std::tuple<std::size_t, bool, bool>> doubling_rounds(std::size_t size, std::size_t index) {
  std::vector<std::tuple<std::size_t, bool, bool>> rounds;
  for (const auto& round : collective::doubling_rounds(size, index)) {
    rounds.emplace_back(round.peer, round.sends, round.receives);
  }
  return rounds;
}

std::vector<std::tuple<std::size_t, std::size_t, std::size_t>> fields_of(const std::vector<collective::Move>& moves) {
  std::vector<std::tuple<std::size_t, std::size_t, std::size_t>> fields;
  for (const collective::Move& move : moves) {
    fields.emplace_back(move.tensor, move.buffer, move.bytes);
  }
  return fields;
}

py::list call_pieces(const std::string& kind, const std::string& dtype, std::size_t count, int ranks, int rank,
                     std::size_t capacity, int root, const std::vector<std::size_t>& counts) {
  const collective::Call call{.signature = {.count = count,
                                            .root = root,
                                            .kind = transport::kind_from_name(kind),
                                            .dtype = dtype_from_name(dtype)},
                              .counts = counts};
  const collective::CallPieces pieces(call, ranks, rank, capacity);
  py::list found;
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    const collective::CallPiece piece = pieces.at(index);
    found.append(
        py::make_tuple(piece.call.signature.count, piece.call.counts, fields_of(piece.in), fields_of(piece.out)));
  }
  return found;
}

std::vector<std::vector<int>> group_ranks(const std::vector<std::size_t>& host_keys, int node_size) {
  return transport::group_ranks(host_keys, 0, node_size).members;
}

void bind_collective(py::module_& functions) {
  functions.def("block", &block, py::arg("count"), py::arg("parts"), py::arg("index"));
  functions.def("slice", &slice, py::arg("count"), py::arg("parts"), py::arg("index"), py::arg("grain"));
  functions.def("piece", &piece, py::arg("range"), py::arg("length"), py::arg("index"));
  functions.def("pieces", &collective::pieces, py::arg("count"), py::arg("length"));
  functions.def("select", &select, py::arg("kind"), py::arg("algorithm"), py::arg("bytes"), py::arg("node_sizes"),
                py::arg("in_node_memory"), py::arg("direct_read_allowed"), py::arg("wire") = false,
                py::arg("over_tcp") = false, py::arg("overrides") = std::map<std::string, std::string>(),
                "The path and what goes on between nodes, for nodes of so many ranks.");
  functions.def("select_on_device", &select_on_device, py::arg("kind"), py::arg("algorithm"), py::arg("bytes"),
                py::arg("node_sizes"), py::arg("in_device_memory"), py::arg("shares_device"), py::arg("no_nccl"),
                py::arg("no_peers"), "The path of tensors on devices; `no_nccl` and `no_peers` are reasons, or empty.");
  functions.def("branch", &branch, py::arg("shape"), py::arg("ranks"), py::arg("place"),
                "Parent (or None) and children of a place in a tree.");
  functions.def("doubling_rounds", &doubling_rounds, py::arg("size"), py::arg("index"),
                "(peer, sends, receives) of every round.");
  functions.def("call_pieces", &call_pieces, py::arg("kind"), py::arg("dtype"), py::arg("count"), py::arg("ranks"),
                py::arg("rank"), py::arg("capacity"), py::arg("root") = 0,
                py::arg("counts") = std::vector<std::size_t>(),
                "(count, counts, moves in, moves out) of every piece; a move is (tensor, buffer, bytes).");
  functions.def("group_ranks", &group_ranks, py::arg("host_keys"), py::arg("node_size"),
                "The ranks of each node, for one host key a rank.");
}

}  // namespace
}  // namespace gradientflow::native

PYBIND11_MODULE(collective, module) {
  gradientflow::native::translate_errors();
  gradientflow::native::bind_collective(module);
}
