/*
 * Calls the functions of ccl.h for memory of CUDA devices, right and wrong.
 *
 *   cuda 3            with 2 or 3 ranks, each a process with a device of its own, if there are so many
 *   cuda no-driver    expects that there is no driver of CUDA
 *   cuda no-feature   expects a library that is built without the feature
 *
 * Build: cc -std=c11 -Iinclude examples/cuda.c -lr2ccl -ldl -o cuda
 */
#define _DEFAULT_SOURCE

#include "cuda_values.h"

/* A call that is refused, for that reason. */
#define REFUSED(reason, call)                                                                     \
    do {                                                                                          \
        EXPECT(CCL_INVALID_ARGUMENT, call);                                                       \
        REQUIRE(strstr(ccl_get_last_error(comm), reason) != NULL);                                \
    } while (0)

/* ---- Collectives ---------------------------------------------------------------------------- */

#define I32(count) (size_t)(count), CCL_INT32

static void symmetric(int count)
{
    fill(one, count, rank);
    wipe(many, ALL);
    CHECK(ccl_cuda_allreduce(one, many, I32(count), CCL_SUM, comm, stream));
    REQUIRE(holds_sum(many, count, 0) && holds_value(one, count, rank, 0) && ends(many, count));
    CHECK(ccl_cuda_allreduce(one, one, I32(count), CCL_SUM, comm, stream));
    REQUIRE(holds_sum(one, count, 0));

    fill(one, count, rank);
    wipe(many, ALL);
    CHECK(ccl_cuda_allgather(one, many, I32(count), comm, stream));
    for (int i = 0; i < ranks; i++)
        REQUIRE(holds_value(at(many, i * count), count, i, 0));
    wipe(many, ALL);
    fill(at(many, rank * count), count, rank);
    CHECK(ccl_cuda_allgather(at(many, rank * count), many, I32(count), comm, stream));
    for (int i = 0; i < ranks; i++)
        REQUIRE(holds_value(at(many, i * count), count, i, 0));

    fill(many, ranks * count, rank);
    wipe(one, COUNT);
    CHECK(ccl_cuda_reducescatter(many, one, I32(count), CCL_SUM, comm, stream));
    REQUIRE(holds_sum(one, count, rank * count));
    void *own = at(many, rank * count);
    CHECK(ccl_cuda_reducescatter(many, own, I32(count), CCL_SUM, comm, stream));
    REQUIRE(holds_sum(own, count, rank * count));

    fill(many, ranks * count, rank);
    wipe(more, ALL);
    CHECK(ccl_cuda_alltoall(many, more, I32(count), comm, stream));
    CHECK(ccl_cuda_alltoall(many, many, I32(count), comm, stream));
    for (int i = 0; i < ranks; i++) {
        REQUIRE(holds_value(at(more, i * count), count, i, rank * count));
        REQUIRE(holds_value(at(many, i * count), count, i, rank * count));
    }
}

static void rooted(int count, int root)
{
    int is_root = rank == root;

    fill(one, count, rank);
    wipe(other, COUNT);
    CHECK(ccl_cuda_broadcast(is_root ? one : NULL, other, I32(count), root, comm, stream));
    REQUIRE(holds_value(other, count, root, 0));
    CHECK(ccl_cuda_broadcast(one, one, I32(count), root, comm, stream));
    REQUIRE(holds_value(one, count, root, 0));

    fill(one, count, rank);
    wipe(other, COUNT);
    CHECK(ccl_cuda_reduce(one, is_root ? other : NULL, I32(count), CCL_SUM, root, comm, stream));
    REQUIRE(!is_root || holds_sum(other, count, 0));
    CHECK(ccl_cuda_reduce(one, one, I32(count), CCL_SUM, root, comm, stream));
    REQUIRE(is_root ? holds_sum(one, count, 0) : holds_value(one, count, rank, 0));

    fill(one, count, rank);
    wipe(many, ALL);
    CHECK(ccl_cuda_gather(one, is_root ? many : NULL, I32(count), root, comm, stream));
    for (int i = 0; is_root && i < ranks; i++)
        REQUIRE(holds_value(at(many, i * count), count, i, 0));
    wipe(many, ALL);
    fill(at(many, rank * count), count, rank);
    CHECK(ccl_cuda_gather(at(many, rank * count), many, I32(count), root, comm, stream));
    for (int i = 0; is_root && i < ranks; i++)
        REQUIRE(holds_value(at(many, i * count), count, i, 0));

    fill(many, ranks * count, root);
    wipe(one, COUNT);
    CHECK(ccl_cuda_scatter(is_root ? many : NULL, one, I32(count), root, comm, stream));
    REQUIRE(holds_value(one, count, root, rank * count));
    void *own = at(many, rank * count);
    CHECK(ccl_cuda_scatter(many, own, I32(count), root, comm, stream));
    REQUIRE(holds_value(own, count, root, rank * count));
}

