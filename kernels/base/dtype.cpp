#include "dtype.hpp"

#include <array>
#include <string>

#include "error.hpp"

namespace gradientflow {
namespace {

struct DTypeInfo {
  std::string_view name;
  std::size_t size;
  bool floating;
};

// Dtypes in the order of enum class DType.
constexpr std::array<DTypeInfo, dtype_count> dtypes = {{{"float16", 2, true},
                                                        {"bfloat16", 2, true},
                                                        {"float32", 4, true},
                                                        {"float64", 8, true},
                                                        {"int8", 1, false},
                                                        {"uint8", 1, false},
                                                        {"int32", 4, false},
                                                        {"int64", 8, false},
                                                        {"bool", 1, false}}};

// Names in the order of enum class ReduceOp.
constexpr std::array<std::string_view, reduce_op_count> ops = {"sum", "mean", "max", "min", "prod"};

const DTypeInfo& info(DType dtype) { return dtypes.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::size_t size_of(DType dtype) { return info(dtype).size; }
std::string_view name_of(DType dtype) { return info(dtype).name; }
std::string_view name_of(ReduceOp op) { return ops.at(static_cast<std::size_t>(op)); }
bool is_floating(DType dtype) { return info(dtype).floating; }

DType dtype_from_name(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    if (dtypes[i].name == name) {
      return static_cast<DType>(i);
    }
    known += (i == 0 ? "" : ", ") + std::string(dtypes[i].name);
  }
  throw Error(ErrorKind::type, "dtype " + std::string(name) + " is not supported; supported are " + known);
}

ReduceOp reduce_op_from_name(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i] == name) {
      return static_cast<ReduceOp>(i);
    }
    known += (i == 0 ? "" : ", ") + std::string(ops[i]);
  }
  throw Error(ErrorKind::value, "unknown op '" + std::string(name) + "'; choose from " + known);
}

static_assert(static_cast<int>(DType::float16) == 0 && static_cast<int>(DType::bfloat16) == 1 &&
              static_cast<int>(DType::float32) == 2);

std::size_t index_among_floats(DType dtype, const char* sentence) {
  if (dtype != DType::float16 && dtype != DType::bfloat16 && dtype != DType::float32) {
    throw Error(ErrorKind::type, std::string(sentence) + ", not " + std::string(name_of(dtype)));
  }
  return static_cast<std::size_t>(dtype);
}

void check_reducible(DType dtype, ReduceOp op) {
  if (dtype == DType::boolean && op != ReduceOp::max && op != ReduceOp::min) {
    throw Error(ErrorKind::type,
                "op '" + std::string(name_of(op)) + "' is not defined on bool; use max (any) or min (all)");
  }
  if (op == ReduceOp::mean && !is_floating(dtype)) {
    throw Error(ErrorKind::type, "op 'mean' needs a floating dtype, not " + std::string(name_of(dtype)));
  }
}

}  // namespace gradientflow
