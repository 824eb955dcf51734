#include "mailbox.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "../../base/text.hpp"
#include "../../base/thread.hpp"
#include "../mpi/patience.hpp"
#include "../mpi/retirement.hpp"

namespace gradientflow::transport {
namespace {

using namespace std::chrono_literals;

constexpr auto shortest_nap = 20us;
constexpr auto longest_nap = 5ms;
constexpr auto leave_time = 1s;  // for what is on its way when a mailbox is closed
constexpr int drawn_at_once = 256;
constexpr std::size_t told_in_errors = 3;
constexpr std::size_t longest_reason = 3000;  // bytes: MPI sends so much at once

// Below Open MPI's eager limit over TCP, 64 KiB with a header. The number is enough to fill a link on which messages
// wait for others.
constexpr std::size_t part_bytes = std::size_t{60} << 10;
constexpr std::size_t most_parts_under_way = 16;

constexpr int fewest_tags = 32768;  // that every MPI library offers
constexpr std::size_t block_bytes = std::size_t{1} << 20;

// `bytes` bytes as MPI counts them, in an int: from 2 GiB on, one element of a type made of blocks.
class Extent {
 public:
  explicit Extent(std::size_t bytes) {
    if (bytes <= INT_MAX) {
      count_ = static_cast<int>(bytes);
      return;
    }
    MPI_Datatype block = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(static_cast<int>(block_bytes), MPI_BYTE, &block), "MPI_Type_contiguous");
    const std::size_t blocks = bytes / block_bytes;
    const int lengths[] = {static_cast<int>(blocks), static_cast<int>(bytes % block_bytes)};
    const MPI_Aint places[] = {0, static_cast<MPI_Aint>(blocks * block_bytes)};
    const MPI_Datatype types[] = {block, MPI_BYTE};
    check_mpi(MPI_Type_create_struct(2, lengths, places, types, &type_), "MPI_Type_create_struct");
    MPI_Type_free(&block);
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
    count_ = 1;
  }
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;
  ~Extent() {
    if (type_ != MPI_BYTE) {
      MPI_Type_free(&type_);  // once MPI is done with it
    }
  }
  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] MPI_Datatype type() const noexcept { return type_; }

 private:
  MPI_Datatype type_ = MPI_BYTE;
  int count_ = 0;
};

Envelope envelope_of(const MPI_Status& status) {
  MPI_Count bytes = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  return {status.MPI_SOURCE, status.MPI_TAG, static_cast<std::size_t>(bytes)};
}

std::string rank_text(int rank) { return rank < 0 ? "any rank" : "rank " + std::to_string(rank); }

bool is_from(const Envelope& envelope, int rank) { return rank == Mailbox::any_source || rank == envelope.source; }

std::size_t parts_of(std::size_t bytes) { return std::max<std::size_t>((bytes + part_bytes - 1) / part_bytes, 1); }

int highest_tag(MPI_Comm comm) {
  int* highest = nullptr;
  int known = 0;
  check_mpi(MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&highest), &known), "MPI_Comm_get_attr");
  return known != 0 ? *highest : fewest_tags - 1;
}

}  // namespace

int Tags::at(std::int64_t number) const {
  if (number < 0 || number >= count) {
    throw Error(ErrorKind::value,
                "tag " + std::to_string(number) + " is not between 0 and " + std::to_string(count - 1));
  }
  return first + static_cast<int>(number);
}

void Transfer::check() const {
  if (error_) {
    throw Error(*error_);
  }
}

std::string Transfer::what() const {
  return (kind_ == Kind::send ? "the send to " : "the receive from ") + rank_text(peer_) + " with tag " +
         std::to_string(tag_);
}

Arrival::~Arrival() {
  if (message_ != MPI_MESSAGE_NULL) {
    if (const std::shared_ptr<Mailbox> mailbox = mailbox_.lock()) {
      mailbox->drop(*this);
    }
  }
}

