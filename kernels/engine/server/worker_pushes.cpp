#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "../../base/text.hpp"
#include "../../compute/kernels.hpp"
#include "../calls/waiting.hpp"
#include "server_worker.hpp"

namespace gradientflow::engine {
namespace {

// Largest number of pushes by which a worker may be ahead of the policy's releases without waiting: one push at a
// server of another node, and two in the slots.
constexpr std::uint64_t most_under_way = 3;

void check_number(const char* name, float value) {
  if (!(value >= 0.0F) || !std::isfinite(value)) {
    throw Error(ErrorKind::value, std::string(name) + " is finite and 0 or more, not " + format_number(value));
  }
}

// Copies as compute::copy or compute::cast. Returns how many of the written elements are not finite, counted block by
// block while they are in a cache.
std::size_t copy_and_count(std::byte* to, DType wire, const std::byte* from, DType dtype, std::size_t count,
                           compute::Store store) {
  constexpr std::size_t block = 4096;
  std::size_t found = 0;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t here = std::min(block, count - begin);
    const std::byte* const source = from + begin * size_of(dtype);
    std::byte* const destination = to + begin * size_of(wire);
    if (dtype == wire) {
      found += compute::count_nonfinite(source, dtype, here);
      compute::copy(destination, source, here * size_of(dtype), store);
    } else {
      compute::cast(destination, wire, source, dtype, here, 1.0F);
      found += compute::count_nonfinite(destination, wire, here);
    }
  }
  return found;
}

}  // namespace

void ServerWorker::begin_ranges() {
  sent_ = 0;
  left_.clear();
  for (std::size_t r = 0; r < shared_.layout.ranges().size(); ++r) {
    left_.push_back(shared_.layout.elements_of(r));
  }
}

bool ServerWorker::slot_is_free() {
  const std::uint64_t next = pushes_ + 1;
  if (released_ + most_under_way < next) {
    return false;
  }
  if (is_bounded_ && std::any_of(safe_.begin(), safe_.end(), [&](std::uint64_t safe) { return safe + 2 < next; })) {
    return false;
  }
  Transfers& sends = sends_[next % 2];
  if (!have_ended(sends)) {
    return false;
  }
  for (const auto& transfer : sends) {
    transfer->check();
  }
  sends.clear();
  for (std::size_t s = 0; s < servers(); ++s) {
    if (is_here(s) && shared_.memory.word(s, rank()).applied.load(std::memory_order_acquire) + 2 < next) {
      return false;
    }
  }
  return true;
}

void ServerWorker::await_slot(Lock& lock, Seconds timeout) {
  if (sent_ == 0 && ready_.count() == 0) {
    wait(lock, timeout, "push " + std::to_string(pushes_ + 1), [this] { return slot_is_free(); });
  }
}

std::byte* ServerWorker::slot_of_tensor(std::size_t tensor) const {
  return shared_.memory.slot(rank(), pushes_ + 1) + shared_.layout.offset(tensor) * size_of(shared_.wire);
}

std::byte* ServerWorker::gradient(std::size_t tensor, Seconds timeout) {
  check_timeout(timeout);
  Lock lock(mutex_);
  check_usable();
  check_not_finishing();
  check_tensor(tensor);
  await_slot(lock, timeout);
  return slot_of_tensor(tensor);
}

// True if a gradient is at its place in the slot. Throws if the gradient is elsewhere in the slot, or has another dtype
// than the wire: copied gradients would overwrite it.
bool ServerWorker::check_gradient(std::size_t tensor, const void* gradient, DType dtype) const {
  static_cast<void>(index_among_floats(dtype, "a gradient is float32, float16 or bfloat16"));
  ready_.check_new(tensor);
  const auto* const data = static_cast<const std::byte*>(gradient);
  const std::size_t bytes = shared_.layout.counts()[tensor] * size_of(dtype);
  const std::byte* const slot = shared_.memory.slot(rank(), pushes_ + 1);
  if (bytes == 0 || data + bytes <= slot || data >= slot + shared_.memory.slot_bytes()) {
    return false;
  }
  if (data != slot_of_tensor(tensor) || dtype != shared_.wire) {
    throw Error(ErrorKind::value, "gradient " + std::to_string(tensor) +
                                      " lies where the gradients of this push are written, and not in its own place "
                                      "there, as " +
                                      std::string(name_of(shared_.wire)) + ": give that, or a copy");
  }
  return true;
}

