/*
 * Two processes and a queue pair that survives its NIC: writes, messages and fetch-and-adds go on
 * while a NIC fails on purpose, and everything is checked.
 *
 *   vqp             one of two rails fails in the middle: nothing is lost, nothing is done twice
 *   vqp all-fail    both fail: the queue pair ends with a reason, in time
 *   vqp pooled      the same with a backup from a pool
 *   vqp one-fails DEVICE,DEVICE DEVICE,DEVICE
 *                   over these devices of the two processes, such as mlx5_0,mlx5_1
 *
 * Build: cc -std=c11 -Iinclude examples/vqp.c -lr2ccl -o vqp
 */
#define _POSIX_C_SOURCE 200809L

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum {
    LIMIT_MS = 60000,
    PATIENCE_MS = 300,
    GLANCE_MS = 1, /* between two looks whether the peer is done */
    SPARES = 2,       /* of a pool */
    SENDS = 8,        /* requests on their way at a time */
    RECORD = 64,      /* bytes of a write and of a message */
    RECORDS = 16,     /* of each, one behind the other */
    WORD = 0,         /* where the counted word is, and the result of counting it */
    WRITTEN = 64,     /* where the writes go */
    SENT = 64 + RECORD * RECORDS,
    REGION = 64 + 2 * RECORD * RECORDS,
    REST = 50 /* rounds after the fault was survived */
};

static const char *const KEY = "an example";
static const char *const ONE_FAILS = "admin:host=1,rail=0,at=200ms";
static const char *const ALL_FAIL =
    "admin:host=1,rail=0,at=200ms;silent:host=0,rail=1,at=400ms";

/* One end. */
struct end {
    ccl_vqp_domain_t domain;
    ccl_vqp_region_t region;
    ccl_vqp_remote_t theirs;
    ccl_vqp_pool_t pool; /* or NULL: own backups */
    ccl_vqp_t vqp;
    unsigned char *memory;
};

/* A pool that is full: the fault is not to come before. */
static ccl_vqp_pool_t full_pool(ccl_vqp_domain_t domain, ccl_vqp_meeting_t meeting)
{
    ccl_vqp_pool_t pool;
    int spares = 0;
    CHECK(ccl_vqp_pool_open(&pool, domain, meeting, SPARES, LIMIT_MS));
    while (spares < SPARES) {
        (void)poll(NULL, 0, GLANCE_MS);
        CHECK(ccl_vqp_pool_get_spares(pool, &spares));
    }
    return pool;
}

static void open_end(struct end *end, ccl_vqp_meeting_t meeting, const char *devices,
                     const char *faults, int is_pooled)
{
    void *memory;
    ccl_vqp_config_t config = CCL_VQP_CONFIG_INITIALIZER;
    config.evidence = CCL_VQP_LOG;
    config.sends = SENDS;
    config.patience_ms = PATIENCE_MS;
    config.silence_ms = PATIENCE_MS;
    CHECK(ccl_vqp_domain_open(&end->domain, devices, faults, KEY));
    CHECK(ccl_vqp_allocate(end->domain, REGION,
                           CCL_VQP_ACCESS_REMOTE_WRITE | CCL_VQP_ACCESS_REMOTE_ATOMIC,
                           &end->region, &memory));
    end->memory = memory;
    CHECK(ccl_vqp_create(&end->vqp, end->domain, &config));
    for (uint64_t slot = 0; slot < RECORDS; slot++)
        CHECK(ccl_vqp_post_receive(end->vqp, slot, end->region, SENT + slot * RECORD, RECORD));
    end->pool = is_pooled ? full_pool(end->domain, meeting) : NULL;
    if (is_pooled)
        CHECK(ccl_vqp_connect_pooled(end->vqp, meeting, end->pool, LIMIT_MS));
    else
        CHECK(ccl_vqp_connect(end->vqp, meeting, LIMIT_MS));
    CHECK(ccl_vqp_exchange_region(meeting, end->region, &end->theirs, LIMIT_MS));
    REQUIRE(end->theirs.bytes == REGION);
}

