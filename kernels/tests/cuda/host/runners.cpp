// Runs kernels on a processor, behind the text of a module.
//
// A kernel whose threads never wait runs as a loop over them. Kernels that wait for each other run as
// one fiber per thread, all in one thread of the processor, in an order drawn from a seed: what
// depends on luck is found again with the seed.
//
// Fibers have a weak memory, as GPUs do. What a block stores reaches memory later, in any order. What
// it has read it may read again as it was, and it may read ahead of time what it read before. A
// release or a fence publishes its stores, an acquire or a fence forgets what it has read, and so does
// the end of a kernel. The threads of one block see each other's stores at once, which on a GPU only
// their barrier promises.

#include <csetjmp>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include <ucontext.h>

namespace r2ccl {

__thread Host host;

namespace {

const char *const OUT_OF_PLACE = "a wait in a kernel whose threads never wait";

// ---- The loop

bool meet_nobody(bool any)
{
    host.wrong = OUT_OF_PLACE;
    return any;
}

void pause_for_nobody() { host.wrong = OUT_OF_PLACE; }
bool tear_nothing() { return false; }

const Runner LOOP = {meet_nobody, pause_for_nobody, tear_nothing};

// ---- Fibers

const u64 STACK_BYTES = 32768;

struct Random {
    u64 state;

