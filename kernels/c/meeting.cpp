#include "meeting.hpp"

#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../transport/meeting/exchange.hpp"
#include "../transport/meeting/file_store.hpp"
#include "../transport/meeting/meeting.hpp"
#include "../transport/meeting/tcp_store.hpp"

namespace gradientflow::c {
namespace {

using transport::Store;

constexpr const char* meet_variable = "GRADIENTFLOW_MEET";
constexpr const char* rank_variable = "GRADIENTFLOW_RANK";
constexpr const char* size_variable = "GRADIENTFLOW_SIZE";

struct Meeting {
  std::string at;
  int rank = 0;
  int size = 1;
};

std::string text_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

int number_in(const char* variable) {
  const std::string text = text_in(variable);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorKind::value, std::string(variable) + " is '" + text + "', which is not a number; " +
                                      meet_variable + ", " + rank_variable + " and " + size_variable +
                                      " are needed together");
  }
  return number;
}

// Reads the variables GRADIENTFLOW_MEET, GRADIENTFLOW_RANK and GRADIENTFLOW_SIZE; without them, this process is the
// only rank.
Meeting meeting_by_variables() {
  if (text_in(meet_variable).empty() && text_in(rank_variable).empty() && text_in(size_variable).empty()) {
    return {};
  }
  return {text_in(meet_variable), number_in(rank_variable), number_in(size_variable)};
}

// Opens the store of a meeting. The store stays open until the process ends, even if this process serves it: ranks may
// meet there again.
Store& open_store(const Meeting& meeting, double timeout) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, bool>, std::unique_ptr<Store>> opened;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Store>& store = opened[{meeting.at, meeting.rank == 0}];
  if (store == nullptr) {
    constexpr std::string_view file = "file://";
    if (meeting.at.starts_with(file)) {
      store = std::make_unique<transport::FileStore>(meeting.at.substr(file.size()));
    } else {
      store = std::make_unique<transport::TcpStore>(meeting.at, meeting.rank == 0, text_in("GRADIENTFLOW_TOKEN"),
                                                    transport::Until(timeout));
    }
  }
  return *store;
}

class SingleRank : public transport::TextExchange {
 public:
  [[nodiscard]] std::vector<std::string> all(const std::string& mine, const transport::Until& /*until*/) override {
    return {mine};
  }
};

}  // namespace

std::unique_ptr<transport::Endpoint> endpoint_by_meeting(const char* meet, int rank, int size, const Config& config) {
  const Meeting meeting = size == 0 ? meeting_by_variables() : Meeting{meet == nullptr ? "" : meet, rank, size};
  if (meeting.rank < 0 || meeting.rank >= meeting.size) {
    throw Error(ErrorKind::value, "there is no rank " + std::to_string(meeting.rank) + " among " +
                                      std::to_string(meeting.size) + " ranks, which are numbered from 0");
  }
  if (!meeting.at.empty()) {
    transport::StoreTextExchange exchange(open_store(meeting, config.timeout), meeting.rank, meeting.size);
    return transport::meet(exchange, meeting.rank, config, meeting.at.starts_with("file://") ? "" : meeting.at);
  }
  if (meeting.size > 1) {
    throw Error(ErrorKind::value,
                std::to_string(meeting.size) + " ranks have to meet somewhere: meet is host:port or file:///path");
  }
  SingleRank single_rank;
  return transport::meet(single_rank, 0, config, "");
}

}  // namespace gradientflow::c
