// What the protocols share: waits that end when somebody gives up.
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

}  // namespace r2ccl
