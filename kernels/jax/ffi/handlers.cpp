#include "handlers.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "../../base/dtype.hpp"
#include "../../base/wire.hpp"
#include "../../engine/calls/request.hpp"
#include "slots.hpp"
#include "token.hpp"

namespace gradientflow::jax {
namespace {

engine::Array array_of(const Buffer& buffer) { return {buffer.data, buffer.count, buffer.dtype()}; }

void do_allreduce(CallFrame& frame) {
  const std::shared_ptr<engine::Communicator> communicator = communicator_of(frame.number("comm"));
  const Buffer input = frame.operand(1);
  const std::string_view wire = frame.text("wire");
  const std::vector<std::size_t> shape = frame.shape(1);
  communicator->run(
      engine::make_call(*communicator, {.kind = transport::CallKind::allreduce,
                                        .op = reduce_op_from_name(frame.text("op")),
                                        .wire = wire.empty() ? std::nullopt : std::optional(wire_from_name(wire)),
                                        .label = engine::Label{frame.text("label"), shape},
                                        .input = array_of(input),
                                        .output = array_of(frame.result(1))}));
}

void do_average(CallFrame& frame) {
  check_layout(frame.number("layout"), token_of(frame.operand(0)));
  exchanges_of(frame.number("exchanges"))->run(frame);
}

}  // namespace

XLA_FFI_Error* allreduce(XLA_FFI_CallFrame* frame) noexcept { return answer(frame, &do_allreduce); }

XLA_FFI_Error* average(XLA_FFI_CallFrame* frame) noexcept { return answer(frame, &do_average); }

}  // namespace gradientflow::jax
