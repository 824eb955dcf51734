// A communicator: the calls of one rank, from any thread, served one at a time in the order in which they were made.
//
// Every call draws a ticket. A blocking call waits for its turn and runs in the caller's thread; an asynchronous call
// runs in the progress thread, which starts with the first such call and sleeps while there is nothing to do. A
// blocking call takes no lock if no other call waits before or behind it; clocks are read only for calls whose times
// are recorded. In a forked process every call throws, and closing does nothing. After an error that leaves the ranks
// in different states (a dead peer, a timeout, MPI) the communicator is broken: every later call throws, on this rank
// and, as soon as they wait for it, on the others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../base/timeline.hpp"
#include "../../collective/between/point_to_point.hpp"
#include "../../collective/group.hpp"
#include "../../collective/on_device/device_group.hpp"
#include "device_timeline.hpp"
#include "handle.hpp"
#include "sent_bytes.hpp"
#include "stream_marks.hpp"

namespace gradientflow::engine {

class PreparedCall;

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
  void check_device(int device) const;                // throws Error(value) if calls have used another one
  void check_open() const;
  // Whether the process of a rank lives, as far as known without asking the endpoint: for ranks of this node.
  [[nodiscard]] bool is_alive(int rank) const;
  void check_process() const;  // throws Error(closed) in a process that was forked off the communicator's

  // Releases what the caller holds and other threads want, such as Python's GIL. Called, perhaps more than once, before
  // anything that may take longer than some microseconds: to release and regain a lock costs more than a small call for
  // which the other ranks are ready.
  using Release = std::function<void()>;

  // Serves a call made and checked by make_call (request.hpp). The tensors must not change meanwhile. On a device the
  // call may still be running when this returns: work put into the call's stream afterwards sees the result.
  collective::Outcome run(const collective::Call& call, const Release& release = {});

  // The same in the background. The tensors must stay alive until the handle is done.
  std::shared_ptr<Handle> submit(const collective::Call& call);

  // The same for tensors on a device, in a stream of the communicator's own, after the work that is marked: so a call
  // can wait for several streams. The marks must not change until the handle is done.
  std::shared_ptr<Handle> submit(const collective::Call& call, const StreamMarks& after);

  // Runs several calls, and the work between them, in the background, as one.
  std::shared_ptr<Handle> submit(std::function<void(collective::Group&)> work);

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
  [[nodiscard]] std::shared_ptr<Timeline> timeline() const;

  // The timeline of a device; nullptr if nothing is recorded.
  [[nodiscard]] std::shared_ptr<DeviceTimeline> device_timeline(int device);
  void record(const collective::Call& call, const collective::Outcome& outcome, const Times& times,
              const std::optional<Error>& failure = {}) const;

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
  [[nodiscard]] const collective::DeviceGroup* device_group() const;

  // Closes the communicator. `drain`: waits for the asynchronous calls first; otherwise they end with Error(closed).
  // Closing twice is harmless. Not collective: the others find out when they wait for this rank.
  void close(bool drain) noexcept;
  [[nodiscard]] bool closed() const;

 private:
  struct Served {
    collective::Outcome outcome;
    Times times;
    DeviceEnd end;
  };
  struct Pending {
    std::uint64_t ticket;
    std::function<void(Served&)> work;  // what it writes is kept even if it throws
    std::shared_ptr<Handle> handle;
  };

  struct LeaveTurn {
    void operator()(Communicator* self) const { self->leave_turn(); }
  };

  Communicator(std::unique_ptr<transport::Endpoint> endpoint, const Config& config, const Communicator* within);
  void admit(const collective::Call& call) const;
  void check_usable() const;
  void check_threads(const char* what) const;
  [[nodiscard]] std::shared_ptr<Failure> unreported_failure() const;
  [[nodiscard]] Error with_unreported_failure(const Error& error) const;
  template <class Work>
  auto in_turn(Work work, const Release& release = {});
  template <class Work>
  auto guarded(Work work);
  template <class Work>
  std::shared_ptr<Failure> attempt(std::unique_lock<std::mutex>& lock, Work work);
  template <class Reached>
  void wait_for(std::unique_lock<std::mutex>& lock, Reached reached);
  bool finish_open(std::unique_lock<std::mutex>& lock);
  void offer(PreparedCall& prepared);
  bool take(PreparedCall& prepared);
  void break_off(const Error& error);
  template <class Work>
  void apart(int peer, Work work);
  void progress();
  void leave_turn();
  void wait_until_served(std::unique_lock<std::mutex>& lock);
  std::shared_ptr<Handle> enqueue(const std::function<void(Served&)>& work);
  collective::Outcome execute(const collective::Call& call, const Release& release = {});
  Served serve(const collective::Call& call, Times::Clock::time_point queued);
  void take_device(int device);
  collective::DeviceGroup& device_group(int device, const collective::Call& call);
  void abort_on_device() noexcept;
  collective::Outcome run_on_device(const collective::Call& call);
  void serve_in_background(collective::Call call, const StreamMarks& after, Times::Clock::time_point queued,
                           Served& served);
  void follow(const std::shared_ptr<Timeline>& timeline);
  [[nodiscard]] std::vector<std::shared_ptr<Communicator>> duplicates() const;

  std::unique_ptr<collective::Group> group_;
  std::shared_ptr<SentBytes> sent_;
  std::optional<int> device_;                              // of the first call on device tensors
  std::shared_ptr<collective::DeviceGroup> device_group_;  // made by the first call on tensors of a device
  collective::PointToPoint point_to_point_;
  int forks_;  // how often the process had forked when this was made
  mutable std::mutex mutex_;
  std::condition_variable turn_;
  std::atomic<std::uint64_t> next_ticket_{0};
  std::atomic<std::uint64_t> serving_{0};
  std::atomic<PreparedCall*> open_{nullptr};  // begun; has the turn until a thread finishes it
  std::atomic<int> draining_{0};              // threads that wait until all tickets are served
  std::deque<Pending> pending_;
  int apart_ = 0;                    // threads in send() or receive(), out of turn
  std::atomic<bool> usable_{true};   // neither closed nor broken
  std::atomic<bool> closed_{false};  // once `usable_` is false, this is true or `broken_` is set
  std::optional<Error> broken_;
  std::shared_ptr<Failure> failure_;  // of the first asynchronous call that failed, until a caller is told
  std::thread progress_thread_;
  std::vector<std::weak_ptr<Communicator>> duplicates_;
  std::string name_ = "collectives";  // in the timeline
  std::function<void()> poll_signals_;
  std::atomic<bool> recorded_{false};  // whether there is a timeline
  std::shared_ptr<Timeline> timeline_;
  int track_ = 0;
  std::shared_ptr<DeviceTimeline> device_timeline_;
};

}  // namespace gradientflow::engine
