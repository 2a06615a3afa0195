#!/usr/bin/env python3
"""What compare.py says about given times: which are compared, which bars are missed, and which of them ask for more than
the limit.

    tests/peers/test_tables.py
"""

import contextlib
import io
import json
import math
import unittest
from unittest import mock

import compare
import tables
import watch
from candidates import LIMITS, OURS, REGISTERED, Candidate, Plan

PEER = "Open MPI"
SMALL, MIDDLE, LARGE = 8, 1 << 20, 16 << 20


def part(sizes, operation="all_gather", ranks=4, **times):
    """Of one round: microseconds by candidate for each size."""
    names = {"ours": OURS, "registered": REGISTERED, "ordinary": LIMITS[OURS], "limit": LIMITS[REGISTERED], "peer": PEER}
    samples = {names[name]: [[[time, 50]] for time in column] for name, column in times.items()}
    calls = [1] * len(sizes)
    return {"operation": operation, "ranks": ranks, "sizes": sizes, "timeout": 1, "calls": calls, "samples": samples}


def line(found, bar):
    """The verdict of a bar."""
    return next(text for text in tables.judged(found) if bar in text).split(": ", 1)[1]


class Allowed(unittest.TestCase):
    def test_the_limit_moves_the_bytes_and_no_more(self):
        self.assertEqual(tables.allowed(part([MIDDLE], peer=[100], registered=[50], limit=[40]), REGISTERED, 0), 2.5)

    def test_ranks_have_to_meet_twice(self):
        found = part([MIDDLE], peer=[100], registered=[50], limit=[20])
        self.assertEqual(tables.allowed(found, REGISTERED, 0, 10), 2.5)

    def test_what_goes_in_tiles_needs_one_meeting_and_a_broadcast_none(self):
        found = part([MIDDLE], peer=[100], ours=[50], ordinary=[30])
        self.assertEqual(tables.allowed(found, OURS, 0, 10), 2.5)
        found = part([MIDDLE], "broadcast", peer=[75], ours=[50], ordinary=[30])
        self.assertEqual(tables.allowed(found, OURS, 0, 10), 2.5)

    def test_how_long_they_take_is_measured_beside(self):
        meeting = part([SMALL, MIDDLE], "all_reduce", ours=[10, 90], peer=[20, 100])
        other = part([MIDDLE], "all_reduce", ranks=8, ours=[7], peer=[8])
        self.assertEqual(tables.meetings([meeting, other]), {4: 10})
        gathered = part([MIDDLE], peer=[100], ours=[70], ordinary=[30])
        self.assertIn("1 MB 1.43 (the limit: 2.50)", tables.verdicts([meeting, gathered]))

    def test_where_ranks_wait_for_each_other_the_memory_tells_nothing(self):
        self.assertTrue(math.isnan(tables.allowed(part([SMALL], peer=[100], registered=[50], limit=[40]), REGISTERED, 0)))

    def test_without_a_limit_nothing_is_known(self):
        self.assertTrue(math.isnan(tables.allowed(part([MIDDLE], peer=[100], registered=[50]), REGISTERED, 0)))
        slow = part([MIDDLE], peer=[100], ours=[60], ordinary=[math.inf], limit=[40])
        self.assertEqual(line(slow, "r2ccl 2 times"), "**missed** in 1 of 1: 1 MB 1.67")