void ServerWorker::ready(std::size_t tensor, const void* gradient, DType dtype, std::size_t* nonfinite) {
  Lock lock(mutex_);
  check_usable();
  check_not_finishing();
  check_gradient(tensor, gradient, dtype);
  await_slot(lock);
  const bool is_in_place = check_gradient(tensor, gradient, dtype);
  ready_.add(tensor);
  std::byte* const slot = slot_of_tensor(tensor);
  const std::byte* const source = static_cast<const std::byte*>(gradient);
  const std::size_t store = shared_.layout.counts()[tensor] * size_of(dtype);
  const auto& parts = shared_.layout.parts_of_tensor(tensor);
  if (is_in_place) {
    if (nonfinite != nullptr) {
      *nonfinite = compute::count_nonfinite(gradient, dtype, shared_.layout.counts()[tensor]);
    }
    for (const TensorPart& part : parts) {
      left_[part.range] -= part.count;
    }
    send_ranges();
    return;
  }
  ++copying_;
  std::size_t found = 0;
  for (auto at = parts.begin(); at != parts.end();) {  // the parts of a tensor in a range are contiguous
    const std::size_t range = at->range;
    std::size_t begin = at->begin;
    std::size_t count = 0;
    for (; at != parts.end() && at->range == range; ++at) {
      begin = std::min(begin, at->begin);
      count += at->count;
    }
    lock.unlock();
    std::byte* const to = slot + begin * size_of(shared_.wire);
    const std::byte* const from = source + begin * size_of(dtype);
    if (nonfinite != nullptr) {
      found += copy_and_count(to, shared_.wire, from, dtype, count, store_for(store));
    } else if (dtype == shared_.wire) {
      compute::copy(to, from, count * size_of(dtype), store_for(store));
    } else {
      compute::cast(to, shared_.wire, from, dtype, count, 1.0F);
    }
    lock.lock();
    left_[range] -= count;
    send_ranges();
  }
  --copying_;
  copied_.notify_all();
  if (nonfinite != nullptr) {
    *nonfinite = found;
  }
}

// Sends the complete ranges before the first incomplete one. Each worker begins with a different server.
void ServerWorker::send_ranges() {
  const std::size_t item = size_of(shared_.wire);
  const std::byte* const slot = shared_.memory.slot(rank(), pushes_ + 1);
  for (; sent_ < left_.size() && left_[sent_] == 0; ++sent_) {
    for (std::size_t k = 0; k < servers(); ++k) {
      const std::size_t s = (static_cast<std::size_t>(rank()) + k) % servers();
      const Piece& piece = shared_.layout.piece(sent_, s);
      if (!is_here(s) && piece.count > 0) {
        sends_[(pushes_ + 1) % 2].push_back(shared_.mailbox->send(shared_.roles.servers[s], shared_.tags.pushed(),
                                                                  slot + piece.flat * item, piece.count * item,
                                                                  shared_.memory.owner(), transport::Route::in_parts));
      }
    }
  }
}

void ServerWorker::check_settings(std::span<const ServerSettings> settings) const {
  const std::size_t tensors = shared_.layout.tensors();
  if (settings.size() != tensors && settings.size() != 1) {
    throw Error(ErrorKind::value, "settings are one for all tensors or one for each of the " + std::to_string(tensors) +
                                      ", not " + std::to_string(settings.size()));
  }
  for (const ServerSettings& each : settings) {
    check_number("rate", each.rate);
    check_number("momentum", each.momentum);
    check_number("weight_decay", each.weight_decay);
    check_number("trust", each.trust);
  }
  const auto local =
      std::find_if(settings.begin(), settings.end(), [](const auto& each) { return each.trust != 0.0F; });
  const ServerOptimizer& optimizer = shared_.optimizer;
  if (optimizer.name != "lars" && local != settings.end()) {
    throw Error(ErrorKind::value, "a trust of " + format_number(local->trust) + " is for the optimizer 'lars'");
  }
  if (optimizer.is_adam() &&
      std::any_of(settings.begin(), settings.end(), [](const auto& each) { return each.momentum != 0.0F; })) {
    throw Error(ErrorKind::value,
                "the settings have a momentum, and the optimizer 'adam' takes none: its own is beta1");
  }
}

