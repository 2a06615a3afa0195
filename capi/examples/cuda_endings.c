/*
 * Communicators with calls on streams of CUDA devices that end: in time, early, or never by themselves.
 *
 *   cuda_endings 2    with 2 or 3 ranks, each a process
 *
 * Build: cc -std=c11 -Iinclude examples/cuda_endings.c -lr2ccl -ldl -lpthread -o cuda_endings
 */
#define _DEFAULT_SOURCE

#include <sched.h>

#include "cuda_check.h"

enum { COUNT = 1003 };

static void *stream, *memory;

static int32_t read_first(void)
{
    int32_t first;
    copy(&first, memory, sizeof first, stream);
    CUDA(cuStreamSynchronize(stream));
    return first;
}

static void write_all(int32_t value)
{
    int32_t data[COUNT];
    for (int i = 0; i < COUNT; i++)
        data[i] = value;
    copy(memory, data, sizeof data, stream);
    CUDA(cuStreamSynchronize(stream));
}

static ccl_result_t sum(ccl_comm_t comm)
{
    return ccl_cuda_allreduce(memory, memory, COUNT, CCL_INT32, CCL_SUM, comm, stream);
}

static ccl_comm_t alone(int timeout_ms)
{
    ccl_comm_t comm;
    ccl_unique_id_t id;
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.timeout_ms = timeout_ms;
    CHECK(ccl_get_unique_id(&id));
    CHECK(ccl_comm_init_rank_config(&comm, 1, id, 0, &config));
    return comm;
}

static ccl_result_t state_of(ccl_comm_t comm)
{
    ccl_result_t state;
    CHECK(ccl_comm_get_async_error(comm, &state));
    return state;
}

/* ---- Ranks that are processes --------------------------------------------------------------- */

/* A part of the communicator, because it ends. */
static ccl_comm_t part(ccl_comm_t all)
{
    ccl_comm_t comm;
    CHECK(ccl_comm_split(all, 0, 0, &comm, NULL));
    return comm;
}

/* Calls that are under way are finished first. */
static void destroyed(ccl_comm_t all, int ranks)
{
    ccl_comm_t comm = part(all);
    write_all(1);
    CHECK(sum(comm));
    CHECK(sum(comm));
    CHECK(ccl_comm_destroy(comm));
    REQUIRE(read_first() == ranks * ranks);
    EXPECT(CCL_INVALID_ARGUMENT, sum(comm));

    comm = part(all);
    CHECK(sum(comm));
    CHECK(ccl_comm_finalize(comm));
    EXPECT(CCL_INVALID_USAGE, sum(comm));
    REQUIRE(read_first() == ranks * ranks * ranks);
    CHECK(ccl_comm_destroy(comm));
}

/* Rank 0 begins what the others never join, and aborts. */
static void aborted(ccl_comm_t all, int rank)
{
    ccl_comm_t comm = part(all);
    if (rank == 0) {
        CHECK(sum(comm));
        REQUIRE(driver.cuStreamQuery(stream) == CUDA_NOT_READY);
        CHECK(ccl_comm_abort(comm));
        CUDA(cuStreamSynchronize(stream));
        EXPECT(CCL_INVALID_ARGUMENT, sum(comm));
        return;
    }
    while (state_of(comm) == CCL_SUCCESS)
        sched_yield();
    EXPECT(CCL_REMOTE_ERROR, sum(comm));
    REQUIRE(strstr(ccl_get_last_error(comm), "aborted by rank 0") != NULL);
    CHECK(ccl_comm_abort(comm));
}

/* The call has returned when it fails, unless another rank's has failed before: it is told later, and the
 * stream goes on. */
