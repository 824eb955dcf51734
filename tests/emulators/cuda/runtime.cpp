#include <cuda_runtime.h>
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

constinit thread_local dim3 threadIdx;
constinit thread_local dim3 blockIdx;
constinit thread_local dim3 blockDim;
constinit thread_local dim3 gridDim;

namespace {

long setting(const char* name, long otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atol(text);
}

using Clock = std::chrono::steady_clock;

// ---- memory
// ----------------------------------------------------------------------------------------------------------

struct Mapping {
  std::size_t bytes;
  int device;
  int descriptor;  // -1: of another process
};

// What is mapped, and how many streams are at work: while none is, nobody may touch it. `limit` is in MiB.
struct Memory {
  std::mutex mutex;
  std::map<std::byte*, Mapping> mappings;
  std::map<const std::byte*, std::size_t> pinned;
  std::size_t allocated = 0;
  int at_work = 0;
  std::atomic<long> queued{0};  // work on memory that has not ended
  const bool protects = setting("CUDA_EMULATOR_PROTECT", 1) != 0;
  const std::size_t limit = static_cast<std::size_t>(setting("CUDA_EMULATOR_MEMORY", 4096)) << 20U;

  [[nodiscard]] int protection() const { return !protects || at_work > 0 ? PROT_READ | PROT_WRITE : PROT_NONE; }
  void protect() const {
    for (const auto& [address, mapping] : mappings) {
      mprotect(address, mapping.bytes, protection());
    }
  }
  void begin() {
    const std::lock_guard lock(mutex);
    if (at_work++ == 0 && protects) {
      protect();
    }
  }
  void end() {
    const std::lock_guard lock(mutex);
    if (--at_work == 0 && protects) {
      protect();
    }
  }
  std::byte* map(int descriptor, std::size_t bytes, int device, bool own) {
    const std::lock_guard lock(mutex);
    void* const address = mmap(nullptr, bytes, protection(), MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) {
      return nullptr;
    }
    auto* const data = static_cast<std::byte*>(address);
    mappings[data] = {bytes, device, own ? descriptor : -1};
    return data;
  }
  bool unmap(void* address) {
    const std::lock_guard lock(mutex);
    const auto found = mappings.find(static_cast<std::byte*>(address));
    if (found == mappings.end()) {
      return false;
    }
    munmap(address, found->second.bytes);
    if (found->second.descriptor >= 0) {
      ::close(found->second.descriptor);
      allocated -= found->second.bytes;
    }
    mappings.erase(found);
    return true;
  }
  const Mapping* find(const void* address) {
    const auto* const at = static_cast<const std::byte*>(address);
    auto found = mappings.upper_bound(const_cast<std::byte*>(at));
    if (found == mappings.begin()) {
      return nullptr;
    }
    --found;
    return at < found->first + found->second.bytes ? &found->second : nullptr;
  }
  bool is_pinned(const void* address) {
    const auto* const at = static_cast<const std::byte*>(address);
    auto found = pinned.upper_bound(at);
    if (found == pinned.begin()) {
      return false;
    }
    --found;
    return at < found->first + found->second;
  }
};

// Never destroyed: streams may be at work until the process ends.
Memory& memory() {
  static auto* const instance = new Memory;
  return *instance;
}

thread_local int current_device = 0;

int device_count() { return static_cast<int>(setting("CUDA_EMULATOR_DEVICES", 1)); }

}  // namespace

// ---- streams
// ---------------------------------------------------------------------------------------------------------

struct EmulatedStream {
  struct Work {
    std::function<void()> function;
    bool on_memory;  // neither waiting for an event nor recording one is
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> work;
  bool busy = false;
  bool ends = false;
  int device = current_device;
  std::thread thread{[this] { run(); }};

  void run() {
    std::minstd_rand random(static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(this) >> 4U));
    const long delay = setting("CUDA_EMULATOR_DELAY", 0);
    bool on_memory = false;  // from one work on memory to the next that follows at once: protecting it is slow
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return !work.empty() || ends; });
      if (work.empty()) {
        return;
      }
      Work next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      if (delay > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(static_cast<long>(random()) % (delay + 1)));
      }
      if (next.on_memory && !on_memory) {
        memory().begin();
      }
      on_memory = next.on_memory;
      next.function();
      next.function = nullptr;
      lock.lock();
      if (on_memory && (work.empty() || !work.front().on_memory)) {
        memory().end();
        on_memory = false;
      }
      busy = false;
      changed.notify_all();
    }
  }
};

