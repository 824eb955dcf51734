// The settings of a communicator: one value object, filled from the GRADIENTFLOW_* environment variables when a
// communicator is made, and never changed afterwards.
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
  double timeout = 300.0;                   // seconds to wait for the other ranks at one point of a call
  int node_size = 0;                        // ranks that count as one node; 0: the real nodes
  std::string simd = "auto";                // auto, baseline, avx2, avx512
  bool direct_read = true;                  // read ordinary arrays of peers directly, where the kernel lets us
  std::size_t inline_bytes = 4096;          // up to here the data travel inside the call's own announcement
  std::size_t staging_bytes = 512 * kib;    // one staging slot; every rank has two
  std::size_t direct_read_bytes = 8 * mib;  // ordinary arrays from here on are read directly
  std::size_t streaming_bytes = 64 * mib;   // tensors from here on are written past the caches
  std::size_t segment_bytes = 63 * kib;     // a message between nodes carries so much of a tensor at most
  int window = 16;                          // messages that a rank has under way at once
  std::size_t stretch_bytes = 4 * mib;      // ordinary arrays pass through node memory so much at a time, between nodes
  std::size_t doubling_bytes = 24 * kib;    // between more than two nodes: recursive doubling below,
  std::size_t ring_bytes = 192 * kib;       // a ring from here on, pairwise between
  std::string progress = "auto";            // who reduces the ranges of a pool inside a node: auto, thread, caller
  bool debug = false;                       // say on standard error which way each call goes
  std::string timeline;                     // the file to write what happens when to; empty: none
  std::size_t host_piece_bytes = 4 * mib;   // a tensor of a device passes through the host so much at a time
  std::size_t device_slot_bytes = 16 * mib;  // memory of the device in which ordinary arrays meet; every rank has it
  std::size_t peer_bytes = 256 * kib;        // tensors of devices up to here are exchanged without NCCL inside a node
  std::string nccl_library = "auto";         // the NCCL to load: auto finds one, off does without
  std::string cuda_library = "auto";         // the library with all that needs CUDA; auto: the installed one
  int spin = 50;                             // polls of a flag before the core is yielded to others
  int yields = 100;                          // yields before the rank sleeps
};

// What a user may set, for the documentation, the command line and the bindings.
struct ConfigField {
  std::string_view name;      // as in Config, "timeout"
  std::string_view variable;  // "GRADIENTFLOW_TIMEOUT"
  std::string_view unit;      // "seconds", "bytes", "ranks", "count", "choice"
  std::string_view meaning;
};

[[nodiscard]] const std::vector<ConfigField>& config_fields();

// The value of a field as text that set_field accepts.
[[nodiscard]] std::string get_field(const Config& config, std::string_view name);

// Sets one field from text: numbers, sizes like "512KiB", "on"/"off", a choice. Throws Error(value) with the field's
// name, what was given and what is accepted.
void set_field(Config& config, std::string_view name, const std::string& text);

// Defaults, then the environment, then `overrides` {name: text}.
[[nodiscard]] Config read_config(const std::map<std::string, std::string>& overrides = {});

// "64", "64K", "64KB", "64KiB", "8MiB", in any case of letters; K, M, G, T are powers of 1024. Throws Error(value).
[[nodiscard]] std::size_t parse_bytes(const std::string& text);

}  // namespace gradientflow
