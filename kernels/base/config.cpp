#include "config.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>

#include "error.hpp"
#include "text.hpp"

namespace gradientflow {
namespace {

struct Accessor {
  ConfigField field;
  std::function<std::string(const Config&)> get;
  std::function<void(Config&, const std::string&)> set;
};

[[noreturn]] void refuse(std::string_view what, const std::string& text) {
  throw Error(ErrorKind::value, "'" + text + "' is not " + std::string(what));
}

double parse_positive(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value <= 0) {
    refuse("a positive number", text);
  }
  return value;
}

int parse_count(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    refuse("a whole number of 0 or more", text);
  }
  return value;
}

std::optional<bool> switch_of(const std::string& text) {
  for (const auto* const on : {"1", "on", "true", "yes"}) {
    if (text == on) {
      return true;
    }
  }
  for (const auto* const off : {"0", "off", "false", "no"}) {
    if (text == off) {
      return false;
    }
  }
  return std::nullopt;
}

bool parse_switch(const std::string& text) {
  if (const auto answer = switch_of(text)) {
    return *answer;
  }
  refuse("on or off", text);
}

std::string parse_choice(const std::string& text, std::initializer_list<const char*> choices) {
  std::string known;
  for (const auto* const choice : choices) {
    if (text == choice) {
      return text;
    }
    known += (known.empty() ? "" : ", ") + std::string(choice);
  }
  refuse("one of " + known, text);
}

std::string parse_simd(const std::string& text) { return parse_choice(text, {"auto", "baseline", "avx2", "avx512"}); }
std::string parse_progress(const std::string& text) { return parse_choice(text, {"auto", "thread", "caller"}); }

std::size_t parse_slot(const std::string& text) {
  const std::size_t value = parse_bytes(text);
  if (value < 4096 || value > (std::size_t{1} << 30)) {
    refuse("a size between 4KiB and 1GiB", text);
  }
  return value;
}

std::size_t parse_segment(const std::string& text) {
  const std::size_t value = parse_bytes(text);
  if (value < 1024 || value > (std::size_t{1} << 30) || value % 64 != 0) {
    refuse("a multiple of 64 bytes between 1KiB and 1GiB", text);
  }
  return value;
}

int parse_window(const std::string& text) {
  const int value = parse_count(text);
  if (value < 0 || value > 1024) {
    refuse("a number between 1 and 1024, or 0 for as many as suit the transport", text);
  }
  return value;
}

std::size_t parse_border(const std::string& text) {
  const std::size_t value = parse_bytes(text);
  if (value > (std::size_t{1} << 30)) {
    refuse("a size of at most 1GiB", text);
  }
  return value;
}

// Parses a file name. "off" and its synonyms mean no file; "on" and its synonyms are refused.
std::string parse_file(const std::string& text) {
  const std::optional<bool> answer = switch_of(text);
  if (text.empty() || text.back() == '/' || answer == true) {
    refuse("the name of a file, such as trace.json, or off", text);
  }
  return answer == false ? "" : text;
}

bool is_port(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

// Parses places of metrics, such as "run.jsonl,prometheus:9090". "off" and its synonyms mean no place.
std::string parse_metrics(const std::string& text) {
  if (switch_of(text) == false) {
    return "";
  }
  const std::string_view tensorboard = "tensorboard:";
  const std::string_view prometheus = "prometheus:";
  const std::string_view jsonl = ".jsonl";
  for (const std::string& name : split_list(text)) {
    const bool is_folder = name.starts_with(tensorboard) && name.size() > tensorboard.size();
    const bool is_server = name.starts_with(prometheus) && is_port(std::string_view(name).substr(name.rfind(':') + 1));
    const bool is_file = name.ends_with(jsonl) && !name.ends_with("/.jsonl") && name.size() > jsonl.size();
    if (!is_folder && !is_server && !is_file) {
      refuse(
          "the name of a file that ends in .jsonl, tensorboard:FOLDER, prometheus:PORT or prometheus:ADDRESS:PORT, "
          "several of these with commas, or off",
          text);
    }
  }
  return text;
}

// Parses the name of a folder, auto, or off and its synonyms.
std::string parse_folder(const std::string& text) {
  const std::optional<bool> answer = switch_of(text);
  if (text.empty() || answer == true) {
    refuse("the name of a folder, auto or off", text);
  }
  return answer == false ? "off" : text;
}

std::string parse_library(const std::string& text) {
  if (text.empty() || text.back() == '/') {
    refuse("the name of a file", text);
  }
  return text;
}

std::string parse_transport(const std::string& text) { return parse_choice(text, {"auto", "mpi", "tcp"}); }

std::string parse_congestion(const std::string& text) {
  constexpr std::size_t longest = 15;  // TCP_CA_NAME_MAX, less the terminating zero
  const auto is_plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  const bool has_letter = !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0;
  if (!has_letter || text.size() > longest || !std::all_of(text.begin(), text.end(), is_plain)) {
    refuse("the name of a congestion control, such as cubic, or auto", text);
  }
  return text;
}

std::string parse_interface(const std::string& text) {
  const bool has_space = std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) != 0; });
  for (const std::string& name : split_list(text.substr(text.starts_with('^') ? 1 : 0))) {
    if (has_space || name.empty() || name.front() == '^' || (name == "auto" && text != "auto")) {
      refuse(
          "the name of an interface, such as eth1, a network, such as 10.0.0.0/24, several of these with commas, "
          "after ^ those to leave out, or auto",
          text);
    }
  }
  return text;
}

