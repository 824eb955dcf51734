// Message in which the ranks of a sparse pool sum numbers at the end of an iteration: the norms of unsent chunks, and
// the extra numbers. Settings travel with their squares: the sums show whether all ranks have the same settings.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "../calls/waiting.hpp"
#include "gradient_pool.hpp"

namespace gradientflow::engine {

class NormsMessage {
 public:
  // Settings that a rank sends beside norms and extra numbers.
  struct Own {
    std::optional<std::size_t> next;  // number of chunks that this rank wants to send next; none: it follows its peers
    bool idle;                        // true if none of its tensors is ready
    double loss_scale;
  };

  NormsMessage(Communicator& communicator, std::size_t chunks, std::size_t extra);

  void write(const Own& own, std::span<const double> extra);  // writes norms of zero
  void set_norm(std::size_t chunk, double norm) { numbers_[chunk] = norm; }
  void send(GradientPool& behind, Deadline deadline);  // through that pool, so that only one thread waits
  [[nodiscard]] bool is_sent() const { return received_ || under_way_ != nullptr; }
  void receive(Deadline deadline);  // throws TimeOver, and can be called again
  void reset();

  // Received numbers, the same on all ranks.
  [[nodiscard]] std::span<const double> norms() const { return {numbers_.data(), chunks_}; }
  [[nodiscard]] bool has_same_loss_scales() const;
  [[nodiscard]] std::optional<std::size_t> next() const;  // wish of the ranks, if any rank has a wish
  [[nodiscard]] bool has_same_next() const;
  [[nodiscard]] bool all_idle() const { return trailer()[active_ranks] == 0.0; }
  void read_extra(std::span<double> means) const;

  [[nodiscard]] const Pool::Report& report() const { return report_; }

 private:
  enum Trailer : std::size_t { next_sum, next_squares, wishes, active_ranks, scale_sum, scale_squares, trailer_size };

  [[nodiscard]] const double* trailer() const { return numbers_.data() + chunks_; }

  Communicator& communicator_;
  std::size_t chunks_;
  std::vector<double> numbers_;  // norms, trailer, extra numbers
  collective::Call call_;        // call that sums them
  std::shared_ptr<Handle> under_way_;
  bool received_ = false;
  Pool::Report report_{};
};

}  // namespace gradientflow::engine