class Verdicts(unittest.TestCase):
    def test_a_missed_bar_tells_how_fast_the_limit_is(self):
        found = part([MIDDLE, LARGE], peer=[100, 1000], registered=[50, 250], limit=[40, 160])
        self.assertEqual(
            line(found, "registered 5 times"),
            "**missed** in 2 of 2: 1 MB 2.00 (the limit: 2.50), 16 MB 4.00 (the limit: 6.25); "
            "1 of them asks for more than the limit")

    def test_ordinary_buffers_have_a_limit_of_their_own(self):
        found = part([MIDDLE, LARGE], peer=[100, 1000], ours=[100, 1000], ordinary=[60, 600], limit=[10, 100])
        self.assertEqual(
            line(found, "r2ccl 2 times"),
            "**missed** in 2 of 2: 1 MB 1.00 (the limit: 1.67), 16 MB 1.00 (the limit: 1.67); "
            "2 of them ask for more than the limit")

    def test_a_bar_within_the_limit_is_missed_and_no_more(self):
        found = part([MIDDLE], peer=[100], ours=[60], ordinary=[20])
        self.assertEqual(line(found, "r2ccl 2 times"), "**missed** in 1 of 1: 1 MB 1.67 (the limit: 5.00)")

    def test_small_sizes_tell_their_ratio_only(self):
        found = part([SMALL, MIDDLE], peer=[1, 100], ours=[2, 50], ordinary=[0.1, 40])
        self.assertEqual(line(found, "as fast as the best peer"), "**missed** in 1 of 2: 8 B 0.50")

    def test_a_bar_that_is_met_needs_no_limit(self):
        found = part([MIDDLE], peer=[100], ours=[50], ordinary=[90])
        self.assertEqual(line(found, "r2ccl 2 times"), "met in all 1")

    def test_a_share_is_asked_of_an_all_reduce_only(self):
        times = {"peer": [1000], "registered": [200], "limit": [100]}
        bar = "70 % of what the memory allows"
        self.assertEqual(line(part([LARGE], "all_reduce", **times), bar), "**missed** in 1 of 1: 16 MB 50 %")
        self.assertFalse(any(bar in text for text in tables.judged(part([LARGE], **times))))


def rounds(**samples):
    """A part of one size: samples by candidate."""
    found = part([MIDDLE], **{name: [1] for name in samples})
    found["samples"] = {name: [samples[key]] for name, key in zip(found["samples"], samples)}
    return found


class States(unittest.TestCase):
    def test_rounds_near_are_compared_with_rounds_near(self):
        found = rounds(ours=[[10, 45], [30, 200], [12, 50]], peer=[[40, 190], [20, 55], [22, 40]])
        self.assertEqual(tables.ratio(found, OURS, 0), 21 / 11)
        self.assertIn("| 10.0 – 12.0 | 48 ns, 4 of 6 |", tables.table(found))

    def test_the_state_counts_in_which_most_candidates_were(self):
        found = rounds(ours=[[10, 45], [11, 45], [30, 200]], peer=[[60, 200]])
        self.assertEqual(tables.ratio(found, OURS, 0), 2)

    def test_a_candidate_that_was_in_another_state_has_a_mark(self):
        found = rounds(ours=[[10, 45]], registered=[[10, 45]], peer=[[60, 200]])
        self.assertIn("| 60.0 µs * |", tables.table(found))
        self.assertNotIn("10.0 µs *", tables.table(found))

    def test_times_of_different_states_are_marked_and_not_judged(self):
        found = rounds(ours=[[10, 45]], registered=[[10, 45]], peer=[[15, 200]])
        self.assertIn("| 1.50 * | 1.50 * |", tables.table(found))
        self.assertEqual(line(found, "r2ccl 2 times"), "1 not judged, of different states of the machine")
        both = part([MIDDLE, LARGE], ours=[10, 10], registered=[10, 10], peer=[15, 30])
        both["samples"][PEER][0] = [[15, 200]]
        self.assertEqual(line(both, "r2ccl 2 times"), "met in all 1; 1 not judged, of different states of the machine")
        limited = part([LARGE], "all_reduce", registered=[10], ours=[10], peer=[100], limit=[5])
        limited["samples"][LIMITS[REGISTERED]][0] = [[5, 200]]
        self.assertIn("| 50 % * |", tables.table(limited))
        self.assertIn("not judged", line(limited, "of what the memory allows"))

    def test_who_is_too_slow_is_so_in_every_state(self):
        found = rounds(ours=[[10, 45]], registered=[[10, 200], [9, 45]], peer=[[math.inf, 200]])
        self.assertIn("| > 1000000 µs |", tables.table(found))
        self.assertEqual(tables.median(found, REGISTERED, 0), 9)
        later = rounds(ours=[[10, 45], [10, 45], [10, 45]], peer=[[40, 45], [math.inf, 200], [math.inf, 200]])
        self.assertEqual(tables.median(later, PEER, 0), math.inf)

    def test_without_a_watch_all_rounds_count(self):
        found = rounds(ours=[[10, None], [20, None]], peer=[[30, None]])
        self.assertEqual(tables.ratio(found, OURS, 0), 2)
        self.assertIn("| - |\n", tables.table(found) + "\n")

    def test_probes_count_from_just_before_to_just_after(self):
        probes = [(1.0, 200), (2.0, 40), (2.1, 50), (2.2, 60), (3.0, 210)]
        self.assertEqual(watch.between(probes, 2.05, 2.15), 50)
        self.assertEqual(watch.between(probes, 2.12, 2.13), 55)
        self.assertIsNone(watch.between(probes, 2.15, 2.95), "of both states")
        self.assertIsNone(watch.between(probes, 4.0, 5.0), "of none")


