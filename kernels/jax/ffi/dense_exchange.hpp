// Exchange of all gradients. It does not call Python, which may be busy in another thread. Large gradients are averaged
// where XLA has put them: a copy into memory of our own would take longer than the exchange inside a node. Small
// gradients are copied into pools, where they are averaged together.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../engine/calls/communicator.hpp"
#include "../../engine/exchange/gradient_pool.hpp"
#include "exchanges.hpp"

namespace gradientflow::jax {

class DenseExchange final : public GradientExchange {
 public:
  // Memory in which a gradient is averaged.
  struct GradientPlacement {
    std::optional<std::size_t> pool;  // none: averaged in XLA's own memory
    std::size_t tensor;               // index in the pool
    std::string name;                 // name in labels
    std::optional<Wire> wire;         // wire of gradients averaged in XLA's own memory
  };

  // `communicator` serves only these calls. `places` are in the order of the operands. The first pool, if any, has
  // `marks_needed()` extra numbers; further pools have at least one.
  DenseExchange(std::shared_ptr<engine::Communicator> communicator, transport::Algorithm algorithm,
                std::vector<std::shared_ptr<engine::GradientPool>> pools, std::vector<GradientPlacement> places);

  void run(const Buffers& buffers, bool refused) override;

 private:
  void average_small(const Buffers& buffers, std::uint32_t call, bool refused);
  void average_large(const Buffers& buffers, std::uint32_t call, bool refused);
  void wait(std::uint32_t call);
  void give_up() noexcept;

  std::shared_ptr<engine::Communicator> communicator_;
  transport::Algorithm algorithm_;
  std::vector<std::shared_ptr<engine::GradientPool>> pools_;
  std::vector<GradientPlacement> places_;
};

}  // namespace gradientflow::jax
