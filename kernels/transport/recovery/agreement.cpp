#include "agreement.hpp"

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "../../base/error.hpp"
#include "../../base/text.hpp"
#include "../patience.hpp"

namespace gradientflow::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int recovery_tag = 0;  // no other message is sent here
constexpr double for_ever = 1e9;
constexpr std::chrono::milliseconds between_repeats(100);

class Talk {
 public:
  Talk(Endpoint& endpoint, const std::string& value, const Terms& terms)
      : endpoint_(endpoint),
        terms_(terms),
        consensus_(endpoint.rank(), endpoint.size(), value),
        heard_(static_cast<std::size_t>(endpoint.size()), Clock::now()),
        is_excluded_(static_cast<std::size_t>(endpoint.size())) {}

  Decision end() {
    Patience patience(for_ever);
    while (true) {
      const auto now =
          Clock::now();  // taken first: messages that came before this time are read before a rank is given up
      listen();
      look();
      give_up_silent_ranks(now);
      if (!is_one_lost_ && have_all_been_told()) {
        consensus_.propose();
      }
      speak();
      if (consensus_.decision()) {
        return *consensus_.decision();
      }
      if (endpoint_.pause(patience) && terms_.check) {
        terms_.check();
      }
    }
  }

 private:
  struct Incoming {
    std::shared_ptr<std::string> text;
    Request request;
  };

  template <class Work>
  void for_others(Work work) {
    for (int r = 0; r < endpoint_.size(); ++r) {
      if (r != endpoint_.rank() && consensus_.members()[static_cast<std::size_t>(r)].liveness == Liveness::alive) {
        work(r);
      }
    }
  }

  void listen() {
    while (auto arrival = endpoint_.next()) {
      auto text = std::make_shared<std::string>(arrival->envelope().bytes, '\0');
      Request request = endpoint_.receive(*arrival, text->data());
      incoming_.push_back({std::move(text), std::move(request)});
    }
    incoming_.remove_if([this](Incoming& each) {
      const int from = each.request.peer();
      try {
        if (!endpoint_.test(each.request)) {
          return false;
        }
        consensus_.hear(from, *each.text);
        heard_[static_cast<std::size_t>(from)] = Clock::now();
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::mismatch) {
          consensus_.note({from, Liveness::silent, error.what()});
        } else if (error.kind() != ErrorKind::peer) {  // look() finds the fate of a lost rank
          throw;
        }
      }
      return true;
    });
  }

  void look() {
    for (const Sign& sign : endpoint_.signs(terms_.is_alive)) {
      if (sign.liveness > consensus_.members()[static_cast<std::size_t>(sign.rank)].liveness) {
        consensus_.note(sign);
      }
    }
    for (const int r : terms_.left ? terms_.left() : std::vector<int>{}) {
      consensus_.note({r, Liveness::left, "has closed the communicator"});
    }
  }

  // Gives up silent ranks, once they have had time to answer this rank's proposal. A lost rank is judged by its sign,
  // never by the timeout, because that rank may have taken this one for dead.
  void give_up_silent_ranks(Clock::time_point now) {
    is_one_lost_ = false;
    std::vector<bool> is_lost(static_cast<std::size_t>(endpoint_.size()));
    for (const Death& death : endpoint_.dead()) {
      is_lost[static_cast<std::size_t>(death.rank)] = true;
    }
    std::vector<int> missing;
    for_others([&](int r) {
      const auto index = static_cast<std::size_t>(r);
      const std::chrono::duration<double> waited = now - std::max(spoken_, heard_[index]);
      if (is_lost[index]) {
        is_one_lost_ = true;
      } else if (consensus_.has_proposed() && !consensus_.has_news() && consensus_.lacks(r) &&
                 waited.count() > terms_.timeout) {
        missing.push_back(r);
      }
    });
    for (const int r : missing) {
      consensus_.note(
          {r, Liveness::silent,
           "has not come to recover() within " + format_number(terms_.timeout) + " s (GRADIENTFLOW_TIMEOUT)"});
    }
  }

  // Excludes ranks as exclude() does. Returns true if each of them has been told, or cannot be told, and look() finds
  // nothing new afterwards.
  bool have_all_been_told() {
    exclude();
    if (!endpoint_.has_told_excluded()) {
      return false;
    }
    const Members before = consensus_.members();
    look();
    return consensus_.members() == before;
  }

  // Excludes the ranks that are not alive, except ranks that have left: these are still ranks of the job.
  void exclude() {
    for (int r = 0; r < endpoint_.size(); ++r) {
      const auto index = static_cast<std::size_t>(r);
      const Member& member = consensus_.members()[index];
      if (member.liveness != Liveness::alive && member.liveness != Liveness::left && !is_excluded_[index]) {
        is_excluded_[index] = true;
        endpoint_.exclude({r, member.liveness, member.why});
      }
    }
  }

  // Sends news. Until this rank proposes something, it repeats its message, so that no rank takes it for silent.
  void speak() {
    const bool has_news = consensus_.has_news();
    const auto now = Clock::now();
    if (!has_news && (consensus_.has_proposed() || now - repeated_ < between_repeats)) {
      return;
    }
    const auto text = std::make_shared<const std::string>(consensus_.take_message().value_or(consensus_.message()));
    for_others([&](int r) { endpoint_.send(r, recovery_tag, text->data(), text->size()).give_up(text); });
    repeated_ = now;
    spoken_ = has_news ? now : spoken_;
  }

  Endpoint& endpoint_;
  const Terms& terms_;
  Consensus consensus_;
  std::list<Incoming> incoming_;
  std::vector<Clock::time_point> heard_;
  Clock::time_point spoken_{};    // time of the last news
  Clock::time_point repeated_{};  // time of the last message
  bool is_one_lost_ = false;      // true while the fate of a lost rank is not known yet
  std::vector<bool> is_excluded_;
};

}  // namespace

Decision agree(Endpoint& endpoint, const std::string& value, const Terms& terms) {
  return Talk(endpoint, value, terms).end();
}

}  // namespace gradientflow::transport
