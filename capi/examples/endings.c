/*
 * Communicators that end early, that never block, that belong to one thread or to another process.
 *
 * Build: cc -std=c11 -Iinclude examples/endings.c -lr2ccl -lpthread -o endings
 */
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Lets the rank threads wait for each other without the library. */
static pthread_barrier_t meeting;

static void meet(void)
{
    pthread_barrier_wait(&meeting);
}

static ccl_result_t state_of(ccl_comm_t comm)
{
    ccl_result_t state;
    CHECK(ccl_comm_get_async_error(comm, &state));
    return state;
}

/* ---- Failures ------------------------------------------------------------------------------- */

/* One rank asks for something else: all hear of it. */
static void disagreement(int rank, ccl_unique_id_t id)
{
    ccl_comm_t comm;
    int32_t data[8] = {0};
    CHECK(ccl_comm_init_rank(&comm, RANKS, id, rank));
    size_t count = rank == 1 ? 8 : 4;
    EXPECT(CCL_INVALID_USAGE, ccl_allreduce(data, data, count, CCL_INT32, CCL_SUM, comm));
    REQUIRE(strstr(ccl_get_last_error(comm), "disagree") != NULL);
    REQUIRE(state_of(comm) == CCL_INVALID_USAGE);
    CHECK(ccl_comm_abort(comm));
}

/* Rank 0 does not call, and does not leave either. */
static void deadline(int rank, ccl_unique_id_t id)
{
    ccl_comm_t comm;
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.timeout_ms = 300;
    config.comm_name = "impatient";
    CHECK(ccl_comm_init_rank_config(&comm, RANKS, id, rank, &config));
    if (rank != 0) {
        ccl_result_t result = ccl_barrier(comm);
        REQUIRE(result == CCL_TIMEOUT || result == CCL_REMOTE_ERROR);
        REQUIRE(state_of(comm) == result);
        REQUIRE(strlen(ccl_get_last_error(comm)) > 0);
    }
    meet();
    CHECK(ccl_comm_abort(comm));
}

/* Rank 0 comes late: in time for the second deadline, not for the third. */
static void other_deadlines(int rank, ccl_unique_id_t id)
{
    ccl_comm_t comm;
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.timeout_ms = 100;
    CHECK(ccl_comm_init_rank_config(&comm, RANKS, id, rank, &config));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_set_timeout(comm, 0));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_set_timeout(comm, CCL_CONFIG_UNDEF_INT));
    CHECK(ccl_comm_set_timeout(comm, 60000));
    if (rank == 0)
        usleep(300000);
    CHECK(ccl_barrier(comm));
    CHECK(ccl_comm_set_timeout(comm, 100));
    if (rank != 0) {
        ccl_result_t result = ccl_barrier(comm);
        REQUIRE(result == CCL_TIMEOUT || result == CCL_REMOTE_ERROR);
    }
    meet();
    CHECK(ccl_comm_abort(comm));
}

/* Rank 0 aborts while the others are, or will be, in a call. */
static void abortion(int rank, ccl_unique_id_t id)
{
    ccl_comm_t comm;
    CHECK(ccl_comm_init_rank(&comm, RANKS, id, rank));
    if (rank == 0) {
        CHECK(ccl_comm_abort(comm));
        EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_abort(comm));
        EXPECT(CCL_INVALID_ARGUMENT, ccl_barrier(comm));
        return;
    }
    EXPECT(CCL_REMOTE_ERROR, ccl_barrier(comm));
    EXPECT(CCL_REMOTE_ERROR, ccl_barrier(comm));
    REQUIRE(state_of(comm) == CCL_REMOTE_ERROR);
    CHECK(ccl_comm_abort(comm));
}

/* ---- Communicators that never block --------------------------------------------------------- */

static void poll_until_done(ccl_comm_t comm)
{
    ccl_result_t state;
    while ((state = state_of(comm)) == CCL_IN_PROGRESS)
        sched_yield();
    REQUIRE(state == CCL_SUCCESS);
}

/* Accepts the two answers of a call that does not wait, and sees it through. */
static void see_through(ccl_result_t result, ccl_comm_t comm)
{
    REQUIRE(result == CCL_SUCCESS || result == CCL_IN_PROGRESS);
    poll_until_done(comm);
}

