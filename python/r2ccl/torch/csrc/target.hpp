// Where a call of the library goes: to memory of the host, or, in the order of a stream, to that of
// a device. The arguments are the same.
#pragma once

#include "library.hpp"

namespace r2ccl_torch {

class Target {
 public:
  // The call is done when it returns.
  static Target host(ccl_comm_t comm) {
    return {comm, nullptr, false};
  }
  // The call is on `stream`, a cudaStream_t, when it returns; the default stream is null.
  static Target device(ccl_comm_t comm, void* stream) {
    return {comm, stream, true};
  }

  ccl_comm_t comm() const {
    return comm_;
  }
  bool is_device() const {
    return is_device_;
  }

#define R2CCL_CALL(name)                                                    \
  template <typename... Arguments>                                          \
  ccl_result_t name(Arguments... arguments) const {                         \
    return is_device_ ? library().cuda_##name(arguments..., comm_, stream_) \
                      : library().name(arguments..., comm_);                \
  }
  R2CCL_CALL(allreduce)
  R2CCL_CALL(allgather)
  R2CCL_CALL(reducescatter)
  R2CCL_CALL(broadcast)
  R2CCL_CALL(reduce)
  R2CCL_CALL(alltoall)
  R2CCL_CALL(alltoallv)
  R2CCL_CALL(gather)
  R2CCL_CALL(scatter)
  R2CCL_CALL(barrier)
  R2CCL_CALL(send)
  R2CCL_CALL(recv)
#undef R2CCL_CALL

 private:
  Target(ccl_comm_t comm, void* stream, bool is_device)
      : comm_(comm), stream_(stream), is_device_(is_device) {
  }

  ccl_comm_t comm_;
  void* stream_;
  bool is_device_;
};

}  // namespace r2ccl_torch
