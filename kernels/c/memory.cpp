// Node memory for C.
#include "../engine/calls/communicator.hpp"
#include "objects.hpp"
#include "status.hpp"

using namespace gradientflow::c;  // NOLINT(google-build-using-namespace): its C functions are below

gf_status gf_memory_allocate(gf_communicator* communicator, size_t bytes, gf_memory** memory) {
  return guarded([&] {
    gf_memory*& result = result_of(memory, "memory");
    result = new gf_memory{given(communicator, "communicator").engine->allocate(bytes), bytes};
  });
}

void* gf_memory_data(const gf_memory* memory) { return memory == nullptr ? nullptr : memory->segment->mine(); }

size_t gf_memory_bytes(const gf_memory* memory) { return memory == nullptr ? 0 : memory->bytes; }

void gf_memory_free(gf_memory* memory) { delete memory; }