struct EmulatedEvent {
  // In memory that processes may share.
  struct State {
    std::atomic<std::uint64_t> recorded;
    std::atomic<std::uint64_t> happened;
  };
  State* state = nullptr;
  int descriptor = -1;
  int device = current_device;
  bool shared = false;
  std::atomic<std::int64_t> when{0};  // nanoseconds
  std::atomic<int> users{1};          // the owner, and what is under way in streams

  static void wait(const State& state, std::uint64_t target) {
    constexpr std::chrono::microseconds longest(320);
    for (std::chrono::microseconds pause(10); state.happened.load(std::memory_order_acquire) < target;) {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, longest);
    }
  }
  void leave() {
    if (--users == 0) {
      munmap(state, sizeof(State));
      if (descriptor >= 0) {
        ::close(descriptor);
      }
      delete this;
    }
  }
};

namespace {

// The legacy default stream is also 1, that of the thread 2: here, one stream for all threads, of the current device.
cudaStream_t resolve(cudaStream_t stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) > 2) {
    return stream;
  }
  static std::mutex mutex;
  static auto* const by_device = new std::map<int, cudaStream_t>;
  const std::lock_guard lock(mutex);
  cudaStream_t& found = (*by_device)[current_device];
  return found == nullptr ? found = new EmulatedStream : found;
}

struct FileHandle {
  pid_t pid;
  int descriptor;
  int device;
  std::size_t bytes;
};
static_assert(sizeof(FileHandle) <= 64);

int open_file(const FileHandle& handle) {
  const std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.descriptor);
  return ::open(path.c_str(), O_RDWR | O_CLOEXEC);
}

template <class Handle>
cudaError_t pack(Handle* to, const FileHandle& from) {
  std::memset(to, 0, sizeof *to);
  std::memcpy(to, &from, sizeof from);
  return cudaSuccess;
}

template <class Handle>
FileHandle unpack(const Handle& from) {
  FileHandle handle{};
  std::memcpy(&handle, &from, sizeof handle);
  return handle;
}

}  // namespace

