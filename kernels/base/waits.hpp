// Limits of waits for events that may never come: one table, and one factor for all.
#pragma once

#include <chrono>

namespace gradientflow {

// A limit, multiplied by GRADIENTFLOW_PATIENCE, which only tests set, and which is read once.
class Wait {
 public:
  constexpr explicit Wait(double seconds) : seconds_(seconds) {}

  [[nodiscard]] double seconds() const;
  [[nodiscard]] std::chrono::steady_clock::duration time() const;

 private:
  double seconds_;
};

// Timeouts that declare a host or process dead are not here: they apply also to ranks that are merely slow.
namespace waits {

// Messages of ranks.
inline constexpr Wait roll_call(1.0);  // answers of all ranks, so that an error names the missing ranks
inline constexpr Wait leave(1.0);      // messages still on their way when a mailbox or a network is closed
inline constexpr Wait nccl_data(0.5);  // data that a rank has sent before it died
inline constexpr Wait nccl_end(5.0);   // end of NCCL's work on a communicator that is destroyed

// Servers.
inline constexpr Wait error_grace(1.0);  // error with which a rank has given up
inline constexpr Wait statistics(1.0);   // statistics that name the slowest ranks

// Stores, and meetings of ranks.
inline constexpr Wait store_attempt(5.0);        // connection to a store, and its greeting
inline constexpr Wait store_first_attempt(0.5);  // the same, for each of several addresses
inline constexpr Wait store_answer(5.0);         // answer to a call that does not wait, if no time is left
inline constexpr Wait store_place(1.0);          // check if an address of the store is this host
inline constexpr Wait store_notice(1.0);         // notice left at another rank's store
inline constexpr Wait missing_ranks(5.0);        // search for the ranks that have not arrived
inline constexpr Wait others_leave(2.0);         // ranks that have yet to read how the meeting ended
inline constexpr Wait connections(5.0);          // connections to other hosts, before an MPI job uses TCP
inline constexpr Wait known_name(3.0);           // host name that is not known yet

inline constexpr Wait device_times(1.0);  // times of a device for the timeline

}  // namespace waits
}  // namespace gradientflow
