// Tensors in memory that the ranks of a host reach in place: large ones are summed and copied there without being
// staged.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "communicator.hpp"

namespace r2ccl_torch {

// Memory of ccl_mem_alloc() for storages. To make it, and to let peers know of it, takes much longer than to use it, so
// what is given back is kept for the next that need about as much. All members may be called from any thread; in a child
// of the process it gives ordinary memory.
class SharedMemory : public c10::Allocator {
 public:
  // The one of this process. Tensors may outlive everything else, so it is never destroyed.
  static SharedMemory& of_process();

  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* target, const void* source, size_t bytes) const override;

  // An uninitialised tensor of one dimension. A small one, or if the system refuses more, one in ordinary memory.
  static at::Tensor tensor(int64_t elements, const at::TensorOptions& options);

 private:
  struct Block {
    void* start;
    size_t bytes;
  };

  SharedMemory() = default;
  static void give_back(void* block);
  // A block of at least so many bytes; of none if there is no memory.
  Block take(size_t bytes);
  void keep(Block block);

  const uint64_t generation_ = fork_generation();
  std::mutex mutex_;
  // What nobody uses, the oldest first.
  std::list<Block> idle_;
  size_t idle_bytes_ = 0;
  size_t used_bytes_ = 0;
  // As much may be idle.
  size_t most_used_bytes_ = 0;
};

}  // namespace r2ccl_torch
