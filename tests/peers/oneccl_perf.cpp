/* The collectives of oneCCL on memory of the host, for collective_perf.c. Every call waits for its
 * event, so that it is as blocking as those of MPI. */
#include "library.h"

#include <memory>
#include <mpi.h>
#include <oneapi/ccl.hpp>

namespace {

std::unique_ptr<ccl::communicator> world;

const auto FLOAT = ccl::datatype::float32;
const auto SUM = ccl::reduction::sum;

} // namespace

group library_begin()
{
    group group;
    int granted;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted); // oneCCL asks for it.
    MPI_Comm_rank(MPI_COMM_WORLD, &group.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &group.ranks);
    ccl::init();
    ccl::kvs::address_type address;
    std::shared_ptr<ccl::kvs> store;
    if (group.rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (group.rank != 0)
        store = ccl::create_kvs(address);
    world = std::make_unique<ccl::communicator>(
        ccl::create_communicator(group.ranks, group.rank, store));
    return group;
}

void library_end()
{
    world.reset();
    MPI_Finalize();
}

void all_reduce(buffers buffers, int count)
{
    ccl::allreduce(buffers.input, buffers.output, count, FLOAT, SUM, *world).wait();
}

void all_gather(buffers buffers, int count)
{
    ccl::allgather(buffers.input, buffers.output, count, FLOAT, *world).wait();
}

void reduce_scatter(buffers buffers, int count)
{
    ccl::reduce_scatter(buffers.input, buffers.output, count, FLOAT, SUM, *world).wait();
}

void all_to_all(buffers buffers, int count)
{
    ccl::alltoall(buffers.input, buffers.output, count, FLOAT, *world).wait();
}

void broadcast(buffers buffers, int count)
{
    ccl::broadcast(buffers.output, count, FLOAT, 0, *world).wait();
}
