/*
 * Calls the functions of ccl.h, right and wrong, with four ranks as threads. What ends communicators
 * early is in endings.c.
 *
 * Build: cc -std=c11 -Iinclude examples/everything.c -lr2ccl -lpthread -o everything
 */
#define _POSIX_C_SOURCE 200809L

#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "check.h"

enum { COUNT = 1000 };

/* ---- Values --------------------------------------------------------------------------------- */

/* What `rank` has at `index` of its input. */
static int32_t value(int rank, int index)
{
    return 1000 * rank + index % 97;
}

static void fill(int32_t *data, int count, int rank)
{
    for (int i = 0; i < count; i++)
        data[i] = value(rank, i);
}

static int32_t sum_at(int index)
{
    int32_t sum = 0;
    for (int rank = 0; rank < RANKS; rank++)
        sum += value(rank, index);
    return sum;
}

/* Whether data[i] is what `rank` has at first + i. */
static int holds_value(const int32_t *data, int rank, int first)
{
    for (int i = 0; i < COUNT; i++)
        if (data[i] != value(rank, first + i))
            return 0;
    return 1;
}

static int holds_sum(const int32_t *data, int first)
{
    for (int i = 0; i < COUNT; i++)
        if (data[i] != sum_at(first + i))
            return 0;
    return 1;
}

/* ---- Collectives, blocking and not ---------------------------------------------------------- */

/* Ends a request by waiting, or by asking again and again. */
static void finish(ccl_request_t *request, int by_test)
{
    if (by_test) {
        int done = 0;
        while (!done) {
            CHECK(ccl_request_test(request, &done));
            sched_yield();
        }
    } else {
        CHECK(ccl_request_wait(request));
    }
    REQUIRE(*request == CCL_REQUEST_NULL);
}

enum form { BLOCKING, TESTED, WAITED, FORMS };

