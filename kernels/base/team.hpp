// A small thread pool: threads that share the work of one call after another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace gradientflow {

class Team {
 public:
  // `size` counts the calling thread, too. The first call starts the remaining threads, which sleep between calls. If
  // the operating system refuses some threads, the team is smaller.
  explicit Team(std::size_t size) : wanted_(size) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team();

  // Calls work(part, parts) for every part, in a thread each, and returns once all have ended. Rethrows the exception
  // of the lowest part that threw. Only one thread at a time may call.
  void run(const std::function<void(std::size_t part, std::size_t parts)>& work);

 private:
  void start();
  void serve(std::size_t part);
  void do_part(std::size_t part) noexcept;

  std::size_t wanted_;
  std::vector<std::thread> threads_;
  const std::function<void(std::size_t, std::size_t)>* work_ = nullptr;
  std::vector<std::exception_ptr> errors_;
  std::atomic<std::uint32_t> call_{0};
  std::atomic<std::uint32_t> busy_{0};
  std::atomic<bool> ends_{false};
};

}  // namespace gradientflow
