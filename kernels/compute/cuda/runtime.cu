#include <cstring>

#include "launch.cuh"
#include "runtime.hpp"

namespace gradientflow::compute::cuda {
namespace {

cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(Event event) { return static_cast<cudaEvent_t>(event); }

template <class Handle>
ProcessHandle bytes_of(const Handle& handle) {
  static_assert(sizeof handle == sizeof(ProcessHandle));
  ProcessHandle bytes;
  std::memcpy(bytes.data(), &handle, sizeof bytes);
  return bytes;
}

template <class Handle>
Handle handle_of(const ProcessHandle& bytes) {
  static_assert(sizeof(Handle) == sizeof bytes);
  Handle handle;
  std::memcpy(&handle, bytes.data(), sizeof bytes);
  return handle;
}

// Clears an error that has been handled, so that no later call reports it.
void forget_error() { (void)cudaGetLastError(); }

class CudaRuntime final : public Runtime {
 public:
  [[nodiscard]] int device_count() const noexcept override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
      forget_error();
      return 0;
    }
    return count;
  }

  [[nodiscard]] std::string unavailable_reason() const override {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) {
      forget_error();
      int driver = 0;  // stays 0 if no driver is installed; the status then says that it is too old
      if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
        forget_error();
        return "there is no CUDA device: no CUDA driver is installed";
      }
      return std::string("there is no CUDA device: ") + cudaGetErrorString(status);
    }
    return count == 0 ? "there is no CUDA device" : "";
  }

  [[nodiscard]] int device() const override {
    int device = 0;
    check(cudaGetDevice(&device));
    return device;
  }

  void use(int device) const override { check(cudaSetDevice(device)); }

  // Asks the driver if the device is in use. Returns true if the driver cannot be asked.
  [[nodiscard]] bool is_in_use(int device) const noexcept override {
#ifdef __CUDACC__
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &function, cudaEnableDefault, &result);
#endif
    if (status == cudaSuccess && function != nullptr) {
      unsigned flags = 0;
      int active = 0;
      const auto ask = reinterpret_cast<int (*)(int, unsigned*, int*)>(function);
      if (ask(device, &flags, &active) == 0) {
        return active != 0;
      }
    }
    forget_error();
