// Steps of optimizers, and of workers on their own weights. Each step is one pass over memory. Their formulas and
// settings are in the files beside this file, which lists all steps. A new step needs a file and an entry here.
#pragma once

#include <tuple>
#include <variant>
#include <vector>

#include "../simd.hpp"
#include "adam.hpp"
#include "local_updates.hpp"
#include "momentum.hpp"
#include "replica.hpp"

namespace gradientflow::compute {

template <class... Steps>
struct StepList {
  template <template <class> class Each>
  struct All : Each<Steps>... {};
  template <template <class> class Each>
  using Any = std::variant<Each<Steps>...>;
  template <template <class> class Each>
  using Every = std::tuple<Each<Steps>...>;
};
using AllSteps = StepList<MomentumStep, AdamStep, GluStep, DcStep, ReplicaStep, RoundStep>;

template <class Step>
using StepPointer = const Step*;
template <class Step>
using StepVector = std::vector<Step>;
using AnyStep = AllSteps::Any<StepPointer>;
using StepVectors = AllSteps::Every<StepVector>;  // a vector for each step: std::get<StepVector<AdamStep>>

void run_step(AnyStep call);
void run_step_at(SimdLevel level, AnyStep call);

// Makes a step on the CPU. Throws Error(type) for gradients other than float16, bfloat16 and float32, and for a copy of
// the weights other than float16 and bfloat16.
template <class Step>
void step(const Step& call) {
  run_step(&call);
}

// Runs at a given level, for tests. Throws Error(value) if `level` cannot run here.
template <class Step>
void step_at(SimdLevel level, const Step& call) {
  run_step_at(level, &call);
}

}  // namespace gradientflow::compute
