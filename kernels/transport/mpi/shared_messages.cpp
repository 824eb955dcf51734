#include "shared_messages.hpp"

#include <algorithm>

namespace gradientflow::transport {

std::optional<Found> SharedMessages::take(const IsWanted& is_wanted) {
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Found& each) { return is_wanted(each.envelope); });
  if (found == kept_.end()) {
    return std::nullopt;
  }
  const Found taken = *found;
  kept_.erase(found);
  return taken;
}

int SharedMessages::next_family() {
  const auto held = lock();
  return next_family_;
}

bool SharedMessages::take_family(int family) {
  const auto held = lock();
  if (family < next_family_) {
    return false;
  }
  next_family_ = family + 1;
  return true;
}

}  // namespace gradientflow::transport
