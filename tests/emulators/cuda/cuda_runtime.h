// A CUDA device that is threads and memory of the host: enough of CUDA's runtime to compile the kernels of
// kernels/compute/cuda and all that is built on them as C++, and to test them where there is no GPU.
//
// A stream is a thread that does one thing after another, so what is not ordered by events really happens in any order.
// The threads of a thread block are fibers. Memory of the device can be touched only by what runs in a stream: the host
// gets a segmentation fault. Other processes open it, and events, as they do on a device.
//
// Variables of the environment, with their defaults:
//   CUDA_EMULATOR_DEVICES=1      how many devices there are
//   CUDA_EMULATOR_PEERS=1        whether they can access each other's memory
//   CUDA_EMULATOR_MEMORY=4096    MiB that each process may allocate
//   CUDA_EMULATOR_DELAY=0        microseconds: everything in a stream begins late, by at most so many, at random
//   CUDA_EMULATOR_PROTECT=1      whether the host is kept from the memory of devices
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}  // NOLINT: as CUDA's
};

using cudaStream_t = struct EmulatedStream*;
using cudaEvent_t = struct EmulatedEvent*;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidDevice = 101,
  cudaErrorPeerAccessUnsupported = 217,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};
enum : unsigned {
  cudaHostRegisterPortable = 1,
  cudaStreamNonBlocking = 1,
  cudaEventBlockingSync = 1,
  cudaEventDisableTiming = 2,
  cudaEventInterprocess = 4,
  cudaIpcMemLazyEnablePeerAccess = 1
};

struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
struct cudaDeviceProp {
  char name[256];
};
struct cudaIpcMemHandle_t {
  char reserved[64];
};
struct cudaIpcEventHandle_t {
  char reserved[64];
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  void* attrs;
  unsigned numAttrs;
};

// With names of C++, which no runtime of CUDA's exports: the loader takes a function of C from whatever library has
// been loaded globally, and with PyTorch that may be CUDA itself.
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory);
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void* memory);
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event);
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle);

namespace cuda_emulator {

// Whether kernels can be started, and events recorded, in this stream: it is one of the current device.
bool is_of_current_device(cudaStream_t stream);

// Has the stream do something.
void enqueue(cudaStream_t stream, std::function<void()> work);

// ---- inside kernels

void run_blocks(dim3 grid, dim3 block, const std::function<void()>& body);
void synchronize_block();
void exchange(const void* mine, void* other, std::size_t bytes, unsigned distance);

}  // namespace cuda_emulator

extern constinit thread_local dim3 threadIdx;
extern constinit thread_local dim3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  if (!cuda_emulator::is_of_current_device(config->stream)) {
    return cudaErrorInvalidResourceHandle;
  }
  cuda_emulator::enqueue(config->stream, [grid = config->gridDim, block = config->blockDim, kernel, arguments...] {
    cuda_emulator::run_blocks(grid, block, [&] { kernel(arguments...); });
  });
  return cudaSuccess;
}

inline void __syncthreads() { cuda_emulator::synchronize_block(); }

template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned distance) {
  T other;
  cuda_emulator::exchange(&value, &other, sizeof value, distance);
  return other;
}

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
template <class T, class U>
T atomicAdd(T* address, U value) {
  return __atomic_fetch_add(address, static_cast<T>(value), __ATOMIC_RELAXED);
}
template <class T, class U>
void atomicMin(T* address, U value) {
  T found = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (value < found && !__atomic_compare_exchange_n(address, &found, static_cast<T>(value), false, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
  }
}
using std::isfinite;
using std::min;
using std::scalbn;
