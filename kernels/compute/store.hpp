// Where the results of a kernel are stored.
#pragma once

namespace gradientflow::compute {

// Whether they should stay in this core's cache, or stream past it to memory (large data that is not read soon).
enum class Store { cached, streaming };

}  // namespace gradientflow::compute
