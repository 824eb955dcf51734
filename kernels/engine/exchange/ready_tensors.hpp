// Ready tensors of an iteration, and a count of the threads that work on them. The pool's mutex guards both.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

namespace gradientflow::engine {

class ReadyTensors {
 public:
  // `tensors`: including the one for the extra numbers.
  explicit ReadyTensors(std::size_t tensors) : ready_(tensors, false) {}

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] bool has(std::size_t tensor) const { return tensor < ready_.size() && ready_[tensor]; }

  // Throws Error(value) unless the tensor is among the first `tensors`, and not ready yet.
  void check_new(std::size_t tensor, std::size_t tensors) const;
  void check_new(std::size_t tensor) const { check_new(tensor, ready_.size()); }

  // Calls `work` for each of the first `tensors` that is not ready; it may add the tensor.
  template <class Work>
  void for_each_missing(std::size_t tensors, Work work) const {
    for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
      if (!ready_[tensor]) {
        work(tensor);
      }
    }
  }

  void add(std::size_t tensor);
  void add_all() { ready_.assign(ready_.size(), true); }  // does not count them
  void forget();

 private:
  std::vector<bool> ready_;
  std::size_t count_ = 0;
};

// Counts threads that work on ready tensors; the thread that ends the iteration waits for them.
class Workers {
 public:
  explicit Workers(std::mutex& mutex) : mutex_(mutex) {}

  void enter() { ++number_; }  // the mutex must be held; one Leave follows
  void wait_for_all(std::unique_lock<std::mutex>& lock) {
    none_.wait(lock, [this] { return number_ == 0; });
  }

  class Leave {
   public:
    explicit Leave(Workers& workers) : workers_(workers) {}
    Leave(const Leave&) = delete;
    Leave& operator=(const Leave&) = delete;
    ~Leave();

   private:
    Workers& workers_;
  };

 private:
  std::mutex& mutex_;
  std::condition_variable none_;
  std::size_t number_ = 0;
};

}  // namespace gradientflow::engine
