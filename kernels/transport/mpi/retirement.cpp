#include "retirement.hpp"

#include <list>
#include <mutex>
#include <utility>

namespace gradientflow::transport {
namespace {

struct Retired {
  MPI_Comm comm;
  std::vector<int> awaited;
  int tag;
};

struct Unfinished {
  std::shared_ptr<const void> memory;
  MPI_Request request;
};

// State of the whole process, because MPI's identities of communicators belong to the process.
struct Waiting {
  std::mutex mutex;
  std::list<Unfinished> requests;
  std::list<Retired> list;
};

Waiting& waiting() {
  static Waiting all;
  return all;
}

bool has_ended(Unfinished& unfinished) {
  int done = 0;
  MPI_Test(&unfinished.request, &done, MPI_STATUS_IGNORE);
  return done != 0;
}

bool is_there(MPI_Comm comm, int source, int tag) {
  int there = 0;
  MPI_Iprobe(source, tag, comm, &there, MPI_STATUS_IGNORE);
  return there != 0;
}

bool try_free(Retired& retired) {
  std::erase_if(retired.awaited, [&](int rank) {
    if (!is_there(retired.comm, rank, retired.tag)) {
      return false;
    }
    std::vector<char> message(4096);
    MPI_Recv(message.data(), static_cast<int>(message.size()), MPI_BYTE, rank, retired.tag, retired.comm,
             MPI_STATUS_IGNORE);
    return true;
  });
  // A message that no rank has received, of a tensor for example, is older than the notices. It keeps the communicator
  // for good.
  if (!retired.awaited.empty() || is_there(retired.comm, MPI_ANY_SOURCE, MPI_ANY_TAG)) {
    return false;
  }
  MPI_Comm_free(&retired.comm);
  return true;
}

}  // namespace

void retire(MPI_Comm comm, std::vector<int> awaited, int tag) noexcept {
  try {
    Waiting& all = waiting();
    const std::lock_guard lock(all.mutex);
    all.list.push_back({comm, std::move(awaited), tag});
  } catch (const std::bad_alloc&) {  // the communicator is never freed
  }
  free_retired();
}

void finish_later(std::shared_ptr<const void> memory, MPI_Request request) noexcept {
  Unfinished unfinished{std::move(memory), request};
  try {
    Waiting& all = waiting();
    const std::lock_guard lock(all.mutex);
    all.requests.push_back(unfinished);
  } catch (const std::bad_alloc&) {
    static_cast<void>(new (std::nothrow) std::shared_ptr(unfinished.memory));  // NOLINT(*-owning-memory): for good
  }
}

void free_retired() noexcept {
  try {
    Waiting& all = waiting();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.requests, has_ended);
    std::erase_if(all.list, try_free);
  } catch (const std::bad_alloc&) {  // tries again later
  }
}

}  // namespace gradientflow::transport
