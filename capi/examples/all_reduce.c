/*
 * Sums an array over all ranks and checks the result.
 *
 *   all_reduce 4              starts 4 ranks on this machine
 *   torchrun ... all_reduce   or mpirun, srun: rank and size come from the launcher
 *
 * Build: cc -std=c11 -Iinclude examples/all_reduce.c -lr2ccl -o all_reduce
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "r2ccl/ccl.h"

#define COUNT ((size_t)1000003)
#define MOST_RANKS 256

/* Ends the program with the library's message if a call fails. */
#define CHECK(call)                                                                               \
    do {                                                                                          \
        ccl_result_t result_ = (call);                                                            \
        if (result_ != CCL_SUCCESS) {                                                             \
            fprintf(stderr, "%s\n", ccl_get_last_error(NULL));                                    \
            exit(EXIT_FAILURE);                                                                   \
        }                                                                                         \
    } while (0)

static void fail(const char *what)
{
    perror(what);
    exit(EXIT_FAILURE);
}

/* What `rank` contributes at `index`; small integers, so that every order of summation is exact. */
static float contribution(int rank, size_t index)
{
    return (float)(rank + 1) + (float)(index % 7);
}

/* Joins, sums in place, checks, leaves. */
static void work(ccl_comm_t comm)
{
    int rank, ranks;
    CHECK(ccl_comm_user_rank(comm, &rank));
    CHECK(ccl_comm_count(comm, &ranks));

    float *data = malloc(COUNT * sizeof *data);
    if (data == NULL)
        fail("malloc");
    for (size_t i = 0; i < COUNT; i++)
        data[i] = contribution(rank, i);

    CHECK(ccl_allreduce(data, data, COUNT, CCL_FLOAT32, CCL_SUM, comm));

    for (size_t i = 0; i < COUNT; i++) {
        float expected = (float)(ranks * (ranks + 1) / 2) + (float)ranks * (float)(i % 7);
        if (data[i] != expected) {
            fprintf(stderr, "rank %d: element %zu is %g, not %g\n", rank, i, data[i], expected);
            exit(EXIT_FAILURE);
        }
    }
    free(data);
    CHECK(ccl_comm_finalize(comm));
    CHECK(ccl_comm_destroy(comm));
    if (rank == 0)
        printf("all_reduce: %d ranks, %zu floats, every sum correct\n", ranks, COUNT);
}

/* One rank that this program started: the id comes through a pipe. */
static void child(int rank, int ranks, int pipe_end)
{
    ccl_unique_id_t id;
    ccl_comm_t comm;
    if (read(pipe_end, &id, sizeof id) != (ssize_t)sizeof id)
        fail("read the id");
    close(pipe_end);
    CHECK(ccl_comm_init_rank(&comm, ranks, id, rank));
    work(comm);
    exit(EXIT_SUCCESS);
}

/* This process is rank 0. It starts the others before it uses the library for the first time. */
static int start_ranks(int ranks)
{
    int pipe_ends[MOST_RANKS];
    for (int rank = 1; rank < ranks; rank++) {
        int ends[2];
        if (pipe(ends) != 0)
            fail("pipe");
        pid_t process = fork();
        if (process < 0)
            fail("fork");
        if (process == 0) {
            close(ends[1]);
            child(rank, ranks, ends[0]);
        }
        close(ends[0]);
        pipe_ends[rank] = ends[1];
    }

    ccl_unique_id_t id;
    ccl_comm_t comm;
    CHECK(ccl_get_unique_id(&id));
    for (int rank = 1; rank < ranks; rank++) {
        if (write(pipe_ends[rank], &id, sizeof id) != (ssize_t)sizeof id)
            fail("write the id");
        close(pipe_ends[rank]);
    }
    CHECK(ccl_comm_init_rank(&comm, ranks, id, 0));
    work(comm);

    int failures = 0;
    for (int rank = 1; rank < ranks; rank++) {
        int status;
        if (wait(&status) < 0)
            fail("wait");
        failures += !(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        int ranks = atoi(argv[1]);
        if (ranks < 1 || ranks > MOST_RANKS) {
            fprintf(stderr, "usage: %s [1..%d ranks]\n", argv[0], MOST_RANKS);
            return 2;
        }
        return start_ranks(ranks);
    }
    ccl_comm_t comm;
    CHECK(ccl_comm_init_from_environment(&comm, NULL));
    work(comm);
    return EXIT_SUCCESS;
}
