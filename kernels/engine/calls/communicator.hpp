// A communicator: the calls of one rank, from any thread, served in turn. In a forked process every call throws, and
// closing does nothing.
//
// Its parts: communicator.cpp has its life and the calls that block; communicator_background.cpp those in the
// background; communicator_messages.cpp sends and receives; communicator_recovery.cpp communicators without ranks that
// have died, and with others. Turns (turns.hpp; turns_prepared.cpp for prepared calls) serves calls one at a time:
// run() gives it execute(), or serve() while a timeline is written, which it calls in the caller's thread; submit()
// gives it serve(), or serve_in_background() for a tensor on a device, which it calls in the progress thread.
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
#include "device_calls.hpp"
#include "handle.hpp"
#include "recorder.hpp"
#include "sent_bytes.hpp"
#include "stream_marks.hpp"
#include "turns.hpp"

namespace gradientflow::engine {

class Communicator {
 public:
  // Collective over the ranks of `endpoint`. `within`: a communicator whose bytes_sent() includes those of the new one.
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

  // Bytes that this rank has sent in messages so far, through this communicator and those made of it: pools,
  // duplicates, parts. Nothing once a call has sent bytes that are not counted: by the MPI library's own collectives,
  // or by NCCL.
  [[nodiscard]] std::optional<std::uint64_t> bytes_sent() const { return sent_->total(); }
  void count_as_sent(std::optional<std::uint64_t> bytes) const { sent_->add(bytes); }  // sent by other means

  void check_rank(int rank, const char* what) const;  // throws Error(value) if there is no such rank
  void check_device(int device) const { devices_.check(device); }
  void check_open() const;
  // Whether an error has left the ranks in different states, so that each further call throws it.
  [[nodiscard]] bool is_broken() const { return turns_.is_broken(); }
  // Whether the process of a rank lives, as far as known without asking the endpoint: for ranks of this node.
  [[nodiscard]] bool is_alive(int rank) const;
  // The other ranks that have closed it with no error before, as far as known.
  [[nodiscard]] std::vector<int> closed_elsewhere();
  void check_process() const;  // throws Error(closed) in a process that was forked off the communicator's

  using Release = Turns::Release;

  // Serves a call made and checked by make_call (request.hpp). The tensors must not change meanwhile. On a device the
  // call may still be running when this returns: work put into the call's stream afterwards sees the result.
  collective::Outcome run(const collective::Call& call, const Release& release = {});

  // The same in the background. The tensors must stay alive until the handle is done.
  std::shared_ptr<Handle> submit(const collective::Call& call);

  // The same, or at once, in this thread: inside a node whose cores are short, where the others have come to the call.
  std::shared_ptr<Handle> submit(const collective::Call& call, const Release& release);

  // The same for tensors on a device, in a stream of the communicator's own, after the work that is marked: so a call
  // can wait for several streams. The marks must not change until the handle is done.
  std::shared_ptr<Handle> submit(const collective::Call& call, const StreamMarks& after);

  // Runs several calls, and the work between them, in the background, as one.
  std::shared_ptr<Handle> submit(std::function<void(collective::Group&)> work);

  // Whether the ranks of the node have cores for threads beside those that call, by the setting `progress` or by count.
  [[nodiscard]] bool has_cores_for_threads() const;

  // For PreparedCall. Prepared calls are served in turn, in the order in which they are started; finish() throws the
  // call's error, or Error(timeout) if the time is over first: then the call goes on.
  void start(PreparedCall& prepared, const Release& release);
  collective::Outcome finish(PreparedCall& prepared, std::optional<double> timeout, const Release& release);
  [[nodiscard]] bool is_finished(PreparedCall& prepared);

  // As run(), from within such work. Reads `times.queued`, and sets when the call began and ended.
  collective::Outcome run_within(const collective::Call& call, Times& times);

  // Sends one tensor to rank `to`, or receives one from rank `from`. Where several threads can use the endpoint
  // at once, neither waits for collective calls or for other sends and receives. Tensors on devices pass
  // through host memory, and the device is waited for.
  void send(int to, const void* data, std::size_t count, DType dtype,
            const std::optional<collective::Placement>& placement = {});
  void receive(int from, void* data, std::size_t count, DType dtype,
               const std::optional<collective::Placement>& placement = {});

  // An endpoint of the ranks with the same color, in the order of `key`; nullptr for a negative color. Collective.
  std::unique_ptr<transport::Endpoint> split(int color, int key);

  // A communicator of the same ranks with a progress thread of its own, so that its calls and those of this one do not
  // wait for each other. It is closed with this one, and writes to the same timeline, under `name`. Collective.
  std::shared_ptr<Communicator> duplicate(const std::string& name, transport::MadeFor what);

  // Records every call in a file of this rank's own (see path_of_rank), until stopped or until all communicators that
  // write to it are gone. Collective.
  void start_timeline(const std::string& path);
  void stop_timeline();
  [[nodiscard]] Recorder& recorder() { return recorder_; }
  [[nodiscard]] const Recorder& recorder() const { return recorder_; }

  // Sets a function that threads call several times a second while they allocate large node memory. If it throws, the
  // call ends and the communicator is broken. Duplicates inherit it. Call this before other threads use the
  // communicator.
  void poll_signals_with(std::function<void()> poll_signals) { poll_signals_ = std::move(poll_signals); }

