// Copies by the processor's own instruction for strings of bytes.
//
// A vector store needlessly fetches the cache line that it overwrites, from the core that wrote or read it last. The
// instruction `rep movsb` of x86-64 announces whole lines and fetches none: it takes between a fifth and a half of the
// time when ranks fill memory that peers read.
#pragma once

#include <cstddef>

namespace gradientflow::compute {

// Bytes below which the instruction costs more to start than it saves.
inline constexpr std::size_t rep_movsb_bytes = 2048;

// Tells if the instruction is fast here. It is slow on AMD's Zen 3 and Zen 4, where a copy to another alignment takes
// up to twenty times as long, and does not exist on other architectures.
[[nodiscard]] bool rep_movsb_is_fast();

// Copies `bytes` bytes between memory that does not overlap. Uses memcpy on other architectures, and under sanitizers,
// which do not see the reads and writes of inline assembly.
void copy_rep_movsb(void* destination, const void* source, std::size_t bytes);

}  // namespace gradientflow::compute
