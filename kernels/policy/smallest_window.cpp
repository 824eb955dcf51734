#include "smallest_window.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace gradientflow::policy {
namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();

struct Arrival {
  double time;
  std::size_t worker;
};

// Workers that have pushed, in the order of their latest pushes.
class Window {
 public:
  explicit Window(std::size_t workers) : latest_(workers, -unbounded), links_(workers + 1, Link{workers, workers}) {}

  // Adds a push. Returns true if all workers have pushed, and the window's earliest push may have changed.
  bool add(const Arrival& push) {
    Link& link = links_[push.worker];
    const bool is_new = latest_[push.worker] == -unbounded;
    const bool was_first = links_[end()].next == push.worker;
    if (is_new) {
      ++size_;
    } else {
      links_[link.before].next = link.next;
      links_[link.next].before = link.before;
    }
    link = {links_[end()].before, end()};
    links_[link.before].next = push.worker;
    links_[end()].before = push.worker;
    latest_[push.worker] = push.time;
    return (is_new || was_first) && size_ == latest_.size();
  }

  [[nodiscard]] std::size_t first() const { return links_[end()].next; }
  [[nodiscard]] double earliest() const { return latest_[first()]; }
  [[nodiscard]] bool is_complete() const { return size_ == latest_.size(); }

 private:
  struct Link {
    std::size_t before;
    std::size_t next;
  };
  [[nodiscard]] std::size_t end() const { return latest_.size(); }

  std::vector<double> latest_;
  std::vector<Link> links_;  // one per worker; the last element is the sentinel of the circular list
  std::size_t size_ = 0;
};

// Iterator over slabs of time; the pushes of each slab are in order.
class Slabs {
 public:
  explicit Slabs(const Predictions& predictions) : predictions_(predictions), taken_(predictions.workers(), 0) {
    end_ = unbounded;
    double last = -unbounded;
    for (std::size_t worker = 0; worker < predictions.workers(); ++worker) {
      end_ = std::min(end_, predictions.of(worker).front());
      last = std::max(last, predictions.of(worker).back());
    }
    width_ = (last - end_) / static_cast<double>(predictions.lookahead());
  }

  // Returns the pushes of the next slab; empty at the end.
  const std::vector<Arrival>& next() {
    gather();
    if (pushes_.size() > 1) {
      put_in_order();
    }
    return pushes_;
  }

  [[nodiscard]] bool has_more(std::size_t worker) const { return taken_[worker] < predictions_.lookahead(); }

 private:
  void gather() {
    pushes_.clear();
    begin_ = end_;
    end_ = begin_ + width_;
    double earliest = unbounded;  // time of the earliest push that is left
    for (std::size_t worker = 0; worker < predictions_.workers(); ++worker) {
      const std::span<const double> times = predictions_.of(worker);
      std::size_t& taken = taken_[worker];
      for (; taken < times.size() && times[taken] <= end_; ++taken) {
        pushes_.push_back({times[taken], worker});
      }
      if (taken < times.size()) {
        earliest = std::min(earliest, times[taken]);
      }
    }
    if (pushes_.empty() && earliest < unbounded) {  // a gap, or a width that rounds to nothing: go to the next push
      end_ = earliest;
      gather();
    }
  }

  void put_in_order() {
    const std::size_t buckets = pushes_.size();
    const double span = end_ - begin_;
    const double scale = span > 0 ? static_cast<double>(buckets) / span : 0;
    const auto bucket_of = [&](const Arrival& push) {
      return std::min(static_cast<std::size_t>(std::max((push.time - begin_) * scale, 0.0)), buckets - 1);
    };
    begins_.assign(buckets + 1, 0);
    for (const Arrival& push : pushes_) {
      ++begins_[bucket_of(push) + 1];
    }
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    ordered_.resize(pushes_.size());
    for (const Arrival& push : pushes_) {
      ordered_[begins_[bucket_of(push)]++] = push;
    }
    // begins_[bucket] is now the end of the bucket.
    const auto earlier = [](const Arrival& one, const Arrival& other) { return one.time < other.time; };
    for (std::size_t bucket = 0, begin = 0; bucket < buckets; begin = begins_[bucket++]) {
      if (begins_[bucket] - begin > 1) {
        std::sort(ordered_.begin() + static_cast<std::ptrdiff_t>(begin),
                  ordered_.begin() + static_cast<std::ptrdiff_t>(begins_[bucket]), earlier);
      }
    }
    std::swap(pushes_, ordered_);
  }

  const Predictions& predictions_;
  std::vector<std::size_t> taken_;  // number of each worker's pushes in slabs so far
  double begin_ = 0;
  double end_;
  double width_;
  std::vector<Arrival> pushes_;
  std::vector<Arrival> ordered_;
  std::vector<std::uint32_t> begins_;  // first index of each bucket
};

}  // namespace

Barrier smallest_window(const Predictions& predictions) {
  Slabs slabs(predictions);
  Window window(predictions.workers());
  Best best{unbounded, unbounded};
  while (true) {
    const std::vector<Arrival>& pushes = slabs.next();
    if (pushes.empty()) {
      break;
    }
    for (const Arrival& push : pushes) {
      if (window.add(push) && best.improved_by(push.time - window.earliest(), push.time)) {
        best = {push.time - window.earliest(), push.time};
      }
    }
    if (window.is_complete() && !slabs.has_more(window.first())) {
      break;  // the earliest push of the window stays, so the window cannot shrink
    }
  }
  return with_pushes(predictions, best);
}

}  // namespace gradientflow::policy
