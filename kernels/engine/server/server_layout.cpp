#include "server_layout.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "../../base/error.hpp"
#include "../exchange/fusion.hpp"

namespace gradientflow::engine {
namespace {

constexpr std::size_t unit = 32;  // elements: a multiple of 64 bytes in every wire dtype
constexpr std::size_t most_elements = std::size_t{1} << 38;

}  // namespace

ServerLayout::ServerLayout(std::vector<std::size_t> counts, std::size_t servers, std::size_t threshold, DType wire)
    : counts_(std::move(counts)), servers_(servers), offsets_{0} {
  std::vector<std::size_t> bytes;
  for (const std::size_t count : counts_) {
    const std::size_t room = (std::min(count, most_elements) + unit - 1) / unit * unit;
    offsets_.push_back(offsets_.back() + room);
    if (offsets_.back() > most_elements) {
      throw Error(ErrorKind::value, "the tensors of a parameter server take more than 1 TiB");
    }
    bytes.push_back(room * size_of(wire));
  }
  for (const TensorRange& fused : fuse(bytes, threshold)) {
    const std::size_t begin = offsets_[fused.begin];
    const std::size_t units = (offsets_[fused.end] - begin) / unit;
    const std::size_t all = units * unit * size_of(wire);
    const std::size_t parts =
        threshold == 0 ? 1 : std::clamp<std::size_t>(all / threshold, 1, std::max<std::size_t>(units, 1));
    for (std::size_t i = 0; i < parts; ++i) {
      ranges_.push_back({begin + units * i / parts * unit, begin + units * (i + 1) / parts * unit});
    }
  }
  cut();
  const auto empty = std::find(shard_sizes_.begin(), shard_sizes_.end(), 0);
  if (empty != shard_sizes_.end() && servers_ > 1) {
    throw Error(ErrorKind::value, "server " + std::to_string(empty - shard_sizes_.begin()) + " of " +
                                      std::to_string(servers_) + " would have no part of the " +
                                      std::to_string(std::accumulate(counts_.begin(), counts_.end(), std::size_t{0})) +
                                      " weights: take fewer servers");
  }
}

std::size_t ServerLayout::servers_for(const std::vector<std::size_t>& counts, std::size_t most, std::size_t threshold,
                                      DType wire) {
  for (std::size_t servers = most; servers > 1; --servers) {
    try {
      const ServerLayout possible(counts, servers, threshold, wire);
      return servers;
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): tries fewer
    }
  }
  return 1;
}

// Cuts each range into pieces. If pieces are unequal, the servers with the larger pieces change from range to range.
void ServerLayout::cut() {
  shard_sizes_.assign(servers_, 0);
  of_server_.resize(servers_);
  of_tensor_.resize(counts_.size());
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    const std::size_t begin = ranges_[r].begin;
    const std::size_t units = (ranges_[r].end - begin) / unit;
    elements_.push_back(0);
    for (std::size_t s = 0; s < servers_; ++s) {
      const std::size_t place = (s + r) % servers_;
      const std::size_t from = units * place / servers_ * unit;
      const std::size_t to = units * (place + 1) / servers_ * unit;
      pieces_.push_back({begin + from, shard_sizes_[s], to - from});
      shard_sizes_[s] += to - from;
      list_parts(r, s);
    }
  }
}

void ServerLayout::list_parts(std::size_t range, std::size_t server) {
  const Piece& piece = pieces_.back();
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), piece.flat);
  for (auto tensor = static_cast<std::size_t>(after - offsets_.begin()) - 1;
       tensor < counts_.size() && offsets_[tensor] < piece.flat + piece.count; ++tensor) {
    const std::size_t begin = std::max(offsets_[tensor], piece.flat);
    const std::size_t end = std::min(offsets_[tensor] + counts_[tensor], piece.flat + piece.count);
    if (begin < end) {
      const std::size_t shard = piece.shard + (begin - piece.flat);
      const TensorPart part{tensor, server, range, begin - offsets_[tensor], begin, shard, end - begin};
      of_server_[server].push_back(part);
      of_tensor_[tensor].push_back(part);
      elements_[range] += part.count;
    }
  }
}

}  // namespace gradientflow::engine
