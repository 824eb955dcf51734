#include "sparse_pool.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "../../base/text.hpp"
#include "../memory/layout.hpp"
#include "chunk_selection.hpp"

namespace gradientflow::engine {
namespace {

void check_momentum(float momentum) {
  if (std::isnan(momentum) || momentum < 0.0F || momentum > 1.0F) {
    throw Error(ErrorKind::value,
                "the momentum of residuals is from 0 to 1, not " + format_number(static_cast<double>(momentum)));
  }
}

void check_options(DType dtype, const SparsePool::Options& options) {
  check_gradients(dtype, "sparse communication");
  if (options.chunk_size == 0) {
    throw Error(ErrorKind::value, "a chunk has at least 1 element, not 0");
  }
  check_momentum(options.momentum);
}

}  // namespace

SparsePool::SparsePool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype,
                       const Options& options)
    : ResidualPool("sparse gradient pool", dtype, ChunkLayout::offsets_of(counts, dtype), options.extra,
                   options.skip_nonfinite),
      options_(options),
      layout_(in_elements(offsets_, dtype), options.chunk_size) {
  check_options(dtype, options);
  const std::size_t number = chunks();
  communicator_ = communicator.duplicate("chunk norms of a sparse pool", transport::MadeFor::sparse_pool);
  check_same("sparse gradient pools", description(counts));
  if (!options_.pool.fusion_threshold && communicator.nodes() > 1) {
    options_.pool.fusion_threshold = chunks_bytes;
  }
  send_ = std::make_unique<GradientPool>(communicator, std::vector<std::size_t>(number, chunk_size()), dtype,
                                         options_.pool);
  memory_ = std::make_unique<PoolMemory>(*communicator_, options_.pool.device, bytes());
  work_ = ChunkWork::make(options_.pool.device, dtype, number, chunk_size(), options_.momentum);
  if (options.momentum > 0.0F) {
    residual_ = VersionedArray(layout_.begins(), options_.pool.device);
  }
  message_ = std::make_unique<NormsMessage>(*communicator_, number, options.extra);
  slot_.resize(number);
  done_.assign(number, 0);
  own_norms_.assign(number, 0.0);
  norms_.assign(number, 0.0);
  sent_.resize(number);
  std::iota(sent_.begin(), sent_.end(), std::size_t{0});
  choose(std::vector<std::uint8_t>(number, 1));
  SparsePool::reset();
  iteration_ = options.first_iteration;
  reports_.clear();
}

SparsePool::~SparsePool() { close(false); }

std::string SparsePool::description(const std::vector<std::size_t>& counts) const {
  return std::to_string(tensors()) + " tensors, " + std::to_string(bytes()) + " bytes of " +
         std::string(name_of(dtype_)) + ", chunks of " + std::to_string(options_.chunk_size) + " elements, momentum " +
         format_number(static_cast<double>(options_.momentum)) + ", " + std::to_string(extra_.size()) +
         " extra numbers, first iteration " + std::to_string(options_.first_iteration) + ", " +
         (options_.skip_nonfinite ? "skipping" : "not skipping") + " what is not finite, layout " +
         std::to_string(collective::hash_of(counts)) + (options_.pool.device ? ", on CUDA devices" : "");
}

// ---- from backpropagation -------------------------------------------------------------------------------------------

void SparsePool::ready(std::size_t tensor, Stream stream) {
  std::vector<std::size_t> full;
  work_on(
      [&] {
        ready_.check_new(tensor, places());
        log_beginning();
        mark(tensor, stream, full);
      },
      [&] { process(full, stream); });
}

void SparsePool::ready_all(Stream stream) {
  std::vector<std::size_t> full;
  work_on([&] { ready_.for_each_missing(places(), [&](std::size_t tensor) { mark(tensor, stream, full); }); },
          [&] { process(full, stream); });
}

void SparsePool::mark(std::size_t tensor, Stream stream, std::vector<std::size_t>& full) {
  ready_.add(tensor);
  if (tensor == tensors()) {
    return;
  }
  const Span reached = layout_.chunks_of(tensor);
  for (std::size_t chunk = reached.begin; chunk < reached.end; ++chunk) {
    if (--left_[chunk] == 0) {
      full.push_back(chunk);
    } else {
      work_->note_ready(chunk, stream);
    }
  }
}

ChunkJob SparsePool::job_for(std::size_t chunk) const {
  const Span span = layout_.span_of(chunk);
  return {.chunk = chunk,
          .count = span.end - span.begin,
          .gradient = at(span.begin),
          .residual = residual_.before(chunk),
          .next_residual = residual_.after(chunk),
          .slot = important_[chunk] != 0 ? slot_of(chunk) : nullptr};
}

void SparsePool::process(const std::vector<std::size_t>& full, Stream stream) {
  const auto begin = Clock::now();
  auto sending = Clock::duration::zero();
  std::vector<ChunkJob> jobs;
  for (const std::size_t chunk : full) {
    done_[chunk] = 1;
    jobs.push_back(job_for(chunk));
  }
  work_->process(
      jobs,
      [&](const ChunkJob& job) {
        if (job.slot != nullptr) {
          const auto gathered = Clock::now();
          send_->ready(slot_[job.chunk], stream);
          sending += Clock::now() - gathered;
        }
      },
      stream);
  const auto end = Clock::now();
  selection_time_ += std::chrono::nanoseconds(end - begin - sending).count();
  if (const auto timeline = communicator_->recorder().timeline(); timeline != nullptr && !full.empty()) {
    timeline->span(timeline->thread_track(), "chunks", begin, end, "\"number\": " + std::to_string(full.size()));
  }
}

