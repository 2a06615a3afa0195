#!/usr/bin/env python3
"""What compare.py says about given times: which bars are missed, and which of them ask for more than the limit.

    tests/peers/test_tables.py
"""

import math
import unittest

import tables
from candidates import LIMIT, OURS, REGISTERED

PEER = "Open MPI"
SMALL, MIDDLE, LARGE = 8, 1 << 20, 16 << 20


def part(sizes, operation="all_gather", ranks=4, **times):
    """Of one round: microseconds by candidate for each size."""
    names = {"ours": OURS, "registered": REGISTERED, "limit": LIMIT, "peer": PEER}
    samples = {names[name]: [[time] for time in column] for name, column in times.items()}
    calls = [1] * len(sizes)
    return {"operation": operation, "ranks": ranks, "sizes": sizes, "timeout": 1, "calls": calls, "samples": samples}


def line(found, bar):
    """The verdict of a bar."""
    return next(text for text in tables.judged(found) if bar in text).split(": ", 1)[1]


class Allowed(unittest.TestCase):
    def test_the_limit_moves_the_bytes_and_no_more(self):
        self.assertEqual(tables.allowed(part([MIDDLE], peer=[100], registered=[50], limit=[40]), 0), 2.5)

    def test_ranks_have_to_meet_twice(self):
        found = part([MIDDLE], peer=[100], registered=[50], limit=[20])
        self.assertEqual(tables.allowed(found, 0, 10), 2.5)

    def test_how_long_they_take_is_measured_beside(self):
        meeting = part([SMALL, MIDDLE], "all_reduce", ours=[10, 90], peer=[20, 100])
        other = part([MIDDLE], "all_reduce", ranks=8, ours=[7], peer=[8])
        self.assertEqual(tables.meetings([meeting, other]), {4: 10})
        gathered = part([MIDDLE], peer=[100], ours=[70], limit=[20])
        self.assertIn("1 MB 1.43 (the limit: 2.50)", tables.verdicts([meeting, gathered]))

    def test_where_ranks_wait_for_each_other_the_memory_tells_nothing(self):
        self.assertTrue(math.isnan(tables.allowed(part([SMALL], peer=[100], registered=[50], limit=[40]), 0)))

    def test_without_a_limit_nothing_is_known(self):
        self.assertTrue(math.isnan(tables.allowed(part([MIDDLE], peer=[100], registered=[50]), 0)))
        slow = part([MIDDLE], peer=[100], ours=[60], limit=[math.inf])
        self.assertEqual(line(slow, "r2ccl 2 times"), "**missed** in 1 of 1: 1 MB 1.67")


class Verdicts(unittest.TestCase):
    def test_a_missed_bar_tells_how_fast_the_limit_is(self):
        found = part([MIDDLE, LARGE], peer=[100, 1000], registered=[50, 250], limit=[40, 160])
        self.assertEqual(
            line(found, "registered 5 times"),
            "**missed** in 2 of 2: 1 MB 2.00 (the limit: 2.50), 16 MB 4.00 (the limit: 6.25); "
            "1 of them asks for more than the limit")

    def test_ordinary_buffers_are_held_against_the_same(self):
        found = part([MIDDLE, LARGE], peer=[100, 1000], ours=[100, 1000], registered=[80, 800], limit=[60, 600])
        self.assertEqual(
            line(found, "r2ccl 2 times"),
            "**missed** in 2 of 2: 1 MB 1.00 (the limit: 1.67), 16 MB 1.00 (the limit: 1.67); "
            "2 of them ask for more than the limit")

    def test_a_bar_within_the_limit_is_missed_and_no_more(self):
        found = part([MIDDLE], peer=[100], ours=[60], limit=[20])
        self.assertEqual(line(found, "r2ccl 2 times"), "**missed** in 1 of 1: 1 MB 1.67 (the limit: 5.00)")

    def test_small_sizes_tell_their_ratio_only(self):
        found = part([SMALL, MIDDLE], peer=[1, 100], ours=[2, 50], limit=[0.1, 40])
        self.assertEqual(line(found, "as fast as the best peer"), "**missed** in 1 of 2: 8 B 0.50")

    def test_a_bar_that_is_met_needs_no_limit(self):
        found = part([MIDDLE], peer=[100], ours=[50], limit=[90])
        self.assertEqual(line(found, "r2ccl 2 times"), "met in all 1")

    def test_a_share_is_asked_of_an_all_reduce_only(self):
        times = {"peer": [1000], "registered": [200], "limit": [100]}
        bar = "70 % of what the memory allows"
        self.assertEqual(line(part([LARGE], "all_reduce", **times), bar), "**missed** in 1 of 1: 16 MB 50 %")
        self.assertFalse(any(bar in text for text in tables.judged(part([LARGE], **times))))


class Tables(unittest.TestCase):
    def test_every_collective_has_its_share_of_the_limit(self):
        for operation in tables.FACTORS:
            text = tables.table(part([MIDDLE], operation, ours=[60], registered=[50], limit=[40], peer=[100]))
            self.assertTrue("| share of the limit |" in text and "| 80 % |" in text, text)


if __name__ == "__main__":
    unittest.main()
