// Communicator: serves the calls of one rank, from any thread, in turn. In a forked process every call throws, and
// closing does nothing.
//
// Files: communicator.cpp has construction, closing and blocking calls; communicator_background.cpp asynchronous calls;
// communicator_messages.cpp has sends and receives; communicator_recovery.cpp makes communicators without dead ranks,
// or with joiners. Turns (turns.hpp; turns_prepared.cpp for prepared calls) serves one call at a time: for run(),
// execute(), or serve() while a timeline is written, in the caller's thread; for submit(), serve(), or
// serve_in_background() for a tensor on a device, in the progress thread (with `release`, possibly in the caller's).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../base/timeline.hpp"
#include "../../collective/between/point_to_point.hpp"
#include "../../collective/group.hpp"
#include "../../collective/on_device/device_group.hpp"
#include "../../transport/recovery/consensus.hpp"
#include "call_log.hpp"
#include "device_calls.hpp"
#include "handle.hpp"
#include "recorder.hpp"
#include "sent_bytes.hpp"
#include "stream_marks.hpp"
#include "turns.hpp"

namespace gradientflow::engine {

class Communicator {
 public:
  // Collective over the ranks of `endpoint`. `within`: a communicator whose bytes_sent() includes the new one's.
  static std::shared_ptr<Communicator> make(std::unique_ptr<transport::Endpoint> endpoint,
                                            const Config& config = read_config(), const Communicator* within = nullptr);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return group_->topology().rank; }
  [[nodiscard]] int size() const { return static_cast<int>(group_->topology().node_of.size()); }
  [[nodiscard]] int local_rank() const { return group_->node().rank(); }
  [[nodiscard]] int local_size() const { return group_->node().size(); }
  [[nodiscard]] int node() const { return group_->topology().node(); }
  [[nodiscard]] int nodes() const { return group_->topology().nodes(); }
  [[nodiscard]] const collective::Group& group() const { return *group_; }

  // Returns the bytes that this rank has sent in messages so far, through this communicator and all communicators made
  // from it (pools, duplicates, parts). Returns nothing once a call has sent bytes that cannot be counted, through the
  // MPI library's own collectives or NCCL.
  [[nodiscard]] std::optional<std::uint64_t> bytes_sent() const { return sent_->total(); }
  void count_as_sent(std::optional<std::uint64_t> bytes) const { sent_->add(bytes); }  // bytes sent by other code

  void check_rank(int rank, const char* what) const;  // throws Error(value) if there is no such rank
  void check_device(int device) const { devices_.check(device); }
  void check_open() const;
  // True if an error has left the ranks in different states, so that each further call throws this error.
  [[nodiscard]] bool is_broken() const { return turns_.is_broken(); }
  // False if the rank is on this node and its process is known to be dead. Does not ask the endpoint.
  [[nodiscard]] bool is_alive(int rank) const;
  // Returns the peers known to have closed the communicator without an earlier error.
  [[nodiscard]] std::vector<int> closed_elsewhere();
  void check_process() const;  // throws Error(closed) in a process forked from the communicator's

  using Release = Turns::Release;

  // Serves a call made and checked by make_call (request.hpp). The tensors must not change meanwhile. On a device the
  // call may still be running on return: work put into its stream afterwards sees the result.
  collective::CallResult run(const collective::Call& call, const Release& release = {});

  // Serves the call in the background. The tensors must stay alive until the handle is done.
  std::shared_ptr<Handle> submit(const collective::Call& call);

  // Serves the call in the background; or at once, if all ranks are on one node that is short of cores, and the peers
  // have reached the call.
  std::shared_ptr<Handle> submit(const collective::Call& call, const Release& release);

  // Serves the call on a device in the background, in the communicator's own stream, after all marked work. So a call
  // can wait for several streams. The marks must not change until the handle is done.
  std::shared_ptr<Handle> submit(const collective::Call& call, const StreamMarks& after);

  // Runs several calls and the work between them in the background, as one call.
  std::shared_ptr<Handle> submit(std::function<void(collective::Group&)> work);