ServerWorker::Pushed ServerWorker::push(std::span<const ServerSettings> settings, float loss_scale, Skip skip,
                                        WithPull with_pull, std::span<const std::optional<Gradient>> gradients,
                                        std::int64_t nonfinite) {
  const std::lock_guard one_at_a_time(pushing_);
  Lock lock(mutex_);
  check_usable();
  check_not_finishing();
  check_settings(settings);
  if (nonfinite >= 0) {
    check_tensor(static_cast<std::size_t>(nonfinite));
  }
  if (!(loss_scale > 0.0F) || !std::isfinite(loss_scale)) {
    throw Error(ErrorKind::value, "loss_scale is above 0 and finite, not " + format_number(loss_scale));
  }
  if (with_pull != WithPull::no) {
    take_notes();
    check_no_pull();
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (const auto& gradient = gradients[i]; gradient) {
      check_gradient(i, gradient->data, gradient->dtype);
    }
  }
  lock.unlock();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (const auto& gradient = gradients[i]; gradient) {
      ready(i, gradient->data, gradient->dtype);
    }
  }
  lock.lock();
  check_usable();
  await_slot(lock);
  copied_.wait(lock, [this] { return copying_ == 0; });
  Note note{.kind = NoteKind::push, .skip = skip, .tensor = nonfinite, .scale = loss_scale};
  if (with_pull != WithPull::no) {
    expect_answers(with_pull == WithPull::exact);
    note.exact = exact_;
    note.number = pulls_;
    note.pushes = pushes_ + 1;
  }
  const std::size_t tensors = shared_.layout.tensors();
  Presence has(tensors, 1);
  ready_.for_each_missing(tensors, [&](std::size_t i) {
    has[i] = 0;
    note.is_partial = true;
    std::memset(slot_of_tensor(i), 0, shared_.layout.counts()[i] * size_of(shared_.wire));
  });
  std::fill(left_.begin(), left_.end(), 0);
  send_ranges();
  std::vector<ServerSettings> all(settings.begin(), settings.end());
  all.resize(tensors, settings.front());
  const bool differ = pushes_ == 0 || all != settings_;
  settings_ = std::move(all);
  std::vector<std::byte> payload;
  if (differ) {
    const auto bytes = std::as_bytes(std::span(settings_));
    payload.assign(bytes.begin(), bytes.end());
  }
  if (note.is_partial) {
    const auto bytes = std::as_bytes(std::span(has));
    payload.insert(payload.end(), bytes.begin(), bytes.end());
  }
  for (std::size_t k = 0; k < servers(); ++k) {
    send_to((static_cast<std::size_t>(rank()) + k) % servers(), note, payload);
  }
  ready_.forget();
  begin_ranges();
  return {++pushes_, note.number};
}

SkippedPush ServerWorker::wait_for_push(std::uint64_t push, Seconds timeout) {
  check_timeout(timeout);
  return or_naming_the_missing([&] {
    Lock lock(mutex_);
    if (released_ < push) {
      wait(lock, timeout, "push " + std::to_string(push), [&] { return released_ >= push; });
    }
    if (push <= forgotten_) {
      throw Error(ErrorKind::value, "whether push " + std::to_string(push) +
                                        " was skipped is not known any more: that is kept for the last " +
                                        std::to_string(most_skipped) + " pushes that were");
    }
    const auto found = skipped_.find(push);
    return found == skipped_.end() ? SkippedPush{.push = push} : found->second;
  });
}

bool ServerWorker::is_released(std::uint64_t push) {
  shared_.mailbox->poll();
  const Lock lock(mutex_);
  check_usable();
  take_notes();
  check_usable();
  return released_ >= push;
}

std::size_t ServerWorker::ready_count() const {
  const Lock lock(mutex_);
  return ready_.count();
}

std::uint64_t ServerWorker::pushes() const {
  const Lock lock(mutex_);
  return pushes_;
}

}  // namespace gradientflow::engine