class Failures(unittest.TestCase):
    def test_a_cell_tells_how_many_rounds_failed(self):
        found = rounds(ours=[[10, 45], [math.nan, 45], [12, 45]], peer=[[20, 45]] * 3, registered=[[math.nan, 45]] * 3)
        self.assertIn("| 11.0 µs, 1 of 3 rounds failed | 20.0 µs | failed |", tables.table(found))
        self.assertEqual(tables.ratio(found, OURS, 0), 20 / 11)
        self.assertEqual(tables.own_failures(found), 4)
        slow = rounds(ours=[[10, 45]] * 3, peer=[[math.inf, 45], [math.inf, 45], [math.nan, 45]])
        self.assertIn("| > 1000000 µs, 1 of 3 rounds failed |", tables.table(slow))
        self.assertEqual(tables.own_failures(slow), 0)

    def test_who_fails_misses_the_bars_and_a_peer_that_fails_sets_none(self):
        found = part([MIDDLE, LARGE], "all_reduce", ours=[10, math.nan], registered=[1, math.nan], peer=[20, 20], limit=[1, 1])
        self.assertEqual(line(found, "r2ccl 2 times"), "**missed** in 1 of 2: 16 MB without a time")
        self.assertEqual(line(found, "of what the memory allows"), "**missed** in 1 of 1: 16 MB without a time")
        self.assertEqual(list(tables.judged(part([MIDDLE], ours=[10], peer=[math.nan]))), [])

    def test_what_was_measured_before_a_failure_counts(self):
        def measure(candidate, plan):
            for size in plan.sizes:
                if size == MIDDLE:
                    raise compare.Failed("planted")
                yield size, 7.0

        with mock.patch.object(compare, "measure", measure), mock.patch.object(compare, "note"):
            times = compare.run_candidate(mock.Mock(), Plan("all_reduce", 2, [SMALL, MIDDLE, LARGE], 1))
        self.assertEqual([times[size][0] for size in (SMALL, LARGE)], [7.0, 7.0])
        self.assertTrue(math.isnan(times[MIDDLE][0]))


class Tables(unittest.TestCase):
    def test_parts_tell_when_and_of_what_they_were_measured(self):
        found = [Candidate(OURS, None, "commit abc"), Candidate(PEER, None, "4.1.4")]
        samples = {(each.name, MIDDLE): [[10, 45]] for each in found}
        record = tables.Record([])
        with mock.patch.object(tables, "moment", lambda: "2026-01-01 00:00 UTC, commit abc"):
            record.add(Plan("all_reduce", 2, [MIDDLE], 1), found, samples)
        text = tables.table(json.loads(json.dumps(record.parts))[0])
        self.assertEqual(text.split("\n")[2:4], ["2026-01-01 00:00 UTC, commit abc. Open MPI 4.1.4", ""])

    def test_every_collective_has_its_share_of_the_limit(self):
        times = {"ours": [60], "registered": [50], "peer": [100]}
        for operation in tables.FACTORS:
            text = tables.table(part([MIDDLE], operation, **times, ordinary=[45], limit=[40]))
            self.assertTrue("| share of the ordinary limit | share of the limit |" in text and "| 75 % | 80 % |" in text, text)
            text = tables.table(part([MIDDLE], operation, **times, limit=[40]))
            self.assertTrue("ordinary" not in text and "| 80 % |" in text, text)


class CommandLine(unittest.TestCase):
    def test_names_that_nobody_has_are_refused(self):
        for words in (["--candidates", f"{OURS},OpenMPI"], ["--operations", "all_reduce,reduce"]):
            said = io.StringIO()
            with mock.patch("sys.argv", ["compare.py", *words]), contextlib.redirect_stderr(said):
                self.assertRaises(SystemExit, compare.parse_arguments)
            self.assertIn(f"no such {words[0][2:-1]}: {words[1].split(',')[1]};", said.getvalue())
        with mock.patch("sys.argv", ["compare.py", "--candidates", f"{OURS},Intel MPI,limit"]):
            self.assertEqual(compare.parse_arguments().candidates, [OURS, "Intel MPI", "limit"])


if __name__ == "__main__":
    unittest.main()
