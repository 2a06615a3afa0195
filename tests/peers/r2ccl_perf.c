/* The collectives of this library as a C program calls them, for collective_perf.c. */
#include "library.h"

#include <mpi.h>
#include <r2ccl/ccl.h>
#include <stdio.h>
#include <stdlib.h>

static ccl_comm_t comm;

static void check(ccl_result_t result)
{
    if (result == CCL_SUCCESS)
        return;
    fprintf(stderr, "%s\n", ccl_get_last_error(comm));
    MPI_Abort(MPI_COMM_WORLD, 2);
}

struct group library_begin(void)
{
    struct group group;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &group.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &group.ranks);
    ccl_unique_id_t id;
    if (group.rank == 0)
        check(ccl_get_unique_id(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    check(ccl_comm_init_rank(&comm, group.ranks, id, group.rank));
    return group;
}

void library_end(void)
{
    check(ccl_comm_destroy(comm));
    MPI_Finalize();
}

void all_reduce(struct buffers buffers, int count)
{
    check(ccl_allreduce(buffers.input, buffers.output, (size_t)count, CCL_FLOAT32, CCL_SUM, comm));
}

void all_gather(struct buffers buffers, int count)
{
    check(ccl_allgather(buffers.input, buffers.output, (size_t)count, CCL_FLOAT32, comm));
}

void reduce_scatter(struct buffers buffers, int count)
{
    check(ccl_reducescatter(buffers.input, buffers.output, (size_t)count, CCL_FLOAT32, CCL_SUM,
                            comm));
}

void all_to_all(struct buffers buffers, int count)
{
    check(ccl_alltoall(buffers.input, buffers.output, (size_t)count, CCL_FLOAT32, comm));
}

void broadcast(struct buffers buffers, int count)
{
    check(ccl_broadcast(buffers.output, buffers.output, (size_t)count, CCL_FLOAT32, 0, comm));
}
