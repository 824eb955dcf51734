#include "device_steps.hpp"

#include "../../base/error.hpp"

namespace gradientflow::engine {
namespace {

namespace cuda = compute::cuda;

// Returns the size of replacement memory: more than the bytes needed now, as a sparse pool sends more parts in some
// iterations.
constexpr std::size_t grown(std::size_t bytes) { return bytes + bytes / 2; }

template <class Memory>
void make_room(Memory& memory, std::size_t bytes) {
  if (memory.bytes() < bytes) {
    memory = Memory();  // freed first: there may not be room for both
    memory = Memory(grown(bytes));
  }
}

}  // namespace

DeviceSteps::DeviceSteps(int device)
    : device_(device),
      turns_([device] {
        const cuda::UseDevice use(device);
        return std::array<Turn, 2>();
      }()),
      last_step_(device) {}

DeviceSteps::~DeviceSteps() {
  try {
    for (const Turn& turn : turns_) {
      cuda::runtime().synchronize_event(turn.done.get());
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a device that has failed does nothing more
  }
}

void DeviceSteps::order(Stream stream) const {
  const cuda::UseDevice use(device_);
  last_step_.hold(stream);
}

void DeviceSteps::run(const compute::StepVectors& steps, DType dtype, Stream stream) {
  const cuda::UseDevice use(device_);
  const cuda::Runtime& runtime = cuda::runtime();
  Turn& turn = turns_[turn_];
  turn_ = 1 - turn_;
  runtime.synchronize_event(turn.done.get());  // end of the step before the last
  const auto bytes_for = []<class Step>(const std::vector<Step>& calls) {
    return CallLists::bytes_for<Step>(calls.size(), 1);
  };
  make_room(turn.lists, std::apply([&](const auto&... calls) { return (bytes_for(calls) + ...); }, steps));
  turn.lists.clear();
  last_step_.hold(stream);
  std::vector<cuda::AnyStepList> lists;
  const auto add = [&]<class Step>(const std::vector<Step>& calls) {
    if (!calls.empty()) {
      lists.emplace_back(turn.lists.add(std::span(calls), dtype));
    }
  };
  std::apply([&](const auto&... calls) { (add(calls), ...); }, steps);
  turn.lists.send(stream);
  for (const cuda::AnyStepList& list : lists) {
    runtime.step(list, stream);
  }
  runtime.record(turn.done.get(), stream);
  last_step_.forget();  // this step is queued behind the last one
  last_step_.mark(stream);
}

std::vector<double> DeviceSteps::sums_of_squares(std::span<const SumOfSquares> gradients, DType dtype,
                                                 std::span<const SumOfSquares> weights, Stream stream) {
  const cuda::UseDevice use(device_);
  const cuda::Runtime& runtime = cuda::runtime();
  const std::size_t number = gradients.size() + weights.size();
  make_room(sum_lists_, CallLists::bytes_for<SumOfSquares>(number, 2));
  make_room(sums_, number * sizeof(double));
  sum_lists_.clear();
  last_step_.hold(stream);
  const auto gradient_list = sum_lists_.add(gradients, dtype);
  const auto weight_list = sum_lists_.add(weights, DType::float32);
  make_room(scratch_, cuda::scratch_bytes(gradient_list) + cuda::scratch_bytes(weight_list));
  sum_lists_.send(stream);
  auto* const sums = reinterpret_cast<double*>(sums_.on_device());
  runtime.sum_of_squares(gradient_list, sums, scratch_.data(), stream);
  runtime.sum_of_squares(weight_list, sums + gradients.size(), scratch_.data() + cuda::scratch_bytes(gradient_list),
                         stream);
  sums_.download(0, number * sizeof(double), stream);
  runtime.synchronize(stream);
  const auto* const found = reinterpret_cast<const double*>(sums_.on_host());
  return {found, found + number};
}

}  // namespace gradientflow::engine
