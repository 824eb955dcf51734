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

// For Slurm, the variables of a step and not of a job: a batch script runs outside of any step, and Python in it is a
// single process.
constexpr std::array<Launcher, 3> launchers = {{{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"},
                                                {"PMI_RANK", "PMI_SIZE", "the mpirun of MPICH or a relative of it"},
                                                {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "Slurm's srun"}}};

// PyTorch's launcher, which knows nothing of MPI. Below an MPI launcher its variables mean nothing: programs set them,
// too.
constexpr Launcher torchrun = {"RANK", "WORLD_SIZE", "torchrun, or what sets the same variables,"};

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

struct RankAndSize {
  int rank;
  int size;
};

// Returns the rank and size given by a launcher; nothing if it has not started this process.
std::optional<RankAndSize> place_by(const Launcher& launcher) {
  const auto rank = number_in(launcher.rank);
  const auto size = number_in(launcher.size);
  return rank && size && *rank >= 0 && *rank < *size ? std::optional(RankAndSize{*rank, *size}) : std::nullopt;
}

constexpr std::string_view alone = "give MPI_COMM_SELF where every process is to work alone";

// Returns advice for making `srun` and the program's library work together.
std::string advice_for_srun(std::string_view used) {
  const std::string_view spoken = library_version().starts_with("Open MPI") ? "pmix" : "pmi2";
  const std::string other = used == spoken ? "" : "start it with --mpi=" + std::string(spoken) + ", or ";
  return other + "use TCP, with --mpi=none or GRADIENTFLOW_TRANSPORT=tcp, or start it with `gradientflow run` in a " +
         "batch script, or " + std::string(alone);
}

std::string started_by(std::string_view name, const Launcher& launcher, const RankAndSize& place) {
  return std::string(name) + " started this process as rank " + std::to_string(place.rank) + " of " +
         std::to_string(place.size) + " (" + launcher.size + "), but the program uses " + library_version() +
         ", which does not know of the others and finds 1 rank: ";
}

bool is_alone() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm parent = MPI_COMM_NULL;  // a spawned process may have the variables of its parent
  MPI_Comm_get_parent(&parent);
  return size == 1 && parent == MPI_COMM_NULL;
}

}  // namespace

// If a launcher was started below another, the variables of both are set. There is no fault if either gives a size
// of 1.
std::string launcher_mismatch(MPI_Comm comm) {
  if (comm == MPI_COMM_SELF || !is_alone()) {
    return {};
  }
  std::string mismatch;
  for (const Launcher& launcher : launchers) {
    const auto place = place_by(launcher);
    if (!place) {
      continue;
    }
    if (place->size == 1) {
      return {};
    }
    if (mismatch.empty()) {
      const bool is_pmi_of_slurm = std::getenv("SLURM_STEP_NUM_TASKS") != nullptr && launcher.name == launchers[1].name;
      if (is_pmi_of_slurm || launcher.name == launchers[2].name) {
        const char* const type = std::getenv("SLURM_MPI_TYPE");
        const std::string used = type == nullptr ? "" : type;
        const std::string name = std::string(launchers[2].name) + (used.empty() ? "" : " --mpi=" + used);
        mismatch = started_by(name, launcher, *place) + advice_for_srun(used);
      } else {
        mismatch = started_by(launcher.name, launcher, *place) +
                   "start it with the launcher of that library (`gradientflow run` finds it), or " + std::string(alone);
      }
    }
  }
  if (const auto place = place_by(torchrun); mismatch.empty() && place && place->size > 1) {
    mismatch = started_by(torchrun.name, torchrun, *place) +
               "start it with `gradientflow run -n N -- PROGRAM`, or with mpirun, in place of torchrun, or " +
               std::string(alone) + " (in Python gf.init(MPI.COMM_SELF))";
  }
  return mismatch;
}

}  // namespace gradientflow::transport
