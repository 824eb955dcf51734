// Communicators: creation, split, recovery and close; ranks and nodes.
#include "../engine/calls/communicator.hpp"

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "../base/config.hpp"
#include "../base/environment.hpp"
#include "../collective/between/mpi_plugin.hpp"
#include "../transport/meeting/introduced.hpp"
#include "../transport/meeting/meeting.hpp"
#include "meeting.hpp"
#include "objects.hpp"
#include "status.hpp"

namespace gradientflow::c {
namespace {

using engine::Communicator;

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

// Returns an endpoint over MPI, or over TCP between ranks that meet through MPI.
std::unique_ptr<transport::Endpoint> endpoint_of_mpi(const void* mpi, std::size_t handle_bytes, const Config& config) {
  const collective::MpiPlugin& plugin = collective::mpi_plugin();
  plugin.begin(mpi, handle_bytes);
  return transport::introduced(plugin.endpoint(mpi, config.timeout), config);
}

// Reports unknown GRADIENTFLOW_* variables, once per process.
void tell_unknown_variables() {
  static std::once_flag told;
  std::call_once(told, [] {
    for (const std::string& sentence : unknown_variables()) {
      std::fprintf(stderr, "gradientflow: %s\n",
                   sentence.c_str());  // NOLINT(*-vararg): one write, so that it stays whole
    }
  });
}

gf_communicator* make(std::unique_ptr<transport::Endpoint> endpoint, const Config& config) {
  auto made = std::make_unique<gf_communicator>(Communicator::make(std::move(endpoint), config));
  if (made->engine->rank() == 0) {
    tell_unknown_variables();
  }
  return made.release();
}

// Returns the result of `ask` for a communicator, or -1.
template <class Ask>
int number_of(const gf_communicator* communicator, Ask ask) {
  int number = -1;
  quietly([&] { number = ask(*given(communicator, "communicator").engine); });
  return number;
}

}  // namespace
}  // namespace gradientflow::c

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

gf_status gf_init_handle(const void* mpi, size_t handle_bytes, const gf_setting* settings,
                         gf_communicator** communicator) {
  return guarded([&] {
    gf_communicator*& result = result_of(communicator, "communicator");
    const gradientflow::Config config = read_settings(settings);
    result = make(endpoint_of_mpi(&given(static_cast<const char*>(mpi), "mpi"), handle_bytes, config), config);
  });
}

gf_status gf_init_meet(const char* meet, int rank, int size, const gf_setting* settings,
                       gf_communicator** communicator) {
  return guarded([&] {
    gf_communicator*& result = result_of(communicator, "communicator");
    const gradientflow::Config config = read_settings(settings);
    result = make(endpoint_by_meeting(meet, rank, size, config), config);
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

gf_status gf_recover(gf_communicator* communicator, int min_ranks, gf_communicator** recovered) {
  return guarded([&] {
    gf_communicator*& result = result_of(recovered, "recovered");
    Communicator& broken = *given(communicator, "communicator").engine;
    result = new gf_communicator{broken.recover(min_ranks == 0 ? std::nullopt : std::optional(min_ranks))};
  });
}

int gf_recovered_from(const gf_communicator* communicator, int rank) {
  return number_of(communicator, [rank](const Communicator& self) {
    const bool is_known = self.origin() && rank >= 0 && rank < self.size();
    return is_known ? self.origin()->ranks[static_cast<std::size_t>(rank)] : -1;
  });
}

gf_status gf_close(gf_communicator* communicator) {
  return guarded([&] { given(communicator, "communicator").engine->close(true); });
}

void gf_communicator_free(gf_communicator* communicator) {
  if (communicator != nullptr) {
    communicator->engine->close(false);  // pools may still hold the engine's communicator
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
