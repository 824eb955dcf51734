#include "norms_message.hpp"

#include <algorithm>
#include <cmath>

#include "../calls/request.hpp"

namespace gradientflow::engine {

NormsMessage::NormsMessage(Communicator& communicator, std::size_t chunks, std::size_t extra)
    : communicator_(communicator), chunks_(chunks), numbers_(chunks + trailer_size + extra) {
  const Array array{reinterpret_cast<std::byte*>(numbers_.data()), numbers_.size(), DType::float64};
  call_ = make_call(communicator, {.kind = transport::CallKind::allreduce, .input = array, .output = array});
  call_.signature.detail = transport::norms_detail;
}

void NormsMessage::write(const Own& own, std::span<const double> extra) {
  std::fill(numbers_.begin(), numbers_.end(), 0.0);
  double* const numbers = numbers_.data() + chunks_;
  const auto wanted = static_cast<double>(own.next.value_or(0));
  const double exponent = std::log2(own.loss_scale);
  numbers[next_sum] = wanted;
  numbers[next_squares] = wanted * wanted;
  numbers[wishes] = own.next ? 1.0 : 0.0;
  numbers[active_ranks] = own.idle ? 0.0 : 1.0;
  numbers[scale_sum] = exponent;
  numbers[scale_squares] = exponent * exponent;
  std::copy(extra.begin(), extra.end(), numbers + trailer_size);
}

void NormsMessage::send(GradientPool& behind, Deadline deadline) {
  const auto now = Pool::Clock::now();
  report_ = {call_.bytes(), {}, now, {now, now, {}}};
  under_way_ = behind.submit(call_);
  if (under_way_ == nullptr && deadline) {
    under_way_ = communicator_.submit(call_);
  }
  if (under_way_ == nullptr) {
    report_.outcome = communicator_.run(call_);
    report_.times.ended = Pool::Clock::now();
    received_ = true;
  }
}

void NormsMessage::receive(Deadline deadline) {
  if (!received_) {
    await(*under_way_, deadline);
    report_.outcome = under_way_->outcome();
    report_.times = under_way_->times();
    received_ = true;
  }
}

void NormsMessage::reset() {
  under_way_.reset();
  received_ = false;
}

bool NormsMessage::has_same_loss_scales() const {
  const auto ranks = static_cast<double>(communicator_.size());
  return trailer()[scale_squares] * ranks == trailer()[scale_sum] * trailer()[scale_sum];
}

std::optional<std::size_t> NormsMessage::next() const {
  const double wanting = trailer()[wishes];
  return wanting > 0.0 ? std::optional(static_cast<std::size_t>(std::round(trailer()[next_sum] / wanting)))
                       : std::nullopt;
}

bool NormsMessage::has_same_next() const {
  const double wanting = trailer()[wishes];
  const auto wanted = static_cast<double>(next().value_or(0));
  return wanted * wanting == trailer()[next_sum] && wanted * wanted * wanting == trailer()[next_squares];
}

void NormsMessage::read_extra(std::span<double> means) const {
  const auto ranks = static_cast<double>(communicator_.size());
  std::transform(trailer() + trailer_size, trailer() + trailer_size + means.size(), means.begin(),
                 [ranks](double sum) { return sum / ranks; });
}

}  // namespace gradientflow::engine
