#include "nccl_library.hpp"

#include <dlfcn.h>
#include <unistd.h>

namespace gradientflow::transport {
namespace {

constexpr const char* library_name = "libnccl.so.2";

// Returns the path where a package installs its library, seen from <site-packages>/gradientflow/lib/libgradientflow.so;
// empty if the path is not known.
std::string path_in_package() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&path_in_package), &here) == 0) {
    return {};
  }
  std::string path = here.dli_fname;
  const std::size_t end = path.rfind('/');
  path = end == std::string::npos ? "." : path.substr(0, end);
  return path + "/../../nvidia/nccl/lib/" + library_name;
}

void* open_library(const std::string& wanted) {
  if (wanted != "auto") {
    return dlopen(wanted.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (void* const loaded = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
    return loaded;
  }
  const std::string packaged = path_in_package();
  if (!packaged.empty() && access(packaged.c_str(), R_OK) == 0) {
    return dlopen(packaged.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  return dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
}

// Lookup of functions, which keeps the name of the first that is missing.
class Lookup {
 public:
  explicit Lookup(void* library) : library_(library) {}

  template <class Function>
  void operator()(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr && missing_ == nullptr) {
      missing_ = name;
    }
  }
  [[nodiscard]] const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

void find_functions(Lookup& find, nccl::Functions& functions) {
  find(functions.get_unique_id, "ncclGetUniqueId");
  find(functions.comm_init_rank_config, "ncclCommInitRankConfig");
  find(functions.comm_finalize, "ncclCommFinalize");
  find(functions.comm_destroy, "ncclCommDestroy");
  find(functions.comm_abort, "ncclCommAbort");
  find(functions.comm_get_async_error, "ncclCommGetAsyncError");
  find(functions.get_error_string, "ncclGetErrorString");
  find(functions.get_last_error, "ncclGetLastError");
  find(functions.group_start, "ncclGroupStart");
  find(functions.group_end, "ncclGroupEnd");
  find(functions.all_reduce, "ncclAllReduce");
  find(functions.broadcast, "ncclBroadcast");
  find(functions.reduce, "ncclReduce");
  find(functions.all_gather, "ncclAllGather");
  find(functions.reduce_scatter, "ncclReduceScatter");
  find(functions.send, "ncclSend");
  find(functions.recv, "ncclRecv");
  find(functions.red_op_create_pre_mul_sum, "ncclRedOpCreatePreMulSum");
}

}  // namespace

// Up to NCCL 2.8, the number had one digit less.
std::string nccl_version_text(int version) {
  const int unit = version < 10000 ? 1000 : 10000;
  return std::to_string(version / unit) + "." + std::to_string(version % unit / 100) + "." +
         std::to_string(version % 100);
}

std::string NcclLibrary::version_text() const { return nccl_version_text(version_); }

std::shared_ptr<const NcclLibrary> NcclLibrary::load(const Config& config, std::string& unavailable_reason) {
  const std::string& wanted = config.nccl_library;
  unavailable_reason.clear();
  if (wanted == "off") {
    unavailable_reason = "NCCL is switched off (GRADIENTFLOW_NCCL_LIBRARY=off)";
    return nullptr;
  }
  void* const library = open_library(wanted);
  if (library == nullptr) {
    const char* const reason = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    unavailable_reason = std::string("NCCL cannot be loaded: ") + (reason == nullptr ? "no reason is given" : reason);
    if (wanted == "auto") {
      unavailable_reason +=
          "; install nvidia-nccl-cu13 or nvidia-nccl-cu12, as fits the driver, or name the library in "
          "GRADIENTFLOW_NCCL_LIBRARY";
    }
    return nullptr;
  }
  nccl::Result (*get_version)(int*) = nullptr;
  Lookup find(library);
  find(get_version, "ncclGetVersion");
  std::shared_ptr<NcclLibrary> loaded(new NcclLibrary);
  loaded->path_ = wanted == "auto" ? library_name : wanted;
  Dl_info there{};
  if (get_version != nullptr && dladdr(reinterpret_cast<const void*>(get_version), &there) != 0) {
    loaded->path_ = there.dli_fname;
  }
  if (get_version != nullptr && get_version(&loaded->version_) == nccl::Result::success &&
      loaded->version_ < oldest_nccl) {
    unavailable_reason = loaded->path_ + " is NCCL " + loaded->version_text() + "; GradientFlow needs " +
                         nccl_version_text(oldest_nccl) + " or newer";
    return nullptr;
  }
  find_functions(find, loaded->functions_);
  if (find.missing() != nullptr) {
    unavailable_reason = loaded->path_ + " is not an NCCL that GradientFlow can use: it has no " + find.missing();
    return nullptr;
  }
  return loaded;
}

}  // namespace gradientflow::transport