/* Calls ccl_NAME, or ccl_iNAME and finishes the request. */
#define RUN(form, name, ...)                                                                      \
    do {                                                                                          \
        if ((form) == BLOCKING) {                                                                 \
            CHECK(ccl_##name(__VA_ARGS__));                                                       \
        } else {                                                                                  \
            ccl_request_t request_;                                                               \
            CHECK(ccl_i##name(__VA_ARGS__, &request_));                                           \
            finish(&request_, (form) == TESTED);                                                  \
        }                                                                                         \
    } while (0)

static void symmetric(ccl_comm_t comm, int rank, enum form form)
{
    static _Thread_local int32_t one[COUNT], many[RANKS * COUNT], more[RANKS * COUNT];

    fill(one, COUNT, rank);
    RUN(form, allreduce, one, many, COUNT, CCL_INT32, CCL_SUM, comm);
    REQUIRE(holds_sum(many, 0) && holds_value(one, rank, 0));
    RUN(form, allreduce, one, one, COUNT, CCL_INT32, CCL_SUM, comm);
    REQUIRE(holds_sum(one, 0));
    fill(one, COUNT, rank);
    RUN(form, allreduce, one, many, COUNT, CCL_INT32, CCL_MAX, comm);
    REQUIRE(holds_value(many, RANKS - 1, 0));

    RUN(form, allgather, one, many, COUNT, CCL_INT32, comm);
    for (int i = 0; i < RANKS; i++)
        REQUIRE(holds_value(many + i * COUNT, i, 0));
    memset(many, 0, sizeof many);
    fill(many + rank * COUNT, COUNT, rank);
    RUN(form, allgather, many + rank * COUNT, many, COUNT, CCL_INT32, comm);
    for (int i = 0; i < RANKS; i++)
        REQUIRE(holds_value(many + i * COUNT, i, 0));

    fill(many, RANKS * COUNT, rank);
    RUN(form, reducescatter, many, one, COUNT, CCL_INT32, CCL_SUM, comm);
    REQUIRE(holds_sum(one, rank * COUNT));
    RUN(form, reducescatter, many, many + rank * COUNT, COUNT, CCL_INT32, CCL_SUM, comm);
    REQUIRE(holds_sum(many + rank * COUNT, rank * COUNT));

    fill(many, RANKS * COUNT, rank);
    RUN(form, alltoall, many, more, COUNT, CCL_INT32, comm);
    for (int i = 0; i < RANKS; i++)
        REQUIRE(holds_value(more + i * COUNT, i, rank * COUNT));
    RUN(form, alltoall, many, many, COUNT, CCL_INT32, comm);
    REQUIRE(memcmp(many, more, sizeof many) == 0);
}

static void rooted(ccl_comm_t comm, int rank, enum form form)
{
    static _Thread_local int32_t one[COUNT], other[COUNT], many[RANKS * COUNT];
    for (int root = 0; root < RANKS; root++) {
        int is_root = rank == root;

        fill(one, COUNT, rank);
        RUN(form, broadcast, is_root ? one : NULL, other, COUNT, CCL_INT32, root, comm);
        REQUIRE(holds_value(other, root, 0));
        RUN(form, broadcast, one, one, COUNT, CCL_INT32, root, comm);
        REQUIRE(holds_value(one, root, 0));

        fill(one, COUNT, rank);
        RUN(form, reduce, one, is_root ? other : NULL, COUNT, CCL_INT32, CCL_SUM, root, comm);
        REQUIRE(!is_root || holds_sum(other, 0));
        RUN(form, reduce, one, one, COUNT, CCL_INT32, CCL_SUM, root, comm);
        REQUIRE(is_root ? holds_sum(one, 0) : holds_value(one, rank, 0));

        fill(one, COUNT, rank);
        RUN(form, gather, one, is_root ? many : NULL, COUNT, CCL_INT32, root, comm);
        for (int i = 0; is_root && i < RANKS; i++)
            REQUIRE(holds_value(many + i * COUNT, i, 0));
        fill(many + rank * COUNT, COUNT, rank);
        RUN(form, gather, many + rank * COUNT, many, COUNT, CCL_INT32, root, comm);
        for (int i = 0; is_root && i < RANKS; i++)
            REQUIRE(holds_value(many + i * COUNT, i, 0));

        fill(many, RANKS * COUNT, root);
        RUN(form, scatter, is_root ? many : NULL, one, COUNT, CCL_INT32, root, comm);
        REQUIRE(holds_value(one, root, rank * COUNT));
        RUN(form, scatter, many, many + rank * COUNT, COUNT, CCL_INT32, root, comm);
        REQUIRE(holds_value(many + rank * COUNT, root, rank * COUNT));
    }
}

/* Rank i sends 10 * (i + j) elements to rank j, from scattered places, in reverse order. */
static void ragged(ccl_comm_t comm, int rank, enum form form)
{
    static _Thread_local int32_t send[RANKS * COUNT], recv[RANKS * COUNT];
    size_t counts[RANKS], from[RANKS], to[RANKS];
    for (int i = 0; i < RANKS; i++) {
        counts[i] = (size_t)(10 * (rank + i));
        from[i] = (size_t)(i * COUNT + 3);
        to[i] = (size_t)((RANKS - 1 - i) * COUNT + 5);
    }
    fill(send, RANKS * COUNT, rank);
    memset(recv, 0xff, sizeof recv);
    RUN(form, alltoallv, send, counts, from, recv, counts, to, CCL_INT32, comm);
    for (int i = 0; i < RANKS; i++) {
        for (size_t k = 0; k < counts[i]; k++)
            REQUIRE(recv[to[i] + k] == value(i, rank * COUNT + 3 + (int)k));
        REQUIRE(recv[to[i] + counts[i]] == -1);
    }
}

static void point_to_point(ccl_comm_t comm, int rank, enum form form)
{
    static _Thread_local int32_t out[COUNT], in[COUNT];
    int to = (rank + 1) % RANKS, from = (rank + RANKS - 1) % RANKS;
    fill(out, COUNT, rank);
    memset(in, 0, sizeof in);
    if (rank % 2 == 0) {
        RUN(form, send, out, COUNT, CCL_INT32, to, comm);
        RUN(form, recv, in, COUNT, CCL_INT32, from, comm);
    } else {
        RUN(form, recv, in, COUNT, CCL_INT32, from, comm);
        RUN(form, send, out, COUNT, CCL_INT32, to, comm);
    }
    REQUIRE(holds_value(in, from, 0));
    RUN(form, barrier, comm);
}

/* A count of 0 needs no memory. */
static void nothing(ccl_comm_t comm)
{
    size_t zeros[RANKS] = {0};
    CHECK(ccl_allreduce(NULL, NULL, 0, CCL_FLOAT64, CCL_PROD, comm));
    CHECK(ccl_allgather(NULL, NULL, 0, CCL_FLOAT16, comm));
    CHECK(ccl_broadcast(NULL, NULL, 0, CCL_UINT8, 0, comm));
    CHECK(ccl_alltoallv(NULL, zeros, zeros, NULL, zeros, zeros, CCL_INT8, comm));
}

static void requests(ccl_comm_t comm)
{
    static _Thread_local int32_t data[COUNT];
    ccl_request_t first, second, copy;
    int done = 0;
    memset(data, 0, sizeof data);
    CHECK(ccl_iallreduce(data, data, COUNT, CCL_INT32, CCL_SUM, comm, &first));
    CHECK(ccl_ibarrier(comm, &second));
    copy = second;
    CHECK(ccl_request_free(&first));
    REQUIRE(first == CCL_REQUEST_NULL);
    CHECK(ccl_request_wait(&second));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_request_wait(&copy));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_request_test(&copy, &done));
    CHECK(ccl_request_wait(&second));
    CHECK(ccl_request_free(&second));
    CHECK(ccl_request_test(&second, &done));
    REQUIRE(done == 1);
    EXPECT(CCL_INVALID_ARGUMENT, ccl_request_wait(NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_ibarrier(comm, NULL));
}

/* ---- Groups, operations of the user, memory ------------------------------------------------- */

static void groups(ccl_comm_t comm, int rank)
{
    static _Thread_local int32_t out[COUNT], in[RANKS][COUNT], sums[COUNT];
    fill(out, COUNT, rank);

    ccl_sim_info_t info = CCL_SIM_INFO_INITIALIZER;
    CHECK(ccl_group_start());
    CHECK(ccl_allreduce(out, sums, COUNT, CCL_INT32, CCL_SUM, comm));
    CHECK(ccl_send(out, COUNT, CCL_INT32, (rank + 1) % RANKS, comm));
    CHECK(ccl_group_simulate_end(&info));
    REQUIRE(info.estimated_time > 0.0f);
    EXPECT(CCL_INVALID_USAGE, ccl_group_simulate_end(&info));
    info.magic = 0;
    CHECK(ccl_group_start());
    EXPECT(CCL_INVALID_ARGUMENT, ccl_group_simulate_end(&info));
    CHECK(ccl_group_start());
    EXPECT(CCL_INVALID_ARGUMENT, ccl_group_simulate_end(NULL));

    CHECK(ccl_group_start());
    CHECK(ccl_group_start());
    for (int peer = 0; peer < RANKS; peer++) {
        CHECK(ccl_send(out, COUNT, CCL_INT32, peer, comm));
        CHECK(ccl_recv(in[peer], COUNT, CCL_INT32, peer, comm));
    }
    CHECK(ccl_group_end());
    CHECK(ccl_allreduce(out, sums, COUNT, CCL_INT32, CCL_SUM, comm));
    CHECK(ccl_barrier(comm));
    CHECK(ccl_group_end());
    for (int peer = 0; peer < RANKS; peer++)
        REQUIRE(holds_value(in[peer], peer, 0));
    REQUIRE(holds_sum(sums, 0));

    /* A wrong call spoils the group, and nothing of it runs. */
    CHECK(ccl_group_start());
    CHECK(ccl_allreduce(out, sums, COUNT, CCL_INT32, CCL_SUM, comm));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_send(out, COUNT, CCL_INT32, RANKS, comm));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_group_end());

    ccl_request_t request;
    CHECK(ccl_group_start());
    EXPECT(CCL_INVALID_USAGE, ccl_ibarrier(comm, &request));
    REQUIRE(request == CCL_REQUEST_NULL);
    EXPECT(CCL_INVALID_USAGE, ccl_group_end());
    EXPECT(CCL_INVALID_USAGE, ccl_group_end());
}

