// MPI as the core sees it. All that needs an MPI library is in a library of its own, libgradientflow_mpi.so beside the
// core's, which is loaded when a job is one of MPI's: the core is built, and runs, without any MPI.
//
// A communicator of MPI comes as the address of its handle, and goes as the number of a handle, as mpi4py gives and
// takes them: what a handle is differs between MPI libraries.
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

  // The library's own name and version, one line.
  [[nodiscard]] virtual std::string version() const = 0;

  // Initialises MPI, with MPI_THREAD_MULTIPLE, unless that was done, for a program that gives a communicator whose
  // handle has so many bytes. Throws Error where no endpoint can be made of it: (mpi) if the program was compiled for
  // another MPI library, or launcher_mismatch() says why not, (closed) once MPI has been finalized, (value) if it has
  // no ranks, (type) for an intercommunicator.
  virtual void begin(const void* comm, std::size_t handle_bytes) const = 0;

  // What is wrong with how this process was started; empty where nothing is.
  [[nodiscard]] virtual std::string launcher_mismatch(const void* comm) const = 0;

  // An endpoint of the same ranks, on a duplicate of the communicator. Collective.
  [[nodiscard]] virtual std::unique_ptr<transport::Endpoint> endpoint(const void* comm, double timeout) const = 0;

  // The communicator of an endpoint whose messages MPI moves; and the same given away, by one that has not been used,
  // to a caller who frees it.
  [[nodiscard]] virtual std::uintptr_t handle(const transport::Endpoint& endpoint) const = 0;
  [[nodiscard]] virtual std::uintptr_t release(transport::Endpoint& endpoint) const = 0;

  // A call by the library's own collectives.
  virtual void run(const transport::Endpoint& endpoint, const Call& call) const = 0;
};

// The function that the library exports, under this name: it returns what lives as long as the process.
extern "C" using MakeMpiPlugin = const MpiPlugin * ();
inline constexpr const char* make_mpi_plugin_name = "gradientflow_mpi_plugin";

// Loads the library, once. Throws Error(mpi), with advice, where there is no library, or where it cannot be loaded.
[[nodiscard]] const MpiPlugin& mpi_plugin();

}  // namespace gradientflow::collective
