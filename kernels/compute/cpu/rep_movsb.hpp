// Copies by the processor's own instruction for strings of bytes.
//
// A vector store first fetches the cache line that it overwrites, from the core that wrote or read it last, for
// nothing. The instruction `rep movsb` of x86-64 announces whole lines and fetches none: where ranks fill memory that
// others read, it takes between a fifth and a half of the time.
#pragma once

#include <cstddef>

namespace gradientflow::compute {

// Below this many bytes the instruction costs more to start than it saves.
inline constexpr std::size_t rep_movsb_bytes = 2048;

// Whether it is fast here: not on AMD's Zen 3 and Zen 4, where a copy to another alignment takes up to twenty times as
// long, and not on other architectures.
[[nodiscard]] bool rep_movsb_is_fast();

// A copy of `bytes` bytes between memory that does not overlap; memcpy on other architectures, and under sanitizers,
// which do not see what an instruction of ours reads and writes.
void copy_rep_movsb(void* destination, const void* source, std::size_t bytes);

}  // namespace gradientflow::compute