#endif
    static_cast<void>(device);
    return true;
  }

  [[nodiscard]] std::string name(int device) const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device));
    return properties.name;
  }

  [[nodiscard]] std::string bus_id(int device) const override {
    char text[32] = {};
    check(cudaDeviceGetPCIBusId(text, sizeof text, device));
    return text;
  }

  [[nodiscard]] std::byte* allocate(std::size_t bytes) const override {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes));
    return static_cast<std::byte*>(memory);
  }

  void free(void* memory) const noexcept override {
    if (cudaFree(memory) != cudaSuccess) {
      forget_error();
    }
  }

  void register_host(void* memory, std::size_t bytes) const override {
    check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable));
  }

  void unregister_host(void* memory) const noexcept override {
    if (cudaHostUnregister(memory) != cudaSuccess) {
      forget_error();
    }
  }

  [[nodiscard]] MemoryFacts facts(const void* address) const override {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, address));
    switch (attributes.type) {
      case cudaMemoryTypeDevice:
        return {MemoryKind::device, attributes.device};
      case cudaMemoryTypeManaged:
        return {MemoryKind::managed, attributes.device};
      case cudaMemoryTypeHost:
        return {MemoryKind::pinned, attributes.device};
      case cudaMemoryTypeUnregistered:
        break;
    }
    return {MemoryKind::pageable, 0};
  }

  void copy(void* destination, const void* source, std::size_t bytes, Stream stream) const override {
    if (bytes > 0) {
      check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream_of(stream)));
    }
  }

  void clear(void* destination, std::size_t bytes, Stream stream) const override {
    if (bytes > 0) {
      check(cudaMemsetAsync(destination, 0, bytes, stream_of(stream)));
    }
  }

  [[nodiscard]] Stream make_stream() const override {
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    return stream;
  }

  void destroy(Stream stream) const noexcept override {
    if (cudaStreamDestroy(stream_of(stream)) != cudaSuccess) {
      forget_error();
    }
  }

  void synchronize(Stream stream) const override { check(cudaStreamSynchronize(stream_of(stream))); }

  [[nodiscard]] Event make_event(EventKind kind) const override {
    unsigned flags = cudaEventBlockingSync;
    switch (kind) {
      case EventKind::order:
        flags |= cudaEventDisableTiming;
        break;
      case EventKind::time:
        break;
      case EventKind::process:
        flags |= cudaEventDisableTiming | cudaEventInterprocess;
        break;
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, flags));
    return event;
  }

  void destroy_event(Event event) const noexcept override {
    if (cudaEventDestroy(event_of(event)) != cudaSuccess) {
      forget_error();
    }
  }

  void record(Event event, Stream stream) const override { check(cudaEventRecord(event_of(event), stream_of(stream))); }

  void wait(Stream stream, Event event) const override {
    check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }

  [[nodiscard]] bool happened(Event event) const override {
    const cudaError_t status = cudaEventQuery(event_of(event));
    if (status == cudaErrorNotReady) {
      forget_error();
      return false;
    }
    check(status);
    return true;
  }

  void synchronize_event(Event event) const override { check(cudaEventSynchronize(event_of(event))); }

  [[nodiscard]] double milliseconds(Event from, Event to) const override {
    float elapsed = 0.0F;
    check(cudaEventElapsedTime(&elapsed, event_of(from), event_of(to)));
    return static_cast<double>(elapsed);
  }

  [[nodiscard]] ProcessHandle share(void* memory) const override {
    cudaIpcMemHandle_t handle{};
    check(cudaIpcGetMemHandle(&handle, memory));
    return bytes_of(handle);
  }

  [[nodiscard]] std::byte* open(const ProcessHandle& allocation) const override {
    void* memory = nullptr;
    check(cudaIpcOpenMemHandle(&memory, handle_of<cudaIpcMemHandle_t>(allocation), cudaIpcMemLazyEnablePeerAccess));
    return static_cast<std::byte*>(memory);
  }

  void close(void* opened) const noexcept override {
    if (cudaIpcCloseMemHandle(opened) != cudaSuccess) {
      forget_error();
    }
  }

  [[nodiscard]] ProcessHandle share_event(Event event) const override {
    cudaIpcEventHandle_t handle{};
    check(cudaIpcGetEventHandle(&handle, event_of(event)));
    return bytes_of(handle);
  }

  [[nodiscard]] Event open_event(const ProcessHandle& event) const override {
    cudaEvent_t opened = nullptr;
    check(cudaIpcOpenEventHandle(&opened, handle_of<cudaIpcEventHandle_t>(event)));
    return opened;
  }

  void reduce(std::span<void* const> destinations, std::span<const void* const> sources, std::size_t count,
              const Reduction& reduction, Stream stream) const override {
    cuda::reduce(destinations, sources, count, reduction, stream);
  }

  void cast(void* destination, DType destination_dtype, const void* source, DType source_dtype, std::size_t count,
            float scale, Stream stream) const override {
    cuda::cast(destination, destination_dtype, source, source_dtype, count, scale, stream);
  }

  void count_nonfinite(const void* source, DType dtype, std::size_t count, std::uint64_t* found,
                       Stream stream) const override {
    cuda::count_nonfinite(source, dtype, count, found, stream);
  }

  void update_residual(const CallList<UpdateResidual>& list, double* norms, void* scratch,
                       Stream stream) const override {
    cuda::update_residual(list, norms, scratch, stream);
  }

  void gather(const CallList<Gather>& list, double* norms, void* scratch, Stream stream) const override {
    cuda::gather(list, norms, scratch, stream);
  }

  void scatter(const CallList<Scatter>& list, double* norms, void* scratch, Stream stream) const override {
    cuda::scatter(list, norms, scratch, stream);
  }

  void step(const AnyStepList& list, Stream stream) const override { cuda::step(list, stream); }

  void sum_of_squares(const CallList<SumOfSquares>& list, double* sums, void* scratch, Stream stream) const override {
    cuda::sum_of_squares(list, sums, scratch, stream);
  }

  [[nodiscard]] std::size_t scratch_bytes(const Select& call) const override { return cuda::scratch_bytes(call); }

  void select(const Select& call, Selected* selected, void* scratch, Stream stream) const override {
    cuda::select(call, selected, scratch, stream);
  }

  [[nodiscard]] std::size_t scratch_bytes(const Combine& call) const override { return cuda::scratch_bytes(call); }

  void combine(const Combine& call, Combined* combined, void* scratch, Stream stream) const override {
    cuda::combine(call, combined, scratch, stream);
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const Runtime* gradientflow_cuda_runtime() {
  static const CudaRuntime runtime;
  return &runtime;
}

}  // namespace gradientflow::compute::cuda
