//! Inside a host: from a buffer of one process to a buffer of the other.

use std::time::Duration;

use ccl_transport::clock;

use crate::area::{Pages, pattern};
use crate::moves::{Action, Job, MOST_BYTES, Mover, Way};
use crate::peers::{Distance, Pair, Side};
use crate::rounds::{DISTANCES, Sorted, Times, head, row, short, size, sorted};

const SIZES: [usize; 6] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, MOST_BYTES];
/// Bytes that one timed run moves, within the bounds of how many calls it has.
const RUN_BYTES: usize = 64 << 20;
const MOST_CALLS: usize = 1000;
const PASSES: usize = 9;
const ROUNDS_OF_PASS: usize = 5;
/// No pass begins later than this.
const LONGEST: Duration = Duration::from_secs(80);

/// A way with its name.
type Named = (&'static str, Way);

const STAGED: Named = ("staged", Way::Staged);
const SLOTS_STREAMED: Named = ("staged, slots streamed", Way::SlotsStreamed);
const STAGED_STREAMED: Named = ("staged, target streamed", Way::StagedStreamed);
const MAPPED_STREAMED: Named = ("mapped, target streamed", Way::MappedStreamed);
const MAPPED: Named = ("mapped", Way::Mapped);
const READ: Named = ("read", Way::Read(Pages::Ordinary));
const READ_HUGE: Named = ("read, huge pages", Way::Read(Pages::Huge));
const WRITE: Named = ("write", Way::Write);
const HALVES: Named = ("write and read halves", Way::Halves);

/// What a table is about.
struct Subject {
    title: &'static str,
    action: Action,
    both_ways: bool,
    ways: &'static [Named],
}

const SUBJECTS: [Subject; 4] = [
    Subject {
        title: "One process to the other, µs",
        action: Action::Copy,
        both_ways: false,
        ways: &[
            STAGED,
            SLOTS_STREAMED,
            STAGED_STREAMED,
            READ,
            READ_HUGE,
            WRITE,
            HALVES,
            MAPPED,
            MAPPED_STREAMED,
        ],
    },
    Subject {
        title: "Each to the other at the same time, µs",
        action: Action::Copy,
        both_ways: true,
        ways: &[
            STAGED,
            SLOTS_STREAMED,
            STAGED_STREAMED,
            READ,
            READ_HUGE,
            WRITE,
            MAPPED,
            MAPPED_STREAMED,
        ],
    },
    Subject {
        title: "Added to what the other has, µs",
        action: Action::Sum,
        both_ways: false,
        ways: &[STAGED, SLOTS_STREAMED, READ, READ_HUGE, MAPPED],
    },
    Subject {
        title: "Added to what the other has, both at the same time, µs",
        action: Action::Sum,
        both_ways: true,
        ways: &[STAGED, SLOTS_STREAMED, READ, READ_HUGE, MAPPED],
    },
];

pub(crate) fn measure(pair: &Pair) {
    let mut mover = Mover::new(pair);
    pair.meet();
    let seed = usize::from(pair.side == Side::Second);
    [mover.ordinary.source, mover.huge.source, mover.registered]
        .iter()
        .for_each(|source| source.fill(pattern(seed)));
    let readable = mover.may_read();
    let readable = readable && pair.exchange(u64::from(readable)) == 1;
    if pair.side == Side::First {
        println!("\n## Inside a host");
        println!("\nProcesses on processors of their own: {}.", pair.apart);
        println!(
            "In huge pages: source {}, target {}.",
            mover.huge.source.given(),
            mover.huge.target.given()
        );
        println!("Memory of the other process can be read: {readable}.");
    }
    let mut rows: Vec<Row> = SUBJECTS
        .iter()
        .flat_map(|subject| SIZES.map(|bytes| subject.row(bytes, readable)))
        .collect();
    for row in &rows {
        row.jobs.iter().for_each(|(job, _)| verify(pair, &mut mover, *job));
    }
    // Passes over all rows, so that each row sees the machine at several moments.
    let start = clock::now();
    for _ in 0..PASSES {
        if pair.agreed(start.elapsed() > LONGEST) {
            break;
        }
        for row in &mut rows {
            let calls = (RUN_BYTES / row.bytes).clamp(1, MOST_CALLS);
            sorted(pair, ROUNDS_OF_PASS, &mut row.jobs, |job| {
                pair.time(calls, || mover.carry_out(*job))
            });
        }
    }
    if pair.side == Side::First {
        SUBJECTS
            .iter()
            .zip(rows.chunks(SIZES.len()))
            .for_each(|(subject, rows)| subject.print(rows));
    }
}

/// All ways for one size.
struct Row {
    bytes: usize,
    jobs: Vec<(Job, Sorted)>,
}

impl Subject {
    fn row(&self, bytes: usize, readable: bool) -> Row {
        let direct = |way| matches!(way, Way::Read(_) | Way::Write | Way::Halves);
        let ways = self.ways.iter().map(|(_, way)| *way).filter(|way| readable || !direct(*way));
        let job = |way| Job { way, action: self.action, bytes, both_ways: self.both_ways };
        Row { bytes, jobs: ways.map(|way| (job(way), Sorted::default())).collect() }
    }

    fn print(&self, rows: &[Row]) {
        let name = |job: &Job| self.ways.iter().find(|(_, way)| *way == job.way).unwrap().0;
        let names = rows[0].jobs.iter().map(|(job, _)| name(job));
        let ends = ["read / staged", "read, huge pages / staged"];
        head(
            self.title,
            &["processors", "size"].into_iter().chain(names).chain(ends).collect::<Vec<_>>(),
        );
        for (distance, called) in DISTANCES {
            for row_of in rows {
                let times: Vec<_> =
                    row_of.jobs.iter().map(|(_, times)| times.of(distance)).collect();
                if times.iter().all(Option::is_none) {
                    continue;
                }
                let cell =
                    |times: &Option<&Times>| times.map_or("-".to_owned(), Times::microseconds);
                let cells = times.iter().map(cell);
                let first = [called.to_owned(), size(row_of.bytes)];
                let ratios =
                    [Pages::Ordinary, Pages::Huge].map(|pages| row_of.ratio(distance, pages));
                row(&first.into_iter().chain(cells).chain(ratios).collect::<Vec<_>>());
            }
        }
    }
}

impl Row {
    /// Time of reading over that of the best way to stage.
    fn ratio(&self, distance: Distance, pages: Pages) -> String {
        let median = |wanted: Way| {
            let (_, times) = self.jobs.iter().find(|(job, _)| job.way == wanted)?;
            Some(times.of(distance)?.median())
        };
        let staged = [Way::Staged, Way::SlotsStreamed, Way::StagedStreamed].map(median);
        let staged = staged.into_iter().flatten().reduce(f64::min);
        let ratio = median(Way::Read(pages)).zip(staged).map(|(read, staged)| short(read / staged));
        ratio.unwrap_or("-".to_owned())
    }
}

/// Moves once, and looks at every byte that arrives.
fn verify(pair: &Pair, mover: &mut Mover<'_>, job: Job) {
    const BEFORE: f32 = 1000.0;
    let target = mover.buffers(job.way).target;
    target.fill(|_| BEFORE);
    pair.meet();
    mover.carry_out(job);
    let other = pattern(usize::from(pair.side == Side::First));
    let wrong = match job.action {
        _ if !job.receives(pair.side) => 0,
        Action::Copy => target.wrong(job.bytes, other),
        Action::Sum => target.wrong(job.bytes, |index| BEFORE + other(index)),
    };
    let wrong = wrong + pair.exchange(wrong);
    assert_eq!(wrong, 0, "wrong bytes: {job:?}");
}