  // `bytes` bytes of node memory for every rank of the node, zero-filled; lives as long as the segment is held, also
  // beyond the communicator. Collective.
  std::shared_ptr<transport::Segment> allocate(std::size_t bytes, transport::Pages pages = transport::Pages::now);

  // The same on a CUDA device; the ranks of the node map each other's memory if they can.
  std::shared_ptr<collective::DeviceSegment> allocate_on_device(int device, std::size_t bytes);

  // Serves calls on device tensors; nullptr before the first such call. For information only.
  [[nodiscard]] const collective::DeviceGroup* device_group() const { return devices_.made(); }

  // Closes the communicator, and lets go of memory and descriptors, but of those of calls on a device. `drain`: waits
  // for the asynchronous calls first; otherwise they end with Error(closed).
  // Closing twice is harmless. Not collective: the others find out when they wait for this rank.
  // Returns whether this has closed it.
  bool close(bool drain) noexcept;
  [[nodiscard]] bool closed() const;

  // A communicator of the ranks that are left of this one, which is closed. Collective among those: all of them get
  // theirs, or the same error: Error(peer) where too few are left (see transport/recovery/verdict.hpp), Error(mismatch)
  // where they differ about `min_ranks`.
  std::shared_ptr<Communicator> recover(std::optional<int> min_ranks);
  // Throws what recover() throws before it has changed anything.
  void check_recoverable(std::optional<int> min_ranks) const;

  // How many ranks the whole job has had, and an endpoint of the ranks of this one and of others: see Endpoint.
  [[nodiscard]] int job_size();
  [[nodiscard]] std::unique_ptr<transport::Endpoint> widen(std::span<const std::string> addresses, int first);

  // A communicator of the ranks of this one, which is closed, and of those that `widened` has behind them: they call
  // enter() once `invite` has told them. Collective, else as recover(). Of the newcomers only those come along that
  // live, and none where it cannot be set up with them. Where a rank has died, or calls recover() since it has heard of
  // a death, nobody is invited, and it is a communicator of those that are left.
  std::shared_ptr<Communicator> welcome(std::unique_ptr<transport::Endpoint> widened, std::optional<int> min_ranks,
                                        const std::function<void()>& invite);
  // The same one, on a newcomer: the first `former` ranks of `widened` are those of the old communicator. Throws
  // Error(mismatch) where it cannot come along.
  static std::shared_ptr<Communicator> enter(std::unique_ptr<transport::Endpoint> widened, int former,
                                             std::optional<int> min_ranks, const Config& config,
                                             const std::function<void()>& poll_signals);

  // Of a communicator that recover(), welcome() or enter() has made.
  struct Origin {
    std::vector<int> ranks;                         // what its ranks were in the old one; those behind are new
    std::vector<std::pair<int, std::string>> lost;  // the other ranks of the old one, and what has become of them
  };
  [[nodiscard]] const std::optional<Origin>& origin() const { return origin_; }

 private:
  Communicator(std::unique_ptr<transport::Endpoint> endpoint, const Config& config, const Communicator* within,
               std::string name);
  static std::shared_ptr<Communicator> make(std::unique_ptr<transport::Endpoint> endpoint, const Config& config,
                                            const Communicator* within, std::string name);

  // Of a membership of which a communicator is to be made: who is in it, and on what terms.
  struct Renewal {
    std::unique_ptr<transport::Endpoint> talk;
    transport::Decision decision;
    std::vector<int> names;  // of the ranks of `talk` in the old communicator; `newcomer` for one that was not in it
    std::optional<int> min_ranks;

    static Renewal of_all(std::unique_ptr<transport::Endpoint> talk, int former, std::optional<int> min_ranks);
  };
  static constexpr int newcomer = -1;
  static std::shared_ptr<Communicator> renew(Renewal renewal, const Config& config,
                                             const transport::Endpoint::IsAlive& is_alive,
                                             const std::function<void()>& poll_signals);
  static bool turn_away_newcomers(Renewal& renewal);
  Renewal agree_with_all(const std::string& said, std::optional<int> min_ranks);
  bool leave(bool drain) noexcept;
  void release() noexcept;
  struct LetGo {
    void operator()(Communicator* self) const { self->release(); }
  };
  [[nodiscard]] std::unique_ptr<Communicator, LetGo> leave_to_renew(const char* why);
  void admit(const collective::Call& call) const;
  void check_threads(const char* what) const;
  [[nodiscard]] std::shared_ptr<Failure> unreported_failure() const;
  [[nodiscard]] Error with_unreported_failure(const Error& error) const;
  template <class Work>
  void apart(int peer, Work work);
  collective::Outcome execute(const collective::Call& call, const Release& release = {});
  Served serve(const collective::Call& call, Times::Clock::time_point queued);
  void serve_in_background(collective::Call call, const StreamMarks& after, Times::Clock::time_point queued,
                           Served& served);
  [[nodiscard]] std::vector<std::shared_ptr<Communicator>> duplicates() const;

  std::unique_ptr<collective::Group> group_;
  std::shared_ptr<SentBytes> sent_;
  Recorder recorder_;
  DeviceCalls devices_;
  Turns turns_;
  collective::PointToPoint point_to_point_;
  int forks_;  // how often the process had forked when this was made
  std::function<void()> poll_signals_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Communicator>> duplicates_;
  std::optional<Origin> origin_;
};

}  // namespace gradientflow::engine
