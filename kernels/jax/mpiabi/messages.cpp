// Messages between two ranks.
#include <memory>
#include <utility>

#include "../../transport/messages/transfer.hpp"
#include "failure.hpp"
#include "job.hpp"

namespace gradientflow::mpiabi {
namespace {

using gradientflow::transport::Transfer;

using Message = std::shared_ptr<Transfer>;  // XLA takes its address for an MPI request

void check_tag(int tag) {
  if (tag != 0) {
    throw Error(ErrorKind::value, "messages of JAX have the tag 0, and no other is served");
  }
}

Message send(const Group& group, const void* data, int count, Type type, int to, int tag) {
  check_tag(tag);
  return job().send(group, to, data, count_of(count) * size_of(type));
}

Message receive(const Group& group, void* data, int count, Type type, int from, int tag) {
  check_tag(tag);
  return job().receive(group, from, data, count_of(count) * size_of(type));
}

void wait(Message** request) {
  const std::unique_ptr<Message> message(std::exchange(*request, nullptr));
  if (message != nullptr) {
    job().wait(**message);
  }
}

}  // namespace
}  // namespace gradientflow::mpiabi

using namespace gradientflow::mpiabi;  // NOLINT(google-build-using-namespace): its C functions are below

MPIABI_FUNCTION MPIABI_Isend(const void* data, int count, Type type, int to, int tag, const Group* group,
                             Message** request) {
  return guarded([&] { *request = new Message(send(*group, data, count, type, to, tag)); });
}

MPIABI_FUNCTION MPIABI_Irecv(void* data, int count, Type type, int from, int tag, const Group* group,
                             Message** request) {
  return guarded([&] { *request = new Message(receive(*group, data, count, type, from, tag)); });
}

MPIABI_FUNCTION MPIABI_Wait(Message** request, void* /*status*/) {
  return guarded([&] { wait(request); });
}

MPIABI_FUNCTION MPIABI_Waitall(int count, Message** requests, void* /*statuses*/) {
  return guarded([&] {
    for (int index = 0; index < count; ++index) {
      wait(requests + index);
    }
  });
}

MPIABI_FUNCTION MPIABI_Sendrecv(const void* input, int count, Type type, int to, int tag, void* output,
                                int output_count, Type output_type, int from, int output_tag, const Group* group,
                                void* /*status*/) {
  return guarded([&] {
    const Message received = receive(*group, output, output_count, output_type, from, output_tag);
    const Message sent = send(*group, input, count, type, to, tag);
    job().wait(*received);
    job().wait(*sent);
  });
}
