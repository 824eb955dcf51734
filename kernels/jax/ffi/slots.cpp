#include "slots.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "../../base/error.hpp"

namespace gradientflow::jax {
namespace {

template <class T>
class Slots {
 public:
  std::int64_t number_of(const std::shared_ptr<T>& object) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(objects_.begin(), objects_.end(), [&](const std::weak_ptr<T>& each) {
      return !each.owner_before(object) && !object.owner_before(each);
    });
    const auto number = found - objects_.begin();
    if (found == objects_.end()) {
      objects_.push_back(object);
    }
    return number;
  }

  std::shared_ptr<T> object_of(std::int64_t number, const char* what) {
    const std::lock_guard lock(mutex_);
    if (number >= 0 && number < static_cast<std::int64_t>(objects_.size())) {
      if (auto object = objects_[static_cast<std::size_t>(number)].lock()) {
        return object;
      }
    }
    throw Error(ErrorKind::closed, std::string("the ") + what + " with which the program was compiled is gone");
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<T>> objects_;
};

// Slots are never destroyed: threads of XLA may outlive static objects.
Slots<engine::Communicator>& communicators() {
  static auto* const slots = new Slots<engine::Communicator>;  // NOLINT(*-owning-memory)
  return *slots;
}

Slots<ExchangeSet>& all_exchanges() {
  static auto* const slots = new Slots<ExchangeSet>;  // NOLINT(*-owning-memory)
  return *slots;
}

}  // namespace

std::int64_t number_of(const std::shared_ptr<engine::Communicator>& communicator) {
  return communicators().number_of(communicator);
}

std::int64_t number_of(const std::shared_ptr<ExchangeSet>& exchanges) { return all_exchanges().number_of(exchanges); }

std::shared_ptr<engine::Communicator> communicator_of(std::int64_t number) {
  return communicators().object_of(number, "communicator");
}

std::shared_ptr<ExchangeSet> exchanges_of(std::int64_t number) {
  return all_exchanges().object_of(number, "transformation");
}

}  // namespace gradientflow::jax