/* Rank i sends 200 * (i + j) elements to rank j, from scattered places, in reverse order. */
static void ragged(void)
{
    size_t counts[MOST_PROCESSES], from[MOST_PROCESSES], to[MOST_PROCESSES];
    for (int i = 0; i < ranks; i++) {
        counts[i] = (size_t)(200 * (rank + i));
        from[i] = (size_t)(i * COUNT + 3);
        to[i] = (size_t)((ranks - 1 - i) * COUNT + 5);
    }
    fill(many, ranks * COUNT, rank);
    wipe(more, ALL);
    CHECK(ccl_cuda_alltoallv(many, counts, from, more, counts, to, CCL_INT32, comm, stream));
    for (int i = 0; i < ranks; i++) {
        void *block = at(more, (int)to[i]);
        REQUIRE(holds_value(block, (int)counts[i], i, rank * COUNT + 3));
        REQUIRE(ends(block, (int)counts[i]));
    }
}

/* Other types, an operation of the user, bytes at an odd address. */
static void types(void)
{
    double contribution = 3.0, average = 0.0, scale = rank + 1.0, scaled = 0.0;
    ccl_redop_t premulsum;
    CHECK(ccl_redop_create_premulsum(&premulsum, &scale, CCL_FLOAT64, comm));
    copy(one, &contribution, sizeof contribution, stream);
    CHECK(ccl_cuda_allreduce(one, other, 1, CCL_FLOAT64, CCL_AVG, comm, stream));
    copy(&average, other, sizeof average, stream);
    CHECK(ccl_cuda_allreduce(one, other, 1, CCL_FLOAT64, premulsum, comm, stream));
    copy(&scaled, other, sizeof scaled, stream);
    CUDA(cuStreamSynchronize(stream));
    REQUIRE(average == 3.0 && scaled == 3.0 * ranks * (ranks + 1) / 2);
    CHECK(ccl_redop_destroy(premulsum, comm));

    unsigned char bytes[7] = {1, 2, 3, 4, 5, 6, 7}, sums[7];
    unsigned char *odd = (unsigned char *)one + 1;
    copy(odd, bytes, sizeof bytes, stream);
    CHECK(ccl_cuda_allreduce(odd, odd, sizeof bytes, CCL_UINT8, CCL_SUM, comm, stream));
    copy(sums, odd, sizeof sums, stream);
    CUDA(cuStreamSynchronize(stream));
    for (int i = 0; i < 7; i++)
        REQUIRE(sums[i] == ranks * bytes[i]);
}

/* A count of 0 needs no memory. */
static void nothing(void)
{
    size_t zeros[MOST_PROCESSES] = {0};
    CHECK(ccl_cuda_allreduce(NULL, NULL, 0, CCL_FLOAT64, CCL_PROD, comm, stream));
    CHECK(ccl_cuda_broadcast(NULL, NULL, 0, CCL_UINT8, 0, comm, stream));
    CHECK(ccl_cuda_alltoallv(NULL, zeros, zeros, NULL, zeros, zeros, CCL_INT8, comm, stream));
    CHECK(ccl_cuda_barrier(comm, stream));
    CUDA(cuStreamSynchronize(stream));
}

/* ---- Order ---------------------------------------------------------------------------------- */

/* What the stream does before a call is its input, and what it does later finds the result; calls on memory
 * of the host come in their turn. */
static void order(void)
{
    volatile uint32_t *word = new_barrier();
    volatile uint32_t *late = new_barrier();
    int32_t turn = 1, result = 0;
    hold(stream, word);
    copy(one, (const void *)(uintptr_t)late, sizeof *late, stream);
    CHECK(ccl_cuda_allreduce(one, other, I32(1), CCL_SUM, comm, stream));
    copy(more, other, sizeof result, stream);
    REQUIRE(driver.cuStreamQuery(stream) == CUDA_NOT_READY);
    *late = (uint32_t)rank + 1;
    *word = 1;
    CHECK(ccl_allreduce(&turn, &turn, I32(1), CCL_SUM, comm));
    REQUIRE(turn == ranks);
    copy(&result, more, sizeof result, stream);
    CUDA(cuStreamSynchronize(stream));
    REQUIRE(result == ranks * (ranks + 1) / 2);
}

