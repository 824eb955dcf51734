// How long something is waited for that may never come: one table, and one factor for all of it.
#pragma once

#include <chrono>

namespace gradientflow {

// GRADIENTFLOW_PATIENCE, which only tests set, multiplies every wait. It is read once.
class Wait {
 public:
  constexpr explicit Wait(double seconds) : seconds_(seconds) {}

  [[nodiscard]] double seconds() const;
  [[nodiscard]] std::chrono::steady_clock::duration time() const;

 private:
  double seconds_;
};

// What decides whether a host or a process has died is not here: it holds for ranks that are merely slow.
namespace waits {

// Messages of ranks.
inline constexpr Wait roll_call(1.0);  // for the other ranks' answers, so that an error names those that are missing
inline constexpr Wait leave(1.0);      // for what is on its way when a mailbox or a network is closed
inline constexpr Wait nccl_data(0.5);  // for data that a rank has sent before it died
inline constexpr Wait nccl_end(5.0);

// Servers.
inline constexpr Wait last_words(1.0);  // for the error of which a rank has given up
inline constexpr Wait statistics(1.0);  // to name the slowest ranks

// Stores, and where ranks meet.
inline constexpr Wait store_attempt(5.0);        // for a connection, and for a greeting
inline constexpr Wait store_first_attempt(0.5);  // the same, at each of several places
inline constexpr Wait store_answer(5.0);         // to a call that does not wait, where no time is left
inline constexpr Wait store_place(1.0);          // to find out whether a place of the store is this host
inline constexpr Wait store_word(1.0);           // to leave word at another one's store
inline constexpr Wait missing_ranks(5.0);        // to find out who has not come
inline constexpr Wait others_leave(2.0);         // for those who have yet to read how the meeting ended
inline constexpr Wait connections(5.0);          // to other hosts, before a job of MPI takes TCP
inline constexpr Wait known_name(3.0);           // for a name of a host to become known

inline constexpr Wait device_times(1.0);  // for what the timeline shows of a device

}  // namespace waits
}  // namespace gradientflow
