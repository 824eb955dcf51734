// Store of named values, shared by the processes of a job. Its ranks meet there before they know each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "until.hpp"

namespace gradientflow::transport {

// A store of values. Keys and values are bytes. Any thread may call. Every call throws Error(timeout) if the store does
// not answer in time, Error(peer) if the store has ended, Error(value) for a key or value that is too long.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value, const Until& until) = 0;

  // Waits until there is a value. Returns nothing if there is none when the time is up. By default it polls with
  // look().
  [[nodiscard]] virtual std::optional<std::string> get(const std::string& key, const Until& until);

  // Returns the present value, if there is one.
  [[nodiscard]] virtual std::optional<std::string> look(const std::string& key, const Until& until) = 0;

  // Adds to a value that is a decimal number, 0 if there is none. Returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t amount, const Until& until) = 0;

  // Sets the value if the present value is `expected` (nothing: if there is no value). Returns the value afterwards.
  virtual std::optional<std::string> compare_set(const std::string& key, const std::optional<std::string>& expected,
                                                 const std::string& desired, const Until& until) = 0;

  // Removes a value. Returns true if there was one. A store that cannot remove keeps the value and returns false.
  virtual bool remove(const std::string& key, const Until& until) = 0;

  // Returns its name in errors: "the store at 10.0.0.1:29400".
  [[nodiscard]] virtual std::string name() const = 0;

  // Reports whether the store ends with this process.
  [[nodiscard]] virtual bool is_served_here() const { return false; }

  // Returns why other ranks have not come, if only this process knows, as the end of a sentence; mostly empty.
  [[nodiscard]] virtual std::string remark() { return ""; }
};

inline constexpr std::size_t longest_key = 1024;
inline constexpr std::size_t longest_value = std::size_t{16} << 20;

// Throws Error(value).
void check_key(const std::string& key);
void check_value(const std::string& value);

// Returns the sum as a store keeps it. Throws Error(value) if the value is no number, or the sum is too large.
[[nodiscard]] std::int64_t sum_of(const std::optional<std::string>& value, std::int64_t amount);

}  // namespace gradientflow::transport