static void *elsewhere(void *thread_stream)
{
    EXPECT(CCL_UNHANDLED_CUDA_ERROR, ccl_cuda_barrier(comm, NULL));
    CHECK(ccl_cuda_barrier(comm, thread_stream));
    REQUIRE(current_context() == NULL);
    return NULL;
}

/* The context that is current in a thread stays current, whichever it is. */
static void contexts(int device)
{
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, elsewhere, stream) == 0);
    REQUIRE(pthread_join(thread, NULL) == 0);

    int another = (device + 1) % devices;
    use_device(another);
    void *context = current_context();
    fill(one, COUNT, rank);
    CHECK(ccl_cuda_allreduce(one, one, I32(COUNT), CCL_SUM, comm, stream));
    REQUIRE(current_context() == context);
    REQUIRE(holds_sum(one, COUNT, 0));
    if (another != device)
        REFUSED("the stream is of device",
                ccl_cuda_allreduce(one, one, I32(COUNT), CCL_SUM, comm, NULL));
    use_device(device);
    fill(one, COUNT, rank);
    CHECK(ccl_cuda_allreduce(one, one, I32(COUNT), CCL_SUM, comm, NULL));
    CUDA(cuStreamSynchronize(NULL));
    REQUIRE(holds_sum(one, COUNT, 0));
}

/* ---- Messages and groups -------------------------------------------------------------------- */

static void messages(void)
{
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    fill(one, COUNT, rank);
    wipe(other, COUNT);
    if (rank % 2 == 0) {
        CHECK(ccl_cuda_send(one, I32(COUNT), to, comm, stream));
        CHECK(ccl_cuda_recv(other, I32(COUNT), from, comm, stream));
    } else {
        CHECK(ccl_cuda_recv(other, I32(COUNT), from, comm, stream));
        CHECK(ccl_cuda_send(one, I32(COUNT), to, comm, stream));
    }
    REQUIRE(holds_value(other, COUNT, from, 0));
}

static void groups(void)
{
    void *second = new_stream();
    fill(one, COUNT, rank);
    wipe(many, ALL);
    wipe(other, COUNT);
    CHECK(ccl_group_start());
    for (int peer = 0; peer < ranks; peer++) {
        CHECK(ccl_cuda_send(one, I32(COUNT), peer, comm, stream));
        CHECK(ccl_cuda_recv(at(many, peer * COUNT), I32(COUNT), peer, comm, second));
    }
    CHECK(ccl_cuda_allreduce(one, other, I32(COUNT), CCL_SUM, comm, second));
    CHECK(ccl_group_end());
    CUDA(cuStreamSynchronize(second));
    for (int peer = 0; peer < ranks; peer++)
        REQUIRE(holds_value(at(many, peer * COUNT), COUNT, peer, 0));
    REQUIRE(holds_sum(other, COUNT, 0));

    /* Both sides in one group, and predictions, are refused; a wrong call spoils its group. */
    int32_t data = 1;
    CHECK(ccl_group_start());
    CHECK(ccl_cuda_send(one, I32(1), rank, comm, stream));
    CHECK(ccl_recv(&data, I32(1), rank, comm));
    EXPECT(CCL_INVALID_USAGE, ccl_group_end());
    REQUIRE(strstr(ccl_get_last_error(NULL), "make two groups") != NULL);
    ccl_sim_info_t info = CCL_SIM_INFO_INITIALIZER;
    CHECK(ccl_group_start());
    CHECK(ccl_cuda_barrier(comm, stream));
    EXPECT(CCL_INVALID_USAGE, ccl_group_simulate_end(&info));
    CHECK(ccl_group_start());
    CHECK(ccl_cuda_barrier(comm, stream));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_cuda_send(&data, I32(1), rank, comm, stream));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_group_end());
    CHECK(ccl_barrier(comm));
}

/* ---- Windows -------------------------------------------------------------------------------- */

static ccl_window_t registered(void *memory, size_t size, int flags)
{
    ccl_window_t window;
    CHECK(ccl_cuda_window_register(comm, memory, size, &window, flags, stream));
    REQUIRE(window != NULL);
    return window;
}

