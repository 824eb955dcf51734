#include "agreement.hpp"

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "recursive_doubling.hpp"

namespace gradientflow::collective {
namespace {

static_assert(std::is_trivially_copyable_v<Word>);

// What a member has heard so far, as it is sent: the word, then the payload.
class Heard {
 public:
  Heard(const Word& word, Payload& payload, std::size_t largest)
      : word_(word), payload_(&payload), outgoing_(sizeof(Word) + payload.values.size()), incoming_(sizeof(Word) + largest) {}

  [[nodiscard]] const Word& word() const { return word_; }

  transport::Message send(const Lane& lane, std::size_t peer) {
    std::memcpy(outgoing_.data(), &word_, sizeof(Word));
    if (!payload_->values.empty()) {
      std::memcpy(outgoing_.data() + sizeof(Word), payload_->values.data(), payload_->values.size());
    }
    return lane.messages.send(lane.ranks[peer], transport::Purpose::agreement, outgoing_.data(), outgoing_.size());
  }

  transport::Message receive(const Lane& lane, std::size_t peer) {
    return lane.messages.receive(lane.ranks[peer], transport::Purpose::agreement, incoming_.data(), incoming_.size());
  }

  // `finished`: what came is the end of the agreement, not a part of it.
  void take_in(std::size_t bytes, bool mine_first, bool finished) {
    Word theirs;
    std::memcpy(&theirs, incoming_.data(), sizeof(Word));
    word_.same = word_.same && theirs.same && theirs.signature == word_.signature && bytes == outgoing_.size();
    word_.mapped = word_.mapped && theirs.mapped;
    if (!word_.same || payload_->values.empty()) {
      return;
    }
    std::byte* const mine = payload_->values.data();
    const std::byte* const other = incoming_.data() + sizeof(Word);
    if (finished) {
      std::memcpy(mine, other, payload_->values.size());
      return;
    }
    std::array<const void*, 2> sources = {mine, other};
    if (!mine_first) {
      std::swap(sources[0], sources[1]);
    }
    void* const target = mine;
    compute::reduce({&target, 1}, sources, payload_->values.size() / size_of(payload_->how.dtype), payload_->how);
  }

 private:
  Word word_;
  Payload* payload_;
  std::vector<std::byte> outgoing_;
  std::vector<std::byte> incoming_;
};

}  // namespace

Word agree(const Lane& leaders, const Word& mine, Payload& payload, std::size_t largest) {
  Heard heard(mine, payload, largest);
  const std::vector<Round> rounds = doubling_rounds(leaders.size(), leaders.index);
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    const Round& round = rounds[i];
    transport::Message incoming = round.receives ? heard.receive(leaders, round.peer) : transport::Message();
    transport::Message outgoing = round.sends ? heard.send(leaders, round.peer) : transport::Message();
    const std::size_t bytes = leaders.messages.wait(incoming);
    leaders.messages.wait(outgoing);
    if (round.receives) {
      heard.take_in(bytes, leaders.index < round.peer, i > 0 && !round.sends);
    }
  }
  return heard.word();
}

}  // namespace gradientflow::collective
