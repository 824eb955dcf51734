// Yields of a thread that waits. On a core that threads of other processes keep busy, a yield may last for a whole time
// slice; a sleeping thread that is woken gets the core sooner. After such a yield, the thread's next waits sleep at
// once.
#pragma once

namespace gradientflow::transport {

// Yields of one wait.
class Yields {
 public:
  // Yields the core, and returns true; returns false if the wait is to sleep.
  bool next();

 private:
  bool has_begun_ = false;
  bool sleeps_ = false;
};

}  // namespace gradientflow::transport
