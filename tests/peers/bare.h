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

/* Rank 0 does not wait for one that has failed, and takes all others with it. */
static void end_with_failure(int number)
{
    int status;
    (void)number;
    while (waitpid(-1, &status, WNOHANG) > 0)
        if (status != 0)
            _exit(1);
}

/* From here on every rank runs, and `me` tells which; they end with rank 0, and it ends when one of them fails. */
static void start_ranks(void)
{
    pid_t first = getpid();
    struct sigaction ended = {.sa_handler = end_with_failure, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
    sigaction(SIGCHLD, &ended, NULL);
    processors = sysconf(_SC_NPROCESSORS_ONLN);
    for (unsigned rank = 1; rank < ranks && me == 0; rank++) {
        if (fork() == 0) {
            me = rank;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != first)
                _exit(1);
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