static void user_operations(ccl_comm_t comm, int rank)
{
    ccl_redop_t scaled, other;
    double scale = rank + 1.0, input = 3.0, output = 0.0;
    CHECK(ccl_redop_create_premulsum(&scaled, &scale, CCL_FLOAT64, comm));
    CHECK(ccl_redop_create_premulsum(&other, &scale, CCL_FLOAT64, comm));
    REQUIRE(scaled >= CCL_NUM_OPS && other != scaled);
    scale = 0.0; /* the library has its own copy */
    CHECK(ccl_allreduce(&input, &output, 1, CCL_FLOAT64, scaled, comm));
    REQUIRE(output == 3.0 * RANKS * (RANKS + 1) / 2);

    EXPECT(CCL_INVALID_ARGUMENT, ccl_allreduce(&input, &output, 1, CCL_INT64, scaled, comm));
    CHECK(ccl_redop_destroy(scaled, comm));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_redop_destroy(scaled, comm));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_redop_destroy(CCL_SUM, comm));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_allreduce(&input, &output, 1, CCL_FLOAT64, scaled, comm));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_redop_create_premulsum(&scaled, NULL, CCL_FLOAT64, comm));
    CHECK(ccl_redop_destroy(other, comm));
}

static void memory(ccl_comm_t comm, int rank)
{
    enum { BYTES = COUNT * (int)sizeof(int32_t) };
    void *block, *registration;
    CHECK(ccl_mem_alloc(&block, BYTES));
    REQUIRE((uintptr_t)block % 4096 == 0);
    int32_t *data = block;
    for (int i = 0; i < COUNT; i++)
        REQUIRE(data[i] == 0);
    fill(data, COUNT, rank);
    CHECK(ccl_comm_register(comm, block, BYTES, &registration));
    CHECK(ccl_allreduce(data, data, COUNT, CCL_INT32, CCL_SUM, comm));
    REQUIRE(holds_sum(data, 0));
    CHECK(ccl_comm_deregister(comm, registration));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_deregister(comm, registration));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_register(comm, NULL, BYTES, &registration));
    CHECK(ccl_mem_free(block));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_mem_free(block));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_mem_alloc(&block, 0));
    EXPECT(CCL_SYSTEM_ERROR, ccl_mem_alloc(&block, SIZE_MAX));
    CHECK(ccl_mem_free(NULL));
}

