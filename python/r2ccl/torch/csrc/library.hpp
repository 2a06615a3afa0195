// The C interface of r2ccl, found at run time: this module links nothing but PyTorch.
#pragma once

#include <string>

#include "r2ccl/ccl.h"

#define R2CCL_FUNCTIONS(FUNCTION)  \
  FUNCTION(get_unique_id)          \
  FUNCTION(get_last_error)         \
  FUNCTION(get_error_string)       \
  FUNCTION(get_version)            \
  FUNCTION(comm_init_rank_config)  \
  FUNCTION(comm_set_timeout)       \
  FUNCTION(comm_destroy)           \
  FUNCTION(comm_abort)             \
  FUNCTION(comm_get_async_error)   \
  FUNCTION(comm_get_health)        \
  FUNCTION(comm_get_lost_ranks)    \
  FUNCTION(comm_explain)           \
  FUNCTION(allreduce)              \
  FUNCTION(allgather)              \
  FUNCTION(reducescatter)          \
  FUNCTION(broadcast)              \
  FUNCTION(reduce)                 \
  FUNCTION(alltoall)               \
  FUNCTION(alltoallv)              \
  FUNCTION(gather)                 \
  FUNCTION(scatter)                \
  FUNCTION(barrier)                \
  FUNCTION(send)                   \
  FUNCTION(recv)                   \
  FUNCTION(cuda_allreduce)         \
  FUNCTION(cuda_allgather)         \
  FUNCTION(cuda_reducescatter)     \
  FUNCTION(cuda_broadcast)         \
  FUNCTION(cuda_reduce)            \
  FUNCTION(cuda_alltoall)          \
  FUNCTION(cuda_alltoallv)         \
  FUNCTION(cuda_gather)            \
  FUNCTION(cuda_scatter)           \
  FUNCTION(cuda_barrier)           \
  FUNCTION(cuda_send)              \
  FUNCTION(cuda_recv)              \
  FUNCTION(group_start)            \
  FUNCTION(group_end)              \
  FUNCTION(mem_alloc)              \
  FUNCTION(mem_free)               \
  FUNCTION(redop_create_premulsum) \
  FUNCTION(redop_destroy)

namespace r2ccl_torch {

// One pointer for each function that is called here, by its name without "ccl_".
struct Library {
#define R2CCL_POINTER(name) decltype(&::ccl_##name) name = nullptr;
  R2CCL_FUNCTIONS(R2CCL_POINTER)
#undef R2CCL_POINTER
};

// Loads the library at `path`, once for the process. Throws if it cannot, naming what is missing.
void open_library(const std::string& path);

// The library. Throws if it was not opened.
const Library& library();

// How messages about timeouts begin: programs look for the word.
inline const std::string kTimeoutPassed = "its timeout has passed: ";

// Throws what `result` of the call named `call` means for a program in Python, unless it is a
// success: ValueError where an argument is impossible, else DistBackendError with the message of
// the library, which names the ranks, and `note`. To be called in the thread of the failed call.
void check(ccl_result_t result, const char* call, const std::string& note = "");

}  // namespace r2ccl_torch
