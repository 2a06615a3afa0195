#include "bodies.hpp"

#include <algorithm>

#include <ATen/MemoryOverlap.h>

namespace r2ccl_torch::body {

namespace {

// Bitwise reductions gather at most so much from each rank at a time.
constexpr size_t kBitsBytes = size_t{1} << 20;

void all_reduce_bits(void* memory, size_t bytes, Bits bits, int ranks, const Target& target) {
  const size_t piece = std::min(bytes, kBitsBytes);
  std::vector<uint8_t> gathered(piece * static_cast<size_t>(ranks));
  for (size_t done = 0; done < bytes; done += piece) {
    const size_t count = std::min(piece, bytes - done);
    auto* own = static_cast<uint8_t*>(memory) + done;
    check(target.allgather(own, gathered.data(), count, CCL_UINT8), "all_reduce");
    combine_bits(bits, gathered.data(), static_cast<size_t>(ranks), count, own);
  }
}

void reduce_scatter_bits(
    const void* input, void* output, size_t bytes, Bits bits, int ranks, const Target& target) {
  std::vector<uint8_t> received(bytes * static_cast<size_t>(ranks));
  check(target.alltoall(input, received.data(), bytes, CCL_UINT8), "reduce_scatter");
  combine_bits(bits, received.data(), static_cast<size_t>(ranks), bytes,
               static_cast<uint8_t*>(output));
}

void reduce_to(int root,
               const void* memory,
               void* result,
               size_t count,
               const Reduction& reduction,
               const Target& target) {
  const Operator op(reduction, target.comm());
  check(target.reduce(memory, result, count, reduction.wire.type, op.number(), root), "reduce");
}

// What is sent while the outputs are written: where it lies in one of them, a copy.
at::Tensor apart_from(const Tensors& outputs, const at::Tensor& input) {
  const bool lies_there = std::any_of(outputs.begin(), outputs.end(), [&](const auto& output) {
    return at::get_overlap_status(output, input) != at::MemOverlapStatus::No;
  });
  return lies_there ? input.detach().clone() : input;
}

// Every rank sends the same block to all.
void all_gather_uneven(const void* input,
                       void* output,
                       const Blocks& blocks,
                       size_t count,
                       Wire wire,
                       const Target& target) {
  const std::vector<size_t> counts(blocks.counts.size(), count);
  const std::vector<size_t> starts(blocks.counts.size(), 0);
  check(target.alltoallv(input, counts.data(), starts.data(), output, blocks.counts.data(),
                         blocks.displacements.data(), wire.type),
        "all_gather");
}

// The same as a call for each rank: on a device an alltoallv has to fit into pinned memory.
void all_gather_by_broadcasts(const void* input,
                              void* output,
                              const Blocks& blocks,
                              Wire wire,
                              size_t element_bytes,
                              const Target& target) {
  for (size_t rank = 0; rank < blocks.counts.size(); ++rank) {
    auto* block = static_cast<char*>(output) + blocks.displacements[rank] * element_bytes;
    check(target.broadcast(input, block, blocks.counts[rank], wire.type, static_cast<int>(rank)),
          "all_gather");
  }
}

}  // namespace

void all_reduce(const at::Tensor& tensor,
                const Reduction& reduction,
                int ranks,
                const Target& target) {
  const auto memory = Staged::both(tensor);
  const size_t count = reduction.wire.count(tensor.numel());
  if (reduction.bits) {
    all_reduce_bits(memory.data(), count, *reduction.bits, ranks, target);
  } else {
    const Operator op(reduction, target.comm());
    check(target.allreduce(memory.data(), memory.data(), count, reduction.wire.type, op.number()),
          "all_reduce");
  }
  memory.publish();
}

void all_gather(const at::Tensor& output, const at::Tensor& input, const Target& target) {
  const auto wire = Wire::for_moving(input.scalar_type());
  const auto from = Staged::input(input);
  const auto to = Staged::output(output);
  check(target.allgather(from.data(), to.data(), wire.count(input.numel()), wire.type),
        "all_gather");
  to.publish();
}

void all_gather(const Tensors& outputs, const at::Tensor& input, const Target& target) {
  const auto wire = Wire::for_moving(input.scalar_type());
  const bool is_even = have_same_size(outputs);
  // Equal blocks and broadcasts may be in place.
  const bool may_be_in_place = is_even || target.is_device();
  const auto from = Staged::input(may_be_in_place ? input : apart_from(outputs, input));
  const auto to = Packed::outputs(outputs);
  const size_t count = wire.count(input.numel());
  if (is_even) {
    check(target.allgather(from.data(), to.data(), count, wire.type), "all_gather");
  } else if (target.is_device()) {
    const size_t element_bytes = input.element_size() / wire.per_element;
    all_gather_by_broadcasts(from.data(), to.data(), Blocks::of(outputs, wire), wire, element_bytes,
                             target);
  } else {
    all_gather_uneven(from.data(), to.data(), Blocks::of(outputs, wire), count, wire, target);
  }
  to.publish();
}

void reduce_scatter(const void* input,
                    void* output,
                    size_t count,
                    const Reduction& reduction,
                    int ranks,
                    const Target& target) {
  if (reduction.bits) {
    return reduce_scatter_bits(input, output, count, *reduction.bits, ranks, target);
  }
  const Operator op(reduction, target.comm());
  check(target.reducescatter(input, output, count, reduction.wire.type, op.number()),
        "reduce_scatter");
}

void reduce_scatter(const at::Tensor& output,
                    const at::Tensor& input,
                    const Reduction& reduction,
                    int ranks,
                    const Target& target) {
  const auto from = Staged::input(input);
  const auto to = Staged::output(output);
  reduce_scatter(from.data(), to.data(), reduction.wire.count(output.numel()), reduction, ranks,
                 target);
  to.publish();
}

void reduce(const at::Tensor& tensor,
            const Reduction& reduction,
            int root,
            int rank,
            int ranks,
            const Target& target) {
  // Bits are combined in place, and only the root's tensor changes.
  const bool is_result = rank == root;
  const auto memory = Staged::both(reduction.bits && !is_result ? tensor.detach().clone() : tensor);
  const size_t count = reduction.wire.count(tensor.numel());
  if (reduction.bits) {
    all_reduce_bits(memory.data(), count, *reduction.bits, ranks, target);
  } else {
    reduce_to(root, memory.data(), memory.data(), count, reduction, target);
  }
  if (is_result) {
    memory.publish();
  }
}

void broadcast(const at::Tensor& tensor, int root, int rank, const Target& target) {
  const auto wire = Wire::for_moving(tensor.scalar_type());
  const auto memory = rank == root ? Staged::input(tensor) : Staged::output(tensor);
  const size_t count = wire.count(tensor.numel());
  check(target.broadcast(memory.data(), memory.data(), count, wire.type, root), "broadcast");
  if (rank != root) {
    memory.publish();
  }
}

void reduce_scatter_uneven(const Packed& from,
                           void* output,
                           const Tensors& inputs,
                           const Reduction& reduction,
                           const Target& target) {
  const auto blocks = Blocks::of(inputs, reduction.wire);
  const size_t element = inputs[0].element_size() / reduction.wire.per_element;
  for (size_t rank = 0; rank < blocks.counts.size(); ++rank) {
    auto* block = static_cast<char*>(from.data()) + blocks.displacements[rank] * element;
    reduce_to(static_cast<int>(rank), block, output, blocks.counts[rank], reduction, target);
  }
}

}  // namespace r2ccl_torch::body
