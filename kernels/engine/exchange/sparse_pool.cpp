#include "sparse_pool.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "../../base/text.hpp"
#include "../../compute/kernels.hpp"
#include "../calls/request.hpp"
#include "../calls/same_on_all_ranks.hpp"
#include "../memory/layout.hpp"
#include "chunk_selection.hpp"

namespace gradientflow::engine {
namespace {

constexpr std::size_t trailer_size = 6;          // numbers that travel behind the norms
constexpr std::size_t chunks_bytes = 512 * kib;  // few chunks are sent: small ranges begin sooner

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

// Offsets as in a GradientPool, without the padding behind the last tensor: it would count as part of a chunk, or as a
// chunk.
std::vector<std::size_t> lay_out_chunks(const std::vector<std::size_t>& counts, DType dtype) {
  std::vector<std::size_t> offsets = lay_out(counts, dtype);
  std::size_t end = 0;
  for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
    end = counts[tensor] > 0 ? offsets[tensor] + counts[tensor] * size_of(dtype) : end;
  }
  for (std::size_t& offset : offsets) {
    offset = std::min(offset, end);  // tensors without elements may follow
  }
  return offsets;
}

}  // namespace

SparsePool::SparsePool(Communicator& communicator, const std::vector<std::size_t>& counts, DType dtype,
                       const Options& options)
    : ResidualPool("sparse gradient pool", dtype, lay_out_chunks(counts, dtype), options.extra, options.skip_nonfinite),
      options_(options),
      chunk_size_(std::max(std::size_t{1}, std::min(options.chunk_size, elements()))) {
  check_options(dtype, options);
  const std::size_t number = (elements() + chunk_size_ - 1) / chunk_size_;
  communicator_ = communicator.duplicate("chunk norms of a sparse pool", transport::MadeFor::sparse_pool);
  check_same_on_all_ranks(*communicator_, "sparse gradient pools", description(counts));
  if (!options_.pool.fusion_threshold && communicator.nodes() > 1) {
    options_.pool.fusion_threshold = chunks_bytes;
  }
  send_ =
      std::make_unique<GradientPool>(communicator, std::vector<std::size_t>(number, chunk_size_), dtype, options_.pool);
  memory_ = std::make_unique<PoolMemory>(*communicator_, options_.pool.device, bytes());
  work_ = ChunkWork::make(options_.pool.device, dtype, number, chunk_size_, options_.momentum);
  if (options.momentum > 0.0F) {
    std::vector<std::size_t> begins;
    for (std::size_t chunk = 0; chunk < number; ++chunk) {
      begins.push_back(span_of(chunk).begin);
    }
    begins.push_back(elements());
    residual_ = KeptNumbers(std::move(begins), options_.pool.device);
  }
  slot_.resize(number);
  done_.assign(number, 0);
  own_norms_.assign(number, 0.0);
  norms_.assign(number, 0.0);
  message_.resize(number + trailer_size + extra_.size());
  const Array message{reinterpret_cast<std::byte*>(message_.data()), message_.size(), DType::float64};
  norms_call_ =
      make_call(*communicator_, {.kind = transport::CallKind::allreduce, .input = message, .output = message});
  norms_call_.signature.detail = transport::norms_detail;
  left_.resize(number);
  sent_.resize(number);
  std::iota(sent_.begin(), sent_.end(), std::size_t{0});
  choose(std::vector<std::uint8_t>(number, 1));
  start_next_iteration(false);
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

SparsePool::Span SparsePool::span_of(std::size_t chunk) const {
  return {chunk * chunk_size_, std::min((chunk + 1) * chunk_size_, elements())};
}

// The first and the last tensor that have elements in a chunk; its padding belongs to the tensor before it.
std::pair<std::size_t, std::size_t> SparsePool::tensors_of(std::size_t chunk) const {
  const Span span = span_of(chunk);
  const auto tensor_at = [&](std::size_t element) {
    const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), element * size_of(dtype_));
    return static_cast<std::size_t>(after - offsets_.begin()) - 1;
  };
  return {tensor_at(span.begin), tensor_at(span.end - 1)};
}