std::size_t parse_inline(const std::string& text) {
  const std::size_t value = parse_bytes(text);
  if (value > 65536) {
    refuse("a size of at most 64KiB", text);
  }
  return value;
}

const std::vector<Accessor>& accessors() {
  static const std::vector<Accessor> table = {
      {{"timeout", "GRADIENTFLOW_TIMEOUT", "seconds", "Time that a rank waits for other ranks at one point of a call."},
       [](const Config& c) { return format_number(c.timeout); },
       [](Config& c, const std::string& t) { c.timeout = parse_positive(t); }},
      {{"node_size", "GRADIENTFLOW_NODE_SIZE", "ranks",
        "Number of ranks of a host that count as one node; 0 for all ranks of a host.", true},
       [](const Config& c) { return std::to_string(c.node_size); },
       [](Config& c, const std::string& t) { c.node_size = parse_count(t); }},
      {{"simd", "GRADIENTFLOW_SIMD", "choice",
        "Vector instructions of the kernels: auto, baseline, avx2 or avx512. Read once per process, from the "
        "environment only."},
       [](const Config& c) { return c.simd; },
       [](Config& c, const std::string& t) { c.simd = parse_simd(t); }},
      {{"direct_read", "GRADIENTFLOW_DIRECT_READ", "choice",
        "Direct reads of large ordinary arrays from other processes, where the system allows them: on or off.", true},
       [](const Config& c) -> std::string { return c.direct_read ? "on" : "off"; },
       [](Config& c, const std::string& t) { c.direct_read = parse_switch(t); }},
      {{"inline_bytes", "GRADIENTFLOW_INLINE_BYTES", "bytes",
        "Largest tensor that travels inside the announcement of a call.", true},
       [](const Config& c) { return std::to_string(c.inline_bytes); },
       [](Config& c, const std::string& t) { c.inline_bytes = parse_inline(t); }},
      {{"staging_bytes", "GRADIENTFLOW_STAGING_BYTES", "bytes",
        "Size of one staging slot for ordinary arrays; every rank has two.", true},
       [](const Config& c) { return std::to_string(c.staging_bytes); },
       [](Config& c, const std::string& t) { c.staging_bytes = parse_slot(t); }},
      {{"direct_read_bytes", "GRADIENTFLOW_DIRECT_READ_BYTES", "bytes",
        "Smallest ordinary array that is read directly instead of staged, except in allreduce and reduce.", true},
       [](const Config& c) { return std::to_string(c.direct_read_bytes); },
       [](Config& c, const std::string& t) { c.direct_read_bytes = parse_bytes(t); }},
      {{"streaming_bytes", "GRADIENTFLOW_STREAMING_BYTES", "bytes", "Smallest tensor that is written past the caches.",
        true},
       [](const Config& c) { return std::to_string(c.streaming_bytes); },
       [](Config& c, const std::string& t) { c.streaming_bytes = parse_bytes(t); }},
      {{"segment_bytes", "GRADIENTFLOW_SEGMENT_BYTES", "bytes",
        "Largest part of a tensor in one message between nodes.", true},
       [](const Config& c) { return std::to_string(c.segment_bytes); },
       [](Config& c, const std::string& t) { c.segment_bytes = parse_segment(t); }},
      {{"window", "GRADIENTFLOW_WINDOW", "count",
        "Number of messages of a collective call that a rank has under way at once; 0: 16 over MPI, 8 over TCP.", true},
       [](const Config& c) { return std::to_string(c.window); },
       [](Config& c, const std::string& t) { c.window = parse_window(t); }},
      {{"stretch_bytes", "GRADIENTFLOW_STRETCH_BYTES", "bytes",
        "Size of the stretches of node memory through which ordinary arrays pass between nodes of several ranks; "
        "every rank has three, from the first such call on.",
        true},
       [](const Config& c) { return std::to_string(c.stretch_bytes); },
       [](Config& c, const std::string& t) { c.stretch_bytes = parse_slot(t); }},
      {{"doubling_bytes", "GRADIENTFLOW_DOUBLING_BYTES", "bytes",
        "Size below which tensors are reduced by recursive doubling between three or more nodes.", true},
       [](const Config& c) { return std::to_string(c.doubling_bytes); },
       [](Config& c, const std::string& t) { c.doubling_bytes = parse_border(t); }},
      {{"ring_bytes", "GRADIENTFLOW_RING_BYTES", "bytes",
        "Size from which tensors go around a ring between three or more nodes; tensors between doubling_bytes and "
        "ring_bytes are exchanged pairwise.",
        true},
       [](const Config& c) { return std::to_string(c.ring_bytes); },
       [](Config& c, const std::string& t) { c.ring_bytes = parse_border(t); }},
      {{"progress", "GRADIENTFLOW_PROGRESS", "choice",
        "Thread that averages a gradient pool and runs asynchronous calls inside a node: thread, a thread of each "
        "rank's own; caller, the threads that call; auto, a thread where the node has two cores for each rank.",
        true},
       [](const Config& c) { return c.progress; },
       [](Config& c, const std::string& t) { c.progress = parse_progress(t); }},
      {{"debug", "GRADIENTFLOW_DEBUG", "choice",
        "Lines of rank 0 on standard error with the path of each call, and the reason for it: on or off."},
       [](const Config& c) -> std::string { return c.debug ? "on" : "off"; },
       [](Config& c, const std::string& t) { c.debug = parse_switch(t); }},
      {{"watch", "GRADIENTFLOW_WATCH", "choice",
        "Socket of each rank in Python, at which gradientflow top asks for the rank's state: on or off."},
       [](const Config& c) -> std::string { return c.watch ? "on" : "off"; },
       [](Config& c, const std::string& t) { c.watch = parse_switch(t); }},
      {{"timeline", "GRADIENTFLOW_TIMELINE", "file",
        "Timeline file in Chrome's format: trace.json becomes trace.rank0.json, trace.rank1.json and so on; off "
        "for none.",
        true},
       [](const Config& c) -> std::string { return c.timeline.empty() ? "off" : c.timeline; },
       [](Config& c, const std::string& t) { c.timeline = parse_file(t); }},
      {{"metrics", "GRADIENTFLOW_METRICS", "list",
        "Places to which every rank writes its metrics in Python: run.jsonl, a file for each rank; "
        "tensorboard:FOLDER; prometheus:PORT, or prometheus:ADDRESS:PORT; several with commas; off for none.",
        true},
       [](const Config& c) -> std::string { return c.metrics.empty() ? "off" : c.metrics; },
       [](Config& c, const std::string& t) { c.metrics = parse_metrics(t); }},
      {{"dump", "GRADIENTFLOW_DUMP", "folder",
        "Folder into which each rank writes its last calls when another rank is missing or makes other calls; auto for "
        "one of the job in the folder for temporary files; off records no calls."},
       [](const Config& c) { return c.dump; },
       [](Config& c, const std::string& t) { c.dump = parse_folder(t); }},
      {{"host_piece_bytes", "GRADIENTFLOW_HOST_PIECE_BYTES", "bytes",
        "Size of the pieces in which tensors of CUDA devices pass through the host: one on its way down, one being "
        "reduced, one on its way up.",
        true},
       [](const Config& c) { return std::to_string(c.host_piece_bytes); },
       [](Config& c, const std::string& t) { c.host_piece_bytes = parse_slot(t); }},
      {{"device_slot_bytes", "GRADIENTFLOW_DEVICE_SLOT_BYTES", "bytes",
        "Memory of its CUDA device that every rank reserves for exchanges of ordinary arrays inside the node.", true},
       [](const Config& c) { return std::to_string(c.device_slot_bytes); },
       [](Config& c, const std::string& t) { c.device_slot_bytes = parse_slot(t); }},
      {{"peer_bytes", "GRADIENTFLOW_PEER_BYTES", "bytes",
        "Largest tensor of CUDA devices that ranks of a node exchange in each other's memory even if there is "
        "NCCL.",
        true},
       [](const Config& c) { return std::to_string(c.peer_bytes); },
       [](Config& c, const std::string& t) { c.peer_bytes = parse_border(t); }},
      {{"nccl_library", "GRADIENTFLOW_NCCL_LIBRARY", "library",
        "NCCL library to load: auto for the library of the package nvidia-nccl-cu13 or nvidia-nccl-cu12, or else "
        "the system's; off for none."},
       [](const Config& c) { return c.nccl_library; },
       [](Config& c, const std::string& t) { c.nccl_library = parse_library(t); }},
      {{"cuda_library", "GRADIENTFLOW_CUDA_LIBRARY", "library",
        "Library with the kernels for CUDA, in place of the installed library (auto). Read once, from the "
        "environment."},
       [](const Config& c) { return c.cuda_library; },
       [](Config& c, const std::string& t) { c.cuda_library = parse_library(t); }},
      {{"transport", "GRADIENTFLOW_TRANSPORT", "choice",
        "Transport of messages between processes: mpi, the MPI library; tcp, connections of GradientFlow's own; "
        "auto, tcp, and in jobs of MPI mpi inside one host and where all hosts have an RDMA device."},
       [](const Config& c) { return c.transport; },
       [](Config& c, const std::string& t) { c.transport = parse_transport(t); }},
      {{"interface", "GRADIENTFLOW_INTERFACE", "name",
        "Network interface (eth1) or network (10.0.0.0/24, fd00::/64) through which other hosts reach this host "
        "over TCP; of several, separated by commas, the first that exists; after ^, interfaces and networks to "
        "leave out; auto for the interface that leads to the place where the ranks meet."},
       [](const Config& c) { return c.interface; },
       [](Config& c, const std::string& t) { c.interface = parse_interface(t); }},
      {{"host_timeout", "GRADIENTFLOW_HOST_TIMEOUT", "seconds",
        "Time without an acknowledgment over TCP after which a host counts as gone."},
       [](const Config& c) { return format_number(c.host_timeout); },
       [](Config& c, const std::string& t) { c.host_timeout = parse_positive(t); }},
      {{"congestion", "GRADIENTFLOW_CONGESTION", "name",
        "Congestion control of TCP connections that the system allows (reno, cubic, bbr); auto leaves it to the "
        "system."},
       [](const Config& c) { return c.congestion; },
       [](Config& c, const std::string& t) { c.congestion = parse_congestion(t); }},
      {{"spin", "GRADIENTFLOW_SPIN", "count",
        "Number of polls of a waiting rank before it yields its core; none with more ranks than cores."},
       [](const Config& c) { return std::to_string(c.spin); },
       [](Config& c, const std::string& t) { c.spin = parse_count(t); }},
      {{"yields", "GRADIENTFLOW_YIELDS", "count",
        "Number of times that a waiting rank yields its core before it sleeps."},
       [](const Config& c) { return std::to_string(c.yields); },
       [](Config& c, const std::string& t) { c.yields = parse_count(t); }},
  };
  return table;
}

