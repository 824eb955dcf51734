// gradientflow._core.limit: limits of a node's memory, for the benchmarks: the memory traffic of an allreduce without
// synchronization, and the round trip of a cache line. The functions work on raw addresses; the caller makes sure that
// the addresses are right and the memory stays alive.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "../kernels/base/dtype.hpp"
#include "../kernels/collective/call/partition.hpp"
#include "../kernels/compute/kernels.hpp"
#include "bindings.hpp"
#include "gil.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;

// Worker's slice of an allreduce in place over the tensors of all ranks, without waiting for other workers. A rank that
// is no worker has an empty slice.
class UnsynchronizedAllreduce {
 public:
  UnsynchronizedAllreduce(const std::vector<std::uintptr_t>& tensors, std::size_t worker, std::size_t workers,
                          std::size_t count, const std::string& dtype, const std::string& op)
      : reduction_{.dtype = dtype_from_name(dtype),
                   .op = reduce_op_from_name(op),
                   .divisor = op == "mean" ? static_cast<int>(tensors.size()) : 1} {
    const std::size_t element = size_of(reduction_.dtype);
    const collective::Range mine =
        worker < workers ? collective::slice(count, workers, worker, 64 / element) : collective::Range{};
    count_ = mine.size();
    for (const std::uintptr_t address : tensors) {
      parts_.push_back(reinterpret_cast<std::byte*>(address) + mine.begin * element);  // NOLINT: from the caller
    }
    sources_.assign(parts_.begin(), parts_.end());
  }

  void operator()() const { compute::reduce(parts_, sources_, count_, reduction_); }

 private:
  compute::Reduction reduction_;
  std::size_t count_;
  std::vector<void*> parts_;
  std::vector<const void*> sources_;
};

// Passes a counter between two ranks, each of which reads a cache line that its peer writes. Runs for a fixed time,
// since a trip takes long if a rank has no core. Returns the seconds of a trip, as the median of short rounds; 0 on the
// second rank.
double round_trip(std::uintptr_t mine, std::uintptr_t theirs, bool first) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds moment(20);
  constexpr std::uint32_t trips = 50;  // trips per round
  constexpr std::uint32_t over = 0;
  auto& heard = *reinterpret_cast<std::uint32_t*>(mine);   // NOLINT(performance-no-int-to-ptr)
  auto& said = *reinterpret_cast<std::uint32_t*>(theirs);  // NOLINT(performance-no-int-to-ptr)
  const WithoutGil release;
  const auto hear = [&](std::uint32_t before) {
    for (int polls = 0; std::atomic_ref(heard).load(std::memory_order_acquire) == before; ++polls) {
      if (polls > 10'000) {  // the peer may need this core
        std::this_thread::yield();
      }
    }
    return heard;
  };
  const auto say = [&](std::uint32_t count) { std::atomic_ref(said).store(count, std::memory_order_release); };
  if (!first) {
    for (std::uint32_t count = hear(over); count != over; count = hear(count)) {
      say(count);
    }
    say(over);
    return 0.0;
  }
  std::uint32_t count = over;
  std::vector<double> seconds;
  for (const auto begin = Clock::now(); seconds.empty() || Clock::now() < begin + moment;) {
    const auto round = Clock::now();
    for (std::uint32_t trip = 0; trip < trips; ++trip) {
      say(count + 1);
      count = hear(count);
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - round).count() / trips);
  }
  say(over);
  static_cast<void>(hear(count));
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace

void bind_limit(py::module_& module) {
  py::module_ limit = module.def_submodule("limit", "Limits that the memory of a node sets.");
  py::class_<UnsynchronizedAllreduce>(limit, "UnsynchronizedAllreduce")
      .def(py::init<const std::vector<std::uintptr_t>&, std::size_t, std::size_t, std::size_t, const std::string&,
                    const std::string&>(),
           py::arg("tensors"), py::arg("worker"), py::arg("workers"), py::arg("count"), py::arg("dtype"), py::arg("op"))
      .def("__call__", &UnsynchronizedAllreduce::operator());
  limit.def("round_trip", &round_trip, py::arg("mine"), py::arg("theirs"), py::arg("first"));
}

}  // namespace gradientflow::bindings
