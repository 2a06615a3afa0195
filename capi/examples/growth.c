/*
 * Communicators that take in new ranks.
 *
 * Build: cc -std=c11 -Iinclude examples/growth.c -lr2ccl -lpthread -o growth
 */
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "check.h"

/* Of the RANKS threads these are together from the beginning. */
enum { OLD_RANKS = 2 };

/* Lets the rank threads wait for each other without the library. */
static pthread_barrier_t meeting;

/* What the program gives to the new ranks, by whatever means it has. */
static ccl_unique_id_t invitation;

static void meet(void)
{
    pthread_barrier_wait(&meeting);
}

/* The communicator that is being made is there, and works: all ranks add up. */
static void require_ranks(int32_t ranks, int rank, ccl_comm_t comm)
{
    int32_t one = 1, sum = 0;
    int count, number;
    ccl_result_t state;
    do {
        sched_yield();
        CHECK(ccl_comm_get_async_error(comm, &state));
    } while (state == CCL_IN_PROGRESS);
    REQUIRE(state == CCL_SUCCESS);
    CHECK(ccl_comm_count(comm, &count));
    CHECK(ccl_comm_user_rank(comm, &number));
    REQUIRE(count == ranks && number == rank);
    ccl_result_t result = ccl_allreduce(&one, &sum, 1, CCL_INT32, CCL_SUM, comm);
    REQUIRE(result == CCL_SUCCESS || result == CCL_IN_PROGRESS);
    do {
        sched_yield();
        CHECK(ccl_comm_get_async_error(comm, &state));
    } while (state == CCL_IN_PROGRESS);
    REQUIRE(state == CCL_SUCCESS && sum == ranks);
}

/* What the ranks of a communicator cannot ask for. It remains as it is. */
static void refusals(int rank, ccl_comm_t comm)
{
    ccl_comm_t none;
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_get_unique_id(comm, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_get_unique_id(NULL, &invitation));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_grow(comm, RANKS, NULL, rank, &none, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_grow(comm, -1, NULL, -1, &none, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_grow(comm, RANKS, NULL, -1, NULL, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_grow(comm, OLD_RANKS, NULL, -1, &none, NULL));
    EXPECT(CCL_INVALID_USAGE, ccl_comm_grow(comm, RANKS, NULL, -1, &none, NULL));
    REQUIRE(strstr(ccl_get_last_error(comm), "no rank has asked for the id") != NULL);
    REQUIRE(none == NULL);
}

/* The same of a new rank. */
static void refusals_of_a_newcomer(int rank)
{
    ccl_comm_t none;
    ccl_unique_id_t nonsense = {{0}};
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_grow(NULL, RANKS, NULL, rank, &none, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_grow(NULL, RANKS, &nonsense, rank, &none, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_grow(NULL, RANKS, &nonsense, -1, &none, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_grow(NULL, RANKS, &nonsense, RANKS, &none, NULL));
    REQUIRE(none == NULL);
}

/* All of a configuration: a communicator of OLD_RANKS, of which rank 1 knows the others, becomes one of RANKS. */
static void grow(int rank, ccl_unique_id_t id, const ccl_config_t *config)
{
    ccl_comm_t comm = NULL, grown;
    int is_new = rank >= OLD_RANKS;
    if (is_new) {
        refusals_of_a_newcomer(rank);
    } else {
        CHECK(ccl_comm_init_rank(&comm, OLD_RANKS, id, rank));
        refusals(rank, comm);
        if (rank == 1)
            CHECK(ccl_comm_get_unique_id(comm, &invitation));
    }
    meet();
    ccl_result_t result = is_new ? ccl_comm_grow(NULL, RANKS, &invitation, rank, &grown, config)
                                 : ccl_comm_grow(comm, RANKS, NULL, -1, &grown, config);
    REQUIRE(result == CCL_SUCCESS || result == CCL_IN_PROGRESS);
    require_ranks(RANKS, rank, grown);
    if (!is_new) {
        require_ranks(OLD_RANKS, rank, comm);
        CHECK(ccl_comm_destroy(comm));
    }
    require_ranks(RANKS, rank, grown);
    CHECK(ccl_comm_destroy(grown));
}

static void growth(int rank, ccl_unique_id_t id)
{
    grow(rank, id, NULL);
}

static void growth_without_blocking(int rank, ccl_unique_id_t id)
{
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    grow(rank, id, &config);
}

/* A communicator that never blocks outlives an attempt that fails, and says so of the child alone. */
static void an_attempt(void)
{
    ccl_comm_t comm, child;
    ccl_result_t state;
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK(ccl_get_unique_id(&invitation));
    EXPECT(CCL_IN_PROGRESS, ccl_comm_init_rank_config(&comm, 1, invitation, 0, &config));
    require_ranks(1, 0, comm);
    EXPECT(CCL_IN_PROGRESS, ccl_comm_grow(comm, 2, NULL, -1, &child, NULL));
    do {
        sched_yield();
        CHECK(ccl_comm_get_async_error(child, &state));
    } while (state == CCL_IN_PROGRESS);
    REQUIRE(state == CCL_INVALID_USAGE);
    require_ranks(1, 0, comm);
    CHECK(ccl_comm_abort(child));
    CHECK(ccl_comm_destroy(comm));
}

/* Both ranks belong to one thread: a rank is given up and replaced. */
static void one_thread(void)
{
    ccl_comm_t comms[2], left, grown[2];
    const int second = 1;
    CHECK(ccl_comm_init_all(comms, 2));
    CHECK(ccl_comm_shrink(comms[0], &second, 1, &left, NULL, CCL_SHRINK_DEFAULT));
    CHECK(ccl_comm_get_unique_id(left, &invitation));
    CHECK(ccl_group_start());
    CHECK(ccl_comm_grow(left, 2, &invitation, -1, &grown[0], NULL));
    CHECK(ccl_comm_grow(NULL, 2, &invitation, 1, &grown[1], NULL));
    CHECK(ccl_group_end());
    int32_t one = 1, sums[2] = {0};
    CHECK(ccl_group_start());
    for (int rank = 0; rank < 2; rank++)
        CHECK(ccl_allreduce(&one, &sums[rank], 1, CCL_INT32, CCL_SUM, grown[rank]));
    CHECK(ccl_group_end());
    REQUIRE(sums[0] == 2 && sums[1] == 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK(ccl_comm_abort(grown[rank]));
        CHECK(ccl_comm_abort(comms[rank]));
    }
    CHECK(ccl_comm_destroy(left));
}

int main(void)
{
    REQUIRE(pthread_barrier_init(&meeting, NULL, RANKS) == 0);
    run_ranks(growth);
    run_ranks(growth_without_blocking);
    an_attempt();
    one_thread();
    printf("growth: %d ranks become %d, as described\n", OLD_RANKS, RANKS);
    return EXIT_SUCCESS;
}
