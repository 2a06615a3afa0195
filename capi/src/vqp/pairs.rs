//! Queue pairs, and what is heard of them.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccl::vqp::{Completion, Depth, Error, Event, Evidence, Limits, QueuePair, Terms};

use super::abi::{
    CONFIG_MAGIC, CompletionRecord, ConfigRecord, DomainHandle, EVENT_KINDS, EVIDENCES,
    EventRecord, InfoRecord, MeetingHandle, OPCODES, PairHandle, STATES, STATUSES, number,
};
use super::domains::DOMAINS;
use super::meetings::MEETINGS;
use super::{check_size, entry, invalid, tell, tell_records, timeout};
use crate::abi::CONFIG_UNDEF_INT;
use crate::arguments::Slot;
use crate::handles::{Table, locked};
use crate::outcome::Status;

pub(super) static PAIRS: Table<Mutex<End>> = Table::new("queue pair");

/// A queue pair, and what a program had no room for.
#[derive(Debug)]
pub(super) struct End {
    pub(super) pair: QueuePair,
    completions: Vec<Completion>,
    /// The first of them that the program has not seen.
    seen: usize,
    events: VecDeque<Event>,
}

impl End {
    /// Writes as many completions as there is room for.
    ///
    /// # Safety
    ///
    /// As for [`ccl_vqp_poll`].
    unsafe fn hand_over(
        &mut self,
        completions: *mut CompletionRecord,
        record_size: usize,
        capacity: usize,
    ) -> Result<usize, Error> {
        let waiting = &self.completions[self.seen..];
        let records: Vec<_> = waiting.iter().take(capacity).map(completion_record).collect();
        // SAFETY: there are `capacity` records at most, and the caller's promise.
        unsafe { tell_records("completions", &records, completions, record_size) }?;
        self.seen += records.len();
        if self.seen == self.completions.len() {
            self.completions.clear();
            self.seen = 0;
        }
        Ok(records.len())
    }
}

