#include "memory.hpp"

#include <algorithm>
#include <memory>

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>

#include "library.hpp"

namespace r2ccl_torch {

namespace {

// What is smaller goes by tiles anyway.
constexpr size_t kLeastBytes = 64 << 10;

// A block that is larger than that many times what is needed is kept for somebody else.
constexpr size_t kMostWaste = 2;

}  // namespace

SharedMemory& SharedMemory::of_process() {
  static auto* const memory = new SharedMemory();
  return *memory;
}

at::Tensor SharedMemory::tensor(int64_t elements, const at::TensorOptions& options) {
  const auto type = c10::typeMetaToScalarType(options.dtype());
  return at::detail::empty_generic({elements}, &of_process(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   type, std::nullopt);
}

c10::DataPtr SharedMemory::allocate(size_t bytes) {
  if (bytes >= kLeastBytes && generation_ == fork_generation()) {
    const Block block = take(bytes);
    if (block.start != nullptr) {
      return {block.start, new Block(block), &give_back, c10::Device(c10::DeviceType::CPU)};
    }
    // Without the lock: a warning waits for the interpreter, which a thread may have that gives memory back.
    TORCH_WARN_ONCE("r2ccl: no memory that other ranks reach, so tensors are in ordinary memory: ",
                    library().get_last_error(nullptr));
  }
  return c10::GetDefaultCPUAllocator()->allocate(bytes);
}

void SharedMemory::copy_data(void* target, const void* source, size_t bytes) const {
  default_copy_data(target, source, bytes);
}

void SharedMemory::give_back(void* block) {
  const std::unique_ptr<Block> owned(static_cast<Block*>(block));
  auto& memory = of_process();
  // In a child the lock may be held by a thread that it does not have.
  if (memory.generation_ == fork_generation()) {
    memory.keep(*owned);
  }
}

SharedMemory::Block SharedMemory::take(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto fits = [bytes](const Block& block) {
    return bytes <= block.bytes && block.bytes / kMostWaste < bytes;
  };
  Block block{nullptr, bytes};
  const auto found = std::find_if(idle_.begin(), idle_.end(), fits);
  if (found != idle_.end()) {
    block = *found;
    idle_bytes_ -= block.bytes;
    idle_.erase(found);
  } else if (library().mem_alloc(&block.start, bytes) != CCL_SUCCESS) {
    return {nullptr, 0};
  }
  used_bytes_ += block.bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return block;
}

void SharedMemory::keep(Block block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_bytes_ -= block.bytes;
  idle_bytes_ += block.bytes;
  idle_.push_back(block);
  while (idle_bytes_ > most_used_bytes_) {
    const Block oldest = idle_.front();
    idle_.pop_front();
    idle_bytes_ -= oldest.bytes;
    library().mem_free(oldest.start);
  }
}

}  // namespace r2ccl_torch
