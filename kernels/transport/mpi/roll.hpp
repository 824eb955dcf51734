// Who has come to a collective call on a communicator of the user's, where no message of ours may be sent.
//
// Every rank scatters a word to all. The MPI libraries send each word straight from its rank to every other, so the end
// of one scatter shows that its rank has come, whoever else is missing. Many ranks, for whom that would be many
// connections, reduce their words instead, and then nobody knows who is missing.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

namespace gradientflow::transport {

class Roll {
 public:
  enum class Answer { gave_up, here };  // in this order: the smallest counts where they are reduced

  // Collective, and waits for nobody. Throws as check_mpi does.
  Roll(MPI_Comm comm, Answer mine);
  // An incomplete roll goes on for good, in memory that is never freed.
  ~Roll();
  Roll(const Roll&) = delete;
  Roll& operator=(const Roll&) = delete;

  // Whether all words have come. Throws as check_mpi does.
  [[nodiscard]] bool complete();

  // The ranks whose words have not come; none where that is not known.
  [[nodiscard]] std::vector<int> missing();

  // Whether some rank has given up, and which ranks; none where that is not known. For a complete roll only.
  [[nodiscard]] bool abandoned() const;
  [[nodiscard]] std::vector<int> abandoners() const;

 private:
  struct State;
  [[nodiscard]] bool arrived(std::size_t index);

  MPI_Comm comm_;
  std::unique_ptr<State> state_;
};

}  // namespace gradientflow::transport