/* What another call or another rank ends says so. */
static void await_end(ccl_comm_t comm)
{
    while (state_of(comm) == CCL_IN_PROGRESS)
        sched_yield();
    REQUIRE(state_of(comm) == CCL_REMOTE_ERROR);
}

/* So many ranks add up. */
static void require_ranks(int32_t ranks, ccl_comm_t comm)
{
    int32_t one = 1, sum = 0;
    see_through(ccl_allreduce(&one, &sum, 1, CCL_INT32, CCL_SUM, comm), comm);
    REQUIRE(sum == ranks);
}

static void without_blocking(int rank, ccl_unique_id_t id)
{
    ccl_comm_t comm, child;
    int32_t one = 1, sums[2] = {0};
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ccl_result_t result = ccl_comm_init_rank_config(&comm, RANKS, id, rank, &config);
    see_through(result, comm);

    require_ranks(RANKS, comm);
    see_through(ccl_comm_split(comm, 0, rank, &child, NULL), comm);
    poll_until_done(child);

    CHECK(ccl_group_start());
    CHECK(ccl_allreduce(&one, &sums[0], 1, CCL_INT32, CCL_SUM, comm));
    CHECK(ccl_allreduce(&one, &sums[1], 1, CCL_INT32, CCL_SUM, child));
    see_through(ccl_group_end(), comm);
    poll_until_done(child);
    REQUIRE(sums[0] == RANKS && sums[1] == RANKS);

    /* Rank 0 comes last: until then the others are busy, and another call is one too many. */
    if (rank == 0)
        meet();
    result = ccl_barrier(comm);
    if (rank != 0) {
        REQUIRE(result == CCL_IN_PROGRESS);
        EXPECT(CCL_INVALID_USAGE, ccl_barrier(comm));
        EXPECT(CCL_INVALID_USAGE, ccl_comm_destroy(comm));
        meet();
    }
    see_through(result, comm);
    see_through(ccl_comm_finalize(child), child);
    CHECK(ccl_comm_destroy(child));
    /* What is not finalized yet is when this returns. */
    CHECK(ccl_comm_destroy(comm));
}

/* The others do not come; another call ends the one that waits for them. */
static void alone_at_last(ccl_comm_t rest)
{
    const int others[] = {1};
    ccl_comm_t in_vain, alone;
    EXPECT(CCL_IN_PROGRESS, ccl_comm_shrink(rest, NULL, 0, &in_vain, NULL, CCL_SHRINK_ABORT));
    EXPECT(CCL_IN_PROGRESS, ccl_comm_shrink(rest, others, 1, &alone, NULL, CCL_SHRINK_ABORT));
    poll_until_done(alone);
    await_end(in_vain);
    require_ranks(1, alone);
    CHECK(ccl_comm_abort(in_vain));
    CHECK(ccl_comm_destroy(alone));
}

/* Rank 0, where they met, goes; so does rank 2 on the way. The others go on. */
static void shrinkage(int rank, ccl_unique_id_t id)
{
    const int first[] = {0, 0}, wrong[] = {-1}, second[] = {1};
    int32_t one = 1, never = 0;
    ccl_comm_t comm, left, rest;
    size_t count = 7;
    int gone[RANKS];
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK(ccl_comm_init_rank(&comm, RANKS, id, rank));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_get_lost_ranks(comm, NULL, 1, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_shrink(comm, &rank, 1, &left, NULL, 0));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_shrink(comm, first, 2, &left, NULL, 0));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_shrink(comm, wrong, 1, &left, NULL, 0));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_shrink(comm, NULL, 1, &left, NULL, 0));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_comm_shrink(comm, NULL, 0, &left, NULL, 2));
    REQUIRE(left == NULL);
    if (rank == 0) {
        CHECK(ccl_comm_get_lost_ranks(comm, NULL, 0, &count));
        REQUIRE(count == 0);
        CHECK(ccl_comm_destroy(comm));
        meet();
        meet();
        return;
    }
    EXPECT(CCL_REMOTE_ERROR, ccl_barrier(comm));
    CHECK(ccl_comm_get_lost_ranks(comm, gone, RANKS, &count));
    REQUIRE(count == 1 && gone[0] == 0);
    CHECK(ccl_comm_shrink(comm, first, 1, &left, &config, CCL_SHRINK_DEFAULT));
    require_ranks(RANKS - 1, left);
    meet();
    if (rank == 2) {
        while (state_of(left) == CCL_SUCCESS)
            usleep(1000);
        REQUIRE(state_of(left) == CCL_REMOTE_ERROR);
        meet();
    } else {
        /* It waits for rank 2, until it is aborted. */
        ccl_result_t result = ccl_allreduce(&one, &never, 1, CCL_INT32, CCL_SUM, left);
        REQUIRE(result == CCL_IN_PROGRESS || result == CCL_REMOTE_ERROR);
        EXPECT(CCL_IN_PROGRESS, ccl_comm_shrink(left, second, 1, &rest, NULL, CCL_SHRINK_ABORT));
        poll_until_done(rest);
        await_end(left);
        require_ranks(RANKS - 2, rest);
        REQUIRE(never == 0);
        meet();
        if (rank == 1)
            alone_at_last(rest);
        CHECK(ccl_comm_abort(rest));
    }
    CHECK(ccl_comm_abort(left));
    CHECK(ccl_comm_abort(comm));
}

