// The library's version and the sizes of dtypes, which need no communicator.
#include "../base/dtype.hpp"
#include "arguments.hpp"
#include "status.hpp"

// The build takes the version from pyproject.toml; the header repeats the version for programs.
static_assert(GF_VERSION_MAJOR == GRADIENTFLOW_MAJOR && GF_VERSION_MINOR == GRADIENTFLOW_MINOR &&
                  GF_VERSION_PATCH == GRADIENTFLOW_PATCH,
              "gradientflow.h and pyproject.toml disagree about the version");

int gf_version(void) { return GF_VERSION; }

size_t gf_dtype_size(gf_dtype dtype) {
  size_t size = 0;
  gradientflow::c::quietly([&, number = int{dtype}] { size = size_of(gradientflow::c::dtype_of(number)); });
  return size;
}