/* ---- Wrong arguments ------------------------------------------------------------------------ */

static void wrong_arguments(ccl_comm_t comm)
{
    static _Thread_local int32_t a[RANKS * COUNT], b[RANKS * COUNT];
    const ccl_result_t wrong = CCL_INVALID_ARGUMENT;
    const ccl_datatype_t i32 = CCL_INT32;
    size_t counts[RANKS] = {1, 1, 1, 1}, huge[RANKS] = {SIZE_MAX, 0, 0, 0};
    int number;

    EXPECT(wrong, ccl_allreduce(NULL, b, COUNT, i32, CCL_SUM, comm));
    EXPECT(wrong, ccl_allreduce(a, NULL, COUNT, i32, CCL_SUM, comm));
    EXPECT(wrong, ccl_allreduce(a, b, COUNT, CCL_NUM_DATATYPES, CCL_SUM, comm));
    EXPECT(wrong, ccl_allreduce(a, b, COUNT, i32, CCL_NUM_OPS, comm));
    EXPECT(wrong, ccl_allreduce(a, b, COUNT, i32, CCL_MAX_REDOP, comm));
    EXPECT(wrong, ccl_allreduce(a, b, SIZE_MAX, i32, CCL_SUM, comm));
    EXPECT(wrong, ccl_allreduce(a, a + 1, COUNT, i32, CCL_SUM, comm));
    EXPECT(wrong, ccl_allreduce(a, b, COUNT, i32, CCL_SUM, NULL));
    EXPECT(wrong, ccl_allgather(a, b, SIZE_MAX / 8, i32, comm));
    EXPECT(wrong, ccl_broadcast(a, b, COUNT, i32, RANKS, comm));
    EXPECT(wrong, ccl_reduce(a, b, COUNT, i32, CCL_SUM, -1, comm));
    EXPECT(wrong, ccl_gather(a, b, COUNT, i32, RANKS, comm));
    EXPECT(wrong, ccl_scatter(a, b, COUNT, i32, -1, comm));
    EXPECT(wrong, ccl_send(a, COUNT, i32, -1, comm));
    EXPECT(wrong, ccl_recv(NULL, COUNT, i32, 0, comm));
    EXPECT(wrong, ccl_alltoallv(a, NULL, counts, b, counts, counts, i32, comm));
    EXPECT(wrong, ccl_alltoallv(a, counts, huge, b, counts, counts, i32, comm));
    REQUIRE(strstr(ccl_get_last_error(NULL), "ccl_alltoallv: invalid argument") != NULL);
    REQUIRE(strstr(ccl_get_last_error(comm), "ccl_alltoallv: invalid argument") != NULL);
    EXPECT(wrong, ccl_comm_count(comm, NULL));
    EXPECT(wrong, ccl_comm_user_rank(NULL, &number));
    EXPECT(wrong, ccl_comm_split(comm, -2, 0, NULL, NULL));
    EXPECT(wrong, ccl_get_version(NULL));
}

