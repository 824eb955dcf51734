// Numbers that a pool keeps beside its gradients, such as residuals, in two copies: before and after an iteration. So
// an iteration that fails or is dropped leaves the numbers unchanged. The array has parts; an empty part stands for
// zeros, and costs no memory traffic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "float_array.hpp"

namespace gradientflow::engine {

class VersionedArray {
 public:
  VersionedArray() = default;  // none

  // Makes part i of the elements begins[i] up to begins[i + 1]; `begins` ends with the number of all elements. Throws
  // Error(memory).
  explicit VersionedArray(std::vector<std::size_t> begins, std::optional<int> device = {});

  [[nodiscard]] bool is_none() const { return sides_[0].data() == nullptr; }

  // before() returns the numbers of a part before the iteration, nullptr for zeros; after() returns the memory for the
  // part's numbers after the iteration.
  [[nodiscard]] const float* before(std::size_t part) const;
  [[nodiscard]] float* after(std::size_t part) const;

  // keep() makes the numbers written to after() the part's numbers; clear() empties the part.
  void keep(std::size_t part);
  void clear(std::size_t part);

  // Remember the present numbers; return to the remembered numbers, if `after` was not written since.
  void snapshot();
  void restore();

  // Copy all numbers to or from memory of the host.
  void read(std::span<float> destination) const;
  void write(std::span<const float> source);

 private:
  std::vector<std::size_t> begins_;
  FloatArray sides_[2];
  std::vector<std::uint8_t> side_;    // index in sides_ of each part's numbers before the iteration
  std::vector<std::uint8_t> filled_;  // each part's flag: 0 if it is empty
  std::vector<std::uint8_t> snapshot_[2];
};

}  // namespace gradientflow::engine
