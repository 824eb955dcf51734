// A record of what a rank did when, in the trace format of Chrome and Perfetto (JSON, one event a line).
//
// A process writes one file, whatever number of communicators it has; whoever records holds the timeline, and the last
// to let it go closes the file. A process that dies leaves a file without the closing bracket, which the readers of the
// format accept. Times are those of the steady clock, in microseconds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace gradientflow {

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  // Whose record it is, and how its clock stands to the others'.
  struct Origin {
    int rank = 0;
    std::uint64_t run = 0;   // the same on all ranks of a job, another one in every job
    double offset_us = 0.0;  // to be added to this rank's times, for those of rank 0
  };

  // The one that is already written to `path` in this process, or none.
  static std::shared_ptr<Timeline> find(const std::string& path);

  // Creates the file. Throws Error(system) where that fails.
  static std::shared_ptr<Timeline> open(const std::string& path, const Origin& origin);

  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline();

  // A row of its own, for what does not happen in one thread.
  int add_track(const std::string& name);

  // The row of the calling thread.
  int thread_track();

  // What took from `begin` to `end`. `arguments`: the members of a JSON object, `"bytes": 5`, or nothing.
  void span(int track, const std::string& name, Time begin, Time end, const std::string& arguments = {});

  // What happened at once.
  void instant(int track, const std::string& name, Time time, const std::string& arguments = {});

  // What waited from `begin` to `end`, perhaps beside others.
  void waited(int track, const std::string& name, Time begin, Time end);

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  Timeline(const std::string& path, const Origin& origin);
  void name_track(int track, const std::string& name);
  void write(const std::string& event);

  std::string path_;
  std::string process_;  // of every event
  std::mutex mutex_;
  std::FILE* file_;
  bool is_first_ = true;
  int tracks_ = 0;
  std::atomic<std::uint64_t> waits_{0};
  std::set<int> threads_;
};

// "trace.json" -> "trace.rank3.json"
[[nodiscard]] std::string path_of_rank(const std::string& path, int rank);

}  // namespace gradientflow