// ---- from backpropagation -------------------------------------------------------------------------------------------

void SparsePool::ready(std::size_t tensor, Stream stream) {
  check_open();
  std::vector<std::size_t> full;
  {
    const std::lock_guard lock(mutex_);
    ready_.check_new(tensor, places());
    full = mark(tensor, stream);
    workers_.enter();
  }
  const Workers::Leave leave(workers_);
  process(full, stream);
}

void SparsePool::ready_all(Stream stream) {
  check_open();
  std::vector<std::size_t> full;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t tensor = 0; tensor < places(); ++tensor) {
      if (!ready_.has(tensor)) {
        const auto more = mark(tensor, stream);
        full.insert(full.end(), more.begin(), more.end());
      }
    }
    workers_.enter();
  }
  const Workers::Leave leave(workers_);
  process(full, stream);
}

std::vector<std::size_t> SparsePool::mark(std::size_t tensor, Stream stream) {
  ready_.add(tensor);
  std::vector<std::size_t> full;
  if (tensor < tensors() && offsets_[tensor + 1] > offsets_[tensor]) {
    const std::size_t chunk_bytes = chunk_size_ * size_of(dtype_);
    const std::size_t last = (offsets_[tensor + 1] - 1) / chunk_bytes;
    for (std::size_t chunk = offsets_[tensor] / chunk_bytes; chunk <= last; ++chunk) {
      if (--left_[chunk] == 0) {
        full.push_back(chunk);
      } else {
        work_->note_ready(chunk, stream);
      }
    }
  }
  return full;
}

ChunkJob SparsePool::job_for(std::size_t chunk) const {
  const Span span = span_of(chunk);
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
  bookkeeping_ += std::chrono::nanoseconds(end - begin - sending).count();
  if (const auto timeline = communicator_->timeline(); timeline != nullptr && !full.empty()) {
    timeline->span(timeline->thread_track(), "chunks", begin, end, "\"number\": " + std::to_string(full.size()));
  }
}

void SparsePool::zero_extra_if_not_ready() {
  if (!ready_.has(tensors())) {
    std::fill(extra_.begin(), extra_.end(), 0.0);
  }
}

// Zeroes tensors that are not ready, and processes all chunks that are left.
void SparsePool::finish_what_is_left(Stream stream) {
  std::vector<std::size_t> full;
  {
    std::unique_lock lock(mutex_);
    workers_.wait_for_all(lock);
    idle_ = idle_.value_or(ready_.count() == 0);
    zero_extra_if_not_ready();
    for (std::size_t tensor = 0; tensor < tensors(); ++tensor) {
      if (!ready_.has(tensor)) {
        memory_->clear(data() + offsets_[tensor], offsets_[tensor + 1] - offsets_[tensor], stream);
        const auto more = mark(tensor, stream);
        full.insert(full.end(), more.begin(), more.end());
      }
    }
  }
  process(full, stream);
}

// In an abandoned iteration: sends zeros for chunks that are not full, which keep their residuals.
void SparsePool::send_nothing_of_what_is_left(Stream stream) {
  std::unique_lock lock(mutex_);
  workers_.wait_for_all(lock);
  idle_ = false;
  zero_extra_if_not_ready();
  work_->order(stream);
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    if (done_[chunk] == 0 && important_[chunk] != 0) {
      send_->memory().clear(slot_of(chunk), chunk_size_ * size_of(dtype_), stream);
      send_->ready(slot_[chunk], stream);
    }
  }
  std::fill(left_.begin(), left_.end(), 0);
  ready_.add_all();
}

// ---- the end of an iteration ----------------------------------------------------------------------------------------

