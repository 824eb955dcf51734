// The kernels in the instructions that every processor of the architecture has.
#define GRADIENTFLOW_SIMD_NAMESPACE baseline
#include "kernels_level.hpp"