static void wrong_configurations(ccl_unique_id_t id)
{
    ccl_comm_t comm;
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_init_rank(&comm, RANKS, id, RANKS));
    REQUIRE(comm == NULL);
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_init_rank(&comm, -1, id, 0));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_init_rank(NULL, 1, id, 0));
    config.magic = 0;
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_init_rank_config(&comm, 1, id, 0, &config));
    config.magic = CCL_CONFIG_MAGIC;
    config.timeout_ms = 0;
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_init_rank_config(&comm, 1, id, 0, &config));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_init_from_environment(&comm, &config));
    memset(&id, 0x5a, sizeof id);
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_init_rank(&comm, 1, id, 0));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_init_all(NULL, 2));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_init_all(&comm, 0));
}

/* ---- Asking, splitting, ending -------------------------------------------------------------- */

static void questions(ccl_comm_t comm, int rank)
{
    int number = -1;
    CHECK(ccl_comm_count(comm, &number));
    REQUIRE(number == RANKS);
    CHECK(ccl_comm_user_rank(comm, &number));
    REQUIRE(number == rank);
    ccl_result_t state = CCL_INTERNAL_ERROR;
    CHECK(ccl_comm_get_async_error(comm, &state));
    REQUIRE(state == CCL_SUCCESS);

    char text[16];
    size_t needed = 0;
    CHECK(ccl_comm_explain(comm, CCL_ALLREDUCE, COUNT, CCL_FLOAT32, CCL_SUM, 0, NULL, 0, &needed));
    REQUIRE(needed > 1);
    CHECK(ccl_comm_explain(comm, CCL_ALLREDUCE, COUNT, CCL_FLOAT32, CCL_SUM, 0, text,
                           sizeof text, NULL));
    REQUIRE(strlen(text) == (needed <= sizeof text ? needed - 1 : sizeof text - 1));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_explain(comm, (ccl_collective_t)99, COUNT, CCL_FLOAT32,
                                                  CCL_SUM, 0, text, sizeof text, NULL));
}

