#include "library.hpp"

#include <dlfcn.h>

#include <mutex>
#include <optional>

#include <c10/util/Exception.h>

namespace r2ccl_torch {

namespace {

std::mutex opening;
std::optional<Library> opened;

template <typename Pointer>
void find(void* object, const char* symbol, Pointer& pointer, const std::string& path) {
  pointer = reinterpret_cast<Pointer>(dlsym(object, symbol));
  TORCH_CHECK(pointer != nullptr, path, " has no function ", symbol,
              ": it is too old for this backend");
}

}  // namespace

void open_library(const std::string& path) {
  std::lock_guard<std::mutex> lock(opening);
  if (opened) {
    return;
  }
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(object != nullptr, "cannot load the library of r2ccl: ", dlerror());
  Library found;
#define R2CCL_FIND(name) find(object, "ccl_" #name, found.name, path);
  R2CCL_FUNCTIONS(R2CCL_FIND)
#undef R2CCL_FIND
  opened = found;
}

const Library& library() {
  TORCH_CHECK(opened.has_value(), "the library of r2ccl was not opened");
  return *opened;
}

void check(ccl_result_t result, const char* call, const std::string& note) {
  if (C10_LIKELY(result == CCL_SUCCESS)) {
    return;
  }
  std::string message = library().get_last_error(nullptr);
  if (message.empty()) {
    message = library().get_error_string(result);
  }
  if (result == CCL_TIMEOUT) {
    message = kTimeoutPassed + message;
  }
  message = std::string("r2ccl ") + call + ": " + message + note;
  if (result == CCL_INVALID_ARGUMENT) {
    C10_THROW_ERROR(ValueError, message);
  }
  C10_THROW_ERROR(DistBackendError, message);
}

}  // namespace r2ccl_torch
