// Numbers that a pool keeps beside its gradients, as residuals, twice: as they were before an iteration, and as they
// are after it. So an iteration that is not to count leaves them as they were. They are kept by parts: those of a part
// that holds nothing are zeros, and take no memory traffic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "float_array.hpp"

namespace gradientflow::engine {

class KeptNumbers {
 public:
  KeptNumbers() = default;  // none

  // Part i has the elements begins[i] up to begins[i + 1]; `begins` ends with the number of all. Throws Error(memory).
  explicit KeptNumbers(std::vector<std::size_t> begins, std::optional<int> device = {});

  [[nodiscard]] bool is_none() const { return sides_[0].data() == nullptr; }

  // Of a part: as before the iteration, nullptr for zeros; and where they are to be after it.
  [[nodiscard]] const float* before(std::size_t part) const;
  [[nodiscard]] float* after(std::size_t part) const;

  // The part is now what `after` has; or it holds nothing.
  void keep(std::size_t part);
  void clear(std::size_t part);

  // Remembers what the parts are now; goes back there, as long as nothing has been written to `after` since then.
  void remember();
  void go_back();

  // All of them, in memory of the host.
  void read(std::span<float> destination) const;
  void write(std::span<const float> source);

 private:
  std::vector<std::size_t> begins_;
  FloatArray sides_[2];
  std::vector<std::uint8_t> side_;    // by part: which of the two is as before
  std::vector<std::uint8_t> filled_;  // by part: or it is zeros
  std::vector<std::uint8_t> remembered_[2];
};

}  // namespace gradientflow::engine
