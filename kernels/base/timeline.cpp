#include "timeline.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <initializer_list>
#include <map>

#include "error.hpp"
#include "host.hpp"

namespace gradientflow {
namespace {

// Open timelines of this process, by path.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Timeline>> open;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      result += ' ';
      continue;
    }
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += c;
  }
  return result + '"';
}

std::string fixed(double value) {
  std::array<char, 64> text{};
  constexpr int digits = 3;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits).ptr;
  return {text.data(), end};
}

double micros(Timeline::Time time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

std::string member(const char* name, const std::string& value) {
  std::string text = quoted(name);
  text += ": ";
  return text += value;
}

std::string object(std::initializer_list<std::string> members) {
  std::string text = "{";
  for (const std::string& each : members) {
    text += text.size() == 1 || each.empty() ? "" : ", ";
    text += each;
  }
  return text += '}';
}

// Reports a failed write on standard error, and throws nothing: recorded calls do not fail with their timeline.
void report_loss(const std::string& path) {
  const std::string what = system_error("the timeline " + path + " cannot be written to its end", errno).what();
  std::fputs(("gradientflow: " + what + "\n").c_str(), stderr);
}

// Writes text. On failure, reports the loss, closes the file and sets it to nullptr.
void put(std::FILE*& file, const std::string& text, const std::string& path) {
  if (file != nullptr && std::fputs(text.c_str(), file) < 0) {
    report_loss(path);
    static_cast<void>(std::fclose(file));
    file = nullptr;
  }
}

}  // namespace

std::shared_ptr<Timeline> Timeline::find(const std::string& path) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.open.find(path);
  return found == all.open.end() ? nullptr : found->second.lock();
}

std::shared_ptr<Timeline> Timeline::open(const std::string& path, const Origin& origin) {
  std::shared_ptr<Timeline> timeline(new Timeline(path, origin));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.open[path] = timeline;
  return timeline;
}

Timeline::Timeline(const std::string& path, const Origin& origin)
    : path_(path), process_(member("pid", std::to_string(origin.rank))), file_(std::fopen(path.c_str(), "we")) {
  if (file_ == nullptr) {
    throw system_error("cannot write the timeline " + path, errno);
  }
  const std::string host = host_name();
  put(file_, "[", path_);
  const auto metadata = [&](const char* name, const std::string& arguments) {
    write(object({member("ph", "\"M\""), member("name", quoted(name)), process_, member("args", arguments)}));
  };
  const std::string rank = std::to_string(origin.rank);
  metadata("process_name", object({member("name", quoted("rank " + rank + " (" + host + ")"))}));
  metadata("process_sort_index", object({member("sort_index", rank)}));
  metadata("clock", object({member("rank", rank), member("offset_us", fixed(origin.offset_us)),
                            member("host", quoted(host)), member("run", quoted(std::to_string(origin.run)))}));
}

Timeline::~Timeline() {
  put(file_, "\n]\n", path_);
  if (file_ != nullptr && std::fclose(file_) != 0) {
    report_loss(path_);
  }
}

int Timeline::add_track(const std::string& name) {
  int track = 0;
  {
    const std::lock_guard lock(mutex_);
    track = ++tracks_;
  }
  name_track(track, name);
  return track;
}

int Timeline::thread_track() {
  const int thread = gettid();
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    is_new = threads_.insert(thread).second;
  }
  if (is_new) {
    name_track(thread, thread == getpid() ? "main thread" : "thread " + std::to_string(thread));
  }
  return thread;
}

void Timeline::name_track(int track, const std::string& name) {
  write(object({member("ph", "\"M\""), member("name", "\"thread_name\""), process_,
                member("tid", std::to_string(track)), member("args", object({member("name", quoted(name))}))}));
}

void Timeline::span(int track, const std::string& name, Time begin, Time end, const std::string& arguments) {
  write(object({member("ph", "\"X\""), member("name", quoted(name)), process_, member("tid", std::to_string(track)),
                member("ts", fixed(micros(begin))), member("dur", fixed(micros(end) - micros(begin))),
                member("args", object({arguments}))}));
}

void Timeline::instant(int track, const std::string& name, Time time, const std::string& arguments) {
  write(object({member("ph", "\"i\""), member("s", "\"t\""), member("name", quoted(name)), process_,
                member("tid", std::to_string(track)), member("ts", fixed(micros(time))),
                member("args", object({arguments}))}));
}

void Timeline::waited(int track, const std::string& name, Time begin, Time end) {
  const std::string id = std::to_string(++waits_);
  const auto half = [&](const char* phase, Time time) {
    write(object({member("ph", quoted(phase)), member("cat", "\"queued\""), member("id", id),
                  member("name", quoted(name)), process_, member("tid", std::to_string(track)),
                  member("ts", fixed(micros(time)))}));
  };
  half("b", begin);
  half("e", end);
}

void Timeline::write(const std::string& event) {
  const std::lock_guard lock(mutex_);
  put(file_, (is_first_ ? "\n" : ",\n") + event, path_);
  is_first_ = false;
}

std::string path_of_rank(const std::string& path, int rank) {
  const std::size_t slash = path.rfind('/');
  const std::size_t dot = path.rfind('.');
  const bool has_suffix = dot != std::string::npos && (slash == std::string::npos || dot > slash + 1) && dot > 0;
  const std::size_t end = has_suffix ? dot : path.size();
  return path.substr(0, end) + ".rank" + std::to_string(rank) + path.substr(end);
}

}  // namespace gradientflow
