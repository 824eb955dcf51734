// Streams and events for the layers above. The default stream is nullptr.
#pragma once

namespace gradientflow::compute::cuda {

using Stream = void*;  // a cudaStream_t
using Event = void*;   // a cudaEvent_t

}  // namespace gradientflow::compute::cuda
