#include "team.hpp"

#include <utility>

#include "error.hpp"
#include "thread.hpp"

namespace gradientflow {

Team::~Team() {
  ends_ = true;
  ++call_;
  call_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void Team::start() {
  while (threads_.size() + 1 < wanted_) {
    try {
      threads_.push_back(start_thread("a helper", [this, part = threads_.size() + 1] { serve(part); }));
    } catch (const Error&) {
      wanted_ = threads_.size() + 1;
    }
  }
  errors_.resize(threads_.size() + 1);
}

void Team::run(const std::function<void(std::size_t, std::size_t)>& work) {
  start();
  work_ = &work;
  busy_ = static_cast<std::uint32_t>(threads_.size());
  ++call_;
  call_.notify_all();
  do_part(0);
  for (std::uint32_t busy = busy_; busy != 0; busy = busy_) {
    busy_.wait(busy);
  }
  std::exception_ptr first;
  for (std::exception_ptr& error : errors_) {
    std::exception_ptr thrown = std::exchange(error, nullptr);
    first = first == nullptr ? std::move(thrown) : first;
  }
  if (first != nullptr) {
    std::rethrow_exception(first);
  }
}

void Team::serve(std::size_t part) {
  for (std::uint32_t seen = 0;;) {
    call_.wait(seen);
    if (ends_) {
      return;
    }
    ++seen;
    do_part(part);
    if (--busy_ == 0) {
      busy_.notify_one();
    }
  }
}

void Team::do_part(std::size_t part) noexcept {
  try {
    (*work_)(part, threads_.size() + 1);
  } catch (...) {
    errors_[part] = std::current_exception();
  }
}

}  // namespace gradientflow
