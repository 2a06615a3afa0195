/* The collectives of MPI, for collective_perf.c. */
#include "library.h"

#include <mpi.h>
#include <stddef.h>

struct group library_begin(void)
{
    struct group group;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &group.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &group.ranks);
    return group;
}

void library_end(void)
{
    MPI_Finalize();
}

void all_reduce(struct buffers buffers, int count)
{
    MPI_Allreduce(buffers.input, buffers.output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void all_gather(struct buffers buffers, int count)
{
    MPI_Allgather(buffers.input, count, MPI_FLOAT, buffers.output, count, MPI_FLOAT,
                  MPI_COMM_WORLD);
}

void reduce_scatter(struct buffers buffers, int count)
{
    MPI_Reduce_scatter_block(buffers.input, buffers.output, count, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
}

void all_to_all(struct buffers buffers, int count)
{
    MPI_Alltoall(buffers.input, count, MPI_FLOAT, buffers.output, count, MPI_FLOAT,
                 MPI_COMM_WORLD);
}

void broadcast(struct buffers buffers, int count)
{
    MPI_Bcast(buffers.output, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
