/* Measures collectives of one library by the conventions of nccl-tests.
 *
 * usage: PROGRAM OPERATION BYTES:UNTIMED:TIMED...       (numbers of calls)
 *        PROGRAM waiting MILLISECONDS:CALLS...          (see waiting.h)
 *
 * A size is verified once, warmed up and then timed: a barrier, then so many calls; the time of a
 * call is the mean over the calls and over the ranks. Rank 0 prints "BYTES MICROSECONDS WRONG" for
 * each size, where WRONG counts the wrong elements of all ranks. The elements are floats, BYTES is
 * the larger of a rank's two buffers, and every call works on the same buffers.
 *
 * Which library that is, library.h decides; MPI starts the ranks and tells them their numbers,
 * whichever it is.
 */
#include "library.h"
#include "waiting.h"

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks are whole multiples of 16 bytes, as in nccl-tests. */
enum { BLOCK_ELEMENTS = 4 };

/* Inputs repeat after so many elements; it is prime so that shifted blocks are noticed. */
enum { PERIOD = 251 };

/* What is measured. */
struct collective {
    const char *name;
    int divided; /* whether the larger buffer holds a block for every rank */
    void (*call)(struct buffers buffers, int count);
    size_t (*input_elements)(struct group group, int count);
    size_t (*output_elements)(struct group group, int count);
    float (*expected)(struct group group, int count, size_t index);
};

/* The input of `rank`: small whole numbers, whose sums are exact in any order. */
static float input_value(int rank, size_t index)
{
    return (float)((index + 17 * (size_t)rank) % PERIOD);
}

static float sum_of_inputs(struct group group, size_t index)
{
    float sum = 0;
    for (int rank = 0; rank < group.ranks; rank++)
        sum += input_value(rank, index);
    return sum;
}

static size_t one_block(struct group group, int count)
{
    (void)group;
    return (size_t)count;
}

static size_t all_blocks(struct group group, int count)
{
    return (size_t)group.ranks * (size_t)count;
}

static float all_reduce_expected(struct group group, int count, size_t index)
{
    (void)count;
    return sum_of_inputs(group, index);
}

static float all_gather_expected(struct group group, int count, size_t index)
{
    (void)group;
    return input_value((int)(index / (size_t)count), index % (size_t)count);
}

static float reduce_scatter_expected(struct group group, int count, size_t index)
{
    return sum_of_inputs(group, (size_t)group.rank * (size_t)count + index);
}

static float broadcast_expected(struct group group, int count, size_t index)
{
    (void)group;
    (void)count;
    return input_value(0, index);
}

static float all_to_all_expected(struct group group, int count, size_t index)
{
    size_t block = (size_t)count;
    return input_value((int)(index / block), (size_t)group.rank * block + index % block);
}

static const struct collective COLLECTIVES[] = {
    {"all_reduce", 0, all_reduce, one_block, one_block, all_reduce_expected},
    {"all_gather", 1, all_gather, one_block, all_blocks, all_gather_expected},
    {"reduce_scatter", 1, reduce_scatter, all_blocks, one_block, reduce_scatter_expected},
    {"broadcast", 0, broadcast, one_block, one_block, broadcast_expected},
    {"alltoall", 1, all_to_all, all_blocks, all_blocks, all_to_all_expected},
};

static void fail(const char *message)
{
    fprintf(stderr, "collective_perf: %s\n", message);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static const struct collective *find_collective(const char *name)
{
    for (size_t index = 0; index < sizeof COLLECTIVES / sizeof *COLLECTIVES; index++)
        if (strcmp(COLLECTIVES[index].name, name) == 0)
            return &COLLECTIVES[index];
    fail("unknown operation");
    return NULL;
}

/* The count for a size, as nccl-tests divides it. */
static int count_of(const struct collective *collective, struct group group, size_t bytes)
{
    size_t elements = bytes / sizeof(float);
    if (collective->divided)
        elements = elements / (size_t)group.ranks / BLOCK_ELEMENTS * BLOCK_ELEMENTS;
    return (int)elements;
}

static struct buffers new_buffers(const struct collective *collective, struct group group,
                                  int count)
{
    size_t input_bytes = collective->input_elements(group, count) * sizeof(float);
    size_t output_bytes = collective->output_elements(group, count) * sizeof(float);
    struct buffers buffers;
    if (posix_memalign((void **)&buffers.input, 4096, input_bytes + 1) != 0 ||
        posix_memalign((void **)&buffers.output, 4096, output_bytes + 1) != 0)
        fail("out of memory");
    for (size_t index = 0; index < collective->input_elements(group, count); index++)
        buffers.input[index] = input_value(group.rank, index);
    for (size_t index = 0; index < collective->output_elements(group, count); index++)
        buffers.output[index] = -1;
    if (collective->call == broadcast && group.rank == 0)
        memcpy(buffers.output, buffers.input, output_bytes);
    return buffers;
}

/* Runs the collective once; returns the wrong elements of all ranks. */
static uint64_t verify(const struct collective *collective, struct group group,
                       struct buffers buffers, int count)
{
    uint64_t wrong = 0;
    uint64_t total = 0;
    collective->call(buffers, count);
    for (size_t index = 0; index < collective->output_elements(group, count); index++)
        wrong += buffers.output[index] != collective->expected(group, count, index);
    MPI_Allreduce(&wrong, &total, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return total;
}

/* Microseconds of a call, the mean over `iterations` calls and all ranks. */
static double timed(const struct collective *collective, struct group group,
                    struct buffers buffers, int count, int iterations)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int turn = 0; turn < iterations; turn++)
        collective->call(buffers, count);
    double own = (MPI_Wtime() - start) / iterations;
    MPI_Barrier(MPI_COMM_WORLD);
    double sum = 0;
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum / group.ranks * 1e6;
}

static void measure(const struct collective *collective, struct group group, const char *size)
{
    size_t bytes = 0;
    int warm_up = 0, iterations = 0;
    if (sscanf(size, "%zu:%d:%d", &bytes, &warm_up, &iterations) != 3 || iterations < 1)
        fail("a size is BYTES:UNTIMED:TIMED");
    int count = count_of(collective, group, bytes);
    struct buffers buffers = new_buffers(collective, group, count);
    uint64_t wrong = verify(collective, group, buffers, count);
    for (int turn = 0; turn < warm_up; turn++)
        collective->call(buffers, count);
    double microseconds = timed(collective, group, buffers, count, iterations);
    if (group.rank == 0) {
        printf("%zu %.3f %" PRIu64 "\n", bytes, microseconds, wrong);
        fflush(stdout);
    }
    free(buffers.input);
    free(buffers.output);
}

static void wait_for_each(struct group group, char **cases, int count)
{
    for (int index = 0; index < count; index++) {
        int milliseconds = 0, calls = 0;
        if (sscanf(cases[index], "%d:%d", &milliseconds, &calls) != 2 || calls < 1)
            fail("a case is MILLISECONDS:CALLS");
        waiting(group, milliseconds, calls);
    }
}

int main(int argument_count, char **arguments)
{
    struct group group = library_begin();
    if (argument_count > 2 && strcmp(arguments[1], "waiting") == 0) {
        wait_for_each(group, arguments + 2, argument_count - 2);
        library_end();
        return 0;
    }
    if (argument_count < 3)
        fail("usage: PROGRAM OPERATION BYTES:UNTIMED:TIMED...");
    const struct collective *collective = find_collective(arguments[1]);
    for (int index = 2; index < argument_count; index++)
        measure(collective, group, arguments[index]);
    library_end();
    return 0;
}
