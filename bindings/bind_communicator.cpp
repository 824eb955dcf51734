// gradientflow._core.Communicator, Handle and Segment.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/collective/between/mpi_plugin.hpp"
#include "../kernels/collective/call/call.hpp"
#include "../kernels/engine/calls/communicator.hpp"
#include "../kernels/engine/calls/prepared_call.hpp"
#include "../kernels/engine/calls/request.hpp"
#include "argument.hpp"
#include "bindings.hpp"
#include "bound_call.hpp"
#include "bound_endpoint.hpp"
#include "call_site.hpp"
#include "fast_path.hpp"
#include "gil.hpp"
#include "tensor.hpp"

namespace gradientflow::bindings {
namespace {

namespace py = pybind11;
using engine::Communicator;
using engine::Handle;
using engine::PreparedCall;
using engine::Request;
using transport::CallKind;
using transport::Segment;
using Root = Rank<"root">;
using Color = Argument<"color", "a number of 0 or more, at most 2147483647, or None", std::optional<int>>;
using Key = Argument<"key", "a number from -2147483648 to 2147483647, or None", std::optional<int>>;
using Ranks = py::typing::Tuple<int, py::ellipsis>;
using Lost = py::typing::Tuple<py::typing::Tuple<int, py::str>, py::ellipsis>;
using Counts = Argument<"counts", "a sequence of whole numbers", std::vector<std::size_t>>;

void synchronize(const collective::Placement& placement) {
  const WithoutGil release;
  const compute::cuda::UseDevice use(placement.device);
  compute::cuda::runtime().synchronize(placement.stream);
}

// Binds a call. `out` is None for calls in place and on ranks without a result; `x` is None on ranks without input.
BoundCall bind_call(const Communicator& communicator, Request request, const LabelText& label, py::handle x,
                    py::handle out) {
  const bool is_root = request.root == communicator.rank();
  const transport::KindTraits& traits = transport::traits_of(request.kind);
  const bool in_place = out.is_none() && traits.is_in_place;
  const bool puts_in = traits.has_input(is_root);
  const bool gets = traits.has_result(is_root);
  BoundCall bound;
  if (puts_in) {
    bound.input = view_tensor(x, in_place && gets ? Access::write : Access::read, "the tensor");
    request.input = request.output = bound.input.array();
  }
  if (gets && !in_place) {
    bound.output = view_tensor(out, Access::write, "out");
    request.output = bound.output.array();
  }
  std::vector<std::size_t> shape;
  if (label.value) {
    shape = shape_of(puts_in ? bound.input : bound.output);
    request.label = engine::Label{*label.value, shape};
  }
  bound.call = make_call(communicator, request);
  bound.streams_are_known = puts_in ? bound.input.stream_is_known : bound.output.stream_is_known;
  // Rarely, input and output are in different streams: the host then waits for the stream of the output.
  if (const auto& other = bound.output.placement; other && other->stream != placement_of(bound.call).stream) {
    synchronize(*other);
    bound.streams_are_known = false;
  }
  return bound;
}

// Keeps forever the tensors of a call that was given up: the endpoint may still write to them.
template <class... Tensors>
void keep_if_requests_are_abandoned(const Communicator& communicator, Tensors&... tensors) {
  if (communicator.group().has_abandoned_requests()) {
    (tensors.owner.release(), ...);
  }
}

// Returns the handle, and the owners of the tensors, to be kept alive.
py::typing::Tuple<Handle, py::object, py::object> submit(Communicator& communicator, const BoundCall& bound) {
  std::shared_ptr<Handle> handle;
  {
    const AtCallSite site;
    ReleaseGil gil;
    handle = communicator.submit(bound.call, std::ref(gil));
  }
  return py::make_tuple(std::move(handle), bound.input.owner, bound.output.owner);
}

// Makes later work in the current stream of `result` see the result of a call on a device. If that stream is unknown,
// waits for the result.
void order_result(Handle& handle, py::handle result) {
  if (handle.ends_on_device()) {
    if (const auto stream = current_stream(result)) {
      handle.order(*stream);
    } else {
      const WithoutGil release;
      handle.synchronize();
    }
  }
}

// Prepared call, with the objects that keep its tensors alive. While the call is under way, this object also keeps
// itself alive.
struct BoundPreparedCall {
  std::unique_ptr<PreparedCall> call;
  TensorView input;
  TensorView output;
  py::object tensor;  // device tensor, ready in its current stream
  py::object result;
  py::object self = py::none();
};

std::shared_ptr<BoundPreparedCall> prepare(const std::shared_ptr<Communicator>& communicator, BoundCall bound,
                                           py::object tensor, py::object result) {
  return std::make_shared<BoundPreparedCall>(std::make_unique<PreparedCall>(communicator, std::move(bound.call)),
                                             std::move(bound.input), std::move(bound.output), std::move(tensor),
                                             std::move(result));
}

// Starts the call. A tensor of a device is ready in its framework's current stream.
void start(BoundPreparedCall& prepared, py::handle self) {
  if (prepared.call->call().placement) {
    if (const auto stream = current_stream(prepared.tensor)) {
      prepared.call->set_stream(*stream);
    }
  }
  {
    const AtCallSite site;
    ReleaseGil gil;
    prepared.call->start(std::ref(gil));
  }
  prepared.self = py::reinterpret_borrow<py::object>(self);
}

// Releases a call that has ended, unless the endpoint may still write to the tensors of a call that was given up.
void stop_keeping(BoundPreparedCall& prepared) {
  if (!prepared.call->under_way() && !prepared.call->communicator().group().has_abandoned_requests()) {
    prepared.self = py::none();
  }
}

py::object wait_for_prepared(BoundPreparedCall& prepared, const Timeout& timeout) {
  try {
    ReleaseGil gil;
    prepared.call->wait(timeout.value, std::ref(gil));
  } catch (...) {
    stop_keeping(prepared);
    throw;
  }
  if (prepared.call->call().placement) {
    order_result(*prepared.call->handle(), prepared.result);
  }
  py::object result = prepared.result;
  stop_keeping(prepared);
  return result;
}

void take(Request& request, const Op& op) { request.op = reduce_op_from_name(op.value); }
void take(Request& request, const Root& root) { request.root = root.value; }
void take(Request& request, const WireName& wire) { request.wire = given_wire(wire); }
void take(Request& request, const Counts& counts) { request.counts = counts.value; }

// Defines `name`, `name_async` and `name_init` for calls on a tensor, with the `Options` of this kind and the options
// common to all kinds.
template <class... Options>
void def_collective(py::class_<Communicator, std::shared_ptr<Communicator>>& cls, CallKind kind) {
  const auto bind = [kind](const Communicator& communicator, py::handle x, const Options&... options,
                           const AlgorithmName& algorithm, const LabelText& label, py::handle out) {
    Request request{.kind = kind, .algorithm = transport::algorithm_from_name(algorithm.value)};
    (take(request, options), ...);
    return bind_call(communicator, std::move(request), label, x, out);
  };
  const std::string name(transport::name_of(kind));
  cls.def(name.c_str(), [bind](Communicator& communicator, py::handle x, const Options&... options,
                               const AlgorithmName& algorithm, const LabelText& label, py::handle out) {
    run(communicator, bind(communicator, x, options..., algorithm, label, out));
  });
  cls.def((name + "_async").c_str(), [bind](Communicator& communicator, py::handle x, const Options&... options,
                                            const AlgorithmName& algorithm, const LabelText& label, py::handle out) {
    return submit(communicator, bind(communicator, x, options..., algorithm, label, out));
  });
  cls.def((name + "_init").c_str(),
          [bind](const std::shared_ptr<Communicator>& communicator, py::handle x, const Options&... options,
                 const AlgorithmName& algorithm, const LabelText& label, py::handle out, const py::object& result) {
            return prepare(communicator, bind(*communicator, x, options..., algorithm, label, out),
                           py::reinterpret_borrow<py::object>(x.is_none() ? out : x), result);
          });
}

// Fast paths: calls in place, without out, wire and label, as programs make them on small tensors.
py::object allreduce(Communicator& communicator, Given given, py::handle /*self*/) {
  if (given[0] == nullptr || !is_none(given[3]) || !is_none(given[4]) || !is_none(given[5])) {
    return {};
  }
  run(communicator,
      bind_call(communicator,
                {.kind = CallKind::allreduce,
                 .op = reduce_op_from_name(converted(given[1], Op{"sum"}).value),
                 .algorithm = transport::algorithm_from_name(converted(given[2], AlgorithmName{"auto"}).value)},
                {}, given[0], py::none()));
  return py::reinterpret_borrow<py::object>(given[0]);
}

py::object broadcast(Communicator& communicator, Given given, py::handle /*self*/) {
  if (given[0] == nullptr || !is_none(given[3])) {
    return {};
  }
  run(communicator,
      bind_call(communicator,
                {.kind = CallKind::broadcast,
                 .root = converted(given[1], Root{0}).value,
                 .algorithm = transport::algorithm_from_name(converted(given[2], AlgorithmName{"auto"}).value)},
                {}, given[0], py::none()));
  return py::reinterpret_borrow<py::object>(given[0]);
}

void meet(Communicator& communicator) {
  const AtCallSite site;
  ReleaseGil gil;
  communicator.run(make_call(communicator, {.kind = CallKind::barrier}), std::ref(gil));
}

py::object barrier(Communicator& communicator, Given /*given*/, py::handle /*self*/) {
  meet(communicator);
  return py::none();
}

void wait_for(Handle& handle, const Timeout& timeout, py::handle result) {
  {
    const WithoutGil release;
    handle.wait(timeout.value);
  }
  order_result(handle, result);
}

py::object start_short(BoundPreparedCall& prepared, Given /*given*/, py::handle self) {
  start(prepared, self);
  return py::none();
}

py::object wait_short(BoundPreparedCall& prepared, Given given, py::handle /*self*/) {
  return wait_for_prepared(prepared, converted(given[0], Timeout{}));
}

void send(Communicator& communicator, py::handle x, const Rank<"dest">& to) {
  TensorView tensor = view_tensor(x, Access::read, "the tensor");
  try {
    const AtCallSite site;
    const WithoutGil release;
    communicator.send(to.value, tensor.data, tensor.count, tensor.dtype, tensor.placement);
  } catch (...) {
    keep_if_requests_are_abandoned(communicator, tensor);
    throw;
  }
}

void receive(Communicator& communicator, py::handle x, const Rank<"source">& from) {
  TensorView tensor = view_tensor(x, Access::write, "the tensor");
  try {
    const AtCallSite site;
    const WithoutGil release;
    communicator.receive(from.value, tensor.data, tensor.count, tensor.dtype, tensor.placement);
  } catch (...) {
    keep_if_requests_are_abandoned(communicator, tensor);
    throw;
  }
}

// Returns the new endpoint; nothing on a rank without a color.
std::optional<std::unique_ptr<BoundEndpoint>> split(Communicator& communicator, const Color& color, const Key& key) {
  if (color.value && *color.value < 0) {
    throw Error(ErrorKind::value, "a color is a number of 0 or more, or None, not " + std::to_string(*color.value));
  }
  const AtCallSite site;
  const WithoutGil release;
  auto part = communicator.split(color.value.value_or(-1), key.value.value_or(communicator.rank()));
  return part == nullptr ? std::nullopt : std::optional(std::make_unique<BoundEndpoint>(std::move(part)));
}

// Records an activity of the calling thread in the timeline, if any, from `begin` to `end`, in seconds of the steady
// clock.
void record_span(const Communicator& communicator, const std::string& name, double begin, double end) {
  if (const auto timeline = communicator.recorder().timeline()) {
    const auto time = [](double seconds) {
      return Timeline::Time(
          std::chrono::duration_cast<Timeline::Clock::duration>(std::chrono::duration<double>(seconds)));
    };
    timeline->span(timeline->thread_track(), name, time(begin), time(end));
  }
}

// Returns the paths of an allreduce, each as (least number of bytes, path, reason).
py::list paths_by_size(const Communicator& communicator, bool in_node_memory) {
  const collective::Group& group = communicator.group();
  py::list found;
  for (const auto& each : collective::select_for_all_sizes(
           group.situation({.kind = CallKind::allreduce, .dtype = DType::float32}, in_node_memory), group.config())) {
    found.append(py::make_tuple(each.from, collective::name_of(each.choice.path), each.choice.reason));
  }
  return found;
}

py::dict describe(const Communicator& communicator) {
  const collective::Group& group = communicator.group();
  py::dict facts;
  facts["rank"] = communicator.rank();
  facts["size"] = communicator.size();
  facts["local_rank"] = communicator.local_rank();
  facts["local_size"] = communicator.local_size();
  facts["node"] = communicator.node();
  facts["nodes"] = group.topology().members;
  facts["nodes_remark"] = group.topology().remark;
  facts["cores"] = group.node().cores();
  facts["cores_remark"] = group.node().cores_remark();
  facts["allreduce_of_arrays"] = paths_by_size(communicator, false);
  facts["allreduce_of_node_memory"] = paths_by_size(communicator, true);
  facts["direct_read"] = group.direct_read_remark().empty() ? "available" : group.direct_read_remark();
  facts["simd"] = name_of(compute::active_simd());
  facts["transport"] = group.endpoint().transport().name;
  if (group.endpoint().transport().is_mpi) {
    facts["mpi_library"] = collective::mpi_plugin().version();
  }
  facts["messages_sent"] = group.messages().messages_sent();
  facts["staging_bytes_per_rank"] = 2 * group.node().staging_bytes();
  py::dict settings;
  for (const ConfigField& field : config_fields()) {
    settings[py::str(std::string(field.name))] = get_field(group.config(), field.name);
  }
  facts["settings"] = settings;
  if (const collective::DeviceGroup* const devices = communicator.device_group()) {
    facts["device"] = devices->device();
    facts["nccl"] = devices->no_nccl().empty() ? "available" : devices->no_nccl();
    facts["device_memory"] = devices->no_peers().empty() ? "available" : devices->no_peers();
  }
  return facts;
}

}  // namespace

void run(Communicator& communicator, BoundCall bound) {
  try {
    {
      const AtCallSite site;
      ReleaseGil gil;
      communicator.run(bound.call, std::ref(gil));
    }
    if (bound.call.placement && !bound.streams_are_known) {
      synchronize(*bound.call.placement);
    }
  } catch (...) {
    keep_if_requests_are_abandoned(communicator, bound.input, bound.output);
    throw;
  }
}

void bind_communicator(py::module_& module) {
  py::class_<Handle, std::shared_ptr<Handle>>(module, "Handle")
      .def_property_readonly("done", &Handle::done)
      .def_property_readonly("device_done", &Handle::device_done)
      .def_property_readonly("unreported_error", &Handle::unreported_error,
                             "Why it failed, if it did and nobody has been told.")
      .def("mark_reported", &Handle::mark_reported)
      .def_property_readonly("path", [](const Handle& handle) { return handle.outcome().path; })
      .def_property_readonly("nonfinite", [](const Handle& handle) { return handle.outcome().nonfinite; })
      .def_property_readonly("bytes_sent", [](const Handle& handle) { return handle.outcome().bytes_sent; })
      .def(
          "wait", &wait_for, py::arg("timeout"), py::arg("result"),
          "For a result on a device: until it is known how the call ends. What is put into the result's current stream "
          "from then on sees it; where that is not known, it is there.");

  py::class_<BoundPreparedCall, std::shared_ptr<BoundPreparedCall>> prepared(module, "PreparedCall");
  prepared.def("start", [](const py::object& self) { start(self.cast<BoundPreparedCall&>(), self); })
      .def("wait", &wait_for_prepared, py::arg("timeout"))
      .def_property_readonly("done", [](BoundPreparedCall& self) { return self.call->done(); })
      .def_property_readonly("nonfinite", [](const BoundPreparedCall& self) { return self.call->outcome().nonfinite; });
  def_fast_path<&start_short>(prepared, "start", {});
  def_fast_path<&wait_short>(prepared, "wait", {"timeout"});

  py::class_<Segment, std::shared_ptr<Segment>>(module, "Segment", py::buffer_protocol())
      .def_buffer([](const Segment& segment) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(segment.mine()),
                               static_cast<py::ssize_t>(segment.stride()), false);
      })
      .def_property_readonly(
          "parts",
          [](const std::shared_ptr<Segment>& segment) {
            return py::array_t<std::uint8_t>({segment->parts(), segment->stride()},
                                             reinterpret_cast<std::uint8_t*>(segment->part(0)), py::cast(segment));
          },
          "The memory of all ranks of the node, one row each.");

  py::class_<Communicator, std::shared_ptr<Communicator>> communicator(module, "Communicator");
  communicator
      .def(py::init([](BoundEndpoint& endpoint, const std::map<std::string, std::string>& overrides,
                       const Communicator* within) {
             const Config config = read_config(overrides);
             const WithoutGil release;
             auto made = Communicator::make(endpoint.take(), config, within);
             made->poll_signals_with(&poll_signals);
             return made;
           }),
           py::arg("endpoint"), py::arg("overrides"), py::arg("within") = nullptr)
      .def("is_alive", &Communicator::is_alive, py::arg("rank"))
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("size", &Communicator::size)
      .def_property_readonly("job_rank", [](const Communicator& self) { return self.group().endpoint().job_rank(); })
      .def_property_readonly("local_rank", &Communicator::local_rank)
      .def_property_readonly("local_size", &Communicator::local_size)
      .def_property_readonly("node", &Communicator::node)
      .def_property_readonly("nodes", &Communicator::nodes)
      .def_property_readonly("closed", &Communicator::closed)
      .def_property_readonly("bytes_sent", &Communicator::bytes_sent)
      .def_property_readonly("has_abandoned_requests",
                             [](const Communicator& self) { return self.group().has_abandoned_requests(); })
      .def(
          "allocate", [](Communicator& self, std::size_t bytes) { return self.allocate(bytes); }, py::arg("bytes"),
          py::call_guard<AtCallSite, WithoutGil>())
      .def("allocate_on_device", &Communicator::allocate_on_device, py::arg("device"), py::arg("bytes"),
           py::call_guard<AtCallSite, WithoutGil>())
      .def("close", &Communicator::close, py::arg("drain"), py::call_guard<WithoutGil>())
      .def("check_open", &Communicator::check_open)
      .def("check_recoverable", &Communicator::check_recoverable, py::arg("min_ranks"))
      .def("recover", &Communicator::recover, py::arg("min_ranks"), py::call_guard<WithoutGil>())
      .def("job_size", &Communicator::job_size, py::call_guard<WithoutGil>())
      .def(
          "widen",
          [](Communicator& self, const std::vector<std::string>& addresses, int first) {
            const WithoutGil release;
            return std::make_unique<BoundEndpoint>(self.widen(addresses, first));
          },
          py::arg("addresses"), py::arg("first"))
      .def(
          "welcome",
          [](Communicator& self, BoundEndpoint& widened, std::optional<int> min_ranks, const py::function& invite) {
            const WithoutGil release;
            return self.welcome(widened.take(), min_ranks, [&invite] {
              const py::gil_scoped_acquire acquire;
              invite();
            });
          },
          py::arg("widened"), py::arg("min_ranks"), py::arg("invite"))
      .def_static(
          "enter",
          [](BoundEndpoint& widened, int former, std::optional<int> min_ranks,
             const std::map<std::string, std::string>& overrides) {
            const Config config = read_config(overrides);
            const WithoutGil release;
            return Communicator::enter(widened.take(), former, min_ranks, config, &poll_signals);
          },
          py::arg("widened"), py::arg("former"), py::arg("min_ranks"), py::arg("overrides"))
      .def_property_readonly("recovered_from",
                             [](const Communicator& self) {
                               return self.origin() ? std::optional<Ranks>(py::cast(self.origin()->ranks))
                                                    : std::nullopt;
                             })
      .def_property_readonly(
          "lost",
          [](const Communicator& self) { return Lost(py::cast(self.origin().value_or(Communicator::Origin{}).lost)); })
      .def("describe", &describe)
      .def("start_timeline", &Communicator::start_timeline, py::arg("path"), py::call_guard<WithoutGil>())
      .def("stop_timeline", &Communicator::stop_timeline)
      .def("record_span", &record_span, py::arg("name"), py::arg("begin"), py::arg("end"))
      .def("send", &send, py::arg("x"), py::arg("dest"))
      .def("receive", &receive, py::arg("x"), py::arg("source"))
      .def("split", &split, py::arg("color"), py::arg("key"))
      .def("barrier", &meet)
      .def("barrier_init",
           [](const std::shared_ptr<Communicator>& self) {
             return prepare(self, {make_call(*self, {.kind = CallKind::barrier}), {}, {}}, py::none(), py::none());
           })
      .def("barrier_async", [](Communicator& self) {
        const AtCallSite site;
        return py::make_tuple(self.submit(make_call(self, {.kind = CallKind::barrier})), py::none(), py::none());
      });
  def_collective<Op, WireName>(communicator, CallKind::allreduce);
  def_collective<Root>(communicator, CallKind::broadcast);
  def_collective<Op, Root>(communicator, CallKind::reduce);
  def_collective<>(communicator, CallKind::allgather);
  def_collective<Counts>(communicator, CallKind::allgatherv);
  def_collective<Op>(communicator, CallKind::reduce_scatter);
  def_collective<>(communicator, CallKind::alltoall);
  def_collective<Root>(communicator, CallKind::gather);
  def_collective<Root>(communicator, CallKind::scatter);
  def_fast_path<&allreduce>(communicator, "allreduce", {"x", "op", "algorithm", "out", "wire", "*", "label"});
  def_fast_path<&broadcast>(communicator, "broadcast", {"x", "root", "algorithm", "*", "label"});
  def_fast_path<&barrier>(communicator, "barrier", {});
}

}  // namespace gradientflow::bindings