// What a mailbox's thread sleeps on. It outlives the mailbox, which may be destroyed by a callback, for example.
class Mailbox::Alarm {
 public:
  // For so long, or until it rings; while nothing is pending, until it rings.
  void sleep(std::chrono::nanoseconds nap) {
    std::unique_lock lock(mutex_);
    const auto is_over = [this] { return has_rung_; };
    if (is_idle_) {
      rings_.wait(lock, is_over);
    } else {
      rings_.wait_for(lock, nap, is_over);
    }
    has_rung_ = false;
  }
  void ring() {
    const std::lock_guard lock(mutex_);
    has_rung_ = true;
    is_idle_ = false;
    rings_.notify_one();
  }
  // Both with the mailbox's mutex_ held. ring_if_idle() costs nothing while the thread only naps.
  void rest() noexcept { is_idle_ = true; }
  void ring_if_idle() {
    if (is_idle_) {
      ring();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable rings_;
  std::atomic<bool> is_idle_{false};
  bool has_rung_ = false;
};

std::shared_ptr<Mailbox> Mailbox::make(std::unique_ptr<MpiCommunicator> ranks, std::string name,
                                       std::function<bool(int)> is_alive) {
  if (!mpi_thread_multiple()) {
    throw Error(ErrorKind::value, name + " needs an MPI that several threads may call" + thread_level_advice());
  }
  std::shared_ptr<Mailbox> made(new Mailbox(std::move(ranks), std::move(name), std::move(is_alive)));
  made->self_ = made;
  return made;
}

Mailbox::Mailbox(std::unique_ptr<MpiCommunicator> ranks, std::string name, std::function<bool(int)> is_alive)
    : mpi_(std::move(ranks)),
      name_(std::move(name)),
      is_alive_(std::move(is_alive)),
      process_(getpid()),
      notice_tag_(highest_tag(mpi_->get())),
      alarm_(std::make_shared<Alarm>()),
      tags_left_(notice_tag_),
      parts_under_way_(static_cast<std::size_t>(mpi_->size())),
      peers_(static_cast<std::size_t>(mpi_->size())),
      known_peers_(peers_.size()) {}

// In a forked process MPI must not be called, and the mailbox's thread does not exist.
Mailbox::~Mailbox() {
  if (is_forked()) {
    static_cast<void>(mpi_.release());
    return;
  }
  close(false);
  std::vector<int> awaited;
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && peers_[static_cast<std::size_t>(r)].state == State::open) {
      awaited.push_back(r);
    }
  }
  // Messages that have been drawn and not received would stay with MPI; and of many ranks, not all send notices.
  if (!arrived_.empty() || taken_ > 0 || size() > few_ranks) {
    mpi_->never_free();
  }
  mpi_->await_last_messages(std::move(awaited), notice_tag_);
}

bool Mailbox::is_forked() const noexcept { return getpid() != process_; }

void Mailbox::check_process() const {
  if (is_forked()) {
    throw Error(ErrorKind::closed, name_ + " belongs to the process that this one was forked from");
  }
}

// In a forked process the lock may be held by a thread that does not exist there.
std::unique_lock<std::mutex> Mailbox::lock() const {
  check_process();
  return std::unique_lock(mutex_);
}

void Mailbox::check_usable() const {
  if (closed_) {
    throw Error(ErrorKind::closed, name_ + " has been closed");
  }
  mpi_->check_not_finalized();
}

void Mailbox::check_rank(int rank, bool may_be_any) const {
  if ((rank < 0 || rank >= size()) && (!may_be_any || rank != any_source)) {
    throw Error(ErrorKind::value, "rank " + std::to_string(rank) + " does not exist: the ranks of " + name_ +
                                      " are 0 to " + std::to_string(size() - 1));
  }
}

