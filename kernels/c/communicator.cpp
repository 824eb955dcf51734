// Communicators: creation, split and close; ranks and nodes.
#include "../engine/calls/communicator.hpp"

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "../base/config.hpp"
#include "../base/environment.hpp"
#include "../transport/meeting/meeting.hpp"
#include "../transport/mpi/launcher.hpp"
#include "../transport/mpi/mpi.hpp"
#include "../transport/mpi/mpi_endpoint.hpp"
#include "objects.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

using engine::Communicator;
using transport::check_mpi;

void initialise_mpi() {
  static std::mutex one_at_a_time;  // two threads may create communicators at once
  const std::lock_guard lock(one_at_a_time);
  if (transport::mpi_finalized()) {
    throw Error(ErrorKind::closed, "MPI has been finalized: no communicator can be made any more");
  }
  if (!transport::mpi_initialised()) {
    int provided = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  }
}

void check_intracommunicator(MPI_Comm mpi) {
  if (mpi == MPI_COMM_NULL) {
    throw Error(ErrorKind::value, "mpi is MPI_COMM_NULL, which has no ranks");
  }
  int is_inter = 0;
  check_mpi(MPI_Comm_test_inter(mpi, &is_inter), "MPI_Comm_test_inter");
  if (is_inter != 0) {
    throw Error(ErrorKind::type, "mpi is an intercommunicator; a communicator is made from an intracommunicator");
  }
}

void check_launcher(MPI_Comm mpi) {
  const std::string mismatch = transport::launcher_mismatch(mpi);
  if (!mismatch.empty()) {
    throw Error(ErrorKind::mpi, mismatch);
  }
}

Config read_settings(const gf_setting* settings) {
  std::map<std::string, std::string> texts;
  for (; settings != nullptr && settings->name != nullptr; ++settings) {
    if (settings->value == nullptr) {
      throw Error(ErrorKind::value, "setting " + std::string(settings->name) + " has the value NULL");
    }
    texts[settings->name] = settings->value;
  }
  return read_config(texts);
}

// Over MPI, or over TCP between ranks that meet through MPI.
std::unique_ptr<gradientflow::transport::Endpoint> make_endpoint(MPI_Comm mpi, const gradientflow::Config& config) {
  auto endpoint = std::make_unique<gradientflow::transport::MpiEndpoint>(mpi, config.timeout);
  if (config.transport != "tcp") {
    return endpoint;
  }
  gradientflow::transport::EndpointExchange exchange(*endpoint);
  return gradientflow::transport::meet(exchange, endpoint->rank(), config, "");
}

// Once per process.
void tell_unknown_variables() {
  static std::once_flag told;
  std::call_once(told, [] {
    for (const std::string& sentence : unknown_variables()) {
      std::fprintf(stderr, "gradientflow: %s\n",
                   sentence.c_str());  // NOLINT(*-vararg): one write, so that it stays whole
    }
  });
}

// The result of `ask` for a communicator, or -1.
template <class Ask>
int number_of(const gf_communicator* communicator, Ask ask) {
  int number = -1;
  quietly([&] { number = ask(*given(communicator, "communicator").engine); });
  return number;
}

}  // namespace
}  // namespace gradientflow::c

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): the functions below are its outside

gf_status gf_init(MPI_Comm mpi, const gf_setting* settings, gf_communicator** communicator) {
  return guarded([&] {
    gf_communicator*& result = result_of(communicator, "communicator");
    const gradientflow::Config config = read_settings(settings);
    initialise_mpi();
    check_intracommunicator(mpi);
    check_launcher(mpi);
    result = new gf_communicator{Communicator::make(make_endpoint(mpi, config), config)};
    if (result->engine->rank() == 0) {
      tell_unknown_variables();
    }
  });
}

gf_status gf_split(gf_communicator* communicator, int color, int key, gf_communicator** part) {
  return guarded([&] {
    gf_communicator*& result = result_of(part, "part");
    Communicator& whole = *given(communicator, "communicator").engine;
    if (auto endpoint = whole.split(color, key)) {
      result = new gf_communicator{Communicator::make(std::move(endpoint), whole.group().config(), &whole)};
    }
  });
}

gf_status gf_close(gf_communicator* communicator) {
  return guarded([&] { given(communicator, "communicator").engine->close(true); });
}

void gf_communicator_free(gf_communicator* communicator) {
  if (communicator != nullptr) {
    communicator->engine->close(false);  // pools may still hold it
    delete communicator;
  }
}

int gf_rank(const gf_communicator* communicator) {
  return number_of(communicator, [](const Communicator& self) { return self.rank(); });
}

int gf_size(const gf_communicator* communicator) {
  return number_of(communicator, [](const Communicator& self) { return self.size(); });
}

int gf_local_rank(const gf_communicator* communicator) {
  return number_of(communicator, [](const Communicator& self) { return self.local_rank(); });
}

int gf_local_size(const gf_communicator* communicator) {
  return number_of(communicator, [](const Communicator& self) { return self.local_size(); });
}

int gf_node(const gf_communicator* communicator) {
  return number_of(communicator, [](const Communicator& self) { return self.node(); });
}

int gf_nodes(const gf_communicator* communicator) {
  return number_of(communicator, [](const Communicator& self) { return self.nodes(); });
}
