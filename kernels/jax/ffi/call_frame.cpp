#include "call_frame.hpp"

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>

#include "../../base/error.hpp"

namespace gradientflow::jax {
namespace {

Buffer buffer_of(const void* given) {
  const auto& buffer = *static_cast<const XLA_FFI_Buffer*>(given);
  const std::span shape(buffer.dims, static_cast<std::size_t>(buffer.rank));
  const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  return {static_cast<std::byte*>(buffer.data), buffer.dtype, static_cast<std::size_t>(count)};
}

// Names of a kind of error: the exception in gradientflow.errors, and the nearest code of XLA.
struct Name {
  const char* exception;
  XLA_FFI_Error_Code code;
};

Name name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::value:
      return {"ArgumentError", XLA_FFI_Error_Code_INVALID_ARGUMENT};
    case ErrorKind::type:
      return {"ArgumentTypeError", XLA_FFI_Error_Code_INVALID_ARGUMENT};
    case ErrorKind::mismatch:
      return {"MismatchError", XLA_FFI_Error_Code_INVALID_ARGUMENT};
    case ErrorKind::closed:
      return {"ClosedError", XLA_FFI_Error_Code_FAILED_PRECONDITION};
    case ErrorKind::nonfinite:
      return {"NonFiniteError", XLA_FFI_Error_Code_OUT_OF_RANGE};
    case ErrorKind::peer:
      return {"PeerError", XLA_FFI_Error_Code_UNAVAILABLE};
    case ErrorKind::timeout:
      return {"CommunicationTimeoutError", XLA_FFI_Error_Code_DEADLINE_EXCEEDED};
    case ErrorKind::mpi:
      return {"MPIError", XLA_FFI_Error_Code_UNAVAILABLE};
    case ErrorKind::system:
      return {"SystemCallError", XLA_FFI_Error_Code_UNAVAILABLE};
    case ErrorKind::memory:
      return {"NodeMemoryError", XLA_FFI_Error_Code_RESOURCE_EXHAUSTED};
    case ErrorKind::internal:
      break;
  }
  return {"InternalError", XLA_FFI_Error_Code_INTERNAL};
}

XLA_FFI_Error* made(const XLA_FFI_Api& api, const std::string& message, XLA_FFI_Error_Code code) {
  XLA_FFI_Error_Create_Args arguments{.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
                                      .extension_start = nullptr,
                                      .message = message.c_str(),
                                      .errc = code};
  return api.XLA_FFI_Error_Create(&arguments);
}

