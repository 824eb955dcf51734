#include "signature.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace gradientflow::transport {
namespace {

constexpr std::array<std::string_view, algorithm_count> algorithms = {
    "auto", "ring", "hierarchical", "hierarchical_lanes", "recursive_doubling", "shared", "mpi", "nccl"};

constexpr std::array<std::string_view, made_for_count> made = {"", "gradient pool", "sparse gradient pool",
                                                               "top-k gradient pool", "parameter server"};

template <class Choice, std::size_t size>
Choice from_name(const std::array<std::string_view, size>& names, std::string_view name, const char* what) {
  std::string known;
  for (std::size_t i = 0; i < size; ++i) {
    if (names.at(i) == name) {
      return static_cast<Choice>(i);
    }
    known += (i == 0 ? "" : ", ") + std::string(names.at(i));
  }
  throw Error(ErrorKind::value, "unknown " + std::string(what) + " '" + std::string(name) + "'; choose from " + known);
}

}  // namespace

std::string_view name_of(CallKind kind) { return traits_of(kind).name; }
std::string_view name_of(Algorithm algorithm) { return algorithms.at(static_cast<std::size_t>(algorithm)); }

CallKind kind_from_name(std::string_view name) {
  std::array<std::string_view, call_kind_count> names;
  std::transform(call_kinds.begin(), call_kinds.end(), names.begin(), [](const KindTraits& kind) { return kind.name; });
  return from_name<CallKind>(names, name, "kind of call");
}
Algorithm algorithm_from_name(std::string_view name) { return from_name<Algorithm>(algorithms, name, "algorithm"); }

std::string describe(const Signature& signature, std::string_view label) {
  if (signature.allocates) {
    return "allocate of " + std::to_string(signature.count) + " bytes" +
           (signature.memory == Memory::device ? " on CUDA devices" : "");
  }
  if (signature.splits) {
    return signature.detail == 0 ? "split" : "making a " + std::string(made.at(signature.detail));
  }
  std::string text(name_of(signature.kind));
  if (signature.kind == CallKind::barrier) {
    return signature.detail == 0 ? text : "averaging a gradient pool";
  }
  text += " of " + std::string(label) + (label.empty() ? "" : ", ") + std::to_string(signature.count) + " " +
          std::string(name_of(signature.dtype));
  if (traits_of(signature.kind).has_op) {
    text += ", op " + std::string(name_of(signature.op));
  }
  if (traits_of(signature.kind).has_root) {
    text += ", root " + std::to_string(signature.root);
  }
  if (signature.algorithm != Algorithm::automatic) {
    text += ", algorithm " + std::string(name_of(signature.algorithm));
  }
  if (signature.kind == CallKind::allgatherv && !signature.labeled) {
    text += ", counts of hash " + std::to_string(signature.detail);
  }
  const bool is_of_pool = signature.kind == CallKind::allreduce && signature.detail != 0 && !signature.labeled;
  if (is_of_pool && signature.detail == norms_detail) {
    text += ", norms of a sparse gradient pool";
  } else if (is_of_pool) {
    text += ", range " + std::to_string(signature.detail - pool_detail(0)) + " of a gradient pool";
  }
  if (signature.kind == CallKind::allgather && signature.detail != 0 && !signature.labeled) {
    text += ", entries of a top-k gradient pool";
  }
  if (signature.wire) {
    text += ", wire " + std::string(traits_of(*signature.wire).name);
  }
  if (signature.memory == Memory::device) {
    text += ", on CUDA devices";
  }
  return text;
}

const char* closing_of(const Signature& signature) {
  const bool can_be =
      !signature.splits && (signature.kind == CallKind::allreduce || signature.kind == CallKind::barrier ||
                            signature.kind == CallKind::allgather);
  const bool is_of_pool = can_be && signature.detail != 0 && !signature.labeled;
  return is_of_pool ? "has closed its gradient pool (or its optimizer or communicator)" : "has closed its communicator";
}

std::string name_ranks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

Error difference_error(std::string_view what, std::span<const std::string> of_each, std::span<const int> ranks) {
  std::string text = "the ranks made different " + std::string(what) + ":";
  std::vector<bool> told(ranks.size(), false);
  for (std::size_t first = 0; first < ranks.size(); ++first) {
    if (told[first]) {
      continue;
    }
    std::vector<int> alike;
    for (std::size_t other = first; other < ranks.size(); ++other) {
      if (of_each[other] == of_each[first]) {
        told[other] = true;
        alike.push_back(ranks[other]);
      }
    }
    text += (first == 0 ? " " : "; ") + name_ranks(alike) + ": " + of_each[first];
  }
  return {ErrorKind::mismatch, text};
}

CallReport::CallReport(const Signature& of_call, std::string_view its_label) : signature(of_call) {
  its_label.copy(label.data(), longest_label);
}

Error mismatch_error(std::span<const CallReport> reports, std::span<const int> ranks) {
  std::vector<std::string> texts;
  for (const CallReport& each : reports) {
    texts.push_back(describe(each.signature, each.label.data()));
  }
  return difference_error("calls", texts, ranks);
}

}  // namespace gradientflow::transport
