// A store that a Python program gives, such as one of PyTorch.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>

#include "../kernels/transport/meeting/store.hpp"

namespace gradientflow::bindings {

// Uses `set(key, value)`, `add(key, amount)`, `compare_set(key, expected, desired)` and, if it has that,
// `delete_key(key)`, all as PyTorch's stores have them: values are bytes, of which there is at least one, and an
// expected value without any stands for none. What they raise where the store fails is Error(peer) here. How long they
// take is up to the store; to wait for a value is to ask for it again and again.
class PythonStore : public transport::Store {
 public:
  // `name`: what it is in errors. To be made and destroyed with the GIL, and called without it.
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