    u64 next()
    {
        state += 0x9e3779b97f4a7c15ull;
        u64 mixed = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ull;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
        return mixed ^ mixed >> 31;
    }
};

struct Launch {
    void (*kernel)(const void *);
    const void *parameters;
    u32 blocks, threads, stream, unused;
};

// Where the threads of a block meet.
struct Meeting {
    u32 members, here = 0, round = 0;
    bool any = false, result = false;
};

struct Store {
    u64 address;
    u32 bytes;
    u8 value[8];
};

// Eight bytes as they were when they were read.
struct Memory {
    u64 address;
    u8 value[8];
};

const u64 MOST_STORES = 24;
const u64 MOST_MEMORIES = 64;

}  // namespace

struct View {
    std::vector<Store> stores;     // not seen by others yet, in their order
    std::vector<Memory> memories;  // that may be out of date
    std::vector<u64> read;         // addresses, some of them
    u32 threads_left;
};

namespace {

struct Fiber {
    Thread self;
    const Launch *launch;
    Meeting *meeting;
    View *view;
    std::unique_ptr<char[]> stack;
    ucontext_t beginning;
    std::jmp_buf place;
    bool has_begun = false, is_done = false;
    bool is_starved = false;
};

struct Scheduler {
    Random random;
    std::vector<std::unique_ptr<Fiber>> fibers;  // that are not done
    std::deque<Meeting> meetings;
    std::deque<View> views;
    std::jmp_buf place;
    Fiber *current = nullptr;
};

__thread Scheduler *scheduler = nullptr;

void apply(const Store &store)
{
    std::memcpy(reinterpret_cast<void *>(store.address), store.value, store.bytes);
}

// Lets others see one store; those before it to the same eight bytes come first.
void publish_one(View &view)
{
    u64 which = scheduler->random.next() % view.stores.size();
    for (u64 k = 0; k < which; k++)
        if (view.stores[k].address / 8 == view.stores[which].address / 8) which = k;
    apply(view.stores[which]);
    view.stores.erase(view.stores.begin() + static_cast<i64>(which));
}

Memory *remembered(View &view, u64 address)
{
    for (Memory &memory : view.memories)
        if (memory.address == address) return &memory;
    return nullptr;
}

// The eight bytes at this address, as they are or as they were.
Memory &recall(View &view, u64 address)
{
    Memory *memory = remembered(view, address);
    if (memory && scheduler->random.next() % 2) return *memory;
    if (view.read.size() < MOST_MEMORIES) view.read.push_back(address);
    else view.read[scheduler->random.next() % MOST_MEMORIES] = address;
    if (!memory && view.memories.size() < MOST_MEMORIES) {
        view.memories.push_back({});
        memory = &view.memories.back();
    }
    if (!memory) memory = &view.memories[scheduler->random.next() % MOST_MEMORIES];
    memory->address = address;
    std::memcpy(memory->value, reinterpret_cast<const void *>(address), 8);
    return *memory;
}

// Reads something ahead of time.
void read_ahead(View &view)
{
    const u64 address = view.read[scheduler->random.next() % view.read.size()];
    if (!remembered(view, address)) recall(view, address);
}

// Fibers change without system calls; only the first entry needs a context.
void yield()
{
    Fiber *self = scheduler->current;
    if (_setjmp(self->place) == 0) _longjmp(scheduler->place, 1);
}

bool meet_fibers(bool any)
{
    Meeting &meeting = *scheduler->current->meeting;
    const u32 round = meeting.round;
    meeting.any = meeting.any || any;
    if (++meeting.here == meeting.members) {
        meeting.result = meeting.any;
        meeting.any = false;
        meeting.here = 0;
        meeting.round++;
    }
    // The result stays until this fiber comes to the next meeting.
    while (meeting.round == round) yield();
    return meeting.result;
}

bool tear_fibers()
{
    const u64 drawn = scheduler->random.next();
    if (drawn % 4 == 0) yield();
    return drawn >> 8 & 1;
}

const Runner FIBERS = {meet_fibers, yield, tear_fibers};

void begin()
{
    Fiber *self = scheduler->current;
    self->launch->kernel(self->launch->parameters);
    self->is_done = true;
    _longjmp(scheduler->place, 1);
}

// Lets a fiber run until it yields or is done.
void resume(Fiber *fiber)
{
    scheduler->current = fiber;
    host.here = &fiber->self;
    host.view = fiber->view;
    if (_setjmp(scheduler->place) != 0) return;
    if (fiber->has_begun) _longjmp(fiber->place, 1);
    fiber->has_begun = true;
    setcontext(&fiber->beginning);
}

// Some streams, and some blocks of all, are made to run seldom: what is late finds other bugs.
bool is_unlucky(u64 seed, const Launch &launch, u32 block)
{
    if (seed % 3 == 0) return false;
    Random random = {seed * 1000003 + launch.stream * 7919 + (seed % 3 == 2 ? block * 104729 : 0)};
    return random.next() % 8 < 3;
}

void start(const Launch &launch, u64 seed)
{
    for (u32 block = 0; block < launch.blocks; block++) {
        scheduler->meetings.push_back(Meeting{launch.threads});
        scheduler->views.push_back(View{{}, {}, {}, launch.threads});
        for (u32 thread = 0; thread < launch.threads; thread++) {
            auto fiber = std::make_unique<Fiber>();
            fiber->self = {thread, launch.threads, block, launch.blocks};
            fiber->launch = &launch;
            fiber->meeting = &scheduler->meetings.back();
            fiber->view = &scheduler->views.back();
            fiber->stack.reset(new char[STACK_BYTES]);
            fiber->is_starved = is_unlucky(seed, launch, block);
            getcontext(&fiber->beginning);
            fiber->beginning.uc_stack.ss_sp = fiber->stack.get();
            fiber->beginning.uc_stack.ss_size = STACK_BYTES;
            fiber->beginning.uc_link = nullptr;
            makecontext(&fiber->beginning, begin, 0);
            scheduler->fibers.push_back(std::move(fiber));
        }
    }
}

// The next launch of a stream, behind the one at `after`.
void start_next(const Launch *launches, u64 count, u64 after, u32 stream, u64 seed)
{
    for (u64 k = after; k < count; k++)
        if (launches[k].stream == stream) return start(launches[k], seed);
}

}  // namespace
}  // namespace r2ccl

using namespace r2ccl;

extern "C" void r2ccl_host_load(View *view, const void *at, void *to, u32 bytes, bool is_fresh)
{
    const u64 address = reinterpret_cast<u64>(at);
    u8 word[8];
    // A word that is not all memory of the test is read as it is.
    if (is_fresh || bytes < 8) std::memcpy(word + address % 8, at, bytes);
    else std::memcpy(word, recall(*view, address).value, 8);
    for (const Store &store : view->stores)
        if (store.address / 8 == address / 8)
            std::memcpy(word + store.address % 8, store.value, store.bytes);
    std::memcpy(to, word + address % 8, bytes);
}