  // True if `progress` is "thread", or if it is "auto" and the node has at least two cores for each of its ranks.
  [[nodiscard]] bool has_cores_for_threads() const;

  // Serve prepared calls in turn, in the order of start(). finish() throws the call's error, or Error(timeout) if the
  // timeout passes first; the call then continues.
  void start(PreparedCall& prepared, const Release& release);
  collective::CallResult finish(PreparedCall& prepared, std::optional<double> timeout, const Release& release);
  [[nodiscard]] bool is_finished(PreparedCall& prepared);

  // Serves a call within work given to submit(), as run() does. Reads `times.queued`; sets when the call began and
  // ended.
  collective::CallResult run_within(const collective::Call& call, Times& times);

  // Sends a tensor to rank `to`, or receives one from rank `from`. If several threads can use the endpoint at once,
  // neither waits for collective calls or for other sends and receives. Tensors on devices pass through host memory,
  // and this function waits for the device.
  void send(int to, const void* data, std::size_t count, DType dtype,
            const std::optional<collective::Placement>& placement = {});
  void receive(int from, void* data, std::size_t count, DType dtype,
               const std::optional<collective::Placement>& placement = {});

  // Returns an endpoint of the ranks with the same color, in the order of `key`; nullptr for a negative color.
  // Collective.
  std::unique_ptr<transport::Endpoint> split(int color, int key);

  // Returns a communicator of the same ranks with its own progress thread, so that calls on the two communicators do
  // not wait for each other. The duplicate is closed with this communicator, and writes to the same timeline, under
  // `name`. Collective.
  std::shared_ptr<Communicator> duplicate(const std::string& name, transport::MadeFor what);

  // Records every call in this rank's own file (see path_of_rank), until stopped or until all communicators that write
  // to it are gone. Collective.
  void start_timeline(const std::string& path);
  void stop_timeline();
  [[nodiscard]] Recorder& recorder() { return recorder_; }
  [[nodiscard]] const Recorder& recorder() const { return recorder_; }

  // Log of the last calls, always kept unless the setting `dump` is off.
  [[nodiscard]] LoggedCalls& log() { return log_; }

  // Sets a function that threads call several times a second while they allocate large node memory. If it throws, the
  // call ends and the communicator is broken. Duplicates inherit it. Call this before other threads use the
  // communicator.
  void poll_signals_with(std::function<void()> poll_signals) { poll_signals_ = std::move(poll_signals); }

  // Allocates `bytes` bytes of zero-filled node memory for every rank of the node. The memory lives as long as the
  // segment is held, even after the communicator. Collective.
  std::shared_ptr<transport::Segment> allocate(std::size_t bytes, transport::Pages pages = transport::Pages::now);

  // Allocates memory on a CUDA device; the ranks of the node map each other's memory if they can. Collective.
  std::shared_ptr<collective::DeviceSegment> allocate_on_device(int device, std::size_t bytes);

  // Returns the server of calls on device tensors, for information only; nullptr before the first such call.
  [[nodiscard]] const collective::DeviceGroup* device_group() const { return devices_.made(); }

  // Closes the communicator, and frees all memory and descriptors that calls on a device do not use. `drain`: waits for
  // the asynchronous calls first; otherwise they end with Error(closed). Closing twice is harmless. Not collective:
  // peers find out when they wait for this rank. Returns true if this call closed it.
  bool close(bool drain) noexcept;
  [[nodiscard]] bool closed() const;

  // Closes this communicator and returns a communicator of its survivors. Collective over the survivors: all succeed,
  // or all get the same error: Error(peer) if too few survive (see transport/recovery/verdict.hpp), Error(mismatch) if
  // their `min_ranks` differ.
  std::shared_ptr<Communicator> recover(std::optional<int> min_ranks);
  // Throws the errors that recover() throws before it changes anything.
  void check_recoverable(std::optional<int> min_ranks) const;