/* Nobody else comes: the communicator is given up while it is being created. */
static void abandoned(void)
{
    ccl_comm_t comm;
    ccl_unique_id_t id;
    int number;
    ccl_config_t config = CCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK(ccl_get_unique_id(&id));
    EXPECT(CCL_IN_PROGRESS, ccl_comm_init_rank_config(&comm, 2, id, 0, &config));
    REQUIRE(state_of(comm) == CCL_IN_PROGRESS);
    EXPECT(CCL_INVALID_USAGE, ccl_comm_count(comm, &number));
    EXPECT(CCL_INVALID_USAGE, ccl_comm_destroy(comm));
    CHECK(ccl_comm_abort(comm));
}

/* ---- One thread with several ranks, and a forked child -------------------------------------- */

/* What a forked child sees of the communicators of its parent. */
static void forked(ccl_comm_t comm)
{
    fflush(NULL);
    pid_t process = fork();
    REQUIRE(process >= 0);
    if (process == 0) {
        int refused = ccl_barrier(comm) == CCL_INVALID_USAGE &&
                      ccl_comm_destroy(comm) == CCL_INVALID_USAGE &&
                      strstr(ccl_get_last_error(NULL), "fork") != NULL;
        _exit(refused ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    int status;
    REQUIRE(waitpid(process, &status, 0) == process);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
}

static void one_thread(void)
{
    ccl_comm_t comms[RANKS], children[RANKS], loners[RANKS];
    int32_t one = 1, sums[RANKS] = {0};
    CHECK(ccl_comm_init_all(comms, RANKS));
    for (int rank = 0; rank < RANKS; rank++) {
        int number;
        CHECK(ccl_comm_user_rank(comms[rank], &number));
        REQUIRE(number == rank);
    }

    /* Two splits of a communicator are done in the order of the calls. */
    CHECK(ccl_group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(ccl_comm_split(comms[rank], 0, 0, &children[rank], NULL));
        CHECK(ccl_comm_split(comms[rank], rank, 0, &loners[rank], NULL));
    }
    CHECK(ccl_group_end());
    for (int rank = 0; rank < RANKS; rank++) {
        int count, alone;
        CHECK(ccl_comm_count(children[rank], &count));
        CHECK(ccl_comm_count(loners[rank], &alone));
        REQUIRE(count == RANKS && alone == 1);
        CHECK(ccl_comm_destroy(loners[rank]));
    }

    CHECK(ccl_group_start());
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(ccl_allreduce(&one, &sums[rank], 1, CCL_INT32, CCL_SUM, children[rank]));
    CHECK(ccl_group_end());
    for (int rank = 0; rank < RANKS; rank++)
        REQUIRE(sums[rank] == RANKS);

    forked(comms[0]);
    CHECK(ccl_group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(ccl_comm_finalize(children[rank]));
        CHECK(ccl_comm_destroy(comms[rank]));
    }
    CHECK(ccl_group_end());
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(ccl_comm_destroy(children[rank]));
}

int main(void)
{
    REQUIRE(pthread_barrier_init(&meeting, NULL, RANKS) == 0);
    run_ranks(disagreement);
    run_ranks(deadline);
    run_ranks(other_deadlines);
    run_ranks(abortion);
    run_ranks(without_blocking);
    run_ranks(shrinkage);
    abandoned();
    one_thread();
    printf("endings: %d ranks, every end as described\n", RANKS);
    return EXIT_SUCCESS;
}
