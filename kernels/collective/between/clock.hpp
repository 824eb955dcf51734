// Clock offset of two ranks: the first asks, the second answers with its time, and half of the round trip is
// subtracted. The quickest of several answers counts, because it is the most exact.
#pragma once

#include "../../transport/messages/messages.hpp"

namespace gradientflow::collective {

// Returns the seconds from this rank's steady clock to that of rank `peer`, which calls answer_with_time.
[[nodiscard]] double ask_for_time(transport::Messages& messages, int peer);
void answer_with_time(transport::Messages& messages, int peer);

}  // namespace gradientflow::collective
