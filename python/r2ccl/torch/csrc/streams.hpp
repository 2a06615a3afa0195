// Streams of devices, without a header of CUDA: PyTorch's registry of devices has all that is
// needed, so one build works with and without a GPU.
#pragma once

#include <dlfcn.h>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "tensors.hpp"

namespace r2ccl_torch {

// The stream that is current in this thread.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// One of PyTorch's own that nothing else waits for by itself; calls there should start early.
inline c10::Stream side_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true);
}

namespace since_native_handles {

template <typename Stream>
auto native_handle(const Stream& stream, int) -> decltype(stream.native_handle()) {
  return stream.native_handle();
}

template <typename Stream>
void* native_handle(const Stream&, long) {
  C10_THROW_ERROR(DistBackendError,
                  "r2ccl: this version of PyTorch does not tell backends about streams: tensors of "
                  "a device need a later one (2.15 does)");
}

template <typename Stream>
auto is_capturing(const Stream& stream, int) -> decltype(stream.is_capturing()) {
  return stream.is_capturing();
}

template <typename Stream>
bool is_capturing(const Stream&, long) {
  return false;
}

}  // namespace since_native_handles

// A cudaStream_t.
inline void* native_handle(const c10::Stream& stream) {
  return since_native_handles::native_handle(stream, 0);
}

// Whether what is put on the stream becomes part of a graph. The library asks too, but then other
// streams may already wait for this one, and be part of it as well.
inline bool is_capturing(const c10::Stream& stream) {
  return since_native_handles::is_capturing(stream, 0);
}

// As long as it lives, captures of the program do not mind what this thread does. One of mode
// "global", which is usual, else forbids all threads to ask for events: the question is refused,
// and the capture comes to nothing.
class BesideCaptures {
 public:
  BesideCaptures() {
    exchange();
  }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures() {
    exchange();
  }

 private:
  using Exchange = int (*)(int* mode);

  // Of the driver, which is there where a device is.
  static Exchange find() {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void* found = driver != nullptr ? dlsym(driver, "cuThreadExchangeStreamCaptureMode") : nullptr;
    return reinterpret_cast<Exchange>(found);
  }

  // Gives the thread the other mode. A driver that refuses that refuses what comes next, too.
  void exchange() {
    static const Exchange of_driver = find();
    if (of_driver != nullptr) {
      of_driver(&mode_);
    }
  }

  // CU_STREAM_CAPTURE_MODE_RELAXED; then what the thread had before.
  int mode_ = 2;
};

// Whether the stream on which it was recorded has come past it. Throws if the device has failed.
inline bool has_happened(const c10::Event& event) {
  const BesideCaptures beside;
  return event.query();
}

// Throws if the caller's stream is captured.
inline void check_not_capturing(c10::Device device, const char* call) {
  if (C10_UNLIKELY(is_capturing(current_stream(device)))) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(call,
                             ": collectives cannot be captured into a graph: end the capture "
                             "before the call, and make the call between two graphs"));
  }
}

// Keeps the memory of these tensors, once they are gone, until `stream` has come past what it has
// now.
inline void keep_until(const c10::Stream& stream, const Tensors& tensors) {
  const c10::impl::VirtualGuardImpl impl(stream.device_type());
  for (const auto& tensor : tensors) {
    if (tensor.defined() && tensor.device() == stream.device()) {
      impl.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
    }
  }
}

}  // namespace r2ccl_torch