  // Forward to Endpoint: return the number of ranks that the job has had, and an endpoint of this communicator's ranks,
  // followed by the joiners at `addresses`, whose ranks in the job begin at `first`.
  [[nodiscard]] int job_size();
  [[nodiscard]] std::unique_ptr<transport::Endpoint> widen(std::span<const std::string> addresses, int first);

  // Closes this communicator and returns a communicator of its ranks, followed by the joiners of `widened`, which call
  // enter() once `invite` has sent their invitations. Collective; errors as in recover(). Leaves out dead joiners, and
  // all joiners if setup with joiners fails. If a rank has died, or calls recover() because it has heard of a death,
  // `invite` is not called, and the new communicator has only the survivors.
  std::shared_ptr<Communicator> welcome(std::unique_ptr<transport::Endpoint> widened, std::optional<int> min_ranks,
                                        const std::function<void()>& invite);
  // Returns the same communicator on a joiner; the first `former` ranks of `widened` are the old communicator's. Throws
  // Error(mismatch) if it cannot join.
  static std::shared_ptr<Communicator> enter(std::unique_ptr<transport::Endpoint> widened, int former,
                                             std::optional<int> min_ranks, const Config& config,
                                             const std::function<void()>& poll_signals);

  // Ancestry of a communicator made by recover(), welcome() or enter().
  struct Origin {
    std::vector<int> ranks;                         // old rank of each of its first ranks; later ones joined
    std::vector<std::pair<int, std::string>> lost;  // remaining old ranks, each with its fate
  };
  [[nodiscard]] const std::optional<Origin>& origin() const { return origin_; }

 private:
  Communicator(std::unique_ptr<transport::Endpoint> endpoint, const Config& config, const Communicator* within,
               const std::string& name);
  static std::shared_ptr<Communicator> make(std::unique_ptr<transport::Endpoint> endpoint, const Config& config,
                                            const Communicator* within, const std::string& name);

  // Ranks of a communicator to be made, the decision about them, and the smallest number that must be left.
  struct PendingMembership {
    std::unique_ptr<transport::Endpoint> talk;
    transport::Decision decision;
    std::vector<int> names;  // old rank of each rank of `talk`; `joiner`: not in the old communicator
    std::optional<int> min_ranks;

    static PendingMembership of_all(std::unique_ptr<transport::Endpoint> talk, int former,
                                    std::optional<int> min_ranks);
  };
  static constexpr int joiner = -1;
  static std::shared_ptr<Communicator> renew(PendingMembership renewal, const Config& config,
                                             const transport::Endpoint::IsAlive& is_alive,
                                             const std::function<void()>& poll_signals);
  static bool exclude_joiners(PendingMembership& renewal);
  PendingMembership agree_with_all(const std::string& said, std::optional<int> min_ranks);
  bool leave(bool drain) noexcept;
  void release() noexcept;
  struct ReleaseOnExit {
    void operator()(Communicator* self) const { self->release(); }
  };
  [[nodiscard]] std::unique_ptr<Communicator, ReleaseOnExit> close_for_successor(const char* why);
  void admit(const collective::Call& call) const;
  void check_threads(const char* what) const;
  [[nodiscard]] std::shared_ptr<Failure> unreported_failure() const;
  [[nodiscard]] Error with_unreported_failure(const Error& error) const;
  template <class Work>
  void run_with_peer(int peer, Work work);
  collective::CallResult execute(const collective::Call& call, const Release& release = {});
  Served serve(const collective::Call& call, Times::Clock::time_point queued);
  void serve_in_background(collective::Call call, const StreamMarks& after, Times::Clock::time_point queued,
                           Served& served);
  [[nodiscard]] std::vector<std::shared_ptr<Communicator>> duplicates() const;

  std::unique_ptr<collective::Group> group_;
  std::shared_ptr<SentBytes> sent_;
  Recorder recorder_;
  LoggedCalls log_;
  DeviceCalls devices_;
  Turns turns_;
  collective::PointToPoint point_to_point_;
  int forks_;  // number of forks of the process when this was made
  std::function<void()> poll_signals_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Communicator>> duplicates_;
  std::optional<Origin> origin_;
};

}  // namespace gradientflow::engine
