#include "agreement.hpp"

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

namespace gradientflow::collective {

static_assert(std::is_trivially_copyable_v<Word>);

Agreement::Agreement(transport::Messages& messages, std::vector<int> leaders, std::size_t index, std::size_t largest)
    : messages_(messages),
      leaders_(std::move(leaders)),
      index_(index),
      rounds_(doubling_rounds(leaders_.size(), index)),
      outgoing_(sizeof(Word) + largest),
      incoming_(sizeof(Word) + largest) {
  for (const Round& round : rounds_) {
    messages_.acquaint(leaders_[round.peer]);
  }
}

Word Agreement::agree(Word word, std::span<std::byte> payload, const compute::Reduction& how) {
  using transport::Message;
  using transport::Purpose;
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    const Round& round = rounds_[i];
    const int peer = leaders_[round.peer];
    Message incoming =
        round.receives ? messages_.receive(peer, Purpose::agreement, incoming_.data(), incoming_.size()) : Message();
    Message outgoing;
    if (round.sends) {
      std::memcpy(outgoing_.data(), &word, sizeof word);
      if (!payload.empty()) {
        std::memcpy(outgoing_.data() + sizeof word, payload.data(), payload.size());
      }
      outgoing = messages_.send(peer, Purpose::agreement, outgoing_.data(), sizeof word + payload.size());
    }
    const std::size_t bytes = messages_.wait(incoming);
    messages_.wait(outgoing);
    if (round.receives) {
      take_in(word, payload, how, bytes, index_ < round.peer, i > 0 && !round.sends);
    }
  }
  return word;
}

void Agreement::take_in(Word& word, std::span<std::byte> payload, const compute::Reduction& how, std::size_t bytes,
                        bool mine_first, bool finished) const {
  Word theirs;
  std::memcpy(&theirs, incoming_.data(), sizeof theirs);
  word.same = word.same && theirs.same && theirs.signature == word.signature && bytes == sizeof word + payload.size();
  word.mapped = word.mapped && theirs.mapped;
  if (!word.same || payload.empty()) {
    return;
  }
  const std::byte* const other = incoming_.data() + sizeof theirs;
  if (finished) {
    std::memcpy(payload.data(), other, payload.size());
    return;
  }
  std::array<const void*, 2> sources = {payload.data(), other};
  if (!mine_first) {
    std::swap(sources[0], sources[1]);
  }
  void* const target = payload.data();
  compute::reduce({&target, 1}, sources, payload.size() / size_of(how.dtype), how);
}

}  // namespace gradientflow::collective
