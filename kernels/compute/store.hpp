// Targets of a kernel's results.
#pragma once

namespace gradientflow::compute {

// Results stay in this core's cache, or stream past it to memory (large data that is not read soon).
enum class Store { cached, streaming };

}  // namespace gradientflow::compute
