// What the protocols share: waits that end when somebody gives up, and the count of calls.
//
// A call that has given up leaves its memory in any state; whoever sets the abort word makes
// mailboxes, arrivals and states anew before the next call.

namespace r2ccl {

// A wait. `goes_on` is asked after every look that found nothing.
struct Patience {
    const u32 *abort;
    u32 polls = 0;

    R2CCL_FN bool goes_on()
    {
        if (++polls % R2CCL_POLLS_PER_LOOK == 0 && load_volatile(abort) != 0) return false;
        pause();
        return true;
    }
};

// Waits until the counter has come to `value`. False if it gave up.
R2CCL_FN bool wait_for(const u64 *counter, u64 value, const u32 *abort)
{
    Patience patience{abort};
    while (load_acquire(counter) < value)
        if (!patience.goes_on()) return false;
    return true;
}

// Whether this is the thread that comes last of the grid: everything that all threads of all blocks
// have read and written is done. The blocks of a call must all come here, once.
R2CCL_FN bool is_last_of_grid(State *state)
{
    meet_block(false);
    if (thread() != 0) return false;
    if (blocks() == 1) return true;
    fence_device();
    if (count_up(&state->finished) != blocks() - 1) return false;
    fence_device();
    state->finished = 0;
    return true;
}

}  // namespace r2ccl