void SparsePool::wait(std::optional<double> timeout, double density, Stream stream) {
  check_timeout(timeout);
  const std::size_t next = important_count(density, chunks());
  check_open();
  wait_for_end(
      waiting_, timeout, [this] { return iteration(); },
      [this, next, stream](Deadline deadline) { end_iteration(deadline, next, stream); });
}

void SparsePool::abandon(Stream stream) {
  const std::uint64_t given_up = iteration();
  const std::lock_guard one_at_a_time(waiting_);
  if (iteration() == given_up && ready_count() > 0) {
    check_open();
    abandoned_ = true;
    try {
      end_iteration({}, 0, stream);
    } catch (const Error& error) {  // these errors are for ranks that have not abandoned the iteration
      if (error.kind() != ErrorKind::nonfinite && error.kind() != ErrorKind::mismatch) {
        throw;
      }
    }
  }
}

void SparsePool::end_iteration(Deadline deadline, std::size_t next, Stream stream) {
  const auto begin = Clock::now();
  if (abandoned_) {
    send_nothing_of_what_is_left(stream);
  } else {
    finish_what_is_left(stream);
  }
  std::optional<Error> failure;
  try {
    learn_own_norms(deadline);
    exchange_norms(deadline, next);
    receive_means(deadline, stream);
    receive_norms(deadline);
    scatter_means(deadline, stream);
    failure = conclude(next, stream);
  } catch (const Error& error) {
    failure = error;
    give_up(stream);
  }
  start_next_iteration(!abandoned_ && (!failure || dropped_));
  if (const auto timeline = communicator_->timeline()) {
    timeline->span(timeline->thread_track(), "wait for gradients", begin, Clock::now());
  }
  if (failure) {
    throw Error(*failure);
  }
}

void SparsePool::learn_own_norms(Deadline deadline) {
  if (learned_) {
    return;
  }
  if (!work_->finish(deadline)) {
    throw TimeOver();
  }
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    if (done_[chunk] != 0) {
      own_norms_[chunk] = work_->norm(chunk);
      if (!std::isfinite(own_norms_[chunk])) {
        note_nonfinite(chunk);
      }
    }
  }
  learned_ = true;
}

// Finds the tensor whose gradient is not finite: in the gradients if they are still there, else in the residuals.
void SparsePool::note_nonfinite(std::size_t chunk) {
  const Span span = span_of(chunk);
  auto [first, last] = tensors_of(chunk);
  const float* const next = residual_.after(chunk);
  const bool is_there = important_[chunk] != 0 || next != nullptr;
  for (std::size_t tensor = first; is_there && tensor <= last; ++tensor) {
    const std::size_t begin = std::max(span.begin, offsets_[tensor] / size_of(dtype_));
    const std::size_t end = std::min(span.end, offsets_[tensor + 1] / size_of(dtype_));
    const std::size_t found = important_[chunk] != 0
                                  ? work_->count_nonfinite(at(begin), dtype_, end - begin)
                                  : work_->count_nonfinite(next + (begin - span.begin), DType::float32, end - begin);
    if (found > 0) {
      first = last = tensor;
      break;
    }
  }
  if (!found_nonfinite_ || first < found_nonfinite_->first) {
    found_nonfinite_ = {communicator_->rank(), first, last};
  }
}

