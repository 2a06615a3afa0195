/*
 * What the examples that check the library have in common: expectations, and ranks as threads.
 */
#ifndef R2CCL_EXAMPLES_CHECK_H
#define R2CCL_EXAMPLES_CHECK_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "r2ccl/ccl.h"

enum { RANKS = 4 };

/* Ends the program if a call does not return what it should. */
#define EXPECT(expected, call) expect((expected), (call), #call, __FILE__, __LINE__)
#define CHECK(call) EXPECT(CCL_SUCCESS, call)

/* Ends the program if a condition does not hold. */
#define REQUIRE(condition)                                                                        \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);         \
            exit(EXIT_FAILURE);                                                                   \
        }                                                                                         \
    } while (0)

static inline void expect(ccl_result_t expected, ccl_result_t actual, const char *call,
                          const char *file, int line)
{
    if (actual == expected)
        return;
    fprintf(stderr, "%s:%d: %s\n  is:       %s\n  expected: %s\n  message:  %s\n", file, line, call,
            ccl_get_error_string(actual), ccl_get_error_string(expected),
            ccl_get_last_error(NULL));
    exit(EXIT_FAILURE);
}

typedef void (*rank_body)(int rank, ccl_unique_id_t id);

struct rank_thread {
    pthread_t thread;
    int rank;
    ccl_unique_id_t id;
    rank_body body;
};

static inline void *run_rank(void *argument)
{
    const struct rank_thread *self = argument;
    self->body(self->rank, self->id);
    return NULL;
}

/* Runs `body` as RANKS threads that can meet in one communicator, and waits for them. */
static inline void run_ranks(rank_body body)
{
    struct rank_thread threads[RANKS];
    ccl_unique_id_t id;
    CHECK(ccl_get_unique_id(&id));
    for (int rank = 0; rank < RANKS; rank++) {
        threads[rank] = (struct rank_thread){.rank = rank, .id = id, .body = body};
        REQUIRE(pthread_create(&threads[rank].thread, NULL, run_rank, &threads[rank]) == 0);
    }
    for (int rank = 0; rank < RANKS; rank++)
        REQUIRE(pthread_join(threads[rank].thread, NULL) == 0);
}

#endif /* R2CCL_EXAMPLES_CHECK_H */
