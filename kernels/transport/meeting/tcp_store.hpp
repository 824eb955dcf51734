// A store over TCP, served by this process or another one.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../descriptor.hpp"
#include "address.hpp"
#include "store.hpp"
#include "store_protocol.hpp"
#include "store_server.hpp"

namespace gradientflow::transport {

// A connection to a store, made again after a call that was given up. Calls are made in turn; a call that waits for a
// value delays other calls. In a forked process every call throws Error(closed).
class TcpStore : public Store {
 public:
  // Connects to the store. `places`: its addresses, as in parse_host_ports; several are tried in turn, until a store
  // admits this process. Throws Error(timeout) with the causes, Error(system) if none of their names is known,
  // Error(mismatch) if the store at the only place refuses the token or speaks another version. `serves`: this process
  // serves at the first free place of this host, as long as it has a TcpStore that serves there.
  TcpStore(const std::string& places, bool serves, std::string token, const Until& until);

  void set(const std::string& key, const std::string& value, const Until& until) override;
  [[nodiscard]] std::optional<std::string> get(const std::string& key, const Until& until) override;
  [[nodiscard]] std::optional<std::string> look(const std::string& key, const Until& until) override;
  std::int64_t add(const std::string& key, std::int64_t amount, const Until& until) override;
  std::optional<std::string> compare_set(const std::string& key, const std::optional<std::string>& expected,
                                         const std::string& desired, const Until& until) override;
  bool remove(const std::string& key, const Until& until) override;
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] bool is_served_here() const override { return server_ != nullptr; }
  [[nodiscard]] std::string remark() override;

  // Returns the places, with the port that was found if the store is served here.
  [[nodiscard]] std::string address() const;

 private:
  void serve(const Until& until);
  bool report_second_server(const HostPort& place, const Until& until);
  void await_names(const Until& until) const;
  std::optional<std::string> call(const StoreRequest& request, const Until& until);
  std::optional<std::string> exchange(const StoreRequest& request, const Until& until);
  void connect(const Until& until);
  std::optional<std::string> try_place(const HostPort& place, const Until& until);
  std::optional<std::string> try_address(const SocketAddress& address, const std::string& name, const Until& soon);
  bool greet(const Descriptor& socket, const std::string& name, const Until& until, std::string& cause) const;

  std::vector<HostPort> places_;
  std::string token_;
  std::shared_ptr<StoreServer> server_;
  int forks_;
  std::mutex mutex_;
  Descriptor socket_;
};

}  // namespace gradientflow::transport
