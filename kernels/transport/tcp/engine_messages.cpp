// Messages of an engine: sent whole, or announced and fetched.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "engine.hpp"

namespace gradientflow::transport::tcp {
namespace {

constexpr std::size_t copied_to_self = std::size_t{64} << 10;

Error too_long(std::size_t bytes, std::size_t capacity) {
  return {ErrorKind::mismatch,
          "has sent a message of " + std::to_string(bytes) + " bytes to a receive of " + std::to_string(capacity)};
}

}  // namespace

Inbox* Engine::open(std::uint64_t group) {
  const std::lock_guard lock(mutex_);
  if (!open_.insert(group).second || closed_.contains(group)) {
    throw Error(ErrorKind::internal, "a group of ranks has been opened twice");
  }
  return inbox_of(group);
}

// Returns the inbox of a group. Until the group is open, the inbox keeps the group's messages. Returns nullptr for a
// closed group.
Inbox* Engine::inbox_of(std::uint64_t group) {
  if (closed_.contains(group)) {
    return nullptr;
  }
  auto& inbox = inboxes_[group];
  if (inbox == nullptr) {
    inbox = std::make_unique<Inbox>(group);
  }
  return inbox.get();
}

void Engine::close(Inbox* inbox) noexcept {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = inbox->id;
  for (auto& arrived : std::exchange(inbox->arrived, {})) {
    discard(std::move(arrived));
  }
  for (auto& [source, receives] : inbox->posted) {
    for (Receiving* const receiving : receives) {
      receiving->inbox = nullptr;
    }
  }
  flush_queued();
  inboxes_.erase(id);
  open_.erase(id);
  closed_.insert(id);
}

void Engine::end(Sending* sending, std::optional<Error> error) {
  if (sending->is_given_up) {
    delete sending;  // NOLINT(*-owning-memory): no other owner is left
    return;
  }
  sending->error = std::move(error);
  sending->has_ended.store(true, std::memory_order_release);
  has_found_ = true;
}

void Engine::end(Receiving& receiving, std::size_t bytes, std::optional<Error> error) {
  receiving.bytes = bytes;
  receiving.error = std::move(error);
  receiving.inbox = nullptr;
  receiving.connection = nullptr;
  receiving.number = 0;
  receiving.has_ended.store(true, std::memory_order_release);
  has_found_ = true;
}

Sending* Engine::send(const Inbox& inbox, int to, int tag, const void* data, std::size_t bytes, bool until_taken) {
  auto made = std::make_unique<Sending>();
  made->peer = to;
  made->data = static_cast<const std::byte*>(data);
  made->bytes = bytes;
  const std::lock_guard lock(mutex_);
  Sending* const sending = made.get();
  if (to == rank_) {
    send_to_self(inbox, sending, tag, until_taken);
    wake_waiters();
    return made.release();
  }
  Connection* const connection = connection_to(to);
  if (connection == nullptr) {
    end(sending, loss(to));
    return made.release();
  }
  Peer& other = peer(to);
  const std::size_t cost = bytes + cost_of_keeping;
  Header header{.tag = tag, .group = inbox.id, .bytes = bytes};
  if (!until_taken && bytes <= largest_whole && cost <= other.credit) {
    other.credit -= cost;
    connection->put(header, sending, 0, bytes);
  } else {
    header.kind = Header::Kind::announced;
    header.number = sending->number = other.next_number++;
    other.announced.emplace(header.number, sending);
    connection->put(header);
  }
  if (!connection->awaits_room) {
    flush(*connection);
    wake_waiters();
  }
  return made.release();
}

void Engine::send_to_self(const Inbox& inbox, Sending* sending, int tag, bool until_taken) {
  auto arrived = std::make_unique<Arrived>();
  arrived->source = rank_;
  arrived->tag = tag;
  arrived->bytes = sending->bytes;
  arrived->own = sending;
  sending->arrived = arrived.get();
  Inbox& own = *inboxes_.at(inbox.id);
  if (Receiving* const receiving = own.take_posted(rank_, tag); receiving != nullptr) {
    fill(*receiving, std::move(arrived));
    return;
  }
  if (!until_taken && sending->bytes <= copied_to_self) {
    arrived->memory = std::make_unique_for_overwrite<std::byte[]>(sending->bytes);
    std::copy_n(sending->data, sending->bytes, arrived->memory.get());
    arrived->own = nullptr;
    end(sending);
  }
  own.arrived.push_back(std::move(arrived));
  has_found_ = true;
}

Receiving* Engine::receive(Inbox& inbox, int from, int tag, void* data, std::size_t bytes) {
  auto receiving = std::make_unique<Receiving>();
  receiving->peer = from;
  receiving->tag = tag;
  receiving->data = static_cast<std::byte*>(data);
  receiving->capacity = bytes;
  const std::lock_guard lock(mutex_);
  if (auto arrived = inbox.take_arrived(from, tag); arrived != nullptr) {
    fill(*receiving, std::move(arrived));
  } else if (from != rank_ && peer(from).state != PeerState::alive) {
    end(*receiving, 0, loss(from));
  } else {
    receiving->inbox = &inbox;
    inbox.posted[from].push_back(receiving.get());
  }
  flush_queued();
  return receiving.release();
}

Receiving* Engine::receive(std::unique_ptr<Arrived> arrived, void* data) {
  auto receiving = std::make_unique<Receiving>();
  receiving->peer = arrived->source;
  receiving->tag = arrived->tag;
  receiving->data = static_cast<std::byte*>(data);
  receiving->capacity = arrived->bytes;
  const std::lock_guard lock(mutex_);
  fill(*receiving, std::move(arrived));
  flush_queued();
  return receiving.release();
}

std::unique_ptr<Arrived> Engine::next(Inbox& inbox, std::optional<int> tag) {
  const std::lock_guard lock(mutex_);
  return inbox.take_oldest(tag);
}

// Moves the part of the message that has arrived to the memory of the receive; the rest follows.
void Engine::fill(Receiving& receiving, std::unique_ptr<Arrived> arrived) {
  receiving.inbox = nullptr;
  const std::size_t bytes = arrived->bytes;
  const int source = arrived->source;
  if (bytes > receiving.capacity) {
    discard(std::move(arrived));
    end(receiving, 0, too_long(bytes, receiving.capacity));
  } else if (arrived->own != nullptr) {
    std::copy_n(arrived->own->data, bytes, receiving.data);
    end(arrived->own);
    end(receiving, bytes);
  } else if (arrived->is_broken || (arrived->number > 0 && peer(source).state != PeerState::alive)) {
    end(receiving, 0, loss(source));
  } else if (arrived->number > 0 && bytes == 0) {
    discard(std::move(arrived));
    end(receiving, 0);
  } else if (arrived->number > 0) {
    receiving.number = arrived->number;
    peer(source).fetched.emplace(arrived->number, Fetched{&receiving, bytes, 0});
    put_urgent(source, {.kind = Header::Kind::fetch, .number = arrived->number});
  } else if (Connection* const connection = arrived->connection; connection != nullptr) {
    Connection::Landing& landing = connection->landing();
    const std::size_t there = bytes - landing.left;
    std::copy_n(arrived->memory.get(), there, receiving.data);
    landing.to = receiving.data + there;
    landing.receiving = &receiving;
    landing.arrived = nullptr;
    receiving.connection = connection;
  } else {
    std::copy_n(arrived->memory.get(), bytes, receiving.data);
    give_credit(source, arrived->cost);
    end(receiving, bytes);
  }
}

void Engine::put_urgent(int rank, const Header& header) {
  if (Connection* const out = peer(rank).out; out != nullptr) {
    out->put_urgent(header);
    note_output(rank);
  }
}

void Engine::give_credit(int rank, std::size_t bytes) {
  if (rank == rank_) {
    return;
  }
  Peer& other = peer(rank);
  other.consumed += bytes;
  if (other.consumed >= credit_of_a_peer / 4) {
    other.used -= other.consumed;
    put_urgent(rank, {.kind = Header::Kind::credit, .bytes = std::exchange(other.consumed, 0)});
  }
}

void Engine::discard(std::unique_ptr<Arrived> arrived) {
  if (arrived->own != nullptr) {
    end(arrived->own);
  } else if (arrived->is_broken) {
    return;
  } else if (arrived->number > 0) {
    put_urgent(arrived->source, {.kind = Header::Kind::dropped, .number = arrived->number});
  } else if (arrived->connection != nullptr) {
    Connection::Landing& landing = arrived->connection->landing();
    landing.to = nullptr;
    landing.arrived = nullptr;
  } else {
    give_credit(arrived->source, arrived->cost);
  }
}

void Engine::drop(std::unique_ptr<Arrived> arrived) noexcept {
  const std::lock_guard lock(mutex_);
  discard(std::move(arrived));
  flush_queued();
}

void Engine::give_up(Sending* sending, Owner owner) noexcept {
  const std::lock_guard lock(mutex_);
  const bool has_ended = sending->has_ended.load(std::memory_order_relaxed);
  sending->is_given_up = true;
  const auto is_withdrawn = [&] {
    return sending->number > 0 && peer(sending->peer).announced.erase(sending->number) > 0;
  };
  if (has_ended || (owner == nullptr && is_withdrawn())) {
    end(sending);
  } else if (owner != nullptr) {
    sending->owner = std::move(owner);
  } else if (sending->copy.reset(new (std::nothrow) std::byte[sending->bytes]); sending->copy == nullptr) {
    end_peer(sending->peer, PeerState::lost, "this process has no memory for the rest of a message to it");
  } else {
    std::copy_n(sending->data, sending->bytes, sending->copy.get());
    sending->data = sending->copy.get();
  }
}

void Engine::give_up(Receiving* receiving) noexcept {
  const std::lock_guard lock(mutex_);
  if (receiving->inbox != nullptr) {
    receiving->inbox->forget(*receiving);
  }
  if (receiving->number > 0) {
    peer(receiving->peer).fetched.at(receiving->number).receiving = nullptr;
    for (const auto& connection : peer(receiving->peer).connections) {
      if (connection->landing().receiving == receiving) {
        connection->landing().to = nullptr;
        connection->landing().receiving = nullptr;
      }
    }
  } else if (receiving->connection != nullptr) {
    receiving->connection->landing().to = nullptr;
    receiving->connection->landing().receiving = nullptr;
  }
  delete receiving;  // NOLINT(*-owning-memory): the caller's
}

// ---- arrivals ------------------------------------------------------------------------------------------------------

void Engine::take_header(Connection& from, const Header& header) {
  if (!header.is_valid() || from.is_lost) {
    throw Error(ErrorKind::peer, "what came is no message of this version");
  }
  Peer& other = peer(from.peer());
  if (other.in == nullptr) {
    other.in = &from;
  }
  if (other.in != &from) {
    throw Error(ErrorKind::peer, "messages came through two connections");
  }
  switch (header.kind) {
    case Header::Kind::message:
      take_message(from, header);
      break;
    case Header::Kind::announced:
      take_announcement(from.peer(), header);
      break;
    case Header::Kind::fetch:
      take_fetch(from, header);
      break;
    case Header::Kind::dropped:
      if (const auto found = other.announced.extract(header.number)) {
        end(found.mapped());
      }
      break;
    case Header::Kind::piece:
      take_piece(from, header);
      break;
    case Header::Kind::withdrawn:
      if (const auto found = other.fetched.extract(header.number); found && found.mapped().receiving != nullptr) {
        end(*found.mapped().receiving, 0, Error(ErrorKind::peer, "has given up sending a message"));
      }
      break;
    case Header::Kind::credit:
      if (header.bytes > credit_of_a_peer - other.credit) {
        throw Error(ErrorKind::peer, "more credit came than was used");
      }
      other.credit += header.bytes;
      break;
    case Header::Kind::left:
      end_peer(from.peer(), PeerState::left, "");
      break;
    case Header::Kind::excluded:
      end_peer(from.peer(), PeerState::excluded_us, "");
      break;
  }
}

void Engine::take_message(Connection& from, const Header& header) {
  const int source = from.peer();
  const std::size_t cost = header.bytes + cost_of_keeping;
  if (cost > credit_of_a_peer - peer(source).used) {
    throw Error(ErrorKind::peer, "a message came for which there was no credit");
  }
  peer(source).used += cost;
  Connection::Landing landing{.left = header.bytes, .bytes = header.bytes, .cost = cost};
  Inbox* const inbox = inbox_of(header.group);
  Receiving* const receiving = inbox != nullptr ? inbox->take_posted(source, header.tag) : nullptr;
  if (receiving != nullptr && header.bytes <= receiving->capacity) {
    receiving->inbox = nullptr;
    receiving->connection = &from;
    landing.receiving = receiving;
    landing.to = receiving->data;
  } else if (receiving != nullptr) {
    end(*receiving, 0, too_long(header.bytes, receiving->capacity));
  } else if (inbox != nullptr) {
    auto arrived = std::make_unique<Arrived>();
    arrived->source = source;
    arrived->tag = header.tag;
    arrived->bytes = header.bytes;
    arrived->memory = std::make_unique_for_overwrite<std::byte[]>(header.bytes);
    arrived->connection = &from;
    landing.arrived = arrived.get();
    landing.to = arrived->memory.get();
    inbox->arrived.push_back(std::move(arrived));
    has_found_ = true;
  }
  from.expect(landing);
  if (header.bytes == 0) {
    take_landed(from);
  }
}

void Engine::take_announcement(int from, const Header& header) {
  if (header.number != ++peer(from).last_announced) {
    throw Error(ErrorKind::peer, "a message was announced out of turn");
  }
  Inbox* const inbox = inbox_of(header.group);
  if (inbox == nullptr) {
    put_urgent(from, {.kind = Header::Kind::dropped, .number = header.number});
    return;
  }
  auto arrived = std::make_unique<Arrived>();
  arrived->source = from;
  arrived->tag = header.tag;
  arrived->bytes = header.bytes;
  arrived->number = header.number;
  if (Receiving* const receiving = inbox->take_posted(from, header.tag); receiving != nullptr) {
    fill(*receiving, std::move(arrived));
    return;
  }
  inbox->arrived.push_back(std::move(arrived));
  has_found_ = true;
}

void Engine::take_fetch(Connection& from, const Header& header) {
  Peer& other = peer(from.peer());
  if (header.number == 0 || header.number >= other.next_number) {
    throw Error(ErrorKind::peer, "a message was fetched that was never announced");
  }
  const auto found = other.announced.extract(header.number);
  if (!found) {
    put_urgent(from.peer(), {.kind = Header::Kind::withdrawn, .number = header.number});
    return;
  }
  Sending& sending = *found.mapped();
  const std::size_t first = std::min(largest_piece, sending.bytes);
  other.out->put_pieces({.kind = Header::Kind::piece, .bytes = first, .number = header.number}, sending);
  note_output(from.peer());
}

void Engine::take_piece(Connection& from, const Header& header) {
  auto& fetched = peer(from.peer()).fetched;
  const auto found = fetched.find(header.number);
  if (found == fetched.end() || header.bytes > found->second.awaited - found->second.there) {
    throw Error(ErrorKind::peer, "a part of a message came that was not fetched");
  }
  Connection::Landing landing{.left = header.bytes, .number = header.number, .bytes = header.bytes};
  if (Receiving* const receiving = found->second.receiving; receiving != nullptr) {
    landing.receiving = receiving;
    landing.to = receiving->data + found->second.there;
  }
  from.expect(landing);
}

void Engine::take_landed(Connection& from) {
  const Connection::Landing landing = std::exchange(from.landing(), {});
  if (landing.number > 0) {
    auto& fetched = peer(from.peer()).fetched;
    const auto found = fetched.find(landing.number);
    found->second.there += landing.bytes;
    if (const Fetched all = found->second; all.there == all.awaited) {
      fetched.erase(found);
      if (all.receiving != nullptr) {
        end(*all.receiving, all.awaited);
      }
    }
    return;
  }
  if (landing.arrived != nullptr) {
    landing.arrived->connection = nullptr;
    landing.arrived->cost = landing.cost;
    return;
  }
  if (landing.receiving != nullptr) {
    end(*landing.receiving, landing.bytes);
  }
  give_credit(from.peer(), landing.cost);
}

}  // namespace gradientflow::transport::tcp
