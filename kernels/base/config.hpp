// Settings of a communicator: a value object, filled from the GRADIENTFLOW_* environment variables at creation, and
// constant afterwards.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gradientflow {

inline constexpr std::size_t kib = 1024;
inline constexpr std::size_t mib = 1024 * kib;

struct Config {
  double timeout = 300.0;                   // seconds to wait for other ranks at one point of a call
  int node_size = 0;                        // ranks that are taken for one node; 0: the real nodes
  std::string simd = "auto";                // auto, baseline, avx2, avx512
  bool direct_read = true;                  // read ordinary arrays of peers directly, if the kernel allows it
  std::size_t inline_bytes = 4096;          // largest data that travel inside the announcement of the call
  std::size_t staging_bytes = 512 * kib;    // size of one staging slot; every rank has two
  std::size_t direct_read_bytes = 8 * mib;  // smallest ordinary arrays that are read directly
  std::size_t streaming_bytes = 64 * mib;   // smallest tensors that are written past the caches
  std::size_t segment_bytes = 63 * kib;     // largest part of a tensor in one message between nodes
  int window = 0;  // messages that a rank has under way at once; 0: as many as the transport advises
  std::size_t stretch_bytes = 4 * mib;  // part of an ordinary array in node memory at a time, between nodes
  std::size_t doubling_bytes =
      24 * kib;  // tensors below this size take recursive doubling, between more than two nodes
  std::size_t ring_bytes =
      192 * kib;                  // tensors of at least this size take a ring; sizes in between are exchanged pairwise
  std::string progress = "auto";  // thread that reduces a pool's ranges inside a node: auto, thread, caller
  bool debug = false;             // print the path of each call to standard error
  bool watch = true;              // answer `gradientflow top`; read in Python
  std::string timeline;           // timeline file; empty: none
  std::string metrics;            // places to which metrics are written, with commas; empty: none
  std::string dump = "auto";      // folder of the last calls, written after an error; off: no call is recorded
  std::size_t host_piece_bytes = 4 * mib;    // part of a device tensor that passes through the host at a time
  std::size_t device_slot_bytes = 16 * mib;  // device memory of each rank for the exchange of ordinary arrays
  std::size_t peer_bytes = 256 * kib;        // largest device tensors that are exchanged without NCCL inside a node
  std::string nccl_library = "auto";         // NCCL library to load; auto: search for one, off: none
  std::string cuda_library = "auto";         // library of CUDA kernels; auto: the installed library
  std::string transport = "auto";            // transport of messages: auto, mpi, tcp
  std::string interface = "auto";            // network interface or network that TCP uses; auto: search for one
  std::string congestion = "auto";           // congestion control of TCP connections; auto: the system's
  double host_timeout = 3.0;                 // seconds without an acknowledgment after which a host is dead (TCP)
  int spin = 50;                             // polls of a flag before the rank yields its core
  int yields = 100;                          // yields before the rank sleeps
};

// A setting that users can change, for the documentation, the command line and the bindings.
struct ConfigField {
  std::string_view name;      // field of Config, "timeout"
  std::string_view variable;  // "GRADIENTFLOW_TIMEOUT"
  std::string_view unit;      // "seconds", "bytes", "ranks", "count", "choice", "file", "library", "name", "list"
  std::string_view meaning;
  bool shared = false;  // must be equal on all ranks
};

[[nodiscard]] const std::vector<ConfigField>& config_fields();

// Returns the value of a field as text that set_field accepts.
[[nodiscard]] std::string get_field(const Config& config, std::string_view name);

// Sets a field from text: a number, a size like "512KiB", "on"/"off", or a choice. Throws Error(value) with the field's
// name, the given and the accepted texts.
void set_field(Config& config, std::string_view name, const std::string& text);

// Reads defaults, then the environment, then `overrides` {name: text}.
[[nodiscard]] Config read_config(const std::map<std::string, std::string>& overrides = {});

// Parses "64", "64K", "64KB", "64KiB", "8MiB", in upper or lower case; K, M, G, T are powers of 1024. Throws
// Error(value).
[[nodiscard]] std::size_t parse_bytes(const std::string& text);

}  // namespace gradientflow
