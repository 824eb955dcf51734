// gradientflow._core.Endpoint: an endpoint until a communicator or a mailbox takes it over.
#pragma once

#include <memory>
#include <utility>

#include "../kernels/transport/endpoint.hpp"

namespace gradientflow::bindings {

class BoundEndpoint {
 public:
  explicit BoundEndpoint(std::unique_ptr<transport::Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}

  // Both throw Error(value) once the endpoint has been taken.
  [[nodiscard]] transport::Endpoint& get() const {
    if (endpoint_ == nullptr) {
      throw Error(ErrorKind::value, "the endpoint belongs to a communicator or a mailbox already");
    }
    return *endpoint_;
  }
  [[nodiscard]] std::unique_ptr<transport::Endpoint> take() {
    static_cast<void>(get());
    return std::move(endpoint_);
  }

 private:
  std::unique_ptr<transport::Endpoint> endpoint_;
};

}  // namespace gradientflow::bindings
