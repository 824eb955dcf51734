// The messages that a mailbox draws from MPI, and those that wait to be asked for.
#include <algorithm>

#include "mailbox.hpp"

namespace gradientflow::transport {
namespace {

constexpr int drawn_at_once = 256;

Envelope envelope_of(const MPI_Status& status) {
  MPI_Count bytes = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  return {status.MPI_SOURCE, status.MPI_TAG, static_cast<std::size_t>(bytes)};
}

}  // namespace

std::unique_ptr<Arrival> Mailbox::find_arrival(int from, const Tags& tags) {
  check_usable();
  const auto found = std::find_if(arrived_.begin(), arrived_.end(), [&](const auto& each) {
    return tags.has(each->envelope_.tag) && each->envelope_.is_from(from);
  });
  if (found == arrived_.end()) {
    return nullptr;
  }
  std::unique_ptr<Arrival> arrival = std::move(*found);
  arrived_.erase(found);
  arrival->mailbox_ = self_;
  ++taken_;
  return arrival;
}

std::unique_ptr<Arrival> Mailbox::take(int from, const Tags& tags) {
  check_rank(from, true);
  const auto held = lock();
  return find_arrival(from, tags);
}

bool Mailbox::has(const Tags& tags) const {
  const auto held = lock();
  return std::any_of(arrived_.begin(), arrived_.end(), [&](const auto& each) { return tags.has(each->envelope_.tag); });
}

void Mailbox::drop(Arrival& arrival) noexcept {
  if (is_forked()) {
    return;
  }
  try {
    auto held = lock();
    if (!closed_ && !mpi_->finalized()) {
      discard(arrival.envelope_, arrival.message_);
      --taken_;
    }
    finish(held);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): MPI keeps it
  }
}

void Mailbox::deliver(const Envelope& envelope, MPI_Message& message) {
  known_peers_[static_cast<std::size_t>(envelope.source)] = true;
  if (envelope.tag == notice_tag_) {
    read_notice(envelope, message);
    return;
  }
  const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const auto& transfer) {
    return transfer->tag_ == envelope.tag && envelope.is_from(transfer->peer_);
  });
  if (found != posted_.end()) {
    begin_receive(std::shared_ptr<Transfer>(*found), envelope, message);  // which may take it out of the list
    return;
  }
  auto arrival = std::make_unique<Arrival>();
  arrival->envelope_ = envelope;
  arrival->message_ = message;
  arrived_.push_back(std::move(arrival));
}

// MPI tells of ranks that have died whenever it is asked about any rank, until that is acknowledged.
bool Mailbox::draw_messages() {
  int drawn = 0;
  for (int turn = 0; turn < drawn_at_once; ++turn) {
    int there = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int code = MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi_->get(), &there, &message, &status);
    if (code != MPI_SUCCESS && is_process_failure(code)) {
      acknowledge_failures(mpi_->get());
      is_told_of_deaths_ = true;
      continue;
    }
    mpi_->check(code, "MPI_Improbe");
    if (there == 0) {
      break;
    }
    deliver(envelope_of(status), message);
    ++drawn;
  }
  return drawn > 0;
}

}  // namespace gradientflow::transport
