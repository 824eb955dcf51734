// Interface to CUDA for the layers above: devices, memory, streams, events, sharing between processes, and the kernels.
//
// All code that needs CUDA is in a separate library, libgradientflow_cuda.so, which lies beside the core's and is
// loaded when CUDA is used for the first time. So one build runs with and without a GPU. No code above this interface
// includes a header of CUDA.
//
// Work is put into a stream, which runs it in order; only functions named synchronize, allocate, free or register wait
// for a device. Calls without a stream, event or memory as an argument are for the calling thread's current device (see
// UseDevice). Errors of CUDA are thrown as Error(system), or as Error(memory) if memory has run out; functions named
// destroy, free or close throw nothing. Errors of kernels are reported by a later call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "chunks.hpp"
#include "kernels.hpp"
#include "steps.hpp"
#include "stream.hpp"
#include "sum_of_squares.hpp"
#include "top_k.hpp"

namespace gradientflow::compute::cuda {

enum class MemoryKind { pageable, pinned, device, managed };

// Kind of memory at an address, and its device, for device and managed memory.
struct MemoryFacts {
  MemoryKind kind;
  int device;
};

enum class EventKind {
  order,    // streams wait for the event
  time,     // the event also has a time
  process,  // streams of other processes may wait for the event, too
};

// Handle with which another process opens memory or an event.
using ProcessHandle = std::array<std::byte, 64>;

// Grain of shared allocations, so that no other allocation lies in the same block of the driver.
inline constexpr std::size_t shared_grain = std::size_t{2} << 20;

class Runtime {
 public:
  Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  virtual ~Runtime() = default;

  // ---- devices
  [[nodiscard]] virtual int device_count() const noexcept = 0;       // 0 without a driver
  [[nodiscard]] virtual std::string unavailable_reason() const = 0;  // reason why there is no device; empty if there is
  [[nodiscard]] virtual int device() const = 0;                      // calling thread's device
  virtual void use(int device) const = 0;
  [[nodiscard]] virtual bool is_in_use(int device) const noexcept = 0;  // true if this process uses it: use() is free
  [[nodiscard]] virtual std::string name(int device) const = 0;
  [[nodiscard]] virtual std::string bus_id(int device) const = 0;  // same in all processes of a machine

  // ---- memory
  [[nodiscard]] virtual std::byte* allocate(std::size_t bytes) const = 0;  // nullptr for 0 bytes
  virtual void free(void* memory) const noexcept = 0;
  virtual void register_host(void* memory, std::size_t bytes) const = 0;  // pins memory, for all devices
  virtual void unregister_host(void* memory) const noexcept = 0;
  [[nodiscard]] virtual MemoryFacts facts(const void* address) const = 0;
  // Copies between host and device in either direction, or on devices. Copies of memory that is not pinned may wait.
  virtual void copy(void* destination, const void* source, std::size_t bytes, Stream stream) const = 0;
  virtual void clear(void* destination, std::size_t bytes, Stream stream) const = 0;  // zeroes

  // ---- streams and events
  [[nodiscard]] virtual Stream make_stream() const = 0;  // high priority, and not ordered with the default stream
  virtual void destroy(Stream stream) const noexcept = 0;
  virtual void synchronize(Stream stream) const = 0;
  [[nodiscard]] virtual Event make_event(EventKind kind) const = 0;
  virtual void destroy_event(Event event) const noexcept = 0;
  virtual void record(Event event, Stream stream) const = 0;
  virtual void wait(Stream stream, Event event) const = 0;     // makes all further work of the stream wait
  [[nodiscard]] virtual bool happened(Event event) const = 0;  // an event that was never recorded has happened
  virtual void synchronize_event(Event event) const = 0;       // without burning a core
  [[nodiscard]] virtual double milliseconds(Event from, Event to) const = 0;  // two events of EventKind::time

  // ---- sharing between processes of a machine
  [[nodiscard]] virtual ProcessHandle share(void* memory) const = 0;  // takes memory of allocate()
  [[nodiscard]] virtual std::byte* open(const ProcessHandle& allocation) const = 0;
  virtual void close(void* opened) const noexcept = 0;
  [[nodiscard]] virtual ProcessHandle share_event(Event event) const = 0;  // takes an event of EventKind::process
  [[nodiscard]] virtual Event open_event(const ProcessHandle& event) const = 0;

  // ---- kernels, see the headers of this folder
  virtual void reduce(std::span<void* const> destinations, std::span<const void* const> sources, std::size_t count,
                      const Reduction& reduction, Stream stream) const = 0;
  virtual void cast(void* destination, DType destination_dtype, const void* source, DType source_dtype,
                    std::size_t count, float scale, Stream stream) const = 0;
  virtual void count_nonfinite(const void* source, DType dtype, std::size_t count, std::uint64_t* found,
                               Stream stream) const = 0;
  virtual void update_residual(const CallList<UpdateResidual>& list, double* norms, void* scratch,
                               Stream stream) const = 0;
  virtual void gather(const CallList<Gather>& list, double* norms, void* scratch, Stream stream) const = 0;
  virtual void scatter(const CallList<Scatter>& list, double* norms, void* scratch, Stream stream) const = 0;
  virtual void step(const AnyStepList& list, Stream stream) const = 0;
  virtual void sum_of_squares(const CallList<SumOfSquares>& list, double* sums, void* scratch, Stream stream) const = 0;
  [[nodiscard]] virtual std::size_t scratch_bytes(const Select& call) const = 0;
  virtual void select(const Select& call, Selected* selected, void* scratch, Stream stream) const = 0;
  [[nodiscard]] virtual std::size_t scratch_bytes(const Combine& call) const = 0;
  virtual void combine(const Combine& call, Combined* combined, void* scratch, Stream stream) const = 0;
};

// Function that the library exports, and its name. The function returns the runtime, which lives as long as the
// process.
extern "C" using MakeRuntime = const Runtime * ();
inline constexpr const char* make_runtime_name = "gradientflow_cuda_runtime";

// Loads the library, once. Throws Error(system), with advice, if it is absent, cannot be loaded, or has no device.
[[nodiscard]] const Runtime& runtime();

// Returns the reason why runtime() throws; empty if it does not throw.
[[nodiscard]] std::string unavailable_reason();

// Tells if the core was built with CUDA: the library exists, even if there is no device.
[[nodiscard]] bool is_built();

// Counts the devices that runtime() serves; 0 if it throws.
[[nodiscard]] int device_count();

}  // namespace gradientflow::compute::cuda
