#include "inbox.hpp"

#include <algorithm>
#include <utility>

namespace gradientflow::transport::tcp {

Receiving* Inbox::take_posted(int source, int tag) {
  const auto queue = posted.find(source);
  if (queue == posted.end()) {
    return nullptr;
  }
  auto& receives = queue->second;
  const auto found = std::find_if(receives.begin(), receives.end(), [&](const Receiving* r) { return r->tag == tag; });
  if (found == receives.end()) {
    return nullptr;
  }
  Receiving* const receiving = *found;
  receives.erase(found);
  return receiving;
}

std::unique_ptr<Arrived> Inbox::take_arrived(int source, int tag) {
  const auto found = std::find_if(arrived.begin(), arrived.end(),
                                  [&](const auto& each) { return each->source == source && each->tag == tag; });
  if (found == arrived.end()) {
    return nullptr;
  }
  std::unique_ptr<Arrived> message = std::move(*found);
  arrived.erase(found);
  return message;
}

std::unique_ptr<Arrived> Inbox::take_oldest(std::optional<int> tag) {
  const auto found = std::find_if(arrived.begin(), arrived.end(), [&](const auto& each) {
    return tag ? each->tag == *tag : each->tag < first_gathering_tag;
  });
  if (found == arrived.end()) {
    return nullptr;
  }
  std::unique_ptr<Arrived> message = std::move(*found);
  arrived.erase(found);
  return message;
}

void Inbox::forget(const Receiving& receiving) {
  if (const auto queue = posted.find(receiving.peer); queue != posted.end()) {
    std::erase(queue->second, &receiving);
  }
}

}  // namespace gradientflow::transport::tcp
