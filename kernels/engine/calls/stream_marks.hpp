// Marks in streams of a device: each stream has one reused event, recorded after the work that the stream holds at that
// time.
#pragma once

#include <cstddef>
#include <vector>

#include "../../compute/cuda/owned.hpp"

namespace gradientflow::engine {

class StreamMarks {
 public:
  explicit StreamMarks(int device) : device_(device) {}

  // Marks the work now in the stream; replaces the stream's earlier mark.
  void mark(compute::cuda::Stream stream) {
    const compute::cuda::UseDevice use(device_);
    std::size_t place = 0;
    while (place < marked_ && marks_[place].stream != stream) {
      ++place;
    }
    if (place == marked_) {
      if (place == marks_.size()) {
        marks_.push_back({stream, compute::cuda::OwnedEvent()});
      }
      marks_[place].stream = stream;
      ++marked_;
    }
    compute::cuda::runtime().record(marks_[place].event.get(), stream);
  }

  // Makes later work of `stream` wait for all marked work.
  void hold(compute::cuda::Stream stream) const {
    const compute::cuda::UseDevice use(device_);
    for (std::size_t place = 0; place < marked_; ++place) {
      compute::cuda::runtime().wait(stream, marks_[place].event.get());
    }
  }

  void forget() { marked_ = 0; }

 private:
  struct Mark {
    compute::cuda::Stream stream;
    compute::cuda::OwnedEvent event;
  };
  int device_;
  std::vector<Mark> marks_;
  std::size_t marked_ = 0;
};

}  // namespace gradientflow::engine
