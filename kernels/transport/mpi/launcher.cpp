#include "launcher.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "mpi.hpp"

namespace gradientflow::transport {
namespace {

struct Launcher {
  const char* rank;
  const char* size;
  std::string_view name;
};

// Slurm's step, not its job: a batch script runs outside of any step, and Python in it is alone.
constexpr std::array<Launcher, 3> launchers = {{{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"},
                                                {"PMI_RANK", "PMI_SIZE", "the mpirun of MPICH or a relative of it"},
                                                {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "Slurm's srun"}}};

std::optional<int> number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) {
    return {};
  }
  const std::string_view digits(text);
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() ? std::optional(number) : std::nullopt;
}

bool is_alone() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm parent = MPI_COMM_NULL;  // of a process started by a program: the variables may be those of that program
  MPI_Comm_get_parent(&parent);
  return size == 1 && parent == MPI_COMM_NULL;
}

}  // namespace

// The variables of one launcher stay set where another is started below it, so one that says 1 is enough.
std::string launcher_trouble(MPI_Comm comm) {
  if (comm == MPI_COMM_SELF || !is_alone()) {
    return {};
  }
  std::string trouble;
  for (const Launcher& launcher : launchers) {
    const auto rank = number_in(launcher.rank);
    const auto size = number_in(launcher.size);
    if (!rank || !size || *rank < 0 || *rank >= *size) {
      continue;
    }
    if (*size == 1) {
      return {};
    }
    if (trouble.empty()) {
      const bool by_slurm = std::getenv("SLURM_STEP_NUM_TASKS") != nullptr && launcher.name == launchers[1].name;
      const std::string name(by_slurm ? launchers[2].name : launcher.name);
      trouble =
          name + " started this process as rank " + std::to_string(*rank) + " of " + std::to_string(*size) + " (" +
          launcher.size + "), but the program uses " + mpi_library_version() +
          ", which does not know of the others and finds 1 rank: start it with the launcher of that library "
          "(`gradientflow run` finds it; with srun, try --mpi=pmix or --mpi=pmi2), or give MPI_COMM_SELF where every "
          "process is to work alone";
    }
  }
  return trouble;
}

}  // namespace gradientflow::transport
