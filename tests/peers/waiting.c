/* What it costs to wait for a rank that computes: see waiting.h. */
#include "waiting.h"

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Steps of the computation between two looks at the clock: some microseconds. */
enum { STEPS = 10000 };

/* Written so that the compiler does not leave the computation out. */
static volatile uint64_t result;

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Uses so much processor time; returns how long that took. */
static double compute(double wanted)
{
    uint64_t state = 1;
    double began = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_THREAD_CPUTIME_ID);
    do {
        for (int step = 0; step < STEPS; step++)
            state = state * 6364136223846793005u + 1442695040888963407u;
        result = state;
    } while (seconds(CLOCK_THREAD_CPUTIME_ID) - used < wanted);
    return seconds(CLOCK_MONOTONIC) - began;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

void waiting(struct group group, int milliseconds, int calls)
{
    float value = 1, sum = 0;
    struct buffers buffers = {&value, &sum};
    double wanted = milliseconds * 1e-3, computed = 0, used = 0, waited = 0;
    double *late = malloc((size_t)calls * sizeof *late);
    int wrong = late == NULL;

    all_reduce(buffers, 1);
    for (int call = 0; call < calls && late != NULL; call++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (group.rank == 0)
            computed += compute(wanted);
        sum = 0;
        double began = seconds(CLOCK_MONOTONIC), before = seconds(CLOCK_PROCESS_CPUTIME_ID);
        all_reduce(buffers, 1);
        late[call] = seconds(CLOCK_MONOTONIC) - began;
        waited += late[call];
        used += seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
        wrong |= sum != (float)group.ranks;
    }
    double own[2] = {group.rank == 0 ? 0 : used, group.rank == 0 ? 0 : waited}, others[2];
    int any_wrong;
    MPI_Reduce(own, others, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &any_wrong, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (group.rank == 0 && late != NULL) {
        qsort(late, (size_t)calls, sizeof *late, compare);
        printf("%d %.2f %.3f %.2f %d\n", milliseconds, 100 * others[0] / others[1], computed / (wanted * calls),
               late[calls / 2] * 1e6, any_wrong);
        fflush(stdout);
    }
    free(late);
}
