// The reports on the ranges of a pool, for Python.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <vector>

#include "../kernels/engine/exchange/gradient_pool.hpp"

namespace gradientflow::bindings {

inline double seconds(engine::Times::Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

// (bytes, bytes sent, non-finite values, path, ready, started, ended) of each range in the last iteration.
inline pybind11::list reports_of(const std::vector<engine::GradientPool::Report>& reports) {
  pybind11::list found;
  for (const auto& report : reports) {
    found.append(pybind11::make_tuple(report.bytes, report.outcome.bytes_sent, report.outcome.nonfinite,
                                      name_of(report.outcome.path), seconds(report.ready),
                                      seconds(report.times.started), seconds(report.times.ended)));
  }
  return found;
}

}  // namespace gradientflow::bindings
