// What XLA gives to a handler of its FFI (foreign function interface), and what the handler answers: the one place that
// knows XLA's structs. See https://docs.jax.dev/en/latest/ffi.html.
//
// Of XLA only xla/c_api.h is taken along, from jaxlib 0.10.2, as it is: declarations in C, whose structs begin with
// their size and stay as they are from version to version. XLA's own decoder, ffi.h, compiles the version of the
// interface into a handler, and the runtime refuses a version newer than its own: a handler made so would serve either
// the oldest jaxlib or the newest. What is read here is the same in the headers of jaxlib 0.6.2 to 0.10.2 (interfaces
// 0.1 to 0.3).
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
  std::size_t count;  // elements

  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] DType dtype() const;  // throws Error(type) unless the core has this dtype
};

// All of a call's. The memory stays in its place until the call is answered.
struct Buffers {
  std::vector<Buffer> operands;
  std::vector<Buffer> results;
};

// The answer of a call that has not ended when its handler returns.
class LateAnswer {
 public:
  explicit LateAnswer(XLA_FFI_CallFrame& frame);

  // Does the work of the call, and answers as answer() does. Once. What waits for the call may run in this thread.
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

  // The number of this execution of a program, which no other execution has in this process.
  [[nodiscard]] std::int64_t run() const;

  // The handler returns without an answer, which has to be given: the frame is gone then.
  [[nodiscard]] LateAnswer answer_later() { return LateAnswer(frame_); }

  // Attributes of the call, of type int64 and text. They throw Error(internal) if there is none of this name and type.
  [[nodiscard]] std::int64_t number(std::string_view name) const;
  [[nodiscard]] std::string_view text(std::string_view name) const;

 private:
  [[nodiscard]] const void* attribute(std::string_view name, XLA_FFI_AttrType type) const;

  XLA_FFI_CallFrame& frame_;
};

// Does the work of a handler, and turns what it throws into an error of XLA: the name of the exception in Python, and
// the message. Answers by itself what XLA asks about the handler.
XLA_FFI_Error* answer(XLA_FFI_CallFrame* frame, void (*work)(CallFrame&)) noexcept;

// From now on every call fails; returns once no call is under way. For the end of the interpreter.
void end_calls();

}  // namespace gradientflow::jax
