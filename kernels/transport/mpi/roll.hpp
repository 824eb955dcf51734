// Roll call of the ranks in a collective call on a user's communicator, where our own messages may not be sent.
//
// Every rank scatters a word to all. MPI libraries send each word straight from rank to rank, so the end of one scatter
// shows that its rank has come, even if others are missing. With many ranks this would take many connections: then the
// ranks reduce their words instead, and the missing ranks are not known.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

namespace gradientflow::transport {

class Roll {
 public:
  enum class Answer { gave_up, here };  // order matters: a reduction takes the smallest

  // Calls the roll. Collective, and waits for no rank. Throws as check_mpi does.
  Roll(MPI_Comm comm, Answer mine);
  // Leaves an incomplete roll under way for good, in memory that is never freed.
  ~Roll();
  Roll(const Roll&) = delete;
  Roll& operator=(const Roll&) = delete;

  // Reports whether all words have come. Throws as check_mpi does.
  [[nodiscard]] bool complete();

  // Returns the ranks whose words have not come; none if these are not known.
  [[nodiscard]] std::vector<int> missing();

  // abandoned() reports whether some rank has given up, abandoners() returns these ranks; none if they are not known.
  // For a complete roll only.
  [[nodiscard]] bool abandoned() const;
  [[nodiscard]] std::vector<int> abandoners() const;

 private:
  struct Pending;
  [[nodiscard]] bool arrived(std::size_t index);

  MPI_Comm comm_;
  std::unique_ptr<Pending> state_;
};

}  // namespace gradientflow::transport
