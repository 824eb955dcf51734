// Store given by a Python program, such as a PyTorch store.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>

#include "../kernels/transport/meeting/store.hpp"

namespace gradientflow::bindings {

// Uses `set(key, value)`, `add(key, amount)`, `compare_set(key, expected, desired)` and, if available,
// `delete_key(key)`, all as in PyTorch's stores: values are nonempty bytes, and an empty expected value means that
// there is no value yet. Exceptions of these methods, when the store fails, become Error(peer). The store decides how
// long a call takes; to wait for a value, this class asks the store repeatedly.
class PythonStore : public transport::Store {
 public:
  // `name`: name of the store in errors. The object must be made and destroyed with the GIL, and called without the
  // GIL.
  PythonStore(pybind11::object store, std::string name, bool is_served_here);

  void set(const std::string& key, const std::string& value, const transport::Until& until) override;
  [[nodiscard]] std::optional<std::string> look(const std::string& key, const transport::Until& until) override;
  std::int64_t add(const std::string& key, std::int64_t amount, const transport::Until& until) override;
  std::optional<std::string> compare_set(const std::string& key, const std::optional<std::string>& expected,
                                         const std::string& desired, const transport::Until& until) override;
  bool remove(const std::string& key, const transport::Until& until) override;
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] bool is_served_here() const override { return is_served_here_; }

 private:
  pybind11::object store_;
  std::string name_;
  bool is_served_here_;
  bool can_remove_;
};

}  // namespace gradientflow::bindings
