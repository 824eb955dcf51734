// Structs that begin with their size, from programs that may be compiled with another version of the header.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "../base/error.hpp"

namespace gradientflow::c {

// Returns the struct at `from`, whose first field is its size. Fields beyond that size have their `defaults`; all
// fields do if `from` is nullptr. `Known` is the struct of this library. Throws Error(value) for an invalid size.
template <class Known>
Known options_of(Known defaults, const void* from, const char* type, const char* initializer) {
  if (from == nullptr) {
    return defaults;
  }
  std::size_t size = 0;
  std::memcpy(&size, from, sizeof size);
  if (size < sizeof size || size > sizeof defaults) {
    throw Error(ErrorKind::value, std::string("the size of a ") + type + " is " + std::to_string(size) +
                                      ", and this library knows sizes up to " + std::to_string(sizeof defaults) +
                                      "; begin with " + initializer);
  }
  std::memcpy(static_cast<void*>(&defaults), from, size);
  return defaults;
}

}  // namespace gradientflow::c