namespace cuda_emulator {

static void put(cudaStream_t stream, std::function<void()> function, bool on_memory = false) {
  const std::lock_guard lock(stream->mutex);
  stream->work.push_back({std::move(function), on_memory});
  stream->changed.notify_all();
}

bool is_of_current_device(cudaStream_t stream) { return resolve(stream)->device == current_device; }

void enqueue(cudaStream_t stream, std::function<void()> work) {
  ++memory().queued;
  put(
      resolve(stream),
      [work = std::move(work)] {
        work();
        --memory().queued;
      },
      true);
}

// ---- kernels
// ---------------------------------------------------------------------------------------------------------

namespace {

constexpr unsigned warp = 32;
constexpr std::size_t stack_bytes = 65536;

// Threads of a block, one after another, until one has to wait for others, which then get a fiber of their own.
struct Fiber {
  jmp_buf place{};
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  unsigned thread = 0;
  bool done = false;
};

// Fibers are left and entered with _longjmp: swapcontext calls the system each time.
struct Executor {
  std::vector<std::unique_ptr<Fiber>> fibers;
  jmp_buf scheduler{};
  Fiber* current = nullptr;
  unsigned started = 0;  // threads of the block
  const std::function<void()>* body = nullptr;
  std::vector<std::array<std::byte, 16>> slots;
  std::vector<unsigned> arrived;     // by warp; and one more for the block
  std::vector<unsigned> generation;  // likewise
};

thread_local Executor executor;

void yield() {
  Fiber& me = *executor.current;
  if (_setjmp(me.place) == 0) {
    _longjmp(executor.scheduler, 1);
  }
  threadIdx = dim3(me.thread);
}

void resume(Fiber& fiber) {
  executor.current = &fiber;
  if (_setjmp(executor.scheduler) == 0) {
    _longjmp(fiber.place, 1);
  }
}

void meet(std::size_t place, unsigned number) {
  const unsigned generation = executor.generation[place];
  if (++executor.arrived[place] == number) {
    executor.arrived[place] = 0;
    ++executor.generation[place];
    return;
  }
  for (int spins = 0; executor.generation[place] == generation; ++spins) {
    if (spins > 100000) {
      std::fprintf(stderr, "emulated kernel: a barrier that not all threads reach\n");
      std::abort();
    }
    yield();
  }
}

void enter() {
  yield();
  Fiber& me = *executor.current;
  while (true) {
    while (executor.started < blockDim.x) {
      me.thread = executor.started++;
      threadIdx = dim3(me.thread);
      (*executor.body)();
    }
    me.done = true;
    yield();
  }
}

void add_fiber() {
  Fiber& fiber = *executor.fibers.emplace_back(std::make_unique<Fiber>());
  ucontext_t context{};
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = stack_bytes;
  makecontext(&context, enter, 0);
  executor.current = &fiber;
  if (_setjmp(executor.scheduler) == 0) {
    setcontext(&context);
  }
}

}  // namespace

void run_blocks(dim3 grid, dim3 block, const std::function<void()>& body) {
  executor.body = &body;
  blockDim = block;
  gridDim = grid;
  executor.slots.resize(block.x);
  for (unsigned b = 0; b < grid.x; ++b) {
    blockIdx = dim3(b);
    executor.started = 0;
    executor.arrived.assign(block.x / warp + 1, 0);
    executor.generation.assign(block.x / warp + 1, 0);
    std::size_t used = 0;
    while (executor.started < block.x) {
      if (used == executor.fibers.size()) {
        add_fiber();
      }
      executor.fibers[used]->done = false;
      resume(*executor.fibers[used++]);
    }
    for (bool left = true; left;) {
      left = false;
      for (std::size_t f = 0; f < used; ++f) {
        if (!executor.fibers[f]->done) {
          left = true;
          resume(*executor.fibers[f]);
        }
      }
    }
  }
}

void synchronize_block() { meet(executor.arrived.size() - 1, blockDim.x); }

void exchange(const void* mine, void* other, std::size_t bytes, unsigned distance) {
  const unsigned me = threadIdx.x;
  std::memcpy(executor.slots[me].data(), mine, bytes);
  meet(me / warp, warp);
  std::memcpy(other, executor.slots[me ^ distance].data(), bytes);
  meet(me / warp, warp);
}

}  // namespace cuda_emulator

// ---- the runtime's functions
// -----------------------------------------------------------------------------------------

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorPeerAccessUnsupported:
      return "peer access is not supported between these two devices";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
  }
  return "unknown error";
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 12000;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) {
    return cudaErrorInvalidDevice;
  }
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::snprintf(properties->name, sizeof properties->name, "emulated device %d", device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device + 1));
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer && setting("CUDA_EMULATOR_PEERS", 1) != 0 ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  *address = nullptr;
  if (bytes == 0) {
    return cudaSuccess;
  }
  {
    const std::lock_guard lock(memory().mutex);
    if (memory().allocated + bytes > memory().limit) {
      return cudaErrorMemoryAllocation;
    }
    memory().allocated += bytes;
  }
  const int descriptor = memfd_create("cuda-emulator", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    return cudaErrorMemoryAllocation;
  }
  *address = memory().map(descriptor, bytes, current_device, true);
  return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// Waits for the device, as the real one does.
