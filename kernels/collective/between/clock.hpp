// Clock offset of two ranks: one asks, the other answers with its time, and half of the round trip is subtracted. The
// quickest of several answers counts, because it is the most exact.
#pragma once

#include "../../transport/messages/messages.hpp"

namespace gradientflow::collective {

// Seconds that, added to this rank's steady clock, give that of rank `peer`, which calls answer_with_time.
[[nodiscard]] double ask_for_time(transport::Messages& messages, int peer);
void answer_with_time(transport::Messages& messages, int peer);

}  // namespace gradientflow::collective
