/* How fast plain TCP sockets exchange bytes over the loopback interface: the floor for ranks that pretend to be on
 * different hosts.
 *
 * usage: raw_sockets PAIRS BYTES ROUNDS
 *
 * In every pair two processes send each other BYTES at the same time over one connection, ROUNDS times. The processes are
 * bound to processors in turn, as ranks are. Prints the microseconds of each round: those of the slowest pair, and checks that what has
 * arrived is what was sent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* As much as a call moves at a time: more of it falls out of the cache, less of it is all calls. */
enum { CHUNK = 1 << 20 };

struct shared {
    pthread_barrier_t barrier;
    double began;
    double ended[];
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static size_t least(size_t one, size_t other)
{
    return one < other ? one : other;
}

/* What a call of the kernel has moved; nothing if it would have to wait. */
static size_t moved(ssize_t count, const char *what)
{
    if (count < 0 && errno != EAGAIN)
        fail(what);
    return count < 0 ? 0 : (size_t)count;
}

/* Sends and receives `bytes` at the same time. */
static void exchange(int connection, const char *output, char *input, size_t bytes)
{
    size_t sent = 0, received = 0;
    while (sent < bytes || received < bytes) {
        size_t before = sent + received;
        if (sent < bytes)
            sent += moved(send(connection, output + sent, least(bytes - sent, CHUNK), 0), "send");
        if (received < bytes)
            received +=
                moved(recv(connection, input + received, least(bytes - received, CHUNK), 0), "recv");
        if (sent + received == before) {
            short events = (short)((sent < bytes ? POLLOUT : 0) | (received < bytes ? POLLIN : 0));
            struct pollfd wish = {.fd = connection, .events = events};
            if (poll(&wish, 1, 10000) <= 0)
                fail("nothing moves");
        }
    }
}

static void bind_to_processor(int process)
{
    cpu_set_t processors;
    CPU_ZERO(&processors);
    CPU_SET(process % (int)sysconf(_SC_NPROCESSORS_ONLN), &processors);
    sched_setaffinity(0, sizeof processors, &processors);
}

/* The listeners of all pairs exist before any process does. */
static int listener(struct sockaddr_in *address)
{
    socklen_t length = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    if (listening < 0 || bind(listening, (struct sockaddr *)address, length) || listen(listening, 1) ||
        getsockname(listening, (struct sockaddr *)address, &length))
        fail("listen");
    return listening;
}

static int connection_of(int process, int listening, const struct sockaddr_in *address)
{
    int connection;
    if (process % 2 == 0) {
        connection = accept(listening, NULL, NULL);
    } else {
        connection = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection, (const struct sockaddr *)address, sizeof *address))
            fail("connect");
    }
    int on = 1;
    if (connection < 0 || fcntl(connection, F_SETFL, O_NONBLOCK) ||
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on))
        fail("connection");
    return connection;
}

static void work(int process, int processes, int connection, size_t bytes, int rounds, struct shared *shared)
{
    char *output = malloc(bytes), *input = malloc(bytes);
    if (!output || !input)
        fail("malloc");
    memset(output, 1 + process, bytes);
    memset(input, 0, bytes);
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&shared->barrier);
        if (process == 0)
            shared->began = now();
        exchange(connection, output, input, bytes);
        shared->ended[process] = now();
        pthread_barrier_wait(&shared->barrier);
        double ended = 0;
        for (int other = 0; other < processes; other++)
            ended = shared->ended[other] > ended ? shared->ended[other] : ended;
        if (process == 0)
            printf("%.1f\n", ended - shared->began), fflush(stdout);
    }
    char expected = (char)(1 + (process ^ 1));
    for (size_t index = 0; index < bytes; index++)
        if (input[index] != expected)
            fputs("wrong bytes\n", stderr), exit(1);
}

int main(int count, char **arguments)
{
    if (count != 4) {
        fputs("usage: raw_sockets PAIRS BYTES ROUNDS\n", stderr);
        return 2;
    }
    int processes = 2 * atoi(arguments[1]), rounds = atoi(arguments[3]);
    size_t bytes = strtoull(arguments[2], NULL, 10);
    size_t size = sizeof(struct shared) + (size_t)processes * sizeof(double);
    struct shared *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap");
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned)processes);
    int listening = 0;
    const pid_t first = getpid();
    struct sockaddr_in address;
    for (int process = 0; process < processes; process++) {
        if (process % 2 == 0)
            listening = listener(&address);
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != first)
                _exit(1);
            bind_to_processor(process);
            work(process, processes, connection_of(process, listening, &address), bytes, rounds, shared);
            exit(0);
        }
    }
    /* The others would wait for one that has failed; they end with this process. */
    for (int status; wait(&status) > 0;)
        if (status != 0)
            return 1;
    return 0;
}
