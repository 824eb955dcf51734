// NCCL on top of the emulated CUDA: the functions that the library uses, for communicators that make nobody wait.
//
// What is called is put into the stream by another thread, a little later, as NCCL does it; whoever calls again before
// that has happened gets an error. In the stream, an operation really waits for the other ranks, until it is aborted.
// The ranks of a communicator send each other everything through pipes in memory that they share, which goes with them.
//
// Variables of the environment, which a rank may also set for itself:
//   NCCL_MULTI_RANK_GPU_ENABLE=1   several ranks may have the same device, as with the real one
//   NCCL_EMULATOR_VERSION=22705    what it says that it is
//   NCCL_EMULATOR_FAULT            init: no communicator is ever ready
//                                  error:N   the N-th operation of this rank does nothing, and an error is reported
//                                  late:N    the same, but only when the stream is at it
//                                  silence:N the N-th operation of this rank does nothing, for ever
//                                  launch:N  the N-th operation never gets as far as the stream
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

enum Result {
  success = 0,
  system_error = 2,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7
};
enum Type { int8 = 0, uint8 = 1, int32 = 2, int64 = 4, float16 = 6, float32 = 7, float64 = 8, bfloat16 = 9 };
enum Op { sum = 0, prod = 1, max = 2, min = 3, avg = 4, first_made = 5 };

constexpr int most_ranks = 8;
constexpr std::size_t pipe_bytes = 16384;

std::string last_error;  // of the process, as NCCL's

std::string setting(const char* name, const char* otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}

void nap() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

// ---- memory between the ranks
// ----------------------------------------------------------------------------------------

struct Pipe {  // from one rank to another
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> read;
  std::array<std::byte, pipe_bytes> data;
};

struct Shared {
  struct Rank {
    std::atomic<int> here;
    char bus_id[32];
  };
  std::array<Rank, most_ranks> ranks;
  std::array<Pipe, most_ranks * most_ranks> pipes;
};

struct UniqueId {
  pid_t maker;
  int descriptor;
  char rest[120];
};
static_assert(sizeof(UniqueId) == 128);

// What goes to or comes from another rank: a word that both must have alike, and then the data.
struct Part {
  int peer;
  bool sends;
  std::byte* data;
  std::size_t bytes;
  std::uint64_t word;
  std::size_t done = 0;

  [[nodiscard]] std::size_t left() const { return sizeof word + bytes - done; }
  [[nodiscard]] std::pair<std::byte*, std::size_t> next(std::uint64_t& head) const {
    return done < sizeof head ? std::pair(reinterpret_cast<std::byte*>(&head) + done, sizeof head - done)
                              : std::pair(data + (done - sizeof head), left());
  }
};

// ---- communicators
// ---------------------------------------------------------------------------------------------------

struct Communicator {
  Shared* shared = nullptr;
  int rank = 0;
  int size = 0;
  int device = 0;
  std::atomic<int> state{in_progress};
  std::atomic<bool> aborted{false};
  std::atomic<int> under_way{0};  // operations, in streams or on their way there
  std::vector<double> scalars;    // of the operators made
  std::thread thread;             // starts it, puts operations into streams, and ends it
  bool blocking = false;          // calls wait for it

  ~Communicator() { munmap(shared, sizeof(Shared)); }
  void in_thread(std::function<void()> work) {
    if (thread.joinable()) {
      thread.join();
    }
    state = in_progress;
    thread = std::thread([number = device, work = std::move(work)] {
      cudaSetDevice(number);  // whose streams are meant, the default one among them
      work();
    });
  }
  int wait() const {
    while (state == in_progress) {
      nap();
    }
    return state;
  }
  [[nodiscard]] Pipe& pipe(int from, int to) const {
    return shared->pipes[static_cast<std::size_t>(from * most_ranks + to)];
  }
};

