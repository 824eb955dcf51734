// Structures of DLPack (https://dmlc.github.io/dlpack), the interchange format of tensors between frameworks, as far as
// a reader of tensors on CPUs and CUDA devices needs them. Layout and names follow the specification, versions 0 and 1.
// This file has only the beginning of the table for the exchange in C.
#pragma once

#include <cstdint>

namespace gradientflow::bindings::dlpack {

enum DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };
enum TypeCode : std::uint8_t { code_int = 0, code_uint = 1, code_float = 2, code_bfloat = 4, code_bool = 6 };
constexpr std::uint64_t flag_read_only = 1;

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // strides in elements; null means row-major
  std::uint64_t byte_offset;
};

struct ManagedTensor {  // capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct ManagedTensorVersioned {  // capsule "dltensor_versioned"
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

// Functions in the capsule "dlpack_exchange_api", which a type of tensors has as `__dlpack_c_exchange_api__`.
struct ExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  ExchangeApi* previous;
  int (*allocate)(Tensor* prototype, ManagedTensorVersioned** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*export_tensor)(void* object, ManagedTensorVersioned** out);  // result other than 0: a Python error is set
};

}  // namespace gradientflow::bindings::dlpack
