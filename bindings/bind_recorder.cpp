// gradientflow._core.recorder: the log of the last calls.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <utility>

#include "../kernels/engine/calls/call_log.hpp"
#include "bindings.hpp"
#include "call_site.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::CallForm;
using engine::CallLog;

const char* name_of(CallLog::State state) {
  switch (state) {
    case CallLog::State::under_way:
      return "under way";
    case CallLog::State::ended:
      return "ended";
    case CallLog::State::failed:
      return "failed";
  }
  return "";
}

py::dict dict_of(const CallLog::Source& source) {
  py::dict facts;
  facts["number"] = source.number;
  facts["name"] = source.name;
  facts["identity"] = source.identity;
  facts["job"] = source.job;
  facts["rank"] = source.rank;
  facts["size"] = source.size;
  facts["job_rank"] = source.job_rank;
  facts["members"] = source.members;
  facts["pids"] = source.pids;
  return facts;
}

py::dict dict_of(const CallLog::Entry& entry) {
  const bool is_message = entry.form == CallForm::send || entry.form == CallForm::receive;
  const bool is_of_pool = entry.form == CallForm::pool_ready || entry.form == CallForm::pool_wait;
  const transport::KindTraits& traits = transport::traits_of(entry.signature.kind);
  const bool has_tensor = is_message || traits.output.holder != transport::Holder::none;
  py::dict facts;
  facts["number"] = entry.number;
  facts["source"] = entry.source;
  facts["sequence"] = entry.sequence;
  facts["form"] = std::string(name_of(entry.form));
  facts["kind"] = std::string(is_message || is_of_pool    ? name_of(entry.form)
                              : entry.signature.splits    ? "split"
                              : entry.signature.allocates ? "allocate"
                                                          : traits.name);
  facts["text"] = is_message || is_of_pool ? std::string(name_of(entry.form)) : describe(entry.signature);
  facts["dtype"] = has_tensor ? py::object(py::str(std::string(name_of(entry.signature.dtype)))) : py::none();
  facts["count"] = entry.signature.count;
  facts["op"] = traits.has_op ? py::object(py::str(std::string(name_of(entry.signature.op)))) : py::none();
  facts["peer"] = is_message || traits.has_root ? py::object(py::int_(entry.signature.root)) : py::none();
  facts["began"] = static_cast<double>(entry.began) * 1e-9;
  facts["state"] = name_of(entry.state);
  facts["code"] = code_of(entry.site);
  facts["line"] = line_of(entry.site);
  return facts;
}

template <class Items>
py::list list_of(const Items& items) {
  py::list found;
  for (const auto& each : items) {
    found.append(dict_of(each));
  }
  return found;
}

// Message of an object beside the communicators, in the log: a mailbox's, or a parameter server's.
// Its end is not known here.
void note_message(bool sends, int peer, std::size_t bytes) {
  if (!CallLog::is_on()) {
    return;
  }
  CallLog& log = CallLog::of_process();
  static const int source = log.add({.name = "messages", .identity = "messages"});
  const AtCallSite site;
  log.end(log.begin(source, 0, sends ? CallForm::send : CallForm::receive,
                    {.count = bytes, .root = peer, .dtype = DType::uint8}),
          CallLog::State::ended);
}

// ---- the end by SIGTERM -------------------------------------------------------------------------------------------

std::atomic<pid_t> watched{0};
std::atomic<int> waker{-1};
timer_t limit{};

constexpr time_t most_seconds = 2;  // time that the thread has, which may wait for the GIL in vain

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  kill(getpid(), signal);
}

// Wakes the thread that writes the calls and then ends the process. A forked process, and a process that gets the
// signal again, ends at once.
void on_end(int signal) {
  const int before = errno;
  if (const int descriptor = waker.exchange(-1); descriptor >= 0 && watched.load() == getpid()) {
    const std::uint64_t one = 1;
    const itimerspec after{.it_interval = {}, .it_value = {.tv_sec = most_seconds, .tv_nsec = 0}};
    static_cast<void>(timer_settime(limit, 0, &after, nullptr));
    static_cast<void>(!write(descriptor, &one, sizeof(one)));
  } else {
    end_by(signal);
  }
  errno = before;
}

// Has SIGTERM write to an eventfd, unless the program does something else at this signal. Returns true if so.
bool wake_at_end(int descriptor) {
  struct sigaction now{};
  sigaction(SIGTERM, nullptr, &now);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGTERM;
  if (now.sa_handler != SIG_DFL || timer_create(CLOCK_MONOTONIC, &event, &limit) != 0) {
    return false;
  }
  watched = getpid();
  waker = descriptor;
  struct sigaction wake{};
  wake.sa_handler = &on_end;
  wake.sa_flags = SA_RESTART;
  return sigaction(SIGTERM, &wake, nullptr) == 0;
}

}  // namespace

void bind_recorder(py::module_& module) {
  py::module_ recorder = module.def_submodule("recorder", "The log of the last calls of this process.");
  recorder.def("sources", [] { return list_of(CallLog::of_process().sources()); }, "The communicators.");
  recorder.def("entries", [] { return list_of(CallLog::of_process().entries()); }, "The last calls, oldest first.");
  recorder.def(
      "breaks", [] { return CallLog::of_process().breaks(); },
      "Number of communicators that broke because of another rank.");
  recorder.def(
      "timeouts", [] { return CallLog::of_process().timeouts(); }, "Number of these that broke after a wait in vain.");
  recorder.def("find_users_code_by", &find_users_code_by, py::arg("is_users"));
  recorder.def("wake_at_end", &wake_at_end, py::arg("descriptor"));
  recorder.def("end_by", &end_by, py::arg("signal"));
  recorder.def("explain_errors_by", &explain_errors_by, py::arg("explain"));
  recorder.def("note_message", &note_message, py::arg("sends"), py::arg("peer"), py::arg("bytes"));
}

}  // namespace gradientflow::bindings