// Sums the norms of chunks that are not sent over the ranks; those of chunks that are sent need no exchange, as all
// ranks have their means. The message also has the extra numbers, and two numbers with their squares: how many chunks
// this rank wants to send next, and the exponent of its loss scale. Their sums show whether all ranks agree. (A rank
// that abandons wants what the others do.)
void SparsePool::exchange_norms(Deadline deadline, std::size_t next) {
  if (exchanged_ || exchange_ != nullptr) {
    return;
  }
  std::fill(message_.begin(), message_.end(), 0.0);
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    if (important_[chunk] == 0 && done_[chunk] != 0) {
      message_[chunk] = own_norms_[chunk];
    }
  }
  const auto wanted = static_cast<double>(next);
  message_[chunks()] = wanted;
  message_[chunks() + 1] = wanted * wanted;
  message_[chunks() + 2] = abandoned_ ? 0.0 : 1.0;             // ranks that want a number of chunks
  message_[chunks() + 3] = idle_.value_or(false) ? 0.0 : 1.0;  // ranks with a tensor that is ready
  const double exponent = std::log2(loss_scale());
  message_[chunks() + 4] = exponent;
  message_[chunks() + 5] = exponent * exponent;
  std::copy(extra_.begin(), extra_.end(), message_.end() - static_cast<std::ptrdiff_t>(extra_.size()));
  exchange_report_ = {norms_call_.bytes(), {}, Clock::now(), {Clock::now(), Clock::now(), {}}};
  exchange_ = send_->submit(norms_call_);  // so that only one thread waits for messages
  if (exchange_ == nullptr && deadline) {
    exchange_ = communicator_->submit(norms_call_);
  }
  if (exchange_ == nullptr) {
    exchange_report_.outcome = communicator_->run(norms_call_);
    exchange_report_.times.ended = Clock::now();
    exchanged_ = true;
  }
}

void SparsePool::receive_norms(Deadline deadline) {
  if (exchanged_) {
    return;
  }
  await(*exchange_, deadline);
  exchange_report_.outcome = exchange_->outcome();
  exchange_report_.times = exchange_->times();
  exchanged_ = true;
}

void SparsePool::receive_means(Deadline deadline, Stream stream) {
  if (received_) {
    return;
  }
  std::optional<double> left;
  if (deadline) {
    left = std::max(0.0, std::chrono::duration<double>(*deadline - Clock::now()).count());
  }
  const std::uint64_t before = send_->iteration();
  try {
    send_->wait(left, stream);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::timeout && send_->iteration() == before) {
      throw TimeOver();
    }
    throw;
  }
  received_ = true;
}

void SparsePool::scatter_means(Deadline deadline, Stream stream) {
  const auto begin = Clock::now();
  if (!scattered_) {
    std::vector<ChunkJob> jobs;
    for (const std::size_t chunk : chunk_of_) {
      jobs.push_back(job_for(chunk));
    }
    work_->scatter(jobs, stream);
    scattered_ = true;
    bookkeeping_ += std::chrono::nanoseconds(Clock::now() - begin).count();
  }
  if (!work_->finish(deadline)) {
    throw TimeOver();
  }
}

void SparsePool::give_up(Stream stream) noexcept {
  try {
    send_->abandon(stream);
  } catch (const Error&) {  // the first error is thrown
  }
  try {
    work_->finish({});
    drop_gradients(stream);
  } catch (const Error&) {  // likewise: nothing can be done with a device that has failed
  }
}

// Keeps or drops the iteration. Every rank decides alike, from the same numbers.
std::optional<Error> SparsePool::conclude(std::size_t next, Stream stream) {
  const auto begin = Clock::now();
  const auto ranks = static_cast<double>(communicator_->size());
  std::vector<double> norms(message_.begin(), message_.begin() + static_cast<std::ptrdiff_t>(chunks()));
  for (const std::size_t chunk : chunk_of_) {
    norms[chunk] = ranks * work_->norm(chunk);
  }
  const double* const trailer = message_.data() + chunks();
  const double wanting = trailer[2];
  const double wanted = wanting > 0.0 ? std::round(trailer[0] / wanting) : 0.0;
  for (std::size_t i = 0; i < extra_.size(); ++i) {
    extra_[i] = trailer[trailer_size + i] / ranks;
  }
  std::optional<Error> failure;
  if (trailer[5] * ranks != trailer[4] * trailer[4]) {  // first: another scale may make gradients nonfinite
    drop_gradients(stream);
    failure = different_loss_scales();
  } else if (!std::all_of(norms.begin(), norms.end(), [](double norm) { return std::isfinite(norm); })) {
    dropped_ = true;
    nonfinite_.reset();
    drop_gradients(stream);
    if (!skip_nonfinite_) {
      failure = find_nonfinite(norms);
    }
  } else if (wanted * wanting != trailer[0] || wanted * wanted * wanting != trailer[1]) {
    drop_gradients(stream);
    failure = Error(ErrorKind::mismatch, "the ranks have different densities: this one wants to send " +
                                             std::to_string(next) + " of " + std::to_string(chunks()) +
                                             " chunks next, and others do not");
  } else if (trailer[3] == 0.0 && (chunks() > 0 || !extra_.empty())) {
    drop_gradients(stream);
    failure = nothing_ready_error();
  } else {
    keep(!abandoned_, stream);
    if (wanting > 0.0) {
      choose(choose_important(norms, static_cast<std::size_t>(wanted)));
    }
  }
  const std::lock_guard lock(mutex_);
  norms_ = std::move(norms);
  bookkeeping_ += std::chrono::nanoseconds(Clock::now() - begin).count();
  return failure;
}

