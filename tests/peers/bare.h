/* What the bare collectives share: ranks that are processes, each bound to a processor in turn. */
#ifndef BARE_H
#define BARE_H

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_RANKS 64
#define LOOKS_BEFORE_YIELDING 1000

static unsigned ranks, processors, me;

/* Microseconds. */
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

/* Called after so many looks at what is waited for. */
static void look_again(unsigned looks)
{
    if (ranks > processors || looks > LOOKS_BEFORE_YIELDING)
        sched_yield();
}

/* From here on every rank runs, and `me` tells which; they end with rank 0. */
static void start_ranks(void)
{
    processors = sysconf(_SC_NPROCESSORS_ONLN);
    for (unsigned rank = 1; rank < ranks && me == 0; rank++) {
        if (fork() == 0) {
            me = rank;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        }
    }
    cpu_set_t processor;
    CPU_ZERO(&processor);
    CPU_SET(me % processors, &processor);
    sched_setaffinity(0, sizeof processor, &processor);
}

/* Rank 0 waits for all others; returns whether one of them failed. */
static int others_failed(void)
{
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}

#endif