static void disagreement(ccl_comm_t all, int rank)
{
    ccl_comm_t comm = part(all);
    size_t count = rank == 0 ? COUNT : COUNT - 1;
    ccl_result_t called =
        ccl_cuda_allreduce(memory, memory, count, CCL_INT32, CCL_SUM, comm, stream);
    REQUIRE(called == CCL_SUCCESS || called == CCL_INVALID_USAGE);
    CUDA(cuStreamSynchronize(stream));
    while (state_of(comm) == CCL_SUCCESS)
        sched_yield();
    REQUIRE(state_of(comm) == CCL_INVALID_USAGE);
    REQUIRE(strstr(ccl_get_last_error(comm), "disagree") != NULL);
    EXPECT(CCL_INVALID_USAGE, sum(comm));
    CHECK(ccl_comm_abort(comm));
}

/* What a call comes to that may go on when it has returned. */
static void in_the_background(ccl_comm_t comm, ccl_result_t result)
{
    REQUIRE(result == CCL_SUCCESS || result == CCL_IN_PROGRESS);
    while (state_of(comm) == CCL_IN_PROGRESS)
        sched_yield();
    REQUIRE(state_of(comm) == CCL_SUCCESS);
}

/* With blocking = 0, too. */
static void without_blocking(ccl_comm_t all, int ranks)
{
    ccl_comm_t comm;
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK(ccl_comm_split(all, 0, 0, &comm, &config));
    while (state_of(comm) == CCL_IN_PROGRESS)
        sched_yield();
    ccl_window_t window;
    in_the_background(comm, ccl_cuda_window_register(comm, memory, sizeof(int32_t), &window,
                                                     CCL_WIN_COLL_SYMMETRIC, stream));
    in_the_background(comm, ccl_cuda_window_deregister(comm, window));
    write_all(1);
    CHECK(sum(comm));
    REQUIRE(state_of(comm) == CCL_SUCCESS);
    ccl_result_t finalized = ccl_comm_finalize(comm);
    REQUIRE(finalized == CCL_SUCCESS || finalized == CCL_IN_PROGRESS);
    while (state_of(comm) == CCL_IN_PROGRESS)
        sched_yield();
    REQUIRE(state_of(comm) == CCL_SUCCESS && read_first() == ranks);
    CHECK(ccl_comm_destroy(comm));
}

/* ---- A rank alone, whose stream does not come to the call ----------------------------------- */

static void aborted_before_the_stream(void)
{
    ccl_comm_t comm = alone(60000);
    volatile uint32_t *word = new_barrier();
    hold(stream, word);
    CHECK(sum(comm));
    CHECK(ccl_comm_abort(comm));
    REQUIRE(driver.cuStreamQuery(stream) == CUDA_NOT_READY);
    *word = 1;
    CUDA(cuStreamSynchronize(stream));
}

static void finalized_before_the_stream(int is_destroyed_only)
{
    ccl_comm_t comm = alone(200);
    volatile uint32_t *word = new_barrier();
    hold(stream, word);
    CHECK(sum(comm));
    if (!is_destroyed_only) {
        EXPECT(CCL_TIMEOUT, ccl_comm_finalize(comm));
        REQUIRE(strstr(ccl_get_last_error(comm), "has not come to it") != NULL);
        REQUIRE(state_of(comm) == CCL_TIMEOUT);
    }
    EXPECT(is_destroyed_only ? CCL_TIMEOUT : CCL_SUCCESS, ccl_comm_destroy(comm));
    REQUIRE(driver.cuStreamQuery(stream) == CUDA_NOT_READY);
    *word = 1;
    CUDA(cuStreamSynchronize(stream));
}

/* ---- Memory that is pinned ------------------------------------------------------------------ */