// ---- the end of an iteration ----------------------------------------------------------------------------------------

void SparsePool::wait(std::optional<double> timeout, double density, Stream stream) {
  wait_within(timeout, stream, [this, next = important_count(density, chunks())] { next_ = next; });
}

void SparsePool::complete_remaining(Stream stream) {
  std::vector<std::size_t> full;
  {
    const auto lock = stop_work();
    if (fate_ == Fate::given_up) {
      skip_remaining(stream);
      return;
    }
    ready_.for_each_missing(tensors(), [&](std::size_t tensor) {
      clear_tensor(tensor, stream);
      mark(tensor, stream, full);
    });
  }
  process(full, stream);
}

// Sends zeros for the important chunks of which some tensors are not ready, in an iteration that is given up.
void SparsePool::skip_remaining(Stream stream) {
  work_->order(stream);
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    if (done_[chunk] == 0 && important_[chunk] != 0) {
      send_->memory().clear(slot_of(chunk), chunk_size() * size_of(dtype_), stream);
      send_->ready(slot_[chunk], stream);
    }
  }
  std::fill(left_.begin(), left_.end(), 0);
  ready_.add_all();
}

void SparsePool::drop_gradients(Stream stream) {
  ResidualPool::drop_gradients(stream);
  const std::lock_guard lock(mutex_);
  sent_.clear();
}

// Clears the residuals of the chunks that this iteration has sent, and keeps the new residuals of other chunks.
void SparsePool::keep_residuals() {
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    important_[chunk] == 0 ? residual_.keep(chunk) : residual_.clear(chunk);
  }
  const std::lock_guard lock(mutex_);
  sent_ = chunk_of_;
}

void SparsePool::commit_residuals() { keep_residuals(); }

void SparsePool::choose(std::vector<std::uint8_t> important) {
  const std::lock_guard lock(mutex_);
  important_ = std::move(important);
  chunk_of_.clear();
  for (std::size_t chunk = 0; chunk < important_.size(); ++chunk) {
    if (important_[chunk] != 0) {
      slot_[chunk] = chunk_of_.size();
      chunk_of_.push_back(chunk);
    }
  }
  send_->limit(chunk_of_.size());
}

void SparsePool::reset() {
  ResidualPool::reset();
  std::fill(done_.begin(), done_.end(), 0);
  left_ = layout_.tensors_by_chunk();
  learned_ = received_ = scattered_ = false;
  reports_ = send_->reports();
  reports_.push_back(message_->report());
  message_->reset();
}

// ---- between iterations ---------------------------------------------------------------------------------------------

void SparsePool::set_momentum(float momentum) {
  check_between_iterations("the momentum of residuals is set");
  check_momentum(momentum);
  if (momentum > 0.0F && residual_.is_none()) {
    throw Error(ErrorKind::value, "a pool that was made with a momentum of 0 has no residuals: make another one");
  }
  options_.momentum = momentum;
  work_->set_momentum(momentum);
}

void SparsePool::set_loss_scale(double scale) {
  check_between_iterations("the loss scale is set");
  scale_ = inverse_of_loss_scale(scale);
  work_->set_scale(scale_);
}

void SparsePool::clear_gradients(Stream stream) {
  for (const Span& span : spans()) {
    memory_->clear(at(span.begin), (span.end - span.begin) * size_of(dtype_), stream);
  }
}

void SparsePool::restore(std::span<const float> residual, const std::vector<std::uint8_t>& important,
                         std::uint64_t iteration) {
  const std::vector<std::size_t> flags(important.begin(), important.end());
  check_state(
      [&] {
        check_residuals(residual);
        if (!important.empty() && important.size() != chunks()) {
          throw Error(ErrorKind::value, "the state is that of a pool of another size");
        }
      },
      "iteration " + std::to_string(iteration) + ", important chunks " + std::to_string(collective::hash_of(flags)));
  set_residuals(residual);
  choose(important.empty() ? std::vector<std::uint8_t>(chunks(), 1) : important);
  const std::lock_guard lock(mutex_);
  iteration_ = iteration;
}

// ---- results --------------------------------------------------------------------------------------------------------

Update SparsePool::update(bool everywhere) const {
  return update_of(everywhere ? std::vector<Span>{{0, elements()}} : spans());
}

void SparsePool::take_over_means(const SparsePool& other) {
  ResidualPool::take_over_means(other);
  const std::lock_guard lock(mutex_);
  if (means_ != no_means) {
    sent_.resize(chunks());
    std::iota(sent_.begin(), sent_.end(), std::size_t{0});
  }
}

void SparsePool::close(bool drain) noexcept {
  send_->close(drain);
  ResidualPool::close(drain);
}

}  // namespace gradientflow::engine