// Moves what can be moved now.
std::size_t move(const Communicator& comm, Part& part) {
  Pipe& pipe = part.sends ? comm.pipe(comm.rank, part.peer) : comm.pipe(part.peer, comm.rank);
  std::uint64_t head = part.word;
  const auto [data, length] = part.next(head);
  const std::uint64_t begin = part.sends ? pipe.written : pipe.read;
  const std::size_t possible = part.sends ? pipe_bytes - (begin - pipe.read) : pipe.written - begin;
  const std::size_t at = begin % pipe_bytes;
  const std::size_t bytes = std::min({length, possible, pipe_bytes - at});
  if (part.sends) {
    std::memcpy(pipe.data.data() + at, data, bytes);
    pipe.written += bytes;
  } else {
    const bool is_head = part.done < sizeof head;
    if (is_head && std::memcmp(data, pipe.data.data() + at, bytes) != 0) {
      std::fprintf(stderr, "emulated NCCL: ranks %d and %d do different things\n", comm.rank, part.peer);
      std::abort();
    }
    std::memcpy(data, pipe.data.data() + at, bytes);
    pipe.read += bytes;
  }
  part.done += bytes;
  return bytes;
}

// ---- operations
// ------------------------------------------------------------------------------------------------------

struct Operation {
  Communicator* comm;
  cudaStream_t stream;
  std::vector<Part> parts;
  std::function<void()> finish;  // when all parts have been moved
};

// All of them go on together; of two parts between the same ranks the first one goes first.
void perform(Communicator& comm, std::vector<Operation>& operations) {
  for (bool left = true; left;) {
    left = false;
    bool moved = false;
    std::array<std::array<bool, most_ranks>, 2> blocked{};
    for (Operation& operation : operations) {
      for (Part& part : operation.parts) {
        bool& is_blocked = blocked[part.sends ? 1 : 0][static_cast<std::size_t>(part.peer)];
        if (part.left() > 0 && !is_blocked) {
          moved = move(comm, part) > 0 || moved;
          is_blocked = part.left() > 0;
        }
        left = left || part.left() > 0;
      }
    }
    if (comm.aborted) {
      return;
    }
    if (left && !moved) {
      nap();
    }
  }
  for (const Operation& operation : operations) {
    operation.finish();
  }
}

// Whether this is the operation at which the rank is to fail in this way.
bool is_fault(const std::string& kind, int number) {
  return setting("NCCL_EMULATOR_FAULT", "") == kind + ":" + std::to_string(number);
}

void fail(Communicator& comm) {
  last_error = "emulated failure of the network\n";
  comm.state = remote_error;
}

int launch(std::vector<Operation> operations) {
  static std::atomic<int> launched{0};
  Communicator& comm = *operations.front().comm;
  cudaStream_t const stream = operations.front().stream;
  const int number = ++launched;
  ++comm.under_way;
  comm.in_thread([&comm, stream, number, operations = std::move(operations)]() mutable {
    nap();
    while (is_fault("launch", number) && !comm.aborted) {
      nap();
    }
    const bool fails = is_fault("error", number);
    const bool fails_late = is_fault("late", number);
    const bool is_silent = fails || fails_late || is_fault("silence", number);
    cuda_emulator::enqueue(stream, [&comm, is_silent, fails_late, operations = std::move(operations)]() mutable {
      if (fails_late) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        fail(comm);
      }
      while (is_silent && !comm.aborted) {
        nap();
      }
      if (!comm.aborted) {
        perform(comm, operations);
      }
      --comm.under_way;
    });
    if (fails) {
      fail(comm);
    } else {
      comm.state = success;
    }
  });
  return comm.blocking ? comm.wait() : in_progress;
}

thread_local int group_depth = 0;
thread_local std::vector<Operation> group;

int add(Operation operation) {
  const int state = operation.comm->state;
  if (state == in_progress) {
    last_error = "Attempt to use communicator before the previous operation returned ncclSuccess\n";
    return invalid_usage;
  }
  if (state != success) {
    return state;
  }
  if (group_depth > 0) {
    group.push_back(std::move(operation));
    return success;
  }
  std::vector<Operation> alone;
  alone.push_back(std::move(operation));
  return launch(std::move(alone));
}

// ---- elements
// --------------------------------------------------------------------------------------------------------

