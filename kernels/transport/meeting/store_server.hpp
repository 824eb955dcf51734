// A store that other processes reach over TCP: one thread, which never waits for a single connection.
//
// An unauthenticated connection has not shown the token. It is limited to a few seconds and a kilobyte.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "../descriptor.hpp"
#include "address.hpp"
#include "store_protocol.hpp"

namespace gradientflow::transport {

class StoreServer {
 public:
  struct Limits {
    std::size_t unauthenticated = 128;           // unauthenticated connections at a time; the oldest makes room
    double seconds = 5.0;                        // time for a connection to show the token
    std::size_t bytes = std::size_t{256} << 20;  // keys and values; requests on their way may add as much
  };

  // Listens at the address of `place`, if this host has that address or the place is localhost. Otherwise listens at
  // all addresses of this host, because its name may mean another address here than on other hosts. Port 0: a free
  // port. Throws Error(system).
  StoreServer(const HostPort& place, std::string token, const Limits& limits);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  [[nodiscard]] int port() const noexcept { return address_.port(); }
  [[nodiscard]] const SocketAddress& address() const noexcept { return address_; }  // address for clients on this host
  [[nodiscard]] int refused() const noexcept { return refused_.load(std::memory_order_relaxed); }  // for a wrong token
  [[nodiscard]] int admitted() const noexcept { return admitted_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_token(std::string_view token) const noexcept { return same_token(token, token_); }

 private:
  using Value = std::shared_ptr<const std::string>;
  using Clock = Until::Clock;

  struct Connection {
    enum class Phase : std::uint8_t {
      unauthenticated,
      member,
      leaving,  // refused: further input is thrown away until it closes, so that it can read the reason
    };

    Descriptor socket;
    Clock::time_point since;
    Phase state = Phase::unauthenticated;
    bool reads = true;         // true if it may send its next request
    std::string received;      // part of a request
    std::string waits_for;     // key that it waits for; empty: none
    std::string head;          // head of an answer
    Value body;                // value after the head
    std::size_t sent = 0;      // bytes sent of head and body
    std::uint32_t events = 0;  // events that epoll watches for
  };
  using Connections = std::map<std::uint64_t, Connection>;  // ordered by arrival

  void listen_at(const HostPort& place);
  void run() noexcept;
  void serve(std::uint64_t number, std::uint32_t events);
  void accept_all();
  void accept_again_at(Clock::time_point time);
  bool receive(std::uint64_t number, Connection& connection);
  bool take_messages(std::uint64_t number, Connection& connection);
  bool admit(std::uint64_t number, Connection& connection);
  bool handle(std::uint64_t number, Connection& connection, StoreRequest& request);
  void put(const std::string& key, std::string value);
  void tell_waiting(const std::string& key, const Value& value);
  static bool answer(Connection& connection, StoreAnswer::Kind kind, Value value);
  static bool refuse(Connection& connection, const std::string& why);
  static bool flush(Connection& connection);
  void watch(std::uint64_t number, Connection& connection);
  void drop(std::uint64_t number) noexcept;
  void drop_late_unauthenticated();
  [[nodiscard]] int milliseconds_to_wait() const;

  std::string token_;
  Limits limits_;
  SocketAddress address_;
  Descriptor listener_;
  Descriptor epoll_;
  Descriptor stop_;  // an eventfd
  Connections connections_;
  std::set<std::uint64_t> unauthenticated_;  // also connections in state leaving
  std::uint64_t next_number_ = 2;
  std::unordered_map<std::string, Value> values_;
  std::unordered_map<std::string, std::set<std::uint64_t>> waiting_;  // connections, by the key they wait for
  std::size_t stored_ = 0;                                            // bytes
  std::size_t received_ = 0;                                          // bytes of incomplete requests
  std::optional<Clock::time_point> accepts_again_;
  std::string buffer_;
  std::atomic<int> refused_{0};
  std::atomic<int> admitted_{0};
  int forks_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace gradientflow::transport
