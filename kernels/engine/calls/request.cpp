#include "request.hpp"

#include <cstdint>
#include <sstream>
#include <string>

namespace gradientflow::engine {
namespace {

using collective::Call;
using transport::CallKind;
using transport::Signature;

std::string place_of(const Array& array) {
  return array.placement ? "on CUDA device " + std::to_string(array.placement->device) : "in memory of the host";
}

std::size_t sum_of(const std::vector<std::size_t>& counts, std::size_t element) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) {
    check_fits(count, element);
    sum += count;
    check_fits(sum, element);
  }
  return sum;
}

// Returns the count of the signature: see collective::Call.
std::size_t count_of(const Communicator& communicator, const Request& request, const Array& known) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const transport::KindTraits& traits = transport::traits_of(request.kind);
  if (request.kind == CallKind::allgatherv) {
    if (request.counts.size() != ranks) {
      throw Error(ErrorKind::value, "allgatherv needs a count for each of the " + std::to_string(ranks) +
                                        " ranks, not " + std::to_string(request.counts.size()));
    }
    if (request.counts[rank] != known.count) {
      throw Error(ErrorKind::value, "counts say " + std::to_string(request.counts[rank]) + " elements for rank " +
                                        std::to_string(rank) + ", but its tensor has " + std::to_string(known.count));
    }
    return sum_of(request.counts, size_of(known.dtype));
  }
  const bool has_blocks = traits.input.has_all_blocks && traits.input.is_held(request.root == communicator.rank());
  if (!has_blocks || traits.counts_all_blocks) {
    return known.count;
  }
  if (known.count % ranks != 0) {
    throw Error(ErrorKind::value, std::string(name_of(request.kind)) + " needs a tensor of one block for each of the " +
                                      std::to_string(ranks) + " ranks, but " + std::to_string(known.count) +
                                      " elements do not divide by " + std::to_string(ranks));
  }
  return known.count / ranks;
}

bool overlap(const Array& a, const Array& b) {
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data);
  return a.count > 0 && b.count > 0 && begin_a < begin_b + b.count * size_of(b.dtype) &&
         begin_b < begin_a + a.count * size_of(a.dtype);
}

void check_result(const Request& request, std::size_t count) {
  const Array& input = request.input;
  const Array& output = request.output;
  const auto device = [](const Array& array) { return array.placement ? array.placement->device : -1; };
  if (device(input) != device(output)) {
    throw Error(ErrorKind::value, "out is " + place_of(output) + ", but the tensor is " + place_of(input));
  }
  if (output.dtype != input.dtype) {
    throw Error(ErrorKind::type, "out has dtype " + std::string(name_of(output.dtype)) + ", but the input has " +
                                     std::string(name_of(input.dtype)));
  }
  if (output.count != count) {
    throw Error(ErrorKind::value,
                "out has " + std::to_string(output.count) + " elements, but the result has " + std::to_string(count));
  }
  if (!overlap(input, output)) {
    return;
  }
  if (!transport::traits_of(request.kind).is_in_place) {
    throw Error(ErrorKind::value,
                "input and output overlap in " + std::string(name_of(request.kind)) + ", which does not work in place");
  }
  if (input.data != output.data) {
    throw Error(ErrorKind::value,
                "input and output overlap in " + std::string(name_of(request.kind)) + ", without being the same array");
  }
}

void check_shape(std::span<const std::size_t> shape, std::size_t count) {
  std::size_t elements = 1;
  for (const std::size_t size : shape) {
    elements *= size;
  }
  if (elements != count) {
    throw Error(ErrorKind::value, "the shape of the label has " + std::to_string(elements) +
                                      " elements, but the tensor has " + std::to_string(count));
  }
}

// Formats a label: "'fc1.weight' (32, 3)". A long one is cut, and ends with a hash of the whole.
std::string text_of(const Label& label, const Request& request) {
  std::ostringstream list;
  const auto add = [&list](std::span<const std::size_t> numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      list << (i == 0 ? "" : ", ") << numbers[i];
    }
  };
  list << "'" << label.name << "'";
  if (request.kind == CallKind::allgatherv) {
    list << ", counts ";
    add(request.counts);
  } else if (label.shape && request.kind != CallKind::scatter) {
    check_shape(*label.shape, request.input.count);
    list << " (";
    add(*label.shape);
    list << (label.shape->size() == 1 ? ",)" : ")");
  }
  std::string text = list.str();
  if (text.size() > transport::longest_label) {
    const std::string end = "... (hash " + std::to_string(collective::hash_of(std::as_bytes(std::span(text)))) + ")";
    std::size_t length = transport::longest_label - end.size();
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {  // inside a UTF-8 character
      --length;
    }
    text.resize(length);
    text += end;
  }
  return text;
}

}  // namespace

void check_fits(std::size_t count, std::size_t element) {
  if (count > PTRDIFF_MAX / element) {
    throw Error(ErrorKind::value, std::to_string(count) + " are more elements than memory can hold");
  }
}

Call make_call(const Communicator& communicator, const Request& request) {
  communicator.check_process();
  const transport::KindTraits& traits = transport::traits_of(request.kind);
  if (traits.has_root) {
    communicator.check_rank(request.root, "root");
  }
  const bool is_root = request.root == communicator.rank();
  const bool puts_in = traits.has_input(is_root);
  const bool gets = traits.has_result(is_root);
  const Array& known = puts_in ? request.input : request.output;

  Call call;
  Signature& signature = call.signature;
  signature = {.count = count_of(communicator, request, known),
               .root = request.root,
               .kind = request.kind,
               .dtype = known.dtype,
               .op = request.op,
               .algorithm = request.algorithm,
               .memory = known.placement ? transport::Memory::device : transport::Memory::host};
  if (traits.has_op) {
    check_reducible(signature.dtype, signature.op);
  }
  if (request.wire) {
    if (request.kind != CallKind::allreduce) {
      throw Error(ErrorKind::value, std::string(name_of(request.kind)) + " has no wire, only allreduce has");
    }
    signature.wire = rounding_wire(request.wire, signature.dtype);
  }
  if (puts_in && gets) {
    check_result(request, collective::output_count(signature, communicator.size(), communicator.rank()));
  }
  if (request.kind == CallKind::allgatherv) {
    call.counts = request.counts;
    signature.detail = collective::hash_of(request.counts);
  }
  if (request.label) {
    call.label = text_of(*request.label, request);
    signature.detail = collective::hash_of(std::as_bytes(std::span(call.label)));
    signature.labeled = true;
  }
  call.input = puts_in ? request.input.data : nullptr;
  call.output = gets || request.kind == CallKind::broadcast ? request.output.data : nullptr;
  call.placement = known.placement;
  if (known.placement) {
    communicator.check_device(known.placement->device);
  } else {
    call.choice = communicator.group().choose(signature, false);  // throws if the algorithm cannot serve it
  }
  return call;
}

}  // namespace gradientflow::engine