template <class T>
struct Plain {
  using Stored = T;
  static T load(T stored) { return stored; }
  static T store(T value) { return value; }
};
struct Half {
  using Stored = unsigned short;
  static float load(Stored stored) { return __half2float({stored}); }
  static Stored store(float value) { return __float2half_rn(value).bits; }
};
struct Bfloat16 {
  using Stored = unsigned short;
  static float load(Stored stored) { return __uint_as_float(static_cast<unsigned>(stored) << 16U); }
  static Stored store(float value) {
    const unsigned bits = __float_as_uint(value);
    return static_cast<Stored>(value != value ? 0x7fc0U : (bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
  }
};

template <class Body>
void with_type(int type, Body body) {
  switch (type) {
    case int8:
      return body(Plain<std::int8_t>{});
    case uint8:
      return body(Plain<std::uint8_t>{});
    case int32:
      return body(Plain<std::int32_t>{});
    case int64:
      return body(Plain<std::int64_t>{});
    case float16:
      return body(Half{});
    case float32:
      return body(Plain<float>{});
    case float64:
      return body(Plain<double>{});
    case bfloat16:
      return body(Bfloat16{});
  }
  std::abort();
}

std::size_t size_of(int type) {
  std::size_t size = 0;
  with_type(type, [&](auto format) { size = sizeof(typename decltype(format)::Stored); });
  return size;
}

// Integers wrap around; of a number and a NaN, max and min take the number.
template <class T>
T combine(T a, T b, int op) {
  using Wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  switch (op) {
    case prod:
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    case max:
      return a != a || b > a ? b : a;
    case min:
      return a != a || b < a ? b : a;
    default:
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
  }
}

void reduce_elements(void* output, const std::vector<const void*>& inputs, std::size_t count, int type, int op,
                     double scale) {
  with_type(type, [&](auto format) {
    using Format = decltype(format);
    using Stored = typename Format::Stored;
    for (std::size_t i = 0; i < count; ++i) {
      Stored result{};
      for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
        auto value = Format::load(static_cast<const Stored*>(inputs[rank])[i]);
        if (op >= avg) {
          value = static_cast<decltype(value)>(value * scale);
        }
        result = Format::store(rank == 0 ? value : combine(Format::load(result), value, op));
      }
      static_cast<Stored*>(output)[i] = result;
    }
  });
}

// ---- the collectives, of parts
// ---------------------------------------------------------------------------------------

enum class Kind : std::uint64_t { reduction = 1, broadcast, gather, message };

std::uint64_t word_of(Kind kind, std::size_t bytes) { return (static_cast<std::uint64_t>(kind) << 56U) | bytes; }

std::byte* bytes_at(const void* address) { return static_cast<std::byte*>(const_cast<void*>(address)); }

// Rank `to` has the result of `count` elements in `output`; everybody's input for it begins at `offset`.
struct Goal {
  std::size_t offset;
  void* output;
};

int reduction(const void* input, std::size_t count, int type, int op, Communicator* comm, cudaStream_t stream,
              const std::function<bool(int to)>& has_result, const std::function<Goal(int to)>& goal) {
  Operation operation{comm, stream, {}, [] {}};
  const std::size_t bytes = count * size_of(type);
  for (int to = 0; to < comm->size; ++to) {
    if (to != comm->rank && has_result(to)) {
      operation.parts.push_back({to, true, bytes_at(input) + goal(to).offset, bytes, word_of(Kind::reduction, bytes)});
    }
  }
  if (has_result(comm->rank)) {
    const auto room = std::make_shared<std::vector<std::byte>>(bytes * static_cast<std::size_t>(comm->size));
    const Goal mine = goal(comm->rank);
    std::vector<const void*> inputs;
    for (int from = 0; from < comm->size; ++from) {
      std::byte* const theirs = room->data() + static_cast<std::size_t>(from) * bytes;
      inputs.push_back(from == comm->rank ? bytes_at(input) + mine.offset : theirs);
      if (from != comm->rank) {
        operation.parts.push_back({from, false, theirs, bytes, word_of(Kind::reduction, bytes)});
      }
    }
    const double scale = op >= first_made ? comm->scalars[static_cast<std::size_t>(op - first_made)] : 1.0 / comm->size;
    operation.finish = [=] {
      reduce_elements(mine.output, inputs, count, type, op, scale);
      (void)room;
    };
  }
  return add(std::move(operation));
}

std::function<void()> copy_of(void* to, const void* from, std::size_t bytes) {
  return [=] {
    if (to != from) {
      std::memmove(to, from, bytes);
    }
  };
}

void start(Communicator& comm, const std::string& bus_id, bool several_ranks) {
  auto& ranks = comm.shared->ranks;
  std::strncpy(ranks[static_cast<std::size_t>(comm.rank)].bus_id, bus_id.c_str(), sizeof ranks[0].bus_id - 1);
  ranks[static_cast<std::size_t>(comm.rank)].here = 1;
  for (int rank = 0; rank < comm.size; ++rank) {
    while (ranks[static_cast<std::size_t>(rank)].here == 0 || setting("NCCL_EMULATOR_FAULT", "") == "init") {
      if (comm.aborted) {
        return;
      }
      nap();
    }
  }
  for (int rank = 0; rank < comm.size; ++rank) {
    if (rank != comm.rank && !several_ranks && bus_id == ranks[static_cast<std::size_t>(rank)].bus_id) {
      last_error = "Duplicate GPU detected : rank " + std::to_string(comm.rank) + " and rank " + std::to_string(rank) +
                   " both on CUDA device " + bus_id + "\n";
      comm.state = invalid_usage;
      return;
    }
  }
  comm.state = success;
}

void end(Communicator& comm) {
  if (comm.thread.joinable()) {
    comm.thread.join();
  }
  while (comm.under_way > 0) {  // as the real one waits for its kernels
    nap();
  }
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = std::atoi(setting("NCCL_EMULATOR_VERSION", "22705").c_str());
  return success;
}

const char* ncclGetErrorString(int result) {
  switch (result) {
    case success:
      return "no error";
    case system_error:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case invalid_argument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case invalid_usage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case remote_error:
      return "remote process exited or there was a network error";
    case in_progress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(Communicator*) { return last_error.c_str(); }

// The descriptor stays with the rank that makes the id: others may come late.
int ncclGetUniqueId(UniqueId* id) {
  *id = {getpid(), memfd_create("nccl-emulator", MFD_CLOEXEC), {}};
  return id->descriptor >= 0 && ftruncate(id->descriptor, sizeof(Shared)) == 0 ? success : system_error;
}

int ncclCommInitRankConfig(Communicator** made, int size, UniqueId id, int rank, const void* settings) {
  struct {
    std::size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
  } config{};
  std::memcpy(&config, settings, sizeof config);
  if (config.magic != 0xcafebeef || config.blocking != 0 || size > most_ranks || rank >= size) {
    return invalid_argument;
  }
  const std::string path = "/proc/" + std::to_string(id.maker) + "/fd/" + std::to_string(id.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (descriptor < 0 || memory == MAP_FAILED) {
    last_error = "the first rank of the communicator is not there\n";
    return system_error;
  }
  ::close(descriptor);
  int device = 0;
  std::array<char, 32> bus_id{};
  cudaGetDevice(&device);
  cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), device);
  auto* const comm = new Communicator;
  comm->shared = static_cast<Shared*>(memory);
  comm->rank = rank;
  comm->size = size;
  comm->device = device;
  const bool several_ranks = setting("NCCL_MULTI_RANK_GPU_ENABLE", "0") == "1";
  comm->in_thread([comm, bus_id, several_ranks] { start(*comm, bus_id.data(), several_ranks); });
  *made = comm;
  return in_progress;
}

// The one whose calls wait.
int ncclCommInitRank(Communicator** made, int size, UniqueId id, int rank) {
  const struct {
    std::size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
  } settings{sizeof settings, 0xcafebeef, 21400, 0};
  const int status = ncclCommInitRankConfig(made, size, id, rank, &settings);
  if (status != in_progress) {
    return status;
  }
  (*made)->blocking = true;
  return (*made)->wait();
}

int ncclCommGetAsyncError(Communicator* comm, int* result) {
  *result = comm->state;
  return success;
}

int ncclCommFinalize(Communicator* comm) {
  if (comm->state != success) {
    return invalid_usage;
  }
  comm->in_thread([comm] {
    while (comm->under_way > 0) {
      nap();
    }
    comm->state = success;
  });
  return in_progress;
}

int ncclCommDestroy(Communicator* comm) {
  end(*comm);
  delete comm;
  return success;
}

int ncclCommAbort(Communicator* comm) {
  comm->aborted = true;
  return ncclCommDestroy(comm);
}

int ncclGroupStart() {
  ++group_depth;
  return success;
}

int ncclGroupEnd() {
  if (--group_depth > 0 || group.empty()) {
    return success;
  }
  return launch(std::exchange(group, {}));
}

int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int, Communicator* comm) {
  with_type(type, [&](auto format) {
    using Format = decltype(format);
    typename Format::Stored stored{};
    std::memcpy(&stored, scalar, sizeof stored);
    comm->scalars.push_back(static_cast<double>(Format::load(stored)));
  });
  *op = first_made + static_cast<int>(comm->scalars.size()) - 1;
  return success;
}

int ncclAllReduce(const void* input, void* output, std::size_t count, int type, int op, Communicator* comm,
                  cudaStream_t stream) {
  return reduction(
      input, count, type, op, comm, stream, [](int) { return true; }, [=](int) { return Goal{0, output}; });
}

int ncclReduce(const void* input, void* output, std::size_t count, int type, int op, int root, Communicator* comm,
               cudaStream_t stream) {
  return reduction(
      input, count, type, op, comm, stream, [=](int to) { return to == root; }, [=](int) { return Goal{0, output}; });
}

int ncclReduceScatter(const void* input, void* output, std::size_t count, int type, int op, Communicator* comm,
                      cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  return reduction(
      input, count, type, op, comm, stream, [](int) { return true; },
      [=](int to) { return Goal{static_cast<std::size_t>(to) * bytes, output}; });
}

int ncclBroadcast(const void* input, void* output, std::size_t count, int type, int root, Communicator* comm,
                  cudaStream_t stream) {
  Operation operation{comm, stream, {}, [] {}};
  const std::size_t bytes = count * size_of(type);
  const std::uint64_t word = word_of(Kind::broadcast, bytes);
  if (comm->rank != root) {
    operation.parts.push_back({root, false, bytes_at(output), bytes, word});
    return add(std::move(operation));
  }
  for (int to = 0; to < comm->size; ++to) {
    if (to != root) {
      operation.parts.push_back({to, true, bytes_at(input), bytes, word});
    }
  }
  operation.finish = copy_of(output, input, bytes);
  return add(std::move(operation));
}

int ncclAllGather(const void* input, void* output, std::size_t count, int type, Communicator* comm,
                  cudaStream_t stream) {
  Operation operation{comm, stream, {}, [] {}};
  const std::size_t bytes = count * size_of(type);
  const std::uint64_t word = word_of(Kind::gather, bytes);
  const auto place = [&](int rank) { return bytes_at(output) + static_cast<std::size_t>(rank) * bytes; };
  for (int peer = 0; peer < comm->size; ++peer) {
    if (peer != comm->rank) {
      operation.parts.push_back({peer, true, bytes_at(input), bytes, word});
      operation.parts.push_back({peer, false, place(peer), bytes, word});
    }
  }
  operation.finish = copy_of(place(comm->rank), input, bytes);
  return add(std::move(operation));
}

int ncclSend(const void* input, std::size_t count, int type, int peer, Communicator* comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  return add({comm, stream, {{peer, true, bytes_at(input), bytes, word_of(Kind::message, bytes)}}, [] {}});
}

int ncclRecv(void* output, std::size_t count, int type, int peer, Communicator* comm, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  return add({comm, stream, {{peer, false, bytes_at(output), bytes, word_of(Kind::message, bytes)}}, [] {}});
}

}  // extern "C"