static long resident_bytes(void)
{
    long pages, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    REQUIRE(file != NULL && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

/* Many communicators come and go, and what each of them pins goes with it. */
static void freed(int is_aborted)
{
    enum { ROUNDS = 8 };
    const char *setting = getenv("R2CCL_CUDA_STAGING_BYTES");
    long pinned = 2 * (setting == NULL ? 8L << 20 : atol(setting)), before = resident_bytes();
    for (int round = 0; round < ROUNDS; round++) {
        ccl_comm_t comm = alone(60000);
        CHECK(sum(comm));
        CHECK(is_aborted ? ccl_comm_abort(comm) : ccl_comm_destroy(comm));
    }
    /* After an abort that happens in the background. */
    while (is_aborted && resident_bytes() - before > ROUNDS / 2 * pinned)
        sched_yield();
    REQUIRE(resident_bytes() - before <= ROUNDS / 2 * pinned);
}

/* ---- One thread with several ranks ---------------------------------------------------------- */

/* The streams of one communicator in a group wait for each other; those of others do not. */
static void one_thread(void)
{
    ccl_comm_t comms[2];
    void *first = new_stream(), *second = new_stream(), *others = new_stream();
    volatile uint32_t *word = new_barrier();
    int32_t three = 3, four = 4, results[2] = {0};
    void *a = device_memory(sizeof three), *b = device_memory(sizeof three);
    void *c = device_memory(sizeof three);
    copy(a, &three, sizeof three, first);
    copy(c, &four, sizeof four, others);
    CUDA(cuStreamSynchronize(first));
    CHECK(ccl_comm_init_all(comms, 2));

    /* What goes on the first stream needs what the second one does before. */
    hold(second, word);
    copy(b, a, sizeof three, second);
    CHECK(ccl_group_start());
    CHECK(ccl_cuda_allreduce(b, b, 1, CCL_INT32, CCL_SUM, comms[0], first));
    CHECK(ccl_cuda_barrier(comms[0], second));
    CHECK(ccl_cuda_allreduce(c, c, 1, CCL_INT32, CCL_SUM, comms[1], others));
    CHECK(ccl_group_end());
    *word = 1;
    /* The barrier of the other rank is missing, and the second stream waits for it on the first. */
    copy(&results[1], c, sizeof three, others);
    CUDA(cuStreamSynchronize(others));
    REQUIRE(results[1] == 7);
    REQUIRE(driver.cuStreamQuery(first) == CUDA_NOT_READY);
    REQUIRE(driver.cuStreamQuery(second) == CUDA_NOT_READY);
    CHECK(ccl_cuda_barrier(comms[1], others));
    copy(&results[0], b, sizeof three, second);
    CUDA(cuStreamSynchronize(second));
    REQUIRE(results[0] == 7);

    /* Windows: the end of a group waits until all its ranks have registered theirs. */
    ccl_window_t windows[2];
    const int flags = CCL_WIN_COLL_SYMMETRIC;
    CHECK(ccl_group_start());
    CHECK(ccl_cuda_window_register(comms[0], a, sizeof three, &windows[0], flags, first));
    CHECK(ccl_cuda_window_register(comms[1], c, sizeof three, &windows[1], flags, others));
    CHECK(ccl_group_end());
    CHECK(ccl_group_start());
    CHECK(ccl_cuda_window_deregister(comms[0], windows[0]));
    CHECK(ccl_cuda_window_deregister(comms[1], windows[1]));
    CHECK(ccl_group_end());

    CHECK(ccl_group_start());
    CHECK(ccl_comm_destroy(comms[0]));
    CHECK(ccl_comm_destroy(comms[1]));
    CHECK(ccl_group_end());
}

/* ---- The program ---------------------------------------------------------------------------- */

static void one_rank(int rank, int ranks, ccl_unique_id_t id)
{
    ccl_comm_t all;
    REQUIRE(load_driver());
    use_device(0);
    stream = new_stream();
    memory = device_memory(COUNT * sizeof(int32_t));
    CHECK(ccl_comm_init_rank(&all, ranks, id, rank));
    destroyed(all, ranks);
    aborted(all, rank);
    disagreement(all, rank);
    without_blocking(all, ranks);
    if (rank == 0) {
        aborted_before_the_stream();
        finalized_before_the_stream(0);
        finalized_before_the_stream(1);
        freed(0);
        freed(1);
        one_thread();
    }
    CHECK(ccl_barrier(all));
    CHECK(ccl_comm_destroy(all));
}

int main(int argc, char **argv)
{
    const char *ranks = argc > 1 ? argv[1] : "2";
    run_processes(atoi(ranks), one_rank);
    printf("cuda_endings: %s ranks, every end as described\n", ranks);
    return EXIT_SUCCESS;
}