/* Of a list as much is posted as there is room for, and the rest later. Writes of nothing move nothing. */
static void fill(struct end *end)
{
    ccl_vqp_request_t list[SENDS + 2];
    size_t posted, count, done = 0;
    for (size_t index = 0; index < SENDS + 2; index++)
        list[index] = (ccl_vqp_request_t){.id = index,
                                          .operation = CCL_VQP_WRITE,
                                          .signalled = 1,
                                          .region = end->region,
                                          .remote_address = end->theirs.address,
                                          .remote_key = end->theirs.key};
    list[SENDS + 1].operation = 6; /* there is none with this number */
    EXPECT(CCL_IN_PROGRESS,
           ccl_vqp_post_send_list(end->vqp, list, sizeof list[0], SENDS + 1, &posted));
    REQUIRE(posted == SENDS);
    while (done < SENDS) {
        ccl_vqp_completion_t completed[SENDS];
        CHECK(ccl_vqp_wait(end->vqp, completed, sizeof completed[0], SENDS, &count, LIMIT_MS));
        for (size_t index = 0; index < count; index++)
            REQUIRE(completed[index].id == done++);
    }
    EXPECT(CCL_INVALID_ARGUMENT,
           ccl_vqp_post_send_list(end->vqp, list + posted, sizeof list[0], 2, &posted));
    REQUIRE(posted == 1); /* what was before it */
    ccl_vqp_completion_t last;
    CHECK(ccl_vqp_wait(end->vqp, &last, sizeof last, 1, &count, LIMIT_MS));
    REQUIRE(count == 1 && last.id == SENDS && last.status == CCL_VQP_STATUS_SUCCESS);
    CHECK(ccl_vqp_post_send_list(end->vqp, NULL, sizeof list[0], 0, &posted));
    REQUIRE(posted == 0);
}

static void close_end(struct end *end)
{
    CHECK(ccl_vqp_pool_close(end->pool));
    if (end->pool != NULL)
        EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_pool_close(end->pool));
    CHECK(ccl_vqp_destroy(end->vqp));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_destroy(end->vqp));
    CHECK(ccl_vqp_deregister(end->region));
    CHECK(ccl_vqp_domain_close(end->domain));
}

/* Posts the three operations of a round as one list; the fetch-and-add tells that all three are done. */
static void post_round(struct end *end, uint64_t round)
{
    size_t record = round % RECORDS * RECORD;
    memset(end->memory + WRITTEN + record, (int)(round & 0xff), RECORD);
    memset(end->memory + SENT + record, (int)(round & 0xff), RECORD);
    memcpy(end->memory + SENT + record, &round, sizeof round);
    ccl_vqp_request_t list[] = {
        {.id = round,
         .operation = CCL_VQP_WRITE,
         .region = end->region,
         .offset = WRITTEN + record,
         .bytes = RECORD,
         .remote_address = end->theirs.address + WRITTEN + record,
         .remote_key = end->theirs.key},
        {.id = round,
         .operation = CCL_VQP_SEND,
         .region = end->region,
         .offset = SENT + record,
         .bytes = RECORD},
        {.id = round,
         .operation = CCL_VQP_FETCH_ADD,
         .signalled = 1,
         .region = end->region,
         .offset = WORD,
         .remote_address = end->theirs.address + WORD,
         .remote_key = end->theirs.key,
         .operand = 1},
    };
    size_t posted;
    CHECK(ccl_vqp_post_send_list(end->vqp, list, sizeof list[0], 3, &posted));
    REQUIRE(posted == 3);
}

/* The next completion, slept for as an event loop does. */
static ccl_vqp_completion_t next_completion(ccl_vqp_t vqp)
{
    ccl_vqp_completion_t done;
    size_t count = 0;
    struct pollfd waited = {.events = POLLIN};
    CHECK(ccl_vqp_get_descriptor(vqp, &waited.fd));
    for (;;) {
        CHECK(ccl_vqp_poll(vqp, &done, sizeof done, 1, &count));
        if (count == 1)
            return done;
        CHECK(ccl_vqp_arm(vqp));
        CHECK(ccl_vqp_poll(vqp, &done, sizeof done, 1, &count));
        if (count == 1)
            return done;
        REQUIRE(poll(&waited, 1, LIMIT_MS) == 1);
    }
}