cudaError_t cudaFree(void* address) {
  if (address == nullptr) {
    return cudaSuccess;
  }
  while (memory().queued > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return memory().unmap(address) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  const std::lock_guard lock(memory().mutex);
  const bool is_new = memory().pinned.emplace(static_cast<const std::byte*>(address), bytes).second;
  return is_new ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}

cudaError_t cudaHostUnregister(void* address) {
  const std::lock_guard lock(memory().mutex);
  const auto erased = memory().pinned.erase(static_cast<const std::byte*>(address));
  return erased == 1 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const std::lock_guard lock(memory().mutex);
  if (const Mapping* const mapping = memory().find(address)) {
    *attributes = {cudaMemoryTypeDevice, mapping->device};
  } else {
    *attributes = {memory().is_pinned(address) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered, 0};
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  bool pageable = false;
  {
    const std::lock_guard lock(memory().mutex);
    for (const void* const address : {static_cast<const void*>(to), from}) {
      pageable = pageable || (memory().find(address) == nullptr && !memory().is_pinned(address));
    }
  }
  cuda_emulator::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return pageable ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  cuda_emulator::enqueue(stream, [=] {
    constexpr std::uintptr_t page = 4096;
    const auto begin = (reinterpret_cast<std::uintptr_t>(to) + page - 1) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(to) + bytes) / page * page;
    // Zeros are no pages: protecting a mapping takes time for each page it has.
    if (value != 0 || begin >= end || madvise(reinterpret_cast<void*>(begin), end - begin, MADV_REMOVE) != 0) {
      std::memset(to, value, bytes);
      return;
    }
    std::memset(to, 0, begin - reinterpret_cast<std::uintptr_t>(to));
    std::memset(reinterpret_cast<void*>(end), 0, reinterpret_cast<std::uintptr_t>(to) + bytes - end);
  });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new EmulatedStream;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(stream->mutex);
    stream->ends = true;
    stream->changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  cudaStream_t const resolved = resolve(stream);
  std::unique_lock lock(resolved->mutex);
  resolved->changed.wait(lock, [&] { return resolved->work.empty() && !resolved->busy; });
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::uint64_t target = event->state->recorded.load(std::memory_order_acquire);
  ++event->users;
  cuda_emulator::put(resolve(stream), [event, target] {
    EmulatedEvent::wait(*event->state, target);
    event->leave();
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto* const made = new EmulatedEvent;
  made->shared = (flags & cudaEventInterprocess) != 0;
  if (made->shared) {
    made->descriptor = memfd_create("cuda-emulator-event", MFD_CLOEXEC);
    if (made->descriptor < 0 || ftruncate(made->descriptor, sizeof(EmulatedEvent::State)) != 0) {
      return cudaErrorMemoryAllocation;
    }
  }
  void* const state = mmap(nullptr, sizeof(EmulatedEvent::State), PROT_READ | PROT_WRITE,
                           made->shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, made->descriptor, 0);
  made->state = static_cast<EmulatedEvent::State*>(state);
  *event = made;
  return state == MAP_FAILED ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  event->leave();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (resolve(stream)->device != event->device) {
    return cudaErrorInvalidResourceHandle;
  }
  const std::uint64_t number = ++event->state->recorded;
  ++event->users;
  cuda_emulator::put(resolve(stream), [event, number] {
    event->when = Clock::now().time_since_epoch().count();
    event->state->happened.store(number, std::memory_order_release);
    event->leave();
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->state->happened >= event->state->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  EmulatedEvent::wait(*event->state, event->state->recorded);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (cudaEventQuery(from) != cudaSuccess || cudaEventQuery(to) != cudaSuccess) {
    return cudaErrorNotReady;
  }
  *milliseconds = static_cast<float>(static_cast<double>(to->when - from->when) * 1e-6);
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  const std::lock_guard lock(memory().mutex);
  const Mapping* const mapping = memory().find(address);
  if (mapping == nullptr || mapping->descriptor < 0) {
    return cudaErrorInvalidValue;
  }
  return pack(handle, {getpid(), mapping->descriptor, mapping->device, mapping->bytes});
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  const FileHandle file = unpack(handle);
  int can = 1;
  if (file.device != current_device) {
    cudaDeviceCanAccessPeer(&can, current_device, file.device);
  }
  if (can == 0) {
    return cudaErrorPeerAccessUnsupported;
  }
  const int descriptor = file.pid == getpid() ? -1 : open_file(file);  // the real one refuses its own, too
  if (descriptor < 0) {
    return cudaErrorInvalidValue;
  }
  *address = memory().map(descriptor, file.bytes, file.device, false);
  ::close(descriptor);
  return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* address) { return cudaFree(address); }

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return event->shared ? pack(handle, {getpid(), event->descriptor, 0, 0}) : cudaErrorInvalidValue;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  const int descriptor = open_file(unpack(handle));
  if (descriptor < 0) {
    return cudaErrorInvalidValue;
  }
  auto* const opened = new EmulatedEvent;
  opened->descriptor = descriptor;
  void* const state = mmap(nullptr, sizeof(EmulatedEvent::State), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  opened->state = static_cast<EmulatedEvent::State*>(state);
  *event = opened;
  return state == MAP_FAILED ? cudaErrorMemoryAllocation : cudaSuccess;
}