// All ranks call this, or none.
Error SparsePool::different_loss_scales() {
  try {
    check_same_on_all_ranks(*communicator_, "settings of a sparse gradient pool",
                            "loss scale " + format_number(loss_scale()));
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::internal, "the loss scales of a sparse gradient pool differ, and are the same"};
}

// Finds the first rank with a gradient that is not finite, and the place there. If all gradients are finite, the place
// is the chunk whose mean or norm is not. All ranks call this, or none.
Error SparsePool::find_nonfinite(const std::vector<double>& norms) {
  constexpr std::int64_t nowhere = -1;
  std::array<std::int64_t, 2> mine{nowhere, nowhere};
  if (found_nonfinite_) {
    mine = {static_cast<std::int64_t>(found_nonfinite_->first), static_cast<std::int64_t>(found_nonfinite_->last)};
  }
  std::vector<std::array<std::int64_t, 2>> of_each(static_cast<std::size_t>(communicator_->size()));
  communicator_->run(
      {.signature = {.count = mine.size(), .kind = transport::CallKind::allgather, .dtype = DType::int64},
       .input = reinterpret_cast<const std::byte*>(mine.data()),
       .output = reinterpret_cast<std::byte*>(of_each.data()),
       .counts = {}});
  const auto found = std::find_if(of_each.begin(), of_each.end(), [](const auto& its) { return its[0] != nowhere; });
  NonfinitePlace place{-1, 0, 0};
  if (found != of_each.end()) {
    place = {static_cast<int>(found - of_each.begin()), static_cast<std::size_t>((*found)[0]),
             static_cast<std::size_t>((*found)[1])};
  } else {
    const auto norm = std::find_if_not(norms.begin(), norms.end(), [](double each) { return std::isfinite(each); });
    std::tie(place.first, place.last) = tensors_of(static_cast<std::size_t>(norm - norms.begin()));
  }
  nonfinite_ = place;
  return nonfinite_error(place);
}

void SparsePool::drop_gradients(Stream stream) {
  memory_->clear(data(), bytes(), stream);
  const std::lock_guard lock(mutex_);
  sent_.clear();
  means_ = no_means;
}

// Residuals lose the chunks that this iteration has sent, and take in the others. Without a result, in an abandoned
// iteration, they only lose the chunks that were full, and so sent.
void SparsePool::keep(bool result, Stream stream) {
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    if (important_[chunk] == 0 && result) {
      residual_.keep(chunk);
    } else if (important_[chunk] != 0 && done_[chunk] != 0) {
      residual_.clear(chunk);
    }
  }
  if (!result) {
    drop_gradients(stream);
    return;
  }
  const std::lock_guard lock(mutex_);
  sent_ = chunk_of_;
}

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

