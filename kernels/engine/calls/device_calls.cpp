#include "device_calls.hpp"

#include <string>
#include <utility>

namespace gradientflow::engine {

void DeviceCalls::check(int device) const {
  const std::lock_guard lock(mutex_);
  if (device_ && *device_ != device) {
    throw Error(ErrorKind::value, "the tensor is on CUDA device " + std::to_string(device) +
                                      ", but this communicator has served device " + std::to_string(*device_) +
                                      " before; a rank has one device, another communicator may have another");
  }
}

void DeviceCalls::bind(int device) {
  check(device);
  const std::lock_guard lock(mutex_);
  device_ = device;
}

const std::shared_ptr<collective::DeviceGroup>& DeviceCalls::group(int device, const collective::Call& call) {
  bind(device);
  if (made_ == nullptr) {
    try {
      if (group_.endpoint().size() > 1) {
        group_.agree_on(call);
      }
      auto made = std::make_shared<collective::DeviceGroup>(group_, device);
      const std::lock_guard lock(mutex_);
      made_ = std::move(made);
    } catch (const Error&) {
      const std::lock_guard lock(mutex_);
      device_.reset();
      throw;
    }
  }
  return made_;
}

const collective::DeviceGroup* DeviceCalls::made() const {
  const std::lock_guard lock(mutex_);
  return made_.get();
}

collective::CallResult DeviceCalls::run(const collective::Call& call) {
  const collective::Placement& placement = placement_of(call);
  const auto timeline = recorder_.device_timeline(placement.device);
  if (timeline == nullptr) {
    return group(placement.device, call)->run(call);
  }
  timeline->begin(placement.stream);
  const collective::CallResult outcome = group(placement.device, call)->run(call);
  timeline->end(placement.stream, describe(call.signature, call.label),
                R"("on_device": true, "path": ")" + std::string(outcome.path) + "\"");
  return outcome;
}

void DeviceCalls::abort() noexcept {
  collective::DeviceGroup* devices = nullptr;
  {
    const std::lock_guard lock(mutex_);
    devices = made_.get();
  }
  if (devices != nullptr) {
    devices->abort();
  }
}

}  // namespace gradientflow::engine