/* Rounds until the fault has been survived and some more. Returns their number. */
static uint64_t survive(struct end *end)
{
    uint64_t rounds = 0, rest = REST;
    ccl_vqp_info_t info;
    while (rest > 0) {
        post_round(end, rounds);
        ccl_vqp_completion_t done = next_completion(end->vqp);
        REQUIRE(done.status == CCL_VQP_STATUS_SUCCESS && done.id == rounds);
        REQUIRE(done.opcode == CCL_VQP_OPCODE_FETCH_ADD);
        uint64_t before;
        memcpy(&before, end->memory + WORD, sizeof before);
        REQUIRE(before == rounds);
        rounds++;
        CHECK(ccl_vqp_get_info(end->vqp, &info, sizeof info));
        rest -= info.repairs > 0;
    }
    REQUIRE(info.rails == 2 && info.active_rail == 1 && info.is_running);
    REQUIRE(info.evidence == CCL_VQP_LOG && info.state == CCL_VQP_STATE_READY_TO_SEND);

    ccl_vqp_event_t events[2];
    size_t count;
    CHECK(ccl_vqp_get_events(end->vqp, events, sizeof events[0], 2, &count));
    REQUIRE(count == 2);
    REQUIRE(events[0].kind == CCL_VQP_EVENT_INTERRUPTED && events[0].rail == 0);
    REQUIRE(events[1].kind == CCL_VQP_EVENT_RESUMED && events[1].rail == 1);
    return rounds;
}

/* Rounds until no rail is left. */
static void fail(struct end *end)
{
    uint64_t rounds = 0;
    ccl_vqp_completion_t done;
    do {
        post_round(end, rounds++);
        done = next_completion(end->vqp);
    } while (done.status == CCL_VQP_STATUS_SUCCESS);
    /* The oldest of a round has the reason; what is behind it is given up. */
    REQUIRE(done.status == CCL_VQP_STATUS_RETRY_EXCEEDED || done.status == CCL_VQP_STATUS_FLUSHED);
    char fault[256];
    size_t needed, count;
    CHECK(ccl_vqp_get_fault(end->vqp, fault, sizeof fault, &needed));
    REQUIRE(needed > 1 && strlen(fault) > 0);
    ccl_result_t result;
    do
        result = ccl_vqp_wait(end->vqp, &done, sizeof done, 1, &count, LIMIT_MS);
    while (result == CCL_SUCCESS);
    EXPECT(CCL_REMOTE_ERROR, result);
    ccl_vqp_info_t info;
    CHECK(ccl_vqp_get_info(end->vqp, &info, sizeof info));
    REQUIRE(info.state == CCL_VQP_STATE_ERROR && !info.is_running);
}

static void connecting_process(const char *address, const char *devices, int all_fail,
                               int is_pooled)
{
    struct end end;
    ccl_vqp_meeting_t meeting;
    uint64_t rounds = 0;
    CHECK(ccl_vqp_meet(&meeting, address, KEY, LIMIT_MS));
    open_end(&end, meeting, devices, all_fail ? ALL_FAIL : ONE_FAILS, is_pooled);
    if (all_fail) {
        fail(&end);
    } else {
        fill(&end);
        rounds = survive(&end);
    }
    CHECK(ccl_vqp_exchange(meeting, &rounds, sizeof rounds, NULL, 0, NULL, LIMIT_MS));
    close_end(&end);
    CHECK(ccl_vqp_meeting_close(meeting));
}