// Calls under way. All calls end before the interpreter ends: afterwards no call could reach objects of Python.
class Calls {
 public:
  void begin() {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      throw Error(ErrorKind::closed, "the program ends: no call is served any more");
    }
    ++under_way_;
  }
  void begin_another() {  // called within a call
    const std::lock_guard lock(mutex_);
    ++under_way_;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    if (--under_way_ == 0) {
      idle_.notify_all();
    }
  }
  void end_all() {
    std::unique_lock lock(mutex_);
    ended_ = true;
    idle_.wait(lock, [this] { return under_way_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  int under_way_ = 0;
  bool ended_ = false;
};

Calls& calls() {
  static auto* const all = new Calls;  // NOLINT(*-owning-memory): threads of XLA may outlive static objects
  return *all;
}

void check(const XLA_FFI_Api& api, XLA_FFI_Error* error, const char* what) {
  if (error == nullptr) {
    return;
  }
  XLA_FFI_Error_Destroy_Args arguments{
      .struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .extension_start = nullptr, .error = error};
  api.XLA_FFI_Error_Destroy(&arguments);
  throw Error(ErrorKind::internal, std::string("XLA does not give a call ") + what);
}

// Does the work of a call, and returns its error, or nullptr.
template <class Work>
XLA_FFI_Error* error_of(const XLA_FFI_Api& api, const Work& work) {
  try {
    work();
    return nullptr;
  } catch (const Error& error) {
    const auto [exception, code] = name_of(error.kind());
    return made(api, std::string(exception) + ": " + error.what(), code);
  } catch (const std::exception& error) {
    return made(api, error.what(), XLA_FFI_Error_Code_INTERNAL);
  }
}

// Answers XLA's question for the version of a handler that is registered: the runtime's own version, since the handlers
// use only declarations that all versions share.
void describe(const XLA_FFI_CallFrame& frame, XLA_FFI_Metadata& metadata) {
  metadata.api_version.major_version = XLA_FFI_API_MAJOR;
  metadata.api_version.minor_version = frame.api == nullptr ? 1 : frame.api->api_version.minor_version;
  metadata.traits = 0;
}

}  // namespace

std::size_t Buffer::bytes() const {
  constexpr std::size_t wide = 4;
  return count * (type == XLA_FFI_DataType_U32 ? wide : size_of(dtype()));
}

DType Buffer::dtype() const {
  switch (type) {
    case XLA_FFI_DataType_F16:
      return DType::float16;
    case XLA_FFI_DataType_BF16:
      return DType::bfloat16;
    case XLA_FFI_DataType_F32:
      return DType::float32;
    case XLA_FFI_DataType_F64:
      return DType::float64;
    case XLA_FFI_DataType_S8:
      return DType::int8;
    case XLA_FFI_DataType_U8:
      return DType::uint8;
    case XLA_FFI_DataType_S32:
      return DType::int32;
    case XLA_FFI_DataType_S64:
      return DType::int64;
    case XLA_FFI_DataType_PRED:
      return DType::boolean;
    default:
      throw Error(ErrorKind::type, "no collective takes XLA's type number " + std::to_string(type));
  }
}

Buffer CallFrame::operand(std::size_t index) const { return buffer_of(frame_.args.args[index]); }

Buffer CallFrame::result(std::size_t index) const { return buffer_of(frame_.rets.rets[index]); }

Buffers CallFrame::buffers() const {
  Buffers all;
  for (std::int64_t i = 0; i < frame_.args.size; ++i) {
    all.operands.push_back(buffer_of(frame_.args.args[i]));
  }
  for (std::int64_t i = 0; i < frame_.rets.size; ++i) {
    all.results.push_back(buffer_of(frame_.rets.rets[i]));
  }
  return all;
}

std::vector<std::size_t> CallFrame::shape(std::size_t operand) const {
  const auto& buffer = *static_cast<const XLA_FFI_Buffer*>(frame_.args.args[operand]);
  return {buffer.dims, buffer.dims + buffer.rank};
}

std::int64_t CallFrame::run() const {
  XLA_FFI_RunId_Get_Args arguments{
      .struct_size = XLA_FFI_RunId_Get_Args_STRUCT_SIZE, .extension_start = nullptr, .ctx = frame_.ctx, .run_id = 0};
  check(*frame_.api, frame_.api->XLA_FFI_RunId_Get(&arguments), "the number of its execution");
  return arguments.run_id;
}

const void* CallFrame::attribute(std::string_view name, XLA_FFI_AttrType type) const {
  const XLA_FFI_Attrs& all = frame_.attrs;
  for (std::int64_t i = 0; i < all.size; ++i) {
    if (std::string_view(all.names[i]->ptr, all.names[i]->len) == name && all.types[i] == type) {
      return all.attrs[i];
    }
  }
  throw Error(ErrorKind::internal, "the call has no attribute " + std::string(name));
}

std::int64_t CallFrame::number(std::string_view name) const {
  const auto& scalar = *static_cast<const XLA_FFI_Scalar*>(attribute(name, XLA_FFI_AttrType_SCALAR));
  if (scalar.dtype != XLA_FFI_DataType_S64) {
    throw Error(ErrorKind::internal, "the attribute " + std::string(name) + " is no int64");
  }
  return *static_cast<const std::int64_t*>(scalar.value);
}

std::string_view CallFrame::text(std::string_view name) const {
  const auto& span = *static_cast<const XLA_FFI_ByteSpan*>(attribute(name, XLA_FFI_AttrType_STRING));
  return {span.ptr, span.len};
}

LateAnswer::LateAnswer(XLA_FFI_CallFrame& frame) : api_(frame.api), future_(nullptr) {
  XLA_FFI_Future_Create_Args arguments{
      .struct_size = XLA_FFI_Future_Create_Args_STRUCT_SIZE, .extension_start = nullptr, .future = nullptr};
  check(*api_, api_->XLA_FFI_Future_Create(&arguments), "a future");
  future_ = frame.future = arguments.future;
  calls().begin_another();
}

void LateAnswer::give(const std::function<void()>& work) const noexcept {
  if (XLA_FFI_Error* const error = error_of(*api_, work)) {
    XLA_FFI_Future_SetError_Args arguments{.struct_size = XLA_FFI_Future_SetError_Args_STRUCT_SIZE,
                                           .extension_start = nullptr,
                                           .future = future_,
                                           .error = error};
    api_->XLA_FFI_Future_SetError(&arguments);
  } else {
    XLA_FFI_Future_SetAvailable_Args arguments{
        .struct_size = XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, .extension_start = nullptr, .future = future_};
    api_->XLA_FFI_Future_SetAvailable(&arguments);
  }
  calls().end();
}

XLA_FFI_Error* answer(XLA_FFI_CallFrame* frame, void (*work)(CallFrame&)) noexcept {
  if (const XLA_FFI_Extension_Base* const asked = frame->extension_start;
      asked != nullptr && asked->type == XLA_FFI_Extension_Metadata) {
    describe(*frame, *reinterpret_cast<const XLA_FFI_Metadata_Extension*>(asked)->metadata);
    return nullptr;
  }
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) {
    return nullptr;
  }
  return error_of(*frame->api, [&] {
    calls().begin();
    const std::unique_ptr<Calls, void (*)(Calls*)> under_way(&calls(), [](Calls* all) { all->end(); });
    CallFrame call(*frame);
    work(call);
  });
}

void end_calls() { calls().end_all(); }

}  // namespace gradientflow::jax
