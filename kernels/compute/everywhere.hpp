// Mark of functions for the CPU and for CUDA devices.
#pragma once

#ifdef __CUDACC__
#define GRADIENTFLOW_EVERYWHERE __host__ __device__
#else
#define GRADIENTFLOW_EVERYWHERE
#endif
