// Store in a file that all processes can write, in a folder shared by their hosts.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>

#include "../descriptor.hpp"
#include "store.hpp"

namespace gradientflow::transport {

// Every change is a record at the end of the file, written under a lock (fcntl). A record left half written by a killed
// process is removed by the next one. The file stays: another job needs another file.
class FileStore : public Store {
 public:
  explicit FileStore(std::string path) : path_(std::move(path)) {}

  void set(const std::string& key, const std::string& value, const Until& until) override;
  [[nodiscard]] std::optional<std::string> look(const std::string& key, const Until& until) override;
  std::int64_t add(const std::string& key, std::int64_t amount, const Until& until) override;
  std::optional<std::string> compare_set(const std::string& key, const std::optional<std::string>& expected,
                                         const std::string& desired, const Until& until) override;
  bool remove(const std::string& key, const Until& until) override;
  [[nodiscard]] std::string name() const override { return "the store in " + path_; }

 private:
  class Opened;  // the file, locked

  void read_on(const Opened& file);
  void write(const Opened& file, const std::string& key, const std::optional<std::string>& value);  // no value: removed
  [[nodiscard]] std::optional<std::string> value_of(const std::string& key) const;

  std::string path_;
  std::unordered_map<std::string, std::string> values_;
  std::size_t read_ = 0;  // bytes of the file read so far
};

}  // namespace gradientflow::transport
