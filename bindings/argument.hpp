// Argument of a function of the public interface. If the argument cannot be converted, an Error gives its name and the
// accepted values; without this class, pybind11 would list the signatures of the binding.
//
// A whole number is anything that Python accepts as an index, except True and False; 1.0 and NumPy's floats are
// refused. Text is a str, not bytes; a std::string_view of a text is valid as long as the call.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../kernels/base/dtype.hpp"
#include "../kernels/base/error.hpp"
#include "../kernels/base/wire.hpp"

namespace gradientflow::bindings {

template <std::size_t size>
struct Literal {
  consteval Literal(const char (&literal)[size]) { std::copy_n(literal, size, text); }  // NOLINT(*-explicit-*): a text
  char text[size]{};
};

// `what` ends the sentence "NAME is ...".
template <Literal name, Literal what, class T>
struct Argument {
  T value;
};

template <Literal name>
using Rank = Argument<name, "the number of a rank", int>;
using Op = Argument<"op", "'sum', 'mean', 'max', 'min' or 'prod'", std::string_view>;
using AlgorithmName =
    Argument<"algorithm",
             "'auto', 'ring', 'hierarchical', 'hierarchical_lanes', 'recursive_doubling', 'shared', 'mpi' or 'nccl'",
             std::string_view>;
using WireName = Argument<"wire", "a name such as 'float16', or None", std::optional<std::string_view>>;
using LabelText = Argument<"label", "text, or None", std::optional<std::string_view>>;
using Timeout = Argument<"timeout", "a number of seconds, or None", std::optional<double>>;

[[nodiscard]] inline std::optional<Wire> given_wire(const WireName& wire) {
  return wire.value ? std::optional(wire_from_name(*wire.value)) : std::nullopt;
}

// Sets the Python error, for functions of CPython's own calling convention. Needs the GIL.
void raise(const Error& error);

// Throws Error(type), or Error(value) if a whole number is needed and the given number is too large.
[[noreturn]] void refuse_argument(const char* name, const char* what, pybind11::handle given, bool needs_whole_number);

}  // namespace gradientflow::bindings

namespace pybind11::detail {

template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};

template <gradientflow::bindings::Literal argument, gradientflow::bindings::Literal what, class T>
struct type_caster<gradientflow::bindings::Argument<argument, what, T>> {
  using Given = gradientflow::bindings::Argument<argument, what, T>;

 public:
  PYBIND11_TYPE_CASTER(Given, make_caster<T>::name);

  bool load(handle source, bool /*convert*/) {
    if constexpr (is_optional<T>::value) {
      if (source.is_none()) {
        value.value = std::nullopt;
        return true;
      }
      value.value = converted<typename T::value_type>(source);
    } else {
      value.value = converted<T>(source);
    }
    return true;
  }

 private:
  template <class U>
  static U converted(handle source) {
    if constexpr (std::is_same_v<U, std::string_view>) {
      Py_ssize_t size = 0;
      if (PyUnicode_Check(source.ptr()) != 0) {
        if (const char* const text = PyUnicode_AsUTF8AndSize(source.ptr(), &size)) {
          return {text, static_cast<std::size_t>(size)};
        }
        PyErr_Clear();  // an unpaired surrogate
      }
    } else {
      make_caster<U> caster;
      const bool is_truth = std::is_integral_v<U> && PyBool_Check(source.ptr()) != 0;
      if (!is_truth && caster.load(source, std::is_floating_point_v<U>)) {
        return cast_op<U&&>(std::move(caster));
      }
    }
    gradientflow::bindings::refuse_argument(argument.text, what.text, source, std::is_integral_v<U>);
  }
};

}  // namespace pybind11::detail