extern "C" void r2ccl_host_store(View *view, void *at, const void *from, u32 bytes)
{
    Store store = {reinterpret_cast<u64>(at), bytes, {}};
    std::memcpy(store.value, from, bytes);
    if (Memory *memory = remembered(*view, store.address / 8 * 8))
        std::memcpy(memory->value + store.address % 8, from, bytes);
    if (view->stores.size() == MOST_STORES) publish_one(*view);
    view->stores.push_back(store);
}

extern "C" void r2ccl_host_publish(View *view)
{
    for (const Store &store : view->stores) apply(store);
    view->stores.clear();
}

extern "C" void r2ccl_host_forget(View *view) { view->memories.clear(); }

extern "C" void r2ccl_host_allow(const Range *ranges, u64 count)
{
    host.allowed = ranges;
    host.allowed_count = count;
}

// What was wrong with an access since the last question, or null.
extern "C" const char *r2ccl_host_wrong(const void **address)
{
    const char *wrong = host.wrong;
    *address = host.wrong_address;
    host.wrong = nullptr;
    return wrong;
}

// All threads, one after the other: `step` threads further on each time, which must have no common
// factor with their number.
extern "C" void r2ccl_host_loop(const Launch *launch, u64 step)
{
    Thread self = {0, launch->threads, 0, launch->blocks};
    host.here = &self;
    host.view = nullptr;
    host.runner = &LOOP;
    const u64 total = static_cast<u64>(launch->blocks) * launch->threads;
    for (u64 k = 0, index = step % total; k < total; k++, index = (index + step) % total) {
        self.block = static_cast<u32>(index / launch->threads);
        self.thread = static_cast<u32>(index % launch->threads);
        launch->kernel(launch->parameters);
    }
}

// Launches of one stream run one after the other, streams side by side. False if they have not
// ended after `limit` turns. `stir` is called now and then, for what happens elsewhere meanwhile.
extern "C" bool r2ccl_host_fibers(const Launch *launches, u64 count, u64 seed, u64 limit,
                                  void (*stir)(void *), void *stirred)
{
    Scheduler own = {};
    own.random = {seed};
    scheduler = &own;
    host.runner = &FIBERS;
    u32 streams = 0;
    for (u64 k = 0; k < count; k++)
        if (launches[k].stream >= streams) streams = launches[k].stream + 1;
    for (u32 stream = 0; stream < streams; stream++) start_next(launches, count, 0, stream, seed);
    std::vector<u64> left(count);
    for (u64 k = 0; k < count; k++) left[k] = static_cast<u64>(launches[k].blocks) * launches[k].threads;
    u64 turns = 0;
    while (!own.fibers.empty() && turns < limit) {
        turns++;
        if (stir && turns % 64 == 0) stir(stirred);
        const u64 index = own.random.next() % own.fibers.size();
        Fiber *fiber = own.fibers[index].get();
        if (fiber->is_starved && own.random.next() % 16 != 0) continue;
        resume(fiber);
        View &view = *fiber->view;
        while (!view.stores.empty() && own.random.next() % 4 == 0) publish_one(view);
        if (!view.read.empty() && own.random.next() % 2 == 0) read_ahead(view);
        if (!fiber->is_done) continue;
        // A kernel ends when all of its stores are there.
        if (--view.threads_left == 0) r2ccl_host_publish(&view);
        const u64 which = static_cast<u64>(fiber->launch - launches);
        std::swap(own.fibers[index], own.fibers.back());
        own.fibers.pop_back();
        if (--left[which] == 0)
            start_next(launches, count, which + 1, launches[which].stream, seed);
    }
    const bool has_ended = own.fibers.empty();
    scheduler = nullptr;
    return has_ended;
}