void SparsePool::start_next_iteration(bool has_means) {
  const std::lock_guard lock(mutex_);
  ready_.forget();
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(left_.begin(), left_.end(), 0);
  const std::size_t chunk_bytes = chunk_size_ * size_of(dtype_);
  for (std::size_t tensor = 0; tensor < tensors(); ++tensor) {
    if (offsets_[tensor + 1] > offsets_[tensor]) {
      const std::size_t last = (offsets_[tensor + 1] - 1) / chunk_bytes;
      for (std::size_t chunk = offsets_[tensor] / chunk_bytes; chunk <= last; ++chunk) {
        ++left_[chunk];
      }
    }
  }
  overflowed_ = std::exchange(dropped_, false);
  abandoned_ = false;
  idle_.reset();
  means_ = has_means ? new_means() : no_means;
  found_nonfinite_.reset();
  exchange_.reset();
  learned_ = exchanged_ = received_ = scattered_ = false;
  last_bookkeeping_ = static_cast<double>(bookkeeping_.exchange(0)) * 1e-9;
  reports_ = send_->reports();
  reports_.push_back(exchange_report_);
  ++iteration_;
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

void SparsePool::zero(Stream stream) {
  check_open();
  check_between_iterations("gradients are zeroed");
  for (const Span& span : spans()) {
    memory_->clear(at(span.begin), (span.end - span.begin) * size_of(dtype_), stream);
  }
  const std::lock_guard lock(mutex_);
  means_ = no_means;
}

void SparsePool::check_residuals(std::span<const float> residual) const {
  check_between_iterations("residuals are replaced");
  check_kept(residual, elements(), "residuals");
}

void SparsePool::set_residuals(std::span<const float> residual, Stream stream) {
  check_open();
  check_residuals(residual);
  residual_.write(residual);
  drop_gradients(stream);
}

void SparsePool::restore(std::span<const float> residual, const std::vector<std::uint8_t>& important,
                         std::uint64_t iteration) {
  check_open();
  try {
    check_residuals(residual);
    if (!important.empty() && important.size() != chunks()) {
      throw Error(ErrorKind::value, "the state is that of a pool of another size");
    }
  } catch (const Error& error) {
    refuse_state(error.what());
    throw;
  }
  const std::vector<std::size_t> flags(important.begin(), important.end());
  check_same_on_all_ranks(
      *communicator_, "states of sparse gradient pools",
      "iteration " + std::to_string(iteration) + ", important chunks " + std::to_string(collective::hash_of(flags)));
  set_residuals(residual);
  choose(important.empty() ? std::vector<std::uint8_t>(chunks(), 1) : important);
  const std::lock_guard lock(mutex_);
  iteration_ = iteration;
}

// ---- results --------------------------------------------------------------------------------------------------------

Update SparsePool::update(bool everywhere) const {
  check_process();
  check_has_means(means(), ready_count(), tensors());
  return {.means = means(),
          .data = data(),
          .dtype = dtype_,
          .device = options_.pool.device,
          .offsets = in_elements(offsets_, dtype_),
          .spans = everywhere ? std::vector<Span>{{0, elements()}} : spans()};
}

void SparsePool::take_over_means(const SparsePool& other) {
  const Means theirs = other.means();
  const std::lock_guard lock(mutex_);
  means_ = theirs;
  if (theirs != no_means) {
    sent_.resize(chunks());
    std::iota(sent_.begin(), sent_.end(), std::size_t{0});
  }
}

std::vector<std::size_t> SparsePool::sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

std::vector<SparsePool::Span> SparsePool::spans() const {
  std::vector<Span> found;
  for (const std::size_t chunk : sent()) {
    const Span span = span_of(chunk);
    if (!found.empty() && found.back().end == span.begin) {
      found.back().end = span.end;
    } else {
      found.push_back(span);
    }
  }
  return found;
}

std::vector<double> SparsePool::norms() const {
  const std::lock_guard lock(mutex_);
  return norms_;
}

std::vector<std::uint8_t> SparsePool::important() const {
  const std::lock_guard lock(mutex_);
  return important_;
}

void SparsePool::close(bool drain) noexcept {
  send_->close(drain);
  communicator_->close(drain);
}

}  // namespace gradientflow::engine
