// Arguments and answers of handlers of XLA's FFI (foreign function interface). Only this file and its source know XLA's
// structs. See https://docs.jax.dev/en/latest/ffi.html.
//
// The one header of XLA in use is xla/c_api.h, an unchanged copy from jaxlib 0.10.2: declarations in C, whose structs
// begin with their size and stay the same from version to version. XLA's own decoder, ffi.h, compiles the version of
// the interface into a handler, and the runtime refuses a version newer than its own. So such a handler would serve
// either the oldest jaxlib or the newest. The fields that are read here are the same in the headers of jaxlib 0.6.2 to
// 0.10.2 (interfaces 0.1 to 0.3).
#pragma once

#include <xla/c_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "../../base/dtype.hpp"

namespace gradientflow::jax {

// An operand or a result, in memory of the host.
struct Buffer {
  std::byte* data;
  XLA_FFI_DataType type;
  std::size_t count;  // number of elements

  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] DType dtype() const;  // throws Error(type) unless the core has this dtype
};

// All operands and results of a call. Their memory stays in place until the call is answered.
struct Buffers {
  std::vector<Buffer> operands;
  std::vector<Buffer> results;
};

// Answer of a call that has not ended when its handler returns.
class LateAnswer {
 public:
  explicit LateAnswer(XLA_FFI_CallFrame& frame);

  // Does the work of the call, and answers as answer() does. Called once. Code that waits for the call may run in this
  // thread.
  void give(const std::function<void()>& work) const noexcept;

 private:
  const XLA_FFI_Api* api_;
  XLA_FFI_Future* future_;
};

class CallFrame {
 public:
  explicit CallFrame(XLA_FFI_CallFrame& frame) : frame_(frame) {}

  [[nodiscard]] Buffer operand(std::size_t index) const;
  [[nodiscard]] Buffer result(std::size_t index) const;
  [[nodiscard]] Buffers buffers() const;
  [[nodiscard]] std::vector<std::size_t> shape(std::size_t operand) const;

  // Returns the number of this execution of a program, unique in this process.
  [[nodiscard]] std::int64_t run() const;

  // Lets the handler return without an answer. The answer must follow later, when this frame no longer exists.
  [[nodiscard]] LateAnswer answer_later() { return LateAnswer(frame_); }

  // Return attributes of the call, an int64 or a text. Throw Error(internal) if none has this name and type.
  [[nodiscard]] std::int64_t number(std::string_view name) const;
  [[nodiscard]] std::string_view text(std::string_view name) const;

 private:
  [[nodiscard]] const void* attribute(std::string_view name, XLA_FFI_AttrType type) const;

  XLA_FFI_CallFrame& frame_;
};

// Does the work of a handler, and turns an exception into an error of XLA: the name of the exception in Python, and the
// message. Answers XLA's question about the handler without calling `work`.
XLA_FFI_Error* answer(XLA_FFI_CallFrame* frame, void (*work)(CallFrame&)) noexcept;

// Makes every further call fail, and returns once no call is under way. Called when the interpreter ends.
void end_calls();

}  // namespace gradientflow::jax
