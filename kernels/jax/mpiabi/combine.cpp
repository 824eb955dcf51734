#include "combine.hpp"

#include <algorithm>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "../../base/error.hpp"

namespace gradientflow::mpiabi {
namespace {

template <class T>
struct Sum {
  T operator()(T a, T b) const { return static_cast<T>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b)); }
};

// Product in 32 bits, whose low 16 bits are the wrapped-around product of two 16-bit integers.
template <class T>
struct Product {
  T operator()(T a, T b) const { return static_cast<T>(static_cast<std::uint32_t>(a) * static_cast<std::uint32_t>(b)); }
};

// Product as XLA computes it: the operator of C++ treats infinities differently.
template <class T>
struct Product<std::complex<T>> {
  std::complex<T> operator()(std::complex<T> a, std::complex<T> b) const {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  }
};

template <class T>
struct Minimum {
  T operator()(T a, T b) const { return std::min(a, b); }
};

template <class T>
struct Maximum {
  T operator()(T a, T b) const { return std::max(a, b); }
};

template <class T, template <class> class Operation>
void combine(std::byte* into, const std::byte* with, std::size_t count) {
  auto* const a = reinterpret_cast<T*>(into);
  const auto* const b = reinterpret_cast<const T*>(with);
  std::transform(a, a + count, b, a, Operation<T>());
}

template <class T>
Combine combine_integers(Op op) {
  switch (op) {
    case Op::sum:
      return combine<T, Sum>;
    case Op::prod:
      return combine<T, Product>;
    case Op::min:
      return combine<T, Minimum>;
    case Op::max:
      return combine<T, Maximum>;
  }
  return nullptr;
}

template <class T>
Combine combine_in_order(Op op) {
  return op == Op::min ? combine<T, Minimum> : op == Op::max ? combine<T, Maximum> : nullptr;
}

template <class T>
Combine combine_complex(Op op) {
  return op == Op::prod ? combine<std::complex<T>, Product> : nullptr;
}

Combine find(Type type, Op op) {
  switch (type) {
    case Type::int16:
      return combine_integers<std::int16_t>(op);
    case Type::uint16:
      return combine_integers<std::uint16_t>(op);
    case Type::uint32:
      return combine_in_order<std::uint32_t>(op);
    case Type::uint64:
      return combine_in_order<std::uint64_t>(op);
    case Type::complex64:
      return combine_complex<float>(op);
    case Type::complex128:
      return combine_complex<double>(op);
    default:
      return nullptr;
  }
}

}  // namespace

Combine combine_of(Type type, Op op) {
  if (const Combine found = find(type, op)) {
    return found;
  }
  throw Error(ErrorKind::type, "JAX asks for a reduction that is not served: sum, prod, min and max of numbers are");
}

}  // namespace gradientflow::mpiabi
