/*
 * Tells again and again how far two processors are from each other.
 *
 *   distance 0 1 0.1      every 0.1 s: a line with CLOCK_MONOTONIC in seconds, and nanoseconds
 *
 * The nanoseconds are what a cache line takes from one processor to the other, the least of many trips: a virtual
 * machine's processors may be neighbours now and far apart a minute later. A probe takes some ten microseconds of both
 * processors, and needs a priority that makes everybody else wait; without it the program ends. It ends, too, when
 * nobody reads what it prints, or with the process that has started it. A probe in which one of the processors does not
 * answer, because somebody else has as much priority there, is given up and prints nothing.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define TRIPS 100
#define PRIORITY 50
/* Looks at the line before an answer is given up: a millisecond or so. */
#define PATIENCE 1000000

/* Whose turn it is, as a count: even numbers are answers. Alone on its line. */
static _Alignas(128) atomic_int turn;
static pthread_barrier_t start;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Makes the calling thread the first to run on a processor. */
static void take(int processor)
{
    cpu_set_t set;
    struct sched_param priority = {.sched_priority = PRIORITY};
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0 || sched_setscheduler(0, SCHED_FIFO, &priority) != 0) {
        perror("distance: take a processor");
        exit(1);
    }
}

/* Whether it came. Without an end to its patience, two programs of this kind could wait for each other's processors. */
static bool await(int expected)
{
    for (int look = 0; look < PATIENCE; look++) {
        if (atomic_load_explicit(&turn, memory_order_acquire) == expected) {
            return true;
        }
    }
    return false;
}

static void pass(int next)
{
    atomic_store_explicit(&turn, next, memory_order_release);
}

static void *answer(void *processor)
{
    take(*(int *)processor);
    for (;;) {
        pthread_barrier_wait(&start);
        for (int trip = 0; trip < TRIPS && await(2 * trip + 1); trip++) {
            pass(2 * trip + 2);
        }
    }
    return NULL;
}

/* Seconds of the fastest way there and back; negative if one was given up. */
static double probe(void)
{
    double least = 1.0;
    atomic_store(&turn, 0);
    pthread_barrier_wait(&start);
    for (int trip = 0; trip < TRIPS; trip++) {
        double began = now();
        pass(2 * trip + 1);
        if (!await(2 * trip + 2)) {
            return -1.0;
        }
        double took = now() - began;
        least = took < least ? took : least;
    }
    return least;
}

int main(int count, char **words)
{
    if (count != 4) {
        fprintf(stderr, "usage: distance PROCESSOR PROCESSOR SECONDS\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int processors[] = {atoi(words[1]), atoi(words[2])};
    double period = atof(words[3]);
    struct timespec pause = {.tv_sec = (time_t)period, .tv_nsec = (long)(1e9 * (period - (double)(time_t)period))};
    pthread_t thread;
    pthread_barrier_init(&start, NULL, 2);
    take(processors[0]);
    if (pthread_create(&thread, NULL, answer, &processors[1]) != 0) {
        fprintf(stderr, "distance: no thread\n");
        return 1;
    }
    for (;;) {
        double seconds = probe();
        if (seconds >= 0 && (printf("%.6f %.1f\n", now(), seconds / 2 * 1e9) < 0 || fflush(stdout) != 0)) {
            return 0;
        }
        nanosleep(&pause, NULL);
    }
}
