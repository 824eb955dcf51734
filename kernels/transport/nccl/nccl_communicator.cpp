#include "nccl_communicator.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/text.hpp"
#include "../../base/waits.hpp"
#include "../patience.hpp"

namespace gradientflow::transport {
namespace {

using nccl::Result;

// The text of the last error is NCCL's, not a communicator's, so it can be asked for after the communicator is gone.
std::string reason_of(const NcclLibrary& library, Result result) {
  const nccl::Functions& functions = library.functions();
  const std::string text = functions.get_error_string(result);
  const char* const last = functions.get_last_error(nullptr);
  std::string detail = last == nullptr ? "" : last;
  while (!detail.empty() && detail.back() == '\n') {
    detail.pop_back();
  }
  return detail.empty() ? text : text + ": " + detail;
}

Error error_of(const NcclLibrary& library, Result result) {
  return {ErrorKind::system, "NCCL: " + reason_of(library, result)};
}

// Messages of a rank to all others, before and after the start.
struct Introduction {
  nccl::UniqueId id;  // id of the communicator, from its first member
  int version;
};
struct Verdict {
  bool failed;
  ErrorKind kind;
  std::array<char, 500> text;

  static Verdict of(const Error& error) {
    Verdict verdict{true, error.kind(), {}};
    std::string_view(error.what()).copy(verdict.text.data(), verdict.text.size() - 1);
    return verdict;
  }
};

// Throws the error of the first rank that failed. Waits several timeouts, because other ranks may have waited for one
// before they come.
void check_all(const Endpoint& endpoint, const Verdict& mine) {
  constexpr int timeouts = 3;
  const std::vector<Verdict> all = endpoint.allgather(mine, timeouts);
  const auto failed = std::find_if(all.begin(), all.end(), [](const Verdict& each) { return each.failed; });
  if (failed != all.end()) {
    throw Error(failed->kind, "no NCCL communicator could be made: on rank " + std::to_string(failed - all.begin()) +
                                  ": " + failed->text.data());
  }
}

}  // namespace

std::unique_ptr<NcclCommunicator> NcclCommunicator::make(std::shared_ptr<const NcclLibrary> library,
                                                         const Endpoint& endpoint, std::span<const int> members,
                                                         double timeout) {
  endpoint.check_not_ended();
  Introduction mine{{}, library->version()};
  Verdict verdict{};
  if (!members.empty() && members.front() == endpoint.rank()) {
    const Result result = library->functions().get_unique_id(&mine.id);
    if (result != Result::success) {
      verdict = Verdict::of({ErrorKind::system, reason_of(*library, result)});
    }
  }
  check_all(endpoint, verdict);
  const std::vector<Introduction> all = endpoint.allgather(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].version != all.front().version) {
      throw Error(ErrorKind::mismatch, "NCCL differs between ranks: " + nccl_version_text(all.front().version) +
                                           " on rank 0, " + nccl_version_text(all[rank].version) + " on rank " +
                                           std::to_string(rank));
    }
  }
  std::unique_ptr<NcclCommunicator> made;
  if (!members.empty()) {
    const auto me = std::find(members.begin(), members.end(), endpoint.rank());
    made.reset(new NcclCommunicator(std::move(library), static_cast<int>(me - members.begin()),
                                    static_cast<int>(members.size())));
    try {
      made->start(all[static_cast<std::size_t>(members.front())].id, endpoint, timeout);
    } catch (const Error& error) {
      made->abort();
      verdict = Verdict::of(error);
    }
  }
  check_all(endpoint, verdict);
  return made;
}

void NcclCommunicator::start(const nccl::UniqueId& id, const Endpoint& endpoint, double timeout) {
  nccl::Settings settings;
  const std::lock_guard lock(mutex_);
  Result result = library_->functions().comm_init_rank_config(&comm_, size_, id, rank_, &settings);
  Patience patience(timeout);
  while (result == Result::in_progress) {
    if (patience.pause()) {
      if (patience.over()) {
        throw Error(ErrorKind::timeout, "NCCL did not come to know the others within " + format_number(timeout) +
                                            " s (GRADIENTFLOW_TIMEOUT)");
      }
      if (endpoint.interrupted()) {
        throw Error(ErrorKind::closed, "the communicator was closed while NCCL was started");
      }
    }
    result = state();
  }
  if (result != Result::success) {
    throw Error(ErrorKind::system, reason_of(*library_, result));
  }
}

NcclCommunicator::~NcclCommunicator() {
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) {
      return;
    }
    ended = state() == Result::success && !is_failure(library_->functions().comm_finalize(comm_));
  }
  if (!ended || !finished_within(waits::nccl_end.seconds())) {
    abort();
    return;
  }
  library_->functions().comm_destroy(comm_);
}

bool NcclCommunicator::finished_within(double seconds) noexcept {
  Patience patience(seconds);
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      const Result result = state();
      if (result != Result::in_progress) {
        return result == Result::success;
      }
    }
    if (patience.pause() && patience.over()) {
      return false;
    }
  }
}

void NcclCommunicator::check_not_aborted() const {
  if (comm_ == nullptr) {
    throw Error(ErrorKind::closed, "the NCCL communicator was aborted");
  }
}

Result NcclCommunicator::state() {
  Result result = Result::success;
  const Result asked = library_->functions().comm_get_async_error(comm_, &result);
  return asked == Result::success ? result : asked;
}

// Waits until a call has ended. It needs no time limit, because the watcher of the calls aborts the communicator.
void NcclCommunicator::finish(Result result) {
  Patience patience(0);
  while (result == Result::in_progress) {
    patience.pause();
    const std::lock_guard lock(mutex_);
    check_not_aborted();
    result = state();
  }
  if (result != Result::success) {
    throw error_of(*library_, result);
  }
}

std::optional<Error> NcclCommunicator::asynchronous_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || comm_ == nullptr) {
    return std::nullopt;
  }
  const Result result = state();
  return is_failure(result) ? std::optional(error_of(*library_, result)) : std::nullopt;
}

void NcclCommunicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) {
    library_->functions().comm_abort(std::exchange(comm_, nullptr));
  }
}

}  // namespace gradientflow::transport
