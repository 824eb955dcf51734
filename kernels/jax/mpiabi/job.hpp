// The job of this process, and the groups of its ranks among which XLA communicates.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "../../base/error.hpp"
#include "../../engine/calls/communicator.hpp"
#include "../../transport/messages/mailbox.hpp"
#include "abi.hpp"

namespace gradientflow::mpiabi {

// Ranks that XLA takes for an MPI communicator.
struct Group {
  std::shared_ptr<engine::Communicator> ranks = {};  // none if this process is no member, or after a failure
  std::vector<int> job_ranks = {};                   // each member's rank in the job
  int tag = 0;                                       // tag of the group's messages in the job's mailbox
  std::mutex in_pieces = {};                         // held by a call of several pieces
};

// The job. XLA ignores the status of the functions that set the job up, so a failure there makes every later call fail
// too.
class Job {
 public:
  Group world;

  void begin();   // once; collective
  void finish();  // ranks that still wait for this rank get an error
  [[nodiscard]] bool has_begun() const { return begun_; }
  [[nodiscard]] bool has_finished() const { return finished_; }

  // Makes the group of the ranks with the same color, numbered by their keys. Collective over the job.
  void split(int color, int key, Group& part);
  void free(Group* part);
  Group* add();

  // Messages between two ranks of a group. Once a message fails, every further message fails, since XLA does not wait
  // for the rest.
  std::shared_ptr<transport::Transfer> send(const Group& group, int to, const void* data, std::size_t bytes);
  std::shared_ptr<transport::Transfer> receive(const Group& group, int from, void* data, std::size_t bytes);
  void wait(const transport::Transfer& transfer);

  // Returns the ranks of a group, after checking that calls can be served.
  [[nodiscard]] engine::Communicator& ranks(const Group& group) const;

 private:
  template <class Work>
  auto decisive(const Work& work) -> decltype(work());
  Error break_down(const Error& error);  // returns the first failure, from which later failures follow

  bool begun_ = false;
  bool finished_ = false;
  std::mutex setting_up_;
  std::set<std::unique_ptr<Group>> parts_;
  int splits_ = 0;
  std::shared_ptr<transport::Mailbox> mailbox_;
  transport::Tags tags_;
  mutable std::mutex failing_;
  std::optional<Error> failure_;
};

Job& job();  // never destroyed: XLA's threads may call until the process has ended

}  // namespace gradientflow::mpiabi