/* Takes messages until the peer says that it is done, and returns how many came. */
static uint64_t serve(struct end *end, ccl_vqp_meeting_t meeting, int all_fail)
{
    uint64_t heard = 0;
    int is_done = 0;
    struct pollfd waited = {.events = POLLIN};
    CHECK(ccl_vqp_get_descriptor(end->vqp, &waited.fd));
    while (!is_done) {
        ccl_vqp_completion_t done[4];
        size_t count;
        CHECK(ccl_vqp_poll(end->vqp, done, sizeof done[0], 4, &count));
        for (size_t index = 0; index < count; index++) {
            if (all_fail && done[index].status != CCL_VQP_STATUS_SUCCESS)
                continue;
            REQUIRE(done[index].status == CCL_VQP_STATUS_SUCCESS);
            REQUIRE(done[index].opcode == CCL_VQP_OPCODE_RECEIVE && done[index].bytes == RECORD);
            uint64_t slot = done[index].id, message;
            memcpy(&message, end->memory + SENT + slot * RECORD, sizeof message);
            REQUIRE(message == heard); /* in order, each once */
            heard++;
            CHECK(ccl_vqp_post_receive(end->vqp, slot, end->region, SENT + slot * RECORD, RECORD));
        }
        if (count == 0) {
            CHECK(ccl_vqp_has_message(meeting, &is_done));
            CHECK(ccl_vqp_arm(end->vqp));
            (void)poll(&waited, 1, GLANCE_MS);
        }
    }
    return heard;
}

static void accepting_process(ccl_vqp_listener_t listener, const char *devices, int all_fail,
                              int is_pooled)
{
    struct end end;
    ccl_vqp_meeting_t meeting;
    uint64_t rounds, word;
    size_t bytes;
    CHECK(ccl_vqp_accept(listener, &meeting, LIMIT_MS));
    CHECK(ccl_vqp_listener_close(listener));
    open_end(&end, meeting, devices, all_fail ? ALL_FAIL : ONE_FAILS, is_pooled);
    uint64_t heard = serve(&end, meeting, all_fail);
    CHECK(ccl_vqp_exchange(meeting, NULL, 0, &rounds, sizeof rounds, &bytes, LIMIT_MS));
    REQUIRE(bytes == sizeof rounds);
    if (!all_fail) {
        memcpy(&word, end.memory + WORD, sizeof word);
        REQUIRE(heard == rounds && word == rounds);
        for (uint64_t round = rounds - RECORDS; round < rounds; round++)
            for (size_t byte = 0; byte < RECORD; byte++)
                REQUIRE(end.memory[WRITTEN + round % RECORDS * RECORD + byte] == (round & 0xff));
    }
    close_end(&end);
    CHECK(ccl_vqp_meeting_close(meeting));
}

/* There are RDMA devices, or a reason why there are none. */
static void list_rdma_devices(void)
{
    char names[1024];
    size_t needed = 0;
    if (ccl_vqp_get_rdma_devices(names, sizeof names, &needed) == CCL_SUCCESS)
        REQUIRE(needed == strlen(names) + 1 && needed > 1);
    else
        REQUIRE(strlen(ccl_get_last_error(NULL)) > 0);
}