/* Calls in memory that all ranks know, those from `symmetric` and `rooted`, and some that end. */
static void windows(void)
{
    const size_t size = ALL * sizeof(int32_t);
    ccl_window_t first = registered(many, size, CCL_WIN_COLL_SYMMETRIC), second;
    ccl_window_t third = registered(other, COUNT * sizeof(int32_t), CCL_WIN_COLL_SYMMETRIC);
    symmetric(COUNT);
    for (int root = 0; root < ranks; root++)
        rooted(COUNT, root);
    CHECK(ccl_cuda_window_deregister(comm, third));
    CHECK(ccl_cuda_window_deregister(comm, first));
    symmetric(COUNT);
    REFUSED("no window", ccl_cuda_window_deregister(comm, first));
    REFUSED("no flags 2", ccl_cuda_window_register(comm, many, size, &second, 2, stream));
    REFUSED("window is NULL", ccl_cuda_window_register(comm, many, size, NULL, 0, stream));
    REFUSED("no bytes", ccl_cuda_window_register(comm, many, 0, &second, 0, stream));
    REFUSED("buffer (of 8 bytes) is NULL",
            ccl_cuda_window_register(comm, NULL, 8, &second, 0, stream));
    REFUSED("a window has",
            ccl_cuda_window_register(comm, many, (size_t)rank + 1, &second,
                                     CCL_WIN_COLL_SYMMETRIC, stream));
    REQUIRE(second == NULL);
    /* What is still registered ends with the communicator. */
    CHECK(ccl_group_start());
    registered(more, size, CCL_WIN_DEFAULT);
    CHECK(ccl_group_end());
}

/* ---- Refusals ------------------------------------------------------------------------------- */

/* A right call that is refused, for that reason. */
#define ENDS(call)                                                                                \
    do {                                                                                          \
        EXPECT(expected, call);                                                                   \
        REQUIRE(strstr(ccl_get_last_error(comm), reason) != NULL);                                \
    } while (0)

/* Every function, by itself and in a group, is refused for that reason. */
static void every_function_ends(ccl_result_t expected, const char *reason)
{
    size_t counts[MOST_PROCESSES] = {1, 1, 1}, starts[MOST_PROCESSES] = {0, 1, 2};
    int peer = (rank + 1) % ranks;
    ENDS(ccl_cuda_allreduce(one, one, I32(1), CCL_SUM, comm, stream));
    ENDS(ccl_cuda_allgather(one, many, I32(1), comm, stream));
    ENDS(ccl_cuda_reducescatter(many, one, I32(1), CCL_SUM, comm, stream));
    ENDS(ccl_cuda_broadcast(one, one, I32(1), 0, comm, stream));
    ENDS(ccl_cuda_reduce(one, other, I32(1), CCL_SUM, 0, comm, stream));
    ENDS(ccl_cuda_alltoall(many, more, I32(1), comm, stream));
    ENDS(ccl_cuda_alltoallv(many, counts, starts, more, counts, starts, CCL_INT32, comm, stream));
    ENDS(ccl_cuda_gather(one, many, I32(1), 0, comm, stream));
    ENDS(ccl_cuda_scatter(many, one, I32(1), 0, comm, stream));
    ENDS(ccl_cuda_barrier(comm, stream));
    ENDS(ccl_cuda_send(one, I32(1), peer, comm, stream));
    ENDS(ccl_cuda_recv(other, I32(1), peer, comm, stream));
    ccl_window_t window;
    ENDS(ccl_cuda_window_register(comm, one, sizeof(int32_t), &window, CCL_WIN_DEFAULT, stream));
    REQUIRE(window == NULL);
    CHECK(ccl_group_start());
    EXPECT(expected, ccl_cuda_send(one, I32(1), peer, comm, stream));
    EXPECT(expected, ccl_cuda_recv(other, I32(1), peer, comm, stream));
    ENDS(ccl_group_end());
    ccl_result_t state;
    CHECK(ccl_comm_get_async_error(comm, &state));
    REQUIRE(state == CCL_SUCCESS);
}

