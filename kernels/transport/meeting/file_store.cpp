#include "file_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "../../base/error.hpp"
#include "../../base/text.hpp"
#include "../../base/waits.hpp"

namespace gradientflow::transport {
namespace {

constexpr std::string_view first_line = "GradientFlow store 1\n";
constexpr std::chrono::milliseconds shortest_nap{1};

using RecordHead = std::array<std::uint32_t, 2>;       // sizes of key and value
constexpr std::uint32_t no_value = ~std::uint32_t{0};  // marks a removed value, in place of its size

// Lock by which this process's threads take turns, because a process that closes a file loses all its locks on this
// file.
std::mutex& turn_in_process() {
  static auto* const mutex = new std::mutex;  // NOLINT(*-owning-memory): lives as long as any thread
  return *mutex;
}

std::chrono::milliseconds longer(std::chrono::milliseconds nap) { return std::min(2 * nap, Until::longest_nap); }

}  // namespace

class FileStore::Opened {
 public:
  // Takes a moment even if no time is left, so that a rank that has waited in vain can still tell other ranks.
  Opened(const std::string& path, const Until& limit)
      : path_(path),
        until_(limit.over() ? limit.from_now(waits::store_answer.seconds()) : limit),
        turn_(until_.lock(turn_in_process())) {
    if (!turn_) {
      throw too_late();
    }
    file_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!file_) {
      throw failure("open");
    }
    struct flock whole{};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    for (auto nap = shortest_nap; fcntl(file_.get(), F_SETLK, &whole) != 0; nap = longer(nap)) {
      if (errno != EACCES && errno != EAGAIN && errno != EINTR) {
        throw failure("lock");
      }
      if (!until_.sleep(nap)) {
        throw too_late();
      }
    }
  }

  [[nodiscard]] std::size_t size() const {
    struct stat facts{};
    if (fstat(file_.get(), &facts) != 0) {
      throw failure("read");
    }
    return static_cast<std::size_t>(facts.st_size);
  }

  [[nodiscard]] std::string read(std::size_t from, std::size_t bytes) const {
    std::string data(bytes, '\0');
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t count = pread(file_.get(), data.data() + done, bytes - done, static_cast<off_t>(from + done));
      if (count == 0) {
        throw Error(ErrorKind::mismatch,
                    "the store in " + path_ + " has become shorter: another job uses the same file");
      }
      if (count < 0 && errno != EINTR) {
        throw failure("read");
      }
      done += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    return data;
  }

  void write(std::size_t at, std::string_view data) const {
    while (!data.empty()) {
      const ssize_t count = pwrite(file_.get(), data.data(), data.size(), static_cast<off_t>(at));
      if (count < 0 && errno != EINTR) {
        throw failure("write");
      }
      const std::size_t done = count > 0 ? static_cast<std::size_t>(count) : 0;
      at += done;
      data.remove_prefix(done);
    }
  }

  void shorten(std::size_t bytes) const {
    if (ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) {
      throw failure("write");
    }
  }

 private:
  [[nodiscard]] Error failure(const char* what) const {
    return system_error(std::string("cannot ") + what + " the store in " + path_, errno);
  }
  [[nodiscard]] Error too_late() const {
    return {ErrorKind::timeout, "the store in " + path_ + " was not free within " + format_number(until_.seconds()) +
                                    " s: other processes have locked it"};
  }

  std::string path_;
  Until until_;
  std::unique_lock<std::mutex> turn_;
  Descriptor file_;
};

void FileStore::read_on(const Opened& file) {
  const std::size_t size = file.size();
  if (read_ == 0) {
    if (size < first_line.size()) {  // the file is new, or its maker was killed
      file.write(0, first_line);
      read_ = first_line.size();
      return;
    }
    if (file.read(0, first_line.size()) != first_line) {
      throw Error(ErrorKind::mismatch, path_ + " is no store of this version of GradientFlow");
    }
    read_ = first_line.size();
  }
  if (size < read_) {
    throw Error(ErrorKind::mismatch, "the store in " + path_ + " has become shorter: another job uses the same file");
  }
  const std::string data = file.read(read_, size - read_);
  std::size_t at = 0;
  while (at < data.size()) {
    RecordHead head{};
    const std::size_t left = data.size() - at - std::min(data.size() - at, sizeof head);
    if (data.size() - at >= sizeof head) {
      std::memcpy(head.data(), data.data() + at, sizeof head);
    }
    const std::size_t value_bytes = head[1] == no_value ? 0 : head[1];
    const std::size_t bytes = head[0] + value_bytes;
    if (data.size() - at < sizeof head || left < bytes) {
      file.shorten(read_ + at);  // its writer was killed: no other process writes while the file is locked
      break;
    }
    at += sizeof head;
    if (head[1] == no_value) {
      values_.erase(data.substr(at, head[0]));
    } else {
      values_[data.substr(at, head[0])] = data.substr(at + head[0], value_bytes);
    }
    at += bytes;
  }
  read_ += at;
}

void FileStore::write(const Opened& file, const std::string& key, const std::optional<std::string>& value) {
  const RecordHead head{static_cast<std::uint32_t>(key.size()),
                        value ? static_cast<std::uint32_t>(value->size()) : no_value};
  std::string record(reinterpret_cast<const char*>(head.data()), sizeof head);
  record += key;
  record += value.value_or("");
  file.write(read_, record);
  read_ += record.size();
  if (value) {
    values_[key] = *value;
  } else {
    values_.erase(key);
  }
}

std::optional<std::string> FileStore::value_of(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

void FileStore::set(const std::string& key, const std::string& value, const Until& until) {
  check_key(key);
  check_value(value);
  const Opened file(path_, until);
  read_on(file);
  write(file, key, value);
}

std::optional<std::string> FileStore::look(const std::string& key, const Until& until) {
  check_key(key);
  const Opened file(path_, until);
  read_on(file);
  return value_of(key);
}

std::int64_t FileStore::add(const std::string& key, std::int64_t amount, const Until& until) {
  check_key(key);
  const Opened file(path_, until);
  read_on(file);
  const std::int64_t sum = sum_of(value_of(key), amount);
  write(file, key, std::to_string(sum));
  return sum;
}

std::optional<std::string> FileStore::compare_set(const std::string& key, const std::optional<std::string>& expected,
                                                  const std::string& desired, const Until& until) {
  check_key(key);
  check_value(desired);
  const Opened file(path_, until);
  read_on(file);
  if (value_of(key) == expected) {
    write(file, key, desired);
  }
  return value_of(key);
}

bool FileStore::remove(const std::string& key, const Until& until) {
  check_key(key);
  const Opened file(path_, until);
  read_on(file);
  const bool is_there = value_of(key).has_value();
  if (is_there) {
    write(file, key, std::nullopt);
  }
  return is_there;
}

}  // namespace gradientflow::transport
