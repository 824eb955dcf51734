// The timeline of a rank, in the trace format of Chrome and Perfetto (JSON, one event per line).
//
// A process writes one file for all its communicators; the last owner of the shared timeline closes the file. A process
// that dies leaves a file without the closing bracket, which readers of the format accept. A process whose disk is full
// leaves such a file, too, and a message on standard error. Times are of the steady clock, in microseconds.
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

  // Rank that records, and the offset of its clock.
  struct Origin {
    int rank = 0;
    std::uint64_t run = 0;   // identity of the job, the same on all its ranks
    double offset_us = 0.0;  // rank 0's time minus this rank's
  };

  // Returns the timeline that this process already writes to `path`, or nullptr.
  static std::shared_ptr<Timeline> find(const std::string& path);

  // Creates the file. Throws Error(system) if that fails.
  static std::shared_ptr<Timeline> open(const std::string& path, const Origin& origin);

  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline();

  // Adds a track (row), for events that do not belong to one thread.
  int add_track(const std::string& name);

  // Returns the track of the calling thread.
  int thread_track();

  // Writes an event from `begin` to `end`. `arguments` are members of a JSON object, such as `"bytes": 5`, or empty.
  void span(int track, const std::string& name, Time begin, Time end, const std::string& arguments = {});

  // Writes an event without duration.
  void instant(int track, const std::string& name, Time time, const std::string& arguments = {});

  // Writes a wait in the queue, from `begin` to `end`; several may overlap in a track.
  void waited(int track, const std::string& name, Time begin, Time end);

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  Timeline(const std::string& path, const Origin& origin);
  void name_track(int track, const std::string& name);
  void write(const std::string& event);

  std::string path_;
  std::string process_;  // the "pid" member of every event
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
