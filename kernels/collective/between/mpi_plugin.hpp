// Interface of the core to MPI. All code that needs MPI is in a separate library, libgradientflow_mpi.so, which lies
// beside the core's and is loaded in MPI jobs. So the core is built, and runs, without MPI.
//
// The type of a handle differs between MPI libraries. So functions take a communicator of MPI as the address of its
// handle, and return it as the number of a handle, as mpi4py gives and takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "../../transport/endpoint.hpp"
#include "../call/call.hpp"

namespace gradientflow::collective {

class MpiPlugin {
 public:
  MpiPlugin() = default;
  MpiPlugin(const MpiPlugin&) = delete;
  MpiPlugin& operator=(const MpiPlugin&) = delete;
  virtual ~MpiPlugin() = default;

  // Returns the library's own name and version, one line.
  [[nodiscard]] virtual std::string version() const = 0;

  // Initializes MPI, with MPI_THREAD_MULTIPLE, unless it is initialized, and checks a program's communicator, whose
  // handle has `handle_bytes` bytes. Throws Error if no endpoint can be made of the communicator: (mpi) if the program
  // was compiled for another MPI library, or launcher_mismatch() gives a reason; (closed) once MPI has been finalized;
  // (value) if the communicator has no ranks; (type) for an intercommunicator.
  virtual void begin(const void* comm, std::size_t handle_bytes) const = 0;

  // Returns the mistake in this process's start; empty if none.
  [[nodiscard]] virtual std::string launcher_mismatch(const void* comm) const = 0;

  // Returns an endpoint of the same ranks, on a duplicate of the communicator. Collective.
  [[nodiscard]] virtual std::unique_ptr<transport::Endpoint> endpoint(const void* comm, double timeout) const = 0;

  // Return the communicator of an endpoint whose messages MPI moves. release() takes it from an endpoint that has not
  // been used; the caller frees it.
  [[nodiscard]] virtual std::uintptr_t handle(const transport::Endpoint& endpoint) const = 0;
  [[nodiscard]] virtual std::uintptr_t release(transport::Endpoint& endpoint) const = 0;

  // Makes a call by the library's own collectives.
  virtual void run(const transport::Endpoint& endpoint, const Call& call) const = 0;
};

// Function that the library exports, and its name. The function returns the plugin, which lives as long as the process.
extern "C" using MakeMpiPlugin = const MpiPlugin * ();
inline constexpr const char* make_mpi_plugin_name = "gradientflow_mpi_plugin";

// Loads the library, once. Throws Error(mpi), with advice, if there is no library, or if it cannot be loaded.
[[nodiscard]] const MpiPlugin& mpi_plugin();

}  // namespace gradientflow::collective
