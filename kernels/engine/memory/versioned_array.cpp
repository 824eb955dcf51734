#include "versioned_array.hpp"

#include <algorithm>
#include <utility>

namespace gradientflow::engine {

VersionedArray::VersionedArray(std::vector<std::size_t> begins, std::optional<int> device)
    : begins_(std::move(begins)), side_(begins_.size() - 1, 0), filled_(begins_.size() - 1, 0) {
  for (FloatArray& side : sides_) {
    side = FloatArray(begins_.back(), device);
  }
  snapshot();
}

const float* VersionedArray::before(std::size_t part) const {
  return is_none() || filled_[part] == 0 ? nullptr : sides_[side_[part]].data() + begins_[part];
}

float* VersionedArray::after(std::size_t part) const {
  return is_none() ? nullptr : sides_[1 - side_[part]].data() + begins_[part];
}

void VersionedArray::keep(std::size_t part) {
  if (!is_none()) {
    side_[part] = static_cast<std::uint8_t>(1 - side_[part]);
    filled_[part] = 1;
  }
}

void VersionedArray::clear(std::size_t part) {
  if (!is_none()) {
    filled_[part] = 0;
  }
}

void VersionedArray::snapshot() {
  snapshot_[0] = side_;
  snapshot_[1] = filled_;
}

void VersionedArray::restore() {
  side_ = snapshot_[0];
  filled_ = snapshot_[1];
}

void VersionedArray::read(std::span<float> destination) const {
  if (is_none()) {
    std::fill(destination.begin(), destination.end(), 0.0F);
  }
  for (std::size_t part = 0; part < side_.size();) {
    std::size_t end = part + 1;  // end of the run of parts with the same side
    while (end < side_.size() && filled_[end] == filled_[part] && side_[end] == side_[part]) {
      ++end;
    }
    const auto stretch = destination.subspan(begins_[part], begins_[end] - begins_[part]);
    if (filled_[part] != 0) {
      sides_[side_[part]].read(begins_[part], stretch);
    } else {
      std::fill(stretch.begin(), stretch.end(), 0.0F);
    }
    part = end;
  }
}

void VersionedArray::write(std::span<const float> source) {
  if (!is_none()) {
    sides_[0].write(0, source);
    std::fill(side_.begin(), side_.end(), 0);
    std::fill(filled_.begin(), filled_.end(), 1);
  }
}

}  // namespace gradientflow::engine
