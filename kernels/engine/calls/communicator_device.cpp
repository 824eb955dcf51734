// Calls on tensors of a CUDA device.
#include <string>
#include <utility>

#include "turns.hpp"

namespace gradientflow::engine {

void Communicator::check_device(int device) const {
  const std::lock_guard lock(mutex_);
  if (device_ && *device_ != device) {
    throw Error(ErrorKind::value, "the tensor is on CUDA device " + std::to_string(device) +
                                      ", but this communicator has served device " + std::to_string(*device_) +
                                      " before; a rank has one device, another communicator may have another");
  }
}

// Binds the communicator to a device: from the first call on it, even before that call is served.
void Communicator::take_device(int device) {
  check_device(device);
  const std::lock_guard lock(mutex_);
  device_ = device;
}

const collective::DeviceGroup* Communicator::device_group() const {
  const std::lock_guard lock(mutex_);
  return device_group_.get();
}

// Called in turn. Making the group is collective, so all ranks first agree on the call for which it is made: others may
// be in a call on host memory.
collective::DeviceGroup& Communicator::device_group(int device, const collective::Call& call) {
  take_device(device);
  if (device_group_ == nullptr) {
    try {
      if (size() > 1) {
        group_->agree_on(call);
      }
      auto made = std::make_shared<collective::DeviceGroup>(*group_, device);
      const std::lock_guard lock(mutex_);
      device_group_ = std::move(made);
    } catch (const Error&) {
      const std::lock_guard lock(mutex_);
      device_.reset();
      throw;
    }
  }
  return *device_group_;
}

// Aborts device calls, so that no stream waits for ranks that will not come.
void Communicator::abort_on_device() noexcept {
  collective::DeviceGroup* devices = nullptr;
  {
    const std::lock_guard lock(mutex_);
    devices = device_group_.get();
  }
  if (devices != nullptr) {
    devices->abort();
  }
}

// Also records when the device runs the call.
collective::Outcome Communicator::run_on_device(const collective::Call& call) {
  const collective::Placement& placement = placement_of(call);
  const auto timeline = device_timeline(placement.device);
  if (timeline == nullptr) {
    return device_group(placement.device, call).run(call);
  }
  timeline->begin(placement.stream);
  const collective::Outcome outcome = device_group(placement.device, call).run(call);
  timeline->end(placement.stream, describe(call.signature, call.label),
                R"("on_device": true, "path": ")" + std::string(name_of(outcome.path)) + "\"");
  return outcome;
}

std::shared_ptr<collective::DeviceSegment> Communicator::allocate_on_device(int device, std::size_t bytes) {
  check_process();
  const collective::Call call{
      .signature = {.count = bytes, .kind = transport::CallKind::allocate, .memory = transport::Memory::device}};
  return in_turn([&] { return device_group(device, call).allocate(bytes); });
}

}  // namespace gradientflow::engine