std::shared_ptr<Transfer> Mailbox::make_transfer(Transfer::Kind kind, int peer, std::int64_t tag, std::size_t bytes,
                                                 Owner owner) {
  check_usable();
  check_rank(peer, kind == Transfer::Kind::receive);
  if (!has_thread_) {  // before MPI has the memory
    start_thread("the thread of a mailbox", [mailbox = self_, alarm = alarm_] {
      thread_main(mailbox, alarm);
    }).detach();
    has_thread_ = true;
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->kind_ = kind;
  transfer->peer_ = peer;
  transfer->tag_ = Tags{0, notice_tag_}.at(tag);
  transfer->bytes_ = bytes;
  transfer->owner_ = std::move(owner);
  return transfer;
}

Tags Mailbox::draw(std::int64_t count) {
  const auto held = lock();
  if (count < 1 || count > tags_left_) {
    throw Error(ErrorKind::value, std::to_string(count) + " tags cannot be drawn: there are " +
                                      std::to_string(tags_left_) + " left of the " + std::to_string(notice_tag_) +
                                      " that the MPI library offers");
  }
  tags_left_ -= static_cast<int>(count);
  return {tags_left_, static_cast<int>(count)};
}

Tags Mailbox::draw_rest() {
  const auto held = lock();
  return {0, std::exchange(tags_left_, 0)};
}

std::shared_ptr<Transfer> Mailbox::send(int to, std::int64_t tag, const void* data, std::size_t bytes, Owner owner,
                                        Route route) {
  auto held = lock();
  auto transfer = make_transfer(Transfer::Kind::send, to, tag, bytes, std::move(owner));
  known_peers_[static_cast<std::size_t>(to)] = true;
  if (const auto error = loss(to, transfer->what())) {
    end(transfer, error);
  } else if (route == Route::in_parts) {
    transfer->data_ = const_cast<void*>(data);  // NOLINT(*-const-cast): only read
    transfer->parts_ = parts_of(bytes);
    leaving_.push_back(transfer);
    send_parts();
  } else {
    const Extent extent(bytes);
    mpi_->check(MPI_Isend(data, extent.count(), extent.type(), to, transfer->tag_, mpi_->get(), &transfer->request_),
                "MPI_Isend");
    start(transfer);
  }
  finish(held);
  return transfer;
}

// The next part that has not begun.
std::shared_ptr<Transfer> Mailbox::next_part(const std::shared_ptr<Transfer>& whole) {
  auto part = std::make_shared<Transfer>();
  const std::size_t begin = whole->parts_begun_++ * part_bytes;
  part->kind_ = whole->kind_;
  part->peer_ = whole->peer_;
  part->tag_ = whole->tag_;
  part->data_ = static_cast<std::byte*>(whole->data_) + begin;
  part->bytes_ = std::min(part_bytes, whole->bytes_ - begin);
  part->owner_ = whole->owner_;
  part->whole_ = whole;
  return part;
}

// Begins as many parts as may be under way. A synchronous send ends when the receiver has taken it: that bounds what
// waits there.
void Mailbox::send_parts() {
  for (const std::shared_ptr<Transfer>& whole : leaving_) {
    std::size_t& under_way = parts_under_way_[static_cast<std::size_t>(whole->peer_)];
    while (!whole->ended() && whole->parts_begun_ < whole->parts_ && under_way < most_parts_under_way) {
      if (const auto error = loss(whole->peer_, whole->what())) {
        end(whole, error);
        break;
      }
      const std::shared_ptr<Transfer> part = next_part(whole);
      mpi_->check(MPI_Issend(part->data_, static_cast<int>(part->bytes_), MPI_BYTE, part->peer_, part->tag_,
                             mpi_->get(), &part->request_),
                  "MPI_Issend");
      ++under_way;
      in_flight_.push_back(part);
      alarm_->ring_if_idle();
    }
  }
  std::erase_if(leaving_, [](const auto& each) { return each->ended() || each->parts_begun_ == each->parts_; });
}

std::shared_ptr<Transfer> Mailbox::receive(int from, std::int64_t tag, void* data, std::size_t bytes, Owner owner,
                                           Route route) {
  auto held = lock();
  auto transfer = make_transfer(Transfer::Kind::receive, from, tag, bytes, std::move(owner));
  transfer->data_ = data;
  transfer->parts_ = route == Route::in_parts ? parts_of(bytes) : 0;
  if (from >= 0) {
    known_peers_[static_cast<std::size_t>(from)] = true;
  }
  progress(false);
  posted_.push_back(transfer);
  for (auto at = arrived_.begin(); at != arrived_.end() && !posted_.empty() && posted_.back() == transfer;) {
    if ((*at)->envelope_.tag == transfer->tag_ && is_from((*at)->envelope_, from)) {
      const std::unique_ptr<Arrival> arrival = std::move(*at);
      at = arrived_.erase(at);
      begin_receive(transfer, arrival->envelope_, arrival->message_);
    } else {
      ++at;
    }
  }
  if (!posted_.empty() && posted_.back() == transfer) {
    if (const auto error = loss(from, transfer->what())) {
      posted_.pop_back();
      end(transfer, error);
    } else {
      alarm_->ring_if_idle();
    }
  }
  finish(held);
  return transfer;
}

// Receives the message of a transfer in posted_, or of its next part. The transfer is posted until all parts have
// begun.
void Mailbox::begin_receive(const std::shared_ptr<Transfer>& transfer, const Envelope& envelope, MPI_Message& message) {
  const std::shared_ptr<Transfer> part = transfer->parts_ == 0 ? transfer : next_part(transfer);
  if (transfer->parts_begun_ == transfer->parts_) {
    std::erase(posted_, transfer);
  }
  begin(part, envelope, message);
}

std::unique_ptr<Arrival> Mailbox::next(int from, const Tags& tags, const Deadline& deadline) {
  std::unique_ptr<Arrival> arrival;
  std::optional<Error> error;
  check_rank(from, true);
  wait_until(deadline, [&] {
    const auto held = lock();
    arrival = find_arrival(from, tags);
    if (arrival == nullptr) {
      error = loss(from, "the receive of a message from " + rank_text(from));
    }
    return arrival != nullptr || error.has_value();
  });
  if (error) {
    throw Error(*error);
  }
  return arrival;
}

std::unique_ptr<Arrival> Mailbox::find_arrival(int from, const Tags& tags) {
  check_usable();
  const auto found = std::find_if(arrived_.begin(), arrived_.end(), [&](const auto& each) {
    return tags.has(each->envelope_.tag) && is_from(each->envelope_, from);
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

bool Mailbox::until(const std::function<bool()>& done, const Deadline& deadline) {
  return wait_until(deadline, [&done] { return done(); });
}

int Mailbox::losses() const {
  const auto held = lock();
  return lost_;
}

std::optional<Error> Mailbox::loss_of(int rank, const std::string& what) const {
  const auto held = lock();
  return loss(rank, what);
}

bool Mailbox::has_closed(int rank) const {
  const auto held = lock();
  return peers_[static_cast<std::size_t>(rank)].state == State::closed;
}

std::shared_ptr<Transfer> Mailbox::receive(Arrival& arrival, void* data, Owner owner) {
  auto held = lock();
  if (arrival.mailbox_.lock().get() != this) {
    throw Error(ErrorKind::value, "the message has come to another mailbox than " + name_);
  }
  const Envelope& envelope = arrival.envelope_;
  auto transfer =
      make_transfer(Transfer::Kind::receive, envelope.source, envelope.tag, envelope.bytes, std::move(owner));
  transfer->data_ = data;
  if (arrival.message_ == MPI_MESSAGE_NULL) {
    throw Error(ErrorKind::value, "the message has been received already");
  }
  --taken_;
  begin(transfer, arrival.envelope_, arrival.message_);
  finish(held);
  return transfer;
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

// The thread need not look after what MPI has done at once.
void Mailbox::start(const std::shared_ptr<Transfer>& transfer) {
  if (!test(transfer)) {
    in_flight_.push_back(transfer);
    alarm_->ring_if_idle();
  }
}

void Mailbox::begin(const std::shared_ptr<Transfer>& transfer, const Envelope& envelope, MPI_Message& message) {
  transfer->envelope_ = envelope;
  if (envelope.bytes != transfer->bytes_) {
    try {
      discard(envelope, message);
    } catch (const std::bad_alloc&) {
      ++taken_;  // MPI keeps it
    }
    end(transfer,
        Error(ErrorKind::mismatch, transfer->what() + " of " + std::to_string(transfer->bytes_) + " bytes on rank " +
                                       std::to_string(rank()) + " met a message of " + std::to_string(envelope.bytes) +
                                       " from rank " + std::to_string(envelope.source)));
    return;
  }
  try {
    const Extent extent(envelope.bytes);
    mpi_->check(MPI_Imrecv(transfer->data_, extent.count(), extent.type(), &message, &transfer->request_),
                "MPI_Imrecv");
    start(transfer);
  } catch (const Error& error) {
    end(transfer, error);
  }
}

// Receives a message that nobody wants, because its sender waits until it is received.
void Mailbox::discard(const Envelope& envelope, MPI_Message& message) {
  auto memory = std::make_shared_for_overwrite<std::byte[]>(std::max<std::size_t>(envelope.bytes, 1));
  auto unwanted = make_transfer(Transfer::Kind::receive, envelope.source, envelope.tag, envelope.bytes, memory);
  unwanted->data_ = memory.get();
  begin(unwanted, envelope, message);
}

void Mailbox::deliver(const Envelope& envelope, MPI_Message& message) {
  known_peers_[static_cast<std::size_t>(envelope.source)] = true;
  if (envelope.tag == notice_tag_) {
    read_notice(envelope, message);
    return;
  }
  const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const auto& transfer) {
    return transfer->tag_ == envelope.tag && is_from(envelope, transfer->peer_);
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

void Mailbox::end(const std::shared_ptr<Transfer>& transfer, std::optional<Error> error) {
  transfer->error_ = std::move(error);
  transfer->ended_.store(true, std::memory_order_release);
  if (transfer->then_) {
    callbacks_.push_back(std::exchange(transfer->then_, nullptr));
  }
  ended_.push_back(transfer);
  if (transfer->whole_ != nullptr) {
    end_part(*transfer);
  }
}

// The whole ends with its last part, or with the first one that fails.
void Mailbox::end_part(const Transfer& part) {
  const std::shared_ptr<Transfer>& whole = part.whole_;
  if (part.kind_ == Transfer::Kind::send) {
    --parts_under_way_[static_cast<std::size_t>(part.peer_)];
  }
  ++whole->parts_ended_;
  if (!whole->ended() && (part.error_ || whole->parts_ended_ == whole->parts_)) {
    std::erase(posted_, whole);
    end(whole, part.error_);
  }
}

// Releases the memory of transfers that have ended and runs their callbacks, while no lock is held.
void Mailbox::finish(std::unique_lock<std::mutex>& lock) {
  std::vector<Owner> owners;
  owners.reserve(ended_.size());
  for (const auto& transfer : std::exchange(ended_, {})) {
    owners.push_back(std::move(transfer->owner_));
  }
  const bool has_callbacks = !callbacks_.empty();
  lock.unlock();
  if (has_callbacks) {
    alarm_->ring();
  }
}

bool Mailbox::test(const std::shared_ptr<Transfer>& transfer) {
  int done = 0;
  const int code = MPI_Test(&transfer->request_, &done, MPI_STATUS_IGNORE);
  if (code == MPI_SUCCESS) {
    if (done != 0) {
      end(transfer);
    }
    return done != 0;
  }
  try {
    mpi_->check(code, transfer->what());
  } catch (const Error& error) {
    end(transfer, error);
  }
  return true;
}

// Parts sent to one rank end in their order, and each test looks for messages: so only the first one is tested.
void Mailbox::test_all() {
  std::vector<bool> waits(peers_.size());
  std::erase_if(in_flight_, [&](const auto& transfer) {
    const bool is_sent_part = transfer->whole_ != nullptr && transfer->kind_ == Transfer::Kind::send;
    const auto peer = static_cast<std::size_t>(std::max(transfer->peer_, 0));
    if (is_sent_part && waits[peer]) {
      return false;
    }
    const bool ended = test(transfer);
    waits[peer] = waits[peer] || (is_sent_part && !ended);
    return ended;
  });
}

// Tests what is in flight, and draws what has come. `look`: for ranks that are lost, too. Returns whether anything has
// happened.
bool Mailbox::progress(bool look) {
  if (closed_ && in_flight_.empty()) {
    return false;
  }
  if (mpi_->finalized()) {
    end_all(Error(ErrorKind::closed, "MPI has been finalized on rank " + std::to_string(rank())));
    return true;
  }
  const std::size_t before = in_flight_.size();
  try {
    test_all();
    const bool ended = in_flight_.size() != before;
    send_parts();
    const bool drawn = !closed_ && draw_messages();
    if (!closed_ && (look || is_told_of_deaths_)) {
      check_peers();
    }
    return drawn || ended;
  } catch (const Error& error) {
    end_all(error);
    return true;
  }
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

void Mailbox::read_notice(const Envelope& envelope, MPI_Message& message) {
  std::string bytes(envelope.bytes, '\0');
  mpi_->check(MPI_Mrecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, &message, MPI_STATUS_IGNORE),
              "MPI_Mrecv of a notice");
  Notice notice;
  std::memcpy(&notice, bytes.data(), sizeof notice);
  std::optional<Error> reason;
  if (bytes.size() > sizeof notice) {
    reason.emplace(notice.kind, bytes.substr(sizeof notice));
  }
  note(envelope.source, notice.state, std::move(reason));
}

void Mailbox::note(int rank, State state, std::optional<Error> reason) {
  PeerState& known = peers_[static_cast<std::size_t>(rank)];
  if (known.state != State::open || rank == this->rank()) {
    return;
  }
  known = {state, Clock::now(), std::move(reason)};
  ++lost_;
  end_posted_in_vain();
}

// All messages of a rank have been drawn before its notice, or before it was found dead.
void Mailbox::end_posted_in_vain() {
  std::erase_if(posted_, [this](const auto& transfer) {
    auto error = loss(transfer->peer_, transfer->what());
    if (!error) {
      return false;
    }
    end(transfer, std::move(error));
    return true;
  });
}

void Mailbox::end_all(const Error& error) {
  for (auto* const transfers : {&posted_, &leaving_, &in_flight_}) {
    for (const auto& transfer : std::exchange(*transfers, {})) {
      const bool is_mpi_done = transfer->request_ == MPI_REQUEST_NULL;
      if (!is_mpi_done) {
        finish_later(std::move(transfer->owner_), {transfer->request_});
      }
      end(transfer, error);
    }
  }
}

// Why rank `peer`, or every other rank, cannot take part any more.
std::optional<Error> Mailbox::loss(int peer, const std::string& what) const {
  if (lost_ == 0 || (peer == any_source && lost_ < size() - 1)) {
    return std::nullopt;
  }
  const auto ending = [&] { return " while rank " + std::to_string(rank()) + " waited in " + what; };
  if (peer == any_source) {
    return Error(ErrorKind::peer, "all other ranks have closed " + name_ + ", given up or died" + ending());
  }
  const PeerState& known = peers_[static_cast<std::size_t>(peer)];
  switch (known.state) {
    case State::open:
      return std::nullopt;
    case State::closed:
      return Error(ErrorKind::peer, rank_text(peer) + " has closed " + name_ + ending());
    case State::failed:
      if (known.reason) {
        return known.reason;
      }
      return Error(ErrorKind::peer, rank_text(peer) + " has given up" + ending());
    case State::died:
      return Error(ErrorKind::peer, rank_text(peer) + " has died" + ending());
  }
  return std::nullopt;
}

// Notes ranks that have died, and gives up messages under way to or from ranks that left a while ago. A receive from a
// rank that has closed goes on: its message may still be arriving, however long that takes.
void Mailbox::check_peers() {
  std::vector<int> dead;
  if (std::exchange(is_told_of_deaths_, false)) {
    dead = failed_ranks(mpi_->get());
  }
  for (int r = 0; r < size(); ++r) {
    if (peers_[static_cast<std::size_t>(r)].state == State::open && r != rank() && !is_alive_(r)) {
      dead.push_back(r);
    }
  }
  if (!dead.empty()) {
    while (draw_messages() || draw_messages()) {  // what they have sent: MPI finds it when it is asked the second time
    }
  }
  for (const int r : dead) {
    note(r, State::died);
  }
  if (lost_ == 0) {
    return;
  }
  const auto now = Clock::now();
  std::erase_if(in_flight_, [&](const auto& transfer) {
    const int peer = transfer->kind_ == Transfer::Kind::send ? transfer->peer_ : transfer->envelope_.source;
    const PeerState& known = peers_[static_cast<std::size_t>(peer)];
    const bool may_come = known.state == State::closed && transfer->kind_ == Transfer::Kind::receive;
    if (known.state == State::open || may_come || now - known.since < leave_time) {
      return false;
    }
    finish_later(std::move(transfer->owner_), {transfer->request_});
    end(transfer, loss(peer, transfer->what()));
    return true;
  });
}

void Mailbox::attend(bool look) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return;  // another thread does it
  }
  progress(look);
  finish(lock);
}

void Mailbox::poll() {
  if (!is_forked()) {
    attend(false);
  }
}

template <class Done>
bool Mailbox::wait_until(const Deadline& deadline, Done done) {
  check_process();
  const auto leave = [](std::atomic<int>* waiters) { --*waiters; };
  ++waiters_;
  const std::unique_ptr<std::atomic<int>, decltype(leave)> waiter(&waiters_, leave);
  Patience patience(1e9);
  bool look = false;
  while (!done()) {
    attend(look);
    if (done()) {
      return true;
    }
    if (deadline && Clock::now() >= *deadline) {
      return false;
    }
    look = patience.pause();
  }
  return true;
}

bool Mailbox::ended_by(const Transfer& transfer, const Deadline& deadline) {
  return wait_until(deadline, [&] { return transfer.ended(); });
}

void Mailbox::wait(const Transfer& transfer, std::optional<double> seconds) {
  Deadline deadline;
  if (seconds) {
    deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(std::clamp(*seconds, 0.0, 1e9)));
  }
  if (!ended_by(transfer, deadline)) {
    throw timeout_error(transfer, seconds.value_or(0.0));
  }
  transfer.check();
}

Error Mailbox::timeout_error(const Transfer& transfer, double seconds) const {
  std::string text = transfer.what() + " was not done within " + format_number(seconds) + " s on rank " +
                     std::to_string(rank()) + "; it goes on";
  const auto held = lock();
  if (transfer.kind_ == Transfer::Kind::receive && !arrived_.empty()) {
    text += ". Nobody has asked for ";
    for (std::size_t i = 0; i < std::min(arrived_.size(), told_in_errors); ++i) {
      const Envelope& envelope = arrived_[i]->envelope_;
      text += (i > 0 ? ", " : "") + std::to_string(envelope.bytes) + " bytes from " + rank_text(envelope.source) +
              " with tag " + std::to_string(envelope.tag);
    }
    text += arrived_.size() > told_in_errors ? ", ..." : "";
  }
  return {ErrorKind::timeout, text};
}

Error Mailbox::given_up(const Transfer& transfer, const std::string& why) {
  return {ErrorKind::closed, transfer.what() + " was given up: " + why};
}

bool Mailbox::cancel(const std::shared_ptr<Transfer>& transfer) {
  auto held = lock();
  const bool is_posted = std::erase(posted_, transfer) > 0;
  if (is_posted) {
    end(transfer, given_up(*transfer, "it has been cancelled"));
  }
  finish(held);
  return is_posted;
}

void Mailbox::when_ended(const std::shared_ptr<Transfer>& transfer, std::function<void()> then) {
  auto held = lock();
  if (transfer->ended()) {
    if (!closed_) {
      callbacks_.push_back(std::move(then));
      finish(held);
      return;
    }
    held.unlock();
    then();
    return;
  }
  transfer->then_ = std::move(then);
}

// The thread holds the mailbox only while it works, and calls MPI only before the mailbox is closed: nobody has to wait
// for it to end.
void Mailbox::thread_main(const std::weak_ptr<Mailbox>& mailbox, const std::shared_ptr<Alarm>& alarm) {
  std::chrono::nanoseconds nap = shortest_nap;
  const auto work = [&] {
    const std::shared_ptr<Mailbox> self = mailbox.lock();
    try {
      return self != nullptr && self->work(nap);
    } catch (const std::bad_alloc&) {  // another time
      return true;
    }
  };
  while (work()) {
    alarm->sleep(nap);
  }
}

// Returns whether to call it again, after a nap.
bool Mailbox::work(std::chrono::nanoseconds& nap) {
  std::unique_lock lock(mutex_);
  if (closed_) {
    return false;
  }
  const bool moved = progress(nap == longest_nap);
  const auto callbacks = std::exchange(callbacks_, {});
  const bool is_pending = !posted_.empty() || !in_flight_.empty() || !callbacks.empty();
  if (is_pending && waiters_ == 0) {
    nap = moved ? shortest_nap : std::min<std::chrono::nanoseconds>(nap * 5 / 4, longest_nap);
  } else if (is_pending || moved || nap != longest_nap) {
    nap = longest_nap;  // before it rests: messages that are soon done, one after the other, would wake it each time
  } else {
    alarm_->rest();
    nap = shortest_nap;
  }
  finish(lock);
  for (const auto& callback : callbacks) {
    callback();
  }
  return true;
}

void Mailbox::tell(State state, const std::optional<Error>& reason) {
  const Notice head{state, reason ? reason->kind() : ErrorKind::peer};
  auto notice = std::make_shared<std::string>(reinterpret_cast<const char*>(&head), sizeof head);
  if (reason) {
    *notice += std::string_view(reason->what()).substr(0, longest_reason);
  }
  std::vector<MPI_Request> requests;
  for (int r = 0; r < size(); ++r) {
    const bool knows = size() <= few_ranks || known_peers_[static_cast<std::size_t>(r)];
    if (r != rank() && knows && peers_[static_cast<std::size_t>(r)].state != State::died) {
      MPI_Isend(notice->data(), static_cast<int>(notice->size()), MPI_BYTE, r, notice_tag_, mpi_->get(),
                &requests.emplace_back(MPI_REQUEST_NULL));
    }
  }
  finish_later(std::move(notice), std::move(requests));
}

void Mailbox::close(bool orderly, const std::optional<Error>& reason) noexcept {
  if (is_forked()) {
    return;
  }
  try {
    std::unique_lock lock(mutex_);
    if (std::exchange(closed_, true)) {
      lock.unlock();
      while (!has_left_) {
        std::this_thread::sleep_for(1ms);
      }
      return;
    }
    const std::string why = name_ + " has been closed";
    for (const auto& transfer : std::exchange(posted_, {})) {
      end(transfer, given_up(*transfer, why));
    }
    const auto deadline = Clock::now() + leave_time;
    while (progress(false), orderly && !in_flight_.empty() && Clock::now() < deadline) {
      lock.unlock();
      std::this_thread::sleep_for(1ms);
      lock.lock();
    }
    for (const auto& transfer : std::exchange(leaving_, {})) {
      end(transfer, given_up(*transfer, why));
    }
    for (const auto& transfer : std::exchange(in_flight_, {})) {
      finish_later(std::move(transfer->owner_), {transfer->request_});
      end(transfer, given_up(*transfer, why));
    }
    if (!mpi_->finalized()) {
      tell(orderly ? State::closed : State::failed, reason);
    }
    has_left_ = true;
    const auto callbacks = std::exchange(callbacks_, {});
    finish(lock);
    alarm_->ring();
    for (const auto& callback : callbacks) {
      callback();
    }
  } catch (const std::exception&) {  // no memory to tell the others with
    has_left_ = true;
  }
}

}  // namespace gradientflow::transport