/// See the header.
///
/// # Safety
///
/// `vqp` is null or may be written to; `config` is null, or leads to a `size_t` that says how many bytes
/// can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_create(
    vqp: *mut PairHandle,
    domain: DomainHandle,
    config: *const ConfigRecord,
) -> c_int {
    entry("ccl_vqp_create", || {
        // SAFETY: the caller's promise.
        let vqp = unsafe { Slot::at("vqp", vqp) }?;
        vqp.put(null_mut());
        let domain = DOMAINS.get(domain.addr())?;
        // SAFETY: the caller's promise.
        let terms = terms(&unsafe { read(config) }?)?;
        let pair = domain.queue_pair(&terms)?;
        let end = End { pair, completions: Vec::new(), seen: 0, events: VecDeque::new() };
        vqp.put(without_provenance_mut(PAIRS.insert(Arc::new(Mutex::new(end)))));
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_connect(
    vqp: PairHandle,
    meeting: MeetingHandle,
    timeout_ms: c_int,
) -> c_int {
    entry("ccl_vqp_connect", || {
        let (pair, meeting) = (PAIRS.get(vqp.addr())?, MEETINGS.get(meeting.addr())?);
        let limit = timeout(timeout_ms)?;
        locked(&pair).pair.connect(&mut locked(&meeting), limit)?;
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `capacity` records of `record_size` bytes may be written at `completions`; `count` is null or may be
/// written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_poll(
    vqp: PairHandle,
    completions: *mut CompletionRecord,
    record_size: usize,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    entry("ccl_vqp_poll", || {
        // SAFETY: the caller's promise.
        let count = unsafe { Slot::at("count", count) }?;
        count.put(0);
        check_size::<CompletionRecord>("ccl_vqp_completion_t", record_size)?;
        let end = PAIRS.get(vqp.addr())?;
        let mut end = locked(&end);
        let End { pair, completions: done, .. } = &mut *end;
        pair.poll(done);
        // SAFETY: the caller's promise.
        count.put(unsafe { end.hand_over(completions, record_size, capacity) }?);
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// As for [`ccl_vqp_poll`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_wait(
    vqp: PairHandle,
    completions: *mut CompletionRecord,
    record_size: usize,
    capacity: usize,
    count: *mut usize,
    timeout_ms: c_int,
) -> c_int {
    entry("ccl_vqp_wait", || {
        // SAFETY: the caller's promise.
        let count = unsafe { Slot::at("count", count) }?;
        count.put(0);
        check_size::<CompletionRecord>("ccl_vqp_completion_t", record_size)?;
        if capacity == 0 {
            return Err(invalid("capacity is 0: there is no room to wait for".into()));
        }
        let limit = timeout(timeout_ms)?;
        let end = PAIRS.get(vqp.addr())?;
        let mut end = locked(&end);
        let End { pair, completions: done, .. } = &mut *end;
        if done.is_empty() {
            pair.wait(done, limit)?;
        }
        // SAFETY: the caller's promise.
        count.put(unsafe { end.hand_over(completions, record_size, capacity) }?);
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `descriptor` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_get_descriptor(vqp: PairHandle, descriptor: *mut c_int) -> c_int {
    entry("ccl_vqp_get_descriptor", || {
        // SAFETY: the caller's promise.
        let descriptor = unsafe { Slot::at("descriptor", descriptor) }?;
        descriptor.put(locked(&*PAIRS.get(vqp.addr())?).pair.descriptor());
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_arm(vqp: PairHandle) -> c_int {
    entry("ccl_vqp_arm", || {
        locked(&*PAIRS.get(vqp.addr())?).pair.arm()?;
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `record_size` bytes may be written at `info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_get_info(
    vqp: PairHandle,
    info: *mut InfoRecord,
    record_size: usize,
) -> c_int {
    entry("ccl_vqp_get_info", || {
        check_size::<InfoRecord>("ccl_vqp_info_t", record_size)?;
        let record = info_record(&locked(&*PAIRS.get(vqp.addr())?).pair);
        // SAFETY: one record, and the caller's promise.
        unsafe { tell_records("info", &[record], info, record_size) }?;
        Ok(Status::Done)
    })
}

/// See the header.
///
/// # Safety
///
/// `capacity` bytes may be written at `text`; `needed` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_get_fault(
    vqp: PairHandle,
    text: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> c_int {
    entry("ccl_vqp_get_fault", || {
        let fault = locked(&*PAIRS.get(vqp.addr())?).pair.fault().unwrap_or_default();
        // SAFETY: the caller's promise.
        unsafe { tell(&fault, text, capacity, needed) }
    })
}

/// See the header.
///
/// # Safety
///
/// `capacity` records of `record_size` bytes may be written at `events`; `count` is null or may be
/// written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccl_vqp_get_events(
    vqp: PairHandle,
    events: *mut EventRecord,
    record_size: usize,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    entry("ccl_vqp_get_events", || {
        // SAFETY: the caller's promise.
        let count = unsafe { Slot::at("count", count) }?;
        count.put(0);
        check_size::<EventRecord>("ccl_vqp_event_t", record_size)?;
        let end = PAIRS.get(vqp.addr())?;
        let mut end = locked(&end);
        let fresh = end.pair.take_events();
        end.events.extend(fresh);
        let surplus = end.events.len().saturating_sub(MOST_EVENTS);
        end.events.drain(..surplus);
        let records: Vec<_> = end.events.iter().take(capacity).map(event_record).collect();
        // SAFETY: there are `capacity` records at most, and the caller's promise.
        unsafe { tell_records("events", &records, events, record_size) }?;
        end.events.drain(..records.len());
        count.put(records.len());
        Ok(Status::Done)
    })
}

/// Events that are kept for a program without room.
const MOST_EVENTS: usize = 1024;

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_suspect(vqp: PairHandle, rail: c_int) -> c_int {
    entry("ccl_vqp_suspect", || {
        let rail = usize::try_from(rail).map_err(|_| invalid(format!("rail is {rail}")))?;
        locked(&*PAIRS.get(vqp.addr())?).pair.suspect(rail)?;
        Ok(Status::Done)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn ccl_vqp_destroy(vqp: PairHandle) -> c_int {
    entry("ccl_vqp_destroy", || {
        if !vqp.is_null() {
            PAIRS.remove(vqp.addr())?;
        }
        Ok(Status::Done)
    })
}

/// Copies as much of a record as both sides know.
///
/// # Safety
///
/// `config` is null, or leads to a `size_t` that says how many bytes can be read there.
unsafe fn read(config: *const ConfigRecord) -> Result<ConfigRecord, Error> {
    let mut known = ConfigRecord::INITIALIZER;
    if config.is_null() {
        return Ok(known);
    }
    // SAFETY: the record begins with its size.
    let size = unsafe { config.cast::<usize>().read() };
    if size < std::mem::offset_of!(ConfigRecord, evidence) {
        return Err(invalid(format!("config.size is {size}: use CCL_VQP_CONFIG_INITIALIZER")));
    }
    let target = (&raw mut known).cast::<u8>();
    // SAFETY: `size` bytes can be read, `known` is as large as what is copied, and all its fields may
    // have any value.
    unsafe { target.copy_from_nonoverlapping(config.cast(), size.min(size_of::<ConfigRecord>())) };
    if known.magic != CONFIG_MAGIC {
        return Err(invalid("config.magic is wrong: use CCL_VQP_CONFIG_INITIALIZER".into()));
    }
    Ok(known)
}

fn terms(config: &ConfigRecord) -> Result<Terms, Error> {
    let default = Terms::default();
    let evidence = match config.evidence {
        CONFIG_UNDEF_INT => default.evidence,
        number => evidence(number)?,
    };
    let depth = Depth {
        sends: given("sends", config.sends)?.map_or(default.depth.sends, |n| n as usize),
        receives: given("receives", config.receives)?
            .map_or(default.depth.receives, |n| n as usize),
    };
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let patience = milliseconds("patience_ms", config.patience_ms)?;
    let settle = milliseconds("settle_ms", config.settle_ms)?;
    let limits = Limits {
        patience_ns: patience.map_or(default.limits.patience_ns, nanoseconds),
        settle_ns: settle.map_or(default.limits.settle_ns, nanoseconds),
        ..default.limits
    };
    let silence = milliseconds("silence_ms", config.silence_ms)?.unwrap_or(default.silence);
    Ok(Terms { evidence, depth, silence, limits })
}

fn milliseconds(what: &str, value: c_int) -> Result<Option<Duration>, Error> {
    Ok(given(what, value)?.map(Duration::from_millis))
}

fn given(what: &str, value: c_int) -> Result<Option<u64>, Error> {
    match (value, u64::try_from(value)) {
        (CONFIG_UNDEF_INT, _) => Ok(None),
        (_, Ok(value)) => Ok(Some(value)),
        (_, Err(_)) => Err(invalid(format!("config.{what} is {value}"))),
    }
}

fn evidence(number: c_int) -> Result<Option<Evidence>, Error> {
    let known = usize::try_from(number).ok().and_then(|index| EVIDENCES.get(index));
    let unknown = || invalid(format!("{number} is not a ccl_vqp_evidence_t"));
    known.copied().ok_or_else(unknown)
}

fn completion_record(completion: &Completion) -> CompletionRecord {
    CompletionRecord {
        id: completion.id.0,
        status: number(&STATUSES, &completion.status),
        opcode: number(&OPCODES, &completion.opcode),
        bytes: completion.bytes as u64,
        immediate: completion.immediate.unwrap_or(0),
        has_immediate: c_int::from(completion.immediate.is_some()),
    }
}

fn event_record(event: &Event) -> EventRecord {
    let rail = c_int::try_from(event.rail).unwrap_or(c_int::MAX);
    EventRecord { at_ns: event.at_ns, rail, kind: number(&EVENT_KINDS, &event.kind) }
}

fn info_record(pair: &QueuePair) -> InfoRecord {
    let counters = pair.counters();
    let count = |count: usize| c_int::try_from(count).unwrap_or(c_int::MAX);
    InfoRecord {
        state: number(&STATES, &pair.state()),
        rails: count(pair.rails()),
        connected_rails: count(pair.connected_rails()),
        active_rail: count(pair.active_rail()),
        is_running: c_int::from(pair.is_running()),
        evidence: number(&EVIDENCES, &pair.evidence()),
        repairs: counters.repairs,
        resent: counters.resent,
        resent_bytes: counters.resent_bytes,
        spared: counters.spared,
        recovered: counters.recovered,
        returns: counters.returns,
    }
}
