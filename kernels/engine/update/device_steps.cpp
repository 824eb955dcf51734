#include "device_steps.hpp"

#include "../../base/error.hpp"

namespace gradientflow::engine {
namespace {

namespace cuda = compute::cuda;

// Memory that is replaced grows by more than is needed now, as a sparse pool sends more parts in some iterations.
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

void DeviceSteps::run(std::span<const compute::MomentumStep> steps, std::span<const compute::AdamStep> steps_of_adam,
                      DType dtype, Stream stream) {
  const cuda::UseDevice use(device_);
  const cuda::Runtime& runtime = cuda::runtime();
  Turn& turn = turns_[turn_];
  turn_ = 1 - turn_;
  runtime.synchronize_event(turn.done.get());  // of the step before the last
  make_room(turn.lists, CallLists::bytes_for<compute::MomentumStep>(steps.size(), 1) +
                            CallLists::bytes_for<compute::AdamStep>(steps_of_adam.size(), 1));
  turn.lists.clear();
  last_step_.hold(stream);
  const auto list = turn.lists.add(steps, dtype);
  const auto list_of_adam = turn.lists.add(steps_of_adam, dtype);
  turn.lists.send(stream);
  runtime.momentum_step(list, stream);
  runtime.adam_step(list_of_adam, stream);
  runtime.record(turn.done.get(), stream);
  last_step_.forget();  // this one is behind it
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
