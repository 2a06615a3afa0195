/* What it costs to wait for a rank that computes. */
#ifndef WAITING_H
#define WAITING_H

#include "library.h"

/* So many times rank 0 uses so many milliseconds of a processor, while the others wait for it in an AllReduce of one
 * float. Rank 0 prints "MILLISECONDS PERCENT TIMES MICROSECONDS WRONG": how much of a processor a rank that waits uses;
 * how many times as long as alone the computation takes; how long the call takes rank 0, which comes last, in the
 * median; and whether a result was wrong. */
void waiting(struct group group, int milliseconds, int calls);

#endif
