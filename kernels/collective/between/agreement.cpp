#include "agreement.hpp"

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

namespace gradientflow::collective {

using transport::Purpose;
using transport::Request;

static_assert(std::is_trivially_copyable_v<Statement>);

Agreement::Agreement(transport::Messages& messages, std::vector<int> leaders, std::size_t index)
    : messages_(messages), leaders_(std::move(leaders)), index_(index) {
  const bool direct = is_direct(static_cast<int>(leaders_.size()));
  const std::vector<std::byte> buffer(sizeof(Statement) + largest_along);
  outgoing_.assign(direct ? leaders_.size() : 1, buffer);
  incoming_.assign(direct ? leaders_.size() : 1, buffer);
  if (!direct) {
    rounds_ = doubling_rounds(leaders_.size(), index);
  }
  if (leaders_[index] != messages_.rank()) {
    return;  // the leader tells this rank the result
  }
  for (std::size_t i = 0; direct && i < leaders_.size(); ++i) {
    messages_.add_peer(leaders_[i]);
  }
  for (const Round& round : rounds_) {
    messages_.add_peer(leaders_[round.peer]);
  }
}

Request Agreement::send(std::size_t leader, const Statement& word, std::span<const std::byte> data) {
  std::vector<std::byte>& buffer = outgoing_[leader % outgoing_.size()];
  std::memcpy(buffer.data(), &word, sizeof word);
  if (!data.empty()) {
    std::memcpy(buffer.data() + sizeof word, data.data(), data.size());
  }
  return messages_.send(leaders_[leader], Purpose::agreement, buffer.data(), sizeof word + data.size());
}

Request Agreement::receive(std::size_t leader) {
  std::vector<std::byte>& buffer = incoming_[leader % incoming_.size()];
  return messages_.receive(leaders_[leader], Purpose::agreement, buffer.data(), buffer.size());
}

bool Agreement::receive(Statement& word, std::size_t leader, std::size_t bytes, std::size_t expected) const {
  Statement theirs;
  std::memcpy(&theirs, incoming_[leader % incoming_.size()].data(), sizeof theirs);
  word.same = word.same && theirs.same && theirs.signature == word.signature && bytes == sizeof word + expected;
  word.mapped = word.mapped && theirs.mapped;
  word.signature.idle = word.signature.idle && theirs.signature.idle;
  return word.same;
}

Statement Agreement::agree_directly(Statement word, std::span<const std::span<const std::byte>> parts) {
  const std::size_t n = leaders_.size();
  const auto part = [&](std::size_t leader) { return parts.empty() ? std::span<const std::byte>() : parts[leader]; };
  std::array<Request, 8> incoming;
  std::array<Request, 8> outgoing;
  for (std::size_t k = 1; k < n; ++k) {
    incoming.at(k) = receive((index_ + n - k) % n);
  }
  for (std::size_t k = 1; k < n; ++k) {
    outgoing.at(k) = send((index_ + k) % n, word, part((index_ + k) % n));
  }
  const std::size_t expected = part(index_).size();
  for (std::size_t k = 1; k < n; ++k) {
    const std::size_t bytes = messages_.wait(incoming.at(k));
    receive(word, (index_ + n - k) % n, bytes, expected);
  }
  for (std::size_t k = 1; k < n; ++k) {
    messages_.wait(outgoing.at(k));
  }
  return word;
}

Statement Agreement::agree_by_doubling(Statement word, std::span<std::byte> payload, const compute::Reduction& how) {
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    const Round& round = rounds_[i];
    Request incoming = round.receives ? receive(round.peer) : Request();
    Request outgoing = round.sends ? send(round.peer, word, payload) : Request();
    const std::size_t bytes = messages_.wait(incoming);
    messages_.wait(outgoing);
    if (!round.receives || !receive(word, round.peer, bytes, payload.size()) || payload.empty()) {
      continue;
    }
    const std::byte* const theirs = received(0);
    if (i > 0 && !round.sends) {  // final result, not a partial result
      std::memcpy(payload.data(), theirs, payload.size());
      continue;
    }
    std::array<const void*, 2> sources = {payload.data(), theirs};
    if (round.peer < index_) {
      std::swap(sources[0], sources[1]);
    }
    void* const target = payload.data();
    compute::reduce({&target, 1}, sources, payload.size() / size_of(how.dtype), how);
  }
  return word;
}

}  // namespace gradientflow::collective