static void wrong(int device)
{
    int32_t data[4] = {0};
    size_t counts[MOST_PROCESSES] = {COUNT, COUNT, COUNT}, starts[MOST_PROCESSES] = {0};
    size_t fewer[MOST_PROCESSES] = {1, 1, 1};
    volatile uint32_t *pinned = new_barrier();
    void *graph;
    int another = (device + 1) % devices;
    use_device(another);
    void *there = device_memory(64), *stream_there = new_stream();
    use_device(device);

    REFUSED("not known to the driver", ccl_cuda_allreduce(data, one, I32(4), CCL_SUM, comm, stream));
    REFUSED("not known to the driver", ccl_cuda_recv(data, I32(4), 0, comm, stream));
    REFUSED("pinned memory of the host",
            ccl_cuda_send((const void *)(uintptr_t)pinned, I32(1), 0, comm, stream));
    if (another != device) {
        REFUSED("memory of device", ccl_cuda_broadcast(there, there, I32(4), rank, comm, stream));
        REFUSED("the stream is of device", ccl_cuda_barrier(comm, stream_there));
    }
    REFUSED("is NULL", ccl_cuda_allgather(NULL, many, I32(1), comm, stream));
    REFUSED("overlap", ccl_cuda_allreduce(one, at(one, 1), I32(4), CCL_SUM, comm, stream));
    REFUSED("ccl_datatype_t",
            ccl_cuda_allreduce(one, one, 1, CCL_NUM_DATATYPES, CCL_SUM, comm, stream));
    REFUSED("root", ccl_cuda_gather(one, many, I32(1), ranks, comm, stream));
    REFUSED("address space", ccl_cuda_alltoall(many, more, SIZE_MAX, CCL_INT64, comm, stream));
    REFUSED("to itself", ccl_cuda_alltoallv(many, counts, starts, more, fewer, starts, CCL_INT32, comm,
                                            stream));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_cuda_barrier(NULL, stream));

    CUDA(cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED));
    every_function_ends(CCL_INVALID_USAGE, "captured into a graph");
    CUDA(cuStreamEndCapture(stream, &graph));

    /* Nothing has happened. */
    fill(one, COUNT, rank);
    CHECK(ccl_cuda_allreduce(one, one, I32(COUNT), CCL_SUM, comm, stream));
    REQUIRE(holds_sum(one, COUNT, 0));
    ccl_result_t state;
    CHECK(ccl_comm_get_async_error(comm, &state));
    REQUIRE(state == CCL_SUCCESS);
}

/* ---- The program ---------------------------------------------------------------------------- */

static void one_rank(int own, int all, ccl_unique_id_t id)
{
    const int counts[] = {0, 1, 3, COUNT};
    rank = own;
    ranks = all;
    REQUIRE(load_driver());
    devices = count_devices();
    int device = rank % devices;
    use_device(device);
    stream = new_stream();
    one = device_memory((COUNT + 1) * sizeof(int32_t));
    other = device_memory((COUNT + 1) * sizeof(int32_t));
    many = device_memory(ALL * sizeof(int32_t));
    more = device_memory(ALL * sizeof(int32_t));
    CHECK(ccl_comm_init_rank(&comm, ranks, id, rank));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        symmetric(counts[i]);
        for (int root = 0; root < ranks; root++)
            rooted(counts[i], root);
    }
    ragged();
    types();
    nothing();
    order();
    contexts(device);
    messages();
    groups();
    windows();
    wrong(device);
    CHECK(ccl_comm_destroy(comm));
}

/* What every function says where there is nothing. */
static void missing(ccl_result_t expected, const char *reason)
{
    static int32_t memory[4];
    ccl_unique_id_t id;
    CHECK(ccl_get_unique_id(&id));
    CHECK(ccl_comm_init_rank(&comm, 1, id, 0));
    ranks = 1;
    one = memory;
    other = memory + 1;
    many = memory + 2;
    more = memory + 3;
    every_function_ends(expected, reason);
    ENDS(ccl_cuda_window_deregister(comm, NULL));
    CHECK(ccl_barrier(comm));
    CHECK(ccl_comm_destroy(comm));
    printf("cuda: %s, and it is said so\n", reason);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "2";
    if (strcmp(what, "no-driver") == 0) {
        missing(CCL_UNHANDLED_CUDA_ERROR, "no CUDA driver");
        return EXIT_SUCCESS;
    }
    if (strcmp(what, "no-feature") == 0) {
        missing(CCL_INVALID_USAGE, "built without CUDA");
        return EXIT_SUCCESS;
    }
    run_processes(atoi(what), one_rank);
    printf("cuda: %s ranks, every call as described\n", what);
    return EXIT_SUCCESS;
}