/* Arguments that are impossible are refused, and nothing happens. */
static void refused(void)
{
    ccl_vqp_domain_t domain;
    ccl_vqp_region_t region;
    ccl_vqp_listener_t listener;
    ccl_vqp_meeting_t meeting;
    ccl_vqp_t vqp;
    size_t count;
    ccl_vqp_completion_t done;
    unsigned char own[64] = {0};
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_domain_open(NULL, NULL, NULL, KEY));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_domain_open(&domain, "nonesuch0", NULL, KEY));
    REQUIRE(strstr(ccl_get_last_error(NULL), "nonesuch0") != NULL);
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_domain_open(&domain, "lo", "silent:host=0", KEY));
    EXPECT(CCL_INVALID_ARGUMENT,
           ccl_vqp_domain_open(&domain, "lo", "silent:host=0,rail=1,at=0s", KEY));
    CHECK(ccl_vqp_domain_open(&domain, "lo", NULL, KEY));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_allocate(domain, 0, 0, &region, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_allocate(domain, 64, 8, &region, NULL));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_register(domain, NULL, 64, 0, &region));
    CHECK(ccl_vqp_register(domain, own, sizeof own, CCL_VQP_ACCESS_REMOTE_READ, &region));

    ccl_vqp_config_t config = CCL_VQP_CONFIG_INITIALIZER;
    config.sends = 0;
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_create(&vqp, domain, &config));
    config.sends = 1;
    config.evidence = 4;
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_create(&vqp, domain, &config));
    config.evidence = CCL_VQP_OFF;
    config.receives = 1;
    CHECK(ccl_vqp_create(&vqp, domain, &config));
    ccl_vqp_request_t request = {.operation = CCL_VQP_SEND, .region = region, .bytes = 64};
    EXPECT(CCL_INVALID_USAGE, ccl_vqp_post_send(vqp, &request));
    request.operation = 6;
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_post_send(vqp, &request));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_post_send_list(vqp, &request, sizeof request, 1, &count));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_post_send_list(vqp, NULL, sizeof request, 1, NULL));
    EXPECT(CCL_INVALID_ARGUMENT,
           ccl_vqp_post_send_list(vqp, &request, sizeof request - 1, 1, &count));
    request.operation = CCL_VQP_SEND;
    EXPECT(CCL_INVALID_USAGE, ccl_vqp_post_send_list(vqp, &request, sizeof request, 1, &count));
    REQUIRE(count == 0);
    CHECK(ccl_vqp_post_receive(vqp, 1, region, 0, 64));
    EXPECT(CCL_IN_PROGRESS, ccl_vqp_post_receive(vqp, 2, region, 0, 64));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_poll(vqp, &done, sizeof done - 1, 1, &count));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_wait(vqp, &done, sizeof done, 0, &count, 1));
    EXPECT(CCL_TIMEOUT, ccl_vqp_wait(vqp, &done, sizeof done, 1, &count, 1));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_suspect(vqp, 1));
    EXPECT(CCL_INVALID_USAGE, ccl_vqp_deregister(region)); /* the receive still names it */
    CHECK(ccl_vqp_destroy(vqp));
    CHECK(ccl_vqp_deregister(region));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_deregister(region));
    CHECK(ccl_vqp_domain_close(domain));

    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_listen(&listener, "nowhere", KEY));
    CHECK(ccl_vqp_listen(&listener, "127.0.0.1:0", KEY));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_accept(listener, &meeting, -1));
    EXPECT(CCL_TIMEOUT, ccl_vqp_accept(listener, &meeting, 1));
    REQUIRE(meeting == NULL);
    CHECK(ccl_vqp_listener_close(listener));
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_accept(NULL, &meeting, 1));
    ccl_vqp_pool_t pool;
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_pool_open(&pool, domain, meeting, SPARES, 1));
    REQUIRE(pool == NULL);
    EXPECT(CCL_INVALID_ARGUMENT, ccl_vqp_pool_get_spares(pool, NULL));
    CHECK(ccl_vqp_pool_close(NULL));
    CHECK(ccl_vqp_destroy(NULL));
}

int main(int argc, char **argv)
{
    int all_fail = argc > 1 && strcmp(argv[1], "all-fail") == 0;
    int is_pooled = argc > 1 && strcmp(argv[1], "pooled") == 0;
    const char *accepting = argc > 3 ? argv[2] : "127.3.1.1,127.3.1.2";
    const char *connecting = argc > 3 ? argv[3] : "127.3.2.1,127.3.2.2";
    char address[64];
    int ends[2];
    if (pipe(ends) != 0)
        return EXIT_FAILURE;
    /* The library is used after the fork: its objects belong to one process. */
    pid_t process = fork();
    if (process < 0)
        return EXIT_FAILURE;
    if (process == 0) {
        close(ends[1]);
        if (read(ends[0], address, sizeof address) != (ssize_t)sizeof address)
            return EXIT_FAILURE;
        connecting_process(address, connecting, all_fail, is_pooled);
        return EXIT_SUCCESS;
    }
    close(ends[0]);
    refused();
    list_rdma_devices();
    ccl_vqp_listener_t listener;
    CHECK(ccl_vqp_listen(&listener, "127.0.0.1:0", KEY));
    CHECK(ccl_vqp_get_address(listener, address, sizeof address, NULL));
    if (write(ends[1], address, sizeof address) != (ssize_t)sizeof address)
        return EXIT_FAILURE;
    accepting_process(listener, accepting, all_fail, is_pooled);
    int status;
    if (waitpid(process, &status, 0) < 0 || status != 0)
        return EXIT_FAILURE;
    printf("vqp: 2 processes, %s\n", all_fail ? "an end with a reason" : "nothing lost, nothing twice");
    return EXIT_SUCCESS;
}
