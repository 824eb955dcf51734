// The plugin that libgradientflow_mpi.so exports: see collective/between/mpi_plugin.hpp.
#include <mutex>

#include "../../base/error.hpp"
#include "../../transport/mpi/handle_bits.hpp"
#include "../../transport/mpi/launcher.hpp"
#include "../../transport/mpi/mpi.hpp"
#include "../../transport/mpi/mpi_endpoint.hpp"
#include "../between/mpi_plugin.hpp"
#include "mpi_collective.hpp"

namespace gradientflow::collective {
namespace {

using transport::check_mpi;
using transport::MpiEndpoint;

MPI_Comm comm_at(const void* address) { return *static_cast<const MPI_Comm*>(address); }

class Plugin final : public MpiPlugin {
 public:
  [[nodiscard]] std::string version() const override { return transport::library_version(); }

  void begin(const void* comm, std::size_t handle_bytes) const override {
    if (handle_bytes != sizeof(MPI_Comm)) {  // a handle of another library, which no function of this one may get
      throw Error(ErrorKind::mpi, "the program was compiled with the mpi.h of another MPI library than GradientFlow");
    }
    initialize();
    if (comm_at(comm) == MPI_COMM_NULL) {
      throw Error(ErrorKind::value, "mpi is MPI_COMM_NULL, which has no ranks");
    }
    int is_inter = 0;
    check_mpi(MPI_Comm_test_inter(comm_at(comm), &is_inter), "MPI_Comm_test_inter");
    if (is_inter != 0) {
      throw Error(ErrorKind::type, "mpi is an intercommunicator; a communicator is made from an intracommunicator");
    }
    if (const std::string mismatch = launcher_mismatch(comm); !mismatch.empty()) {
      throw Error(ErrorKind::mpi, mismatch);
    }
  }

  [[nodiscard]] std::string launcher_mismatch(const void* comm) const override {
    return transport::launcher_mismatch(comm_at(comm));
  }

  [[nodiscard]] std::unique_ptr<transport::Endpoint> endpoint(const void* comm, double timeout) const override {
    return std::make_unique<MpiEndpoint>(comm_at(comm), timeout);
  }

  [[nodiscard]] std::uintptr_t handle(const transport::Endpoint& endpoint) const override {
    return static_cast<std::uintptr_t>(transport::to_bits(dynamic_cast<const MpiEndpoint&>(endpoint).get()));
  }

  [[nodiscard]] std::uintptr_t release(transport::Endpoint& endpoint) const override {
    return static_cast<std::uintptr_t>(transport::to_bits(dynamic_cast<MpiEndpoint&>(endpoint).release()));
  }

  void run(const transport::Endpoint& endpoint, const Call& call) const override {
    mpi_collective(dynamic_cast<const MpiEndpoint&>(endpoint), call);
  }

 private:
  static void initialize() {
    static std::mutex one_at_a_time;  // two threads may make communicators at once
    const std::lock_guard lock(one_at_a_time);
    if (transport::mpi_finalized()) {
      throw Error(ErrorKind::closed, "MPI has been finalized: no communicator can be made any more");
    }
    if (!transport::mpi_initialized()) {
      int provided = MPI_THREAD_SINGLE;
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    }
  }
};

}  // namespace
}  // namespace gradientflow::collective

extern "C" const gradientflow::collective::MpiPlugin* gradientflow_mpi_plugin() {
  static const gradientflow::collective::Plugin plugin;
  return &plugin;
}