/* Ranks of one host have rails too, which are well as long as nobody uses them. */
static void health(ccl_comm_t comm)
{
    ccl_rail_health_t rails[64];
    size_t count = 0, capacity = sizeof rails / sizeof rails[0];
    CHECK(ccl_comm_get_health(comm, NULL, 0, 0, &count));
    memset(rails, 0xff, sizeof rails);
    CHECK(ccl_comm_get_health(comm, rails, sizeof rails[0], capacity, NULL));
    for (size_t i = 0; i < count && i < capacity; i++) {
        REQUIRE(rails[i].rank >= 0 && rails[i].rank < RANKS && rails[i].rail >= 0);
        REQUIRE(rails[i].state == CCL_RAIL_UP && rails[i].faults == 0);
        REQUIRE(rails[i].last_fault_ns == CCL_NO_FAULT && rails[i].evidence[0] == 0);
        REQUIRE(i == 0 || rails[i].rank >= rails[i - 1].rank);
    }
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_get_health(comm, NULL, sizeof rails[0], 1, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_get_health(comm, rails, 8, 1, NULL));
}

/* Two halves in reverse order, and one without rank 0. */
static void splits(ccl_comm_t comm, int rank)
{
    ccl_comm_t half, rest;
    int number, sum = 0;
    CHECK(ccl_comm_split(comm, rank % 2, -rank, &half, NULL));
    CHECK(ccl_comm_count(half, &number));
    REQUIRE(number == RANKS / 2);
    CHECK(ccl_comm_user_rank(half, &number));
    REQUIRE(number == (RANKS - 1 - rank) / 2);
    CHECK(ccl_allreduce(&rank, &sum, 1, CCL_INT32, CCL_SUM, half));
    REQUIRE(sum == (rank % 2 == 0 ? 0 + 2 : 1 + 3));
    CHECK(ccl_comm_destroy(half));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_destroy(half));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_barrier(half));

    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.comm_name = "rest";
    config.split_share = 1;
    CHECK(ccl_comm_split(comm, rank == 0 ? CCL_SPLIT_NOCOLOR : 7, 0, &rest, &config));
    REQUIRE((rest == NULL) == (rank == 0));
    if (rest != NULL) {
        CHECK(ccl_barrier(rest));
        CHECK(ccl_comm_finalize(rest));
        EXPECT(CCL_INVALID_USAGE, ccl_barrier(rest));
        EXPECT(CCL_INVALID_USAGE, ccl_comm_finalize(rest));
        CHECK(ccl_comm_count(rest, &number));
        REQUIRE(number == RANKS - 1);
    }
    CHECK(ccl_comm_destroy(rest));
}

/* ---- The program ---------------------------------------------------------------------------- */

static void one_rank(int rank, ccl_unique_id_t id)
{
    ccl_comm_t comm;
    wrong_configurations(id);
    CHECK(ccl_comm_init_rank(&comm, RANKS, id, rank));
    questions(comm, rank);
    health(comm);
    for (enum form form = BLOCKING; form < FORMS; form++) {
        symmetric(comm, rank, form);
        rooted(comm, rank, form);
        ragged(comm, rank, form);
        point_to_point(comm, rank, form);
    }
    nothing(comm);
    requests(comm);
    groups(comm, rank);
    user_operations(comm, rank);
    memory(comm, rank);
    wrong_arguments(comm);
    splits(comm, rank);
    CHECK(ccl_comm_destroy(comm));
}

int main(void)
{
    int version = 0;
    CHECK(ccl_get_version(&version));
    REQUIRE(version == CCL_VERSION_CODE);
    REQUIRE(strcmp(ccl_get_last_error(NULL), "") == 0);
    EXPECT(CCL_INVALID_ARGUMENT, ccl_get_unique_id(NULL));
    run_ranks(one_rank);
    printf("everything: %d ranks, every call as described\n", RANKS);
    return EXIT_SUCCESS;
}
