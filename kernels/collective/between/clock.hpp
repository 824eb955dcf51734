// Comparing the clocks of two ranks: one asks, the other answers with its time, and half of the way there and back is
// taken off. The quickest of several answers is the most exact one.
#pragma once

#include "../../transport/messages/messages.hpp"

namespace gradientflow::collective {

// Seconds to be added to this rank's steady clock, for that of rank `peer`, which answers meanwhile.
[[nodiscard]] double ask_for_time(transport::Messages& messages, int peer);
void answer_with_time(transport::Messages& messages, int peer);

}  // namespace gradientflow::collective