const Accessor& accessor(std::string_view name) {
  std::string known;
  for (const Accessor& candidate : accessors()) {
    if (candidate.field.name == name) {
      return candidate;
    }
    known += (known.empty() ? "" : ", ") + std::string(candidate.field.name);
  }
  throw Error(ErrorKind::value, "unknown setting '" + std::string(name) + "'; settings are " + known);
}

}  // namespace

const std::vector<ConfigField>& config_fields() {
  static const std::vector<ConfigField> fields = [] {
    std::vector<ConfigField> list;
    for (const Accessor& entry : accessors()) {
      list.push_back(entry.field);
    }
    return list;
  }();
  return fields;
}

std::string get_field(const Config& config, std::string_view name) { return accessor(name).get(config); }

void set_field(Config& config, std::string_view name, const std::string& text) {
  const Accessor& entry = accessor(name);
  try {
    entry.set(config, text);
  } catch (const Error& error) {
    throw Error(error.kind(), std::string(name) + " (" + std::string(entry.field.variable) + "): " + error.what());
  }
}

Config read_config(const std::map<std::string, std::string>& overrides) {
  Config config;
  for (const Accessor& entry : accessors()) {
    const char* const value = std::getenv(std::string(entry.field.variable).c_str());
    if (value != nullptr && *value != '\0') {
      set_field(config, entry.field.name, value);
    }
  }
  for (const auto& [name, text] : overrides) {
    if (name == "simd" && text != config.simd) {
      throw Error(ErrorKind::value, "simd holds for the whole process: set GRADIENTFLOW_SIMD in the environment");
    }
    set_field(config, name, text);
  }
  return config;
}

std::size_t parse_bytes(const std::string& text) {
  std::size_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  std::string unit(end, last);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::toupper(c); });
  if (error == std::errc()) {
    int shift = 0;
    for (const std::string prefix : {"", "K", "M", "G", "T"}) {
      const bool matches = unit == prefix || unit == prefix + "B" || (!prefix.empty() && unit == prefix + "IB");
      if (matches && value <= (std::numeric_limits<std::size_t>::max() >> shift)) {
        return value << shift;
      }
      shift += 10;
    }
  }
  refuse("a size in bytes, such as 4096, 64K, 64KiB or 8MiB", text);
}

}  // namespace gradientflow
