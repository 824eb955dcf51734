#include "prepared_call.hpp"

#include <utility>

#include "../../base/error.hpp"
#include "waiting.hpp"

namespace gradientflow::engine {

PreparedCall::PreparedCall(std::shared_ptr<Communicator> communicator, collective::Call call)
    : communicator_(std::move(communicator)), call_(std::move(call)) {}

PreparedCall::~PreparedCall() {
  if (under_way_) {
    try {
      wait();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): no caller is left to tell
    }
  }
}

void PreparedCall::start(const Communicator::Release& release) {
  if (under_way_) {
    throw Error(ErrorKind::value, "the prepared call has been started already: wait for it before it is started again");
  }
  communicator_->start(*this, release);
  under_way_ = true;
}

void PreparedCall::wait(std::optional<double> timeout, const Communicator::Release& release) {
  if (!under_way_) {
    throw Error(ErrorKind::value, "the prepared call has not been started: start it before waiting for it");
  }
  check_timeout(timeout);
  try {
    outcome_ = communicator_->finish(*this, timeout, release);
  } catch (...) {
    if (handle_ != nullptr && !handle_->done()) {
      throw;
    }
    under_way_ = false;
    communicator_->log().during(std::exchange(entry_, 0), [&] {
      if (handle_ == nullptr) {
        throw;
      }
      handle_->wait({});  // throws the call's error; the call may have succeeded just after the timeout
      outcome_ = handle_->outcome();
    });
  }
  under_way_ = false;
  communicator_->log().end(std::exchange(entry_, 0));
}

bool PreparedCall::done() { return !under_way_ || communicator_->is_finished(*this); }

void PreparedCall::set_stream(compute::cuda::Stream stream) {
  if (call_.placement) {
    call_.placement->stream = stream;
  }
}

}  // namespace gradientflow::engine
