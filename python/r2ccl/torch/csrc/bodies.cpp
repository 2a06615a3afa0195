#include "bodies.hpp"

#include <algorithm>

namespace r2ccl_torch::body {

namespace {

// Bitwise reductions gather at most so much from each rank at a time.
constexpr size_t kBitsBytes = size_t{1} << 20;

void all_reduce_bits(void* memory, size_t bytes, Bits bits, int ranks, ccl_comm_t comm) {
  const size_t piece = std::min(bytes, kBitsBytes);
  std::vector<uint8_t> gathered(piece * static_cast<size_t>(ranks));
  for (size_t done = 0; done < bytes; done += piece) {
    const size_t count = std::min(piece, bytes - done);
    auto* own = static_cast<uint8_t*>(memory) + done;
    check(library().allgather(own, gathered.data(), count, CCL_UINT8, comm), "all_reduce");
    combine_bits(bits, gathered.data(), static_cast<size_t>(ranks), count, own);
  }
}

void reduce_scatter_bits(
    const void* input, void* output, size_t bytes, Bits bits, int ranks, ccl_comm_t comm) {
  std::vector<uint8_t> received(bytes * static_cast<size_t>(ranks));
  check(library().alltoall(input, received.data(), bytes, CCL_UINT8, comm), "reduce_scatter");
  combine_bits(bits, received.data(), static_cast<size_t>(ranks), bytes,
               static_cast<uint8_t*>(output));
}

void reduce_to(int root,
               const void* memory,
               void* result,
               size_t count,
               const Reduction& reduction,
               ccl_comm_t comm) {
  const Operator op(reduction, comm);
  check(library().reduce(memory, result, count, reduction.wire.type, op.number(), root, comm),
        "reduce");
}

}  // namespace

void all_reduce(const at::Tensor& tensor, const Reduction& reduction, int ranks, ccl_comm_t comm) {
  const auto memory = Staged::both(tensor);
  const size_t count = reduction.wire.count(tensor.numel());
  if (reduction.bits) {
    all_reduce_bits(memory.data(), count, *reduction.bits, ranks, comm);
  } else {
    const Operator op(reduction, comm);
    check(library().allreduce(memory.data(), memory.data(), count, reduction.wire.type, op.number(),
                              comm),
          "all_reduce");
  }
  memory.publish();
}

void all_gather(const at::Tensor& output, const at::Tensor& input, ccl_comm_t comm) {
  const auto wire = Wire::for_moving(input.scalar_type());
  const auto from = Staged::input(input);
  const auto to = Staged::output(output);
  check(library().allgather(from.data(), to.data(), wire.count(input.numel()), wire.type, comm),
        "all_gather");
  to.publish();
}

void all_gather(const Tensors& outputs, const at::Tensor& input, ccl_comm_t comm) {
  const auto wire = Wire::for_moving(input.scalar_type());
  const auto from = Staged::input(input);
  const auto to = Packed::outputs(outputs);
  const size_t count = wire.count(input.numel());
  if (have_same_size(outputs)) {
    check(library().allgather(from.data(), to.data(), count, wire.type, comm), "all_gather");
  } else {
    // Every rank sends the same block to all.
    const std::vector<size_t> counts(outputs.size(), count);
    const std::vector<size_t> starts(outputs.size(), 0);
    const auto blocks = Blocks::of(outputs, wire);
    check(library().alltoallv(from.data(), counts.data(), starts.data(), to.data(),
                              blocks.counts.data(), blocks.displacements.data(), wire.type, comm),
          "all_gather");
  }
  to.publish();
}

void reduce_scatter(const void* input,
                    void* output,
                    size_t count,
                    const Reduction& reduction,
                    int ranks,
                    ccl_comm_t comm) {
  if (reduction.bits) {
    return reduce_scatter_bits(input, output, count, *reduction.bits, ranks, comm);
  }
  const Operator op(reduction, comm);
  check(library().reducescatter(input, output, count, reduction.wire.type, op.number(), comm),
        "reduce_scatter");
}

void reduce_scatter(const at::Tensor& output,
                    const at::Tensor& input,
                    const Reduction& reduction,
                    int ranks,
                    ccl_comm_t comm) {
  const auto from = Staged::input(input);
  const auto to = Staged::output(output);
  reduce_scatter(from.data(), to.data(), reduction.wire.count(output.numel()), reduction, ranks,
                 comm);
  to.publish();
}

void reduce(const at::Tensor& tensor,
            const Reduction& reduction,
            int root,
            int rank,
            int ranks,
            ccl_comm_t comm) {
  // Bits are combined in place, and only the root's tensor changes.
  const bool is_result = rank == root;
  const auto memory = Staged::both(reduction.bits && !is_result ? tensor.detach().clone() : tensor);
  const size_t count = reduction.wire.count(tensor.numel());
  if (reduction.bits) {
    all_reduce_bits(memory.data(), count, *reduction.bits, ranks, comm);
  } else {
    reduce_to(root, memory.data(), memory.data(), count, reduction, comm);
  }
  if (is_result) {
    memory.publish();
  }
}

void broadcast(const at::Tensor& tensor, int root, int rank, ccl_comm_t comm) {
  const auto wire = Wire::for_moving(tensor.scalar_type());
  const auto memory = rank == root ? Staged::input(tensor) : Staged::output(tensor);
  const size_t count = wire.count(tensor.numel());
  check(library().broadcast(memory.data(), memory.data(), count, wire.type, root, comm),
        "broadcast");
  if (rank != root) {
    memory.publish();
  }
}

void reduce_scatter_uneven(const Packed& from,
                           void* output,
                           const Tensors& inputs,
                           const Reduction& reduction,
                           ccl_comm_t comm) {
  const auto blocks = Blocks::of(inputs, reduction.wire);
  const size_t element = inputs[0].element_size() / reduction.wire.per_element;
  for (size_t rank = 0; rank < blocks.counts.size(); ++rank) {
    auto* block = static_cast<char*>(from.data()) + blocks.displacements[rank] * element;
    reduce_to(static_cast<int>(rank), block, output, blocks.counts[rank], reduction, comm);
  }
}

}  // namespace r2ccl_torch::body
