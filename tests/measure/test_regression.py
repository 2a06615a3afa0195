#!/usr/bin/env python3
"""Plants regressions, and requires that regression.py finds them, and nothing else.

The decisions are tested with given samples and given neighbours. At the end the whole program measures programs that are
no collectives, but do as much work as a file beside them says: they tell the processor time of it, so that what else runs
on this machine changes little. No limit is nearer to what is measured than a factor of two.

    tests/measure/test_regression.py
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import regression

HERE = "this machine"
SMALL, LARGE = "all_reduce/8B/2", "all_reduce/16M/2"
CASES = regression.all_cases()


def stored(ratio=1.0, bar=10.0, machine=HERE, names=(SMALL,)):
    """What the release before has left."""
    rows = {name: {"ratio": ratio, "bar": bar} for name in names}
    return {"date": "2026-01-01", "commit": "before", "machine": machine, "cases": rows}


class Samples:
    """Programs whose times are given: for each case a list of pairs, of which the last one lasts."""

    def __init__(self, **times):
        self.times = {name: list(pairs) for name, pairs in times.items()}
        self.taken = {name: 0 for name in times}

    def measure(self, case):
        self.taken[case.name] += 1
        pairs = self.times[case.name]
        return pairs.pop(0) if len(pairs) > 1 else pairs[0]


class Neighbours:
    """In place of Quiet: what others use of the processors, for each attempt; the last one lasts."""

    def __init__(self, shares):
        self.shares = list(shares)

    def __call__(self):
        share = self.shares.pop(0) if len(self.shares) > 1 else self.shares[0]
        return mock.Mock(began=0.0, others=lambda: share)


class Judging(unittest.TestCase):
    def judged(self, programs, known, neighbours=(0.0,), seconds=0.0, rounds=1, processors=2, names=(SMALL,)):
        """Which cases are found slow, whether that is sure, and the lines."""
        lines, ticks = io.StringIO(), iter(seconds * turn for turn in range(10**6))
        with contextlib.ExitStack() as stack:
            for name, stand_in in (("Quiet", Neighbours(neighbours)), ("machine", lambda: HERE)):
                stack.enter_context(mock.patch.object(regression, name, stand_in))
            stack.enter_context(mock.patch.object(regression.time, "monotonic", lambda: next(ticks)))
            stack.enter_context(mock.patch.object(regression.os, "sched_getaffinity", lambda _: range(processors)))
            stack.enter_context(contextlib.redirect_stdout(lines))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            suspects, is_sure = regression.judge(programs, [CASES[name] for name in names], known, rounds)
        return [case.name for case in suspects], is_sure, lines.getvalue()

    def test_what_is_within_the_limits_is_measured_once(self):
        programs = Samples(**{SMALL: [(1.24, 1.0)]})
        slow, is_sure, lines = self.judged(programs, stored())
        self.assertEqual((slow, is_sure, programs.taken[SMALL]), ([], True, 1))
        self.assertTrue(lines.startswith("ok "), lines)

    def test_a_regression_beyond_the_tolerance_is_found(self):
        programs = Samples(**{SMALL: [(1.26, 1.0)]})
        slow, is_sure, lines = self.judged(programs, stored())
        self.assertEqual((slow, is_sure, programs.taken[SMALL]), ([SMALL], True, regression.ATTEMPTS))
        self.assertTrue(lines.startswith("SLOW ") and "1.25 × 1 of before" in lines, lines)

    def test_a_yardstick_that_is_slow_too_is_no_regression(self):
        self.assertEqual(self.judged(Samples(**{SMALL: [(12.6, 12.0)]}), stored())[0], [])

    def test_ranks_that_share_processors_have_another_tolerance(self):
        programs = lambda ratio: Samples(**{SMALL: [(ratio, 1.0)]})
        self.assertEqual(self.judged(programs(1.9), stored(), processors=1)[0], [])
        self.assertEqual(self.judged(programs(2.1), stored(), processors=1)[0], [SMALL])

    def test_another_machine_knows_the_bar_only(self):
        programs = lambda ratio: Samples(**{SMALL: [(ratio, 1.0)]})
        self.assertEqual(self.judged(programs(9.9), stored(machine="another"))[0], [])
        slow, _, lines = self.judged(programs(10.1), stored(machine="another"))
        self.assertTrue(slow == [SMALL] and "10 (the bar)" in lines, lines)

    def test_the_bar_counts_on_every_machine(self):
        self.assertEqual(self.judged(Samples(**{SMALL: [(1.1, 1.0)]}), stored(bar=1.05))[0], [SMALL])

    def test_a_case_that_nobody_has_stored_is_new(self):
        slow, _, lines = self.judged(Samples(**{SMALL: [(99.0, 1.0)]}), stored(names=()))
        self.assertTrue(slow == [] and lines.startswith("new "), lines)

    def test_slow_is_what_is_slow_each_time(self):
        programs = Samples(**{SMALL: [(9.0, 1.0)] * (regression.ATTEMPTS - 1) + [(1.0, 1.0)]})
        slow, _, lines = self.judged(programs, stored())
        self.assertTrue(slow == [] and f"{regression.ATTEMPTS} attempts" in lines, lines)

    def test_only_what_was_slow_is_measured_again(self):
        other = "all_gather/8B/2"
        programs = Samples(**{SMALL: [(9.0, 1.0)], other: [(1.0, 1.0)]})
        slow, _, _ = self.judged(programs, stored(names=(SMALL, other)), names=(SMALL, other))
        self.assertEqual((slow, programs.taken), ([SMALL], {SMALL: regression.ATTEMPTS, other: 1}))

    def test_beside_busy_neighbours_nobody_can_tell(self):
        programs = lambda: Samples(**{SMALL: [(9.0, 1.0)]})
        slow, is_sure, lines = self.judged(programs(), stored(), neighbours=(0.26,))
        self.assertTrue(slow == [SMALL] and not is_sure and lines.startswith("doubt"), lines)
        # Once they left it in peace, and it was as slow.
        self.assertTrue(self.judged(programs(), stored(), neighbours=(0.9, 0.25, 0.9))[1])

    def test_attempts_end_when_it_is_late(self):
        for seconds, attempts in ((0.1, regression.ATTEMPTS), (60.0, regression.SURE_ATTEMPTS)):
            programs = Samples(**{SMALL: [(9.0, 1.0)]})
            self.assertEqual(self.judged(programs, stored(), seconds=seconds)[0], [SMALL])
            self.assertEqual(programs.taken[SMALL], attempts)

    def test_one_bad_round_is_outvoted(self):
        rounds = [(1.0, 1.0), (50.0, 1.0), (1.1, 1.0)]
        self.assertEqual(regression.ratios(Samples(**{SMALL: rounds}), [CASES[SMALL]], 3), {SMALL: 1.1})
        self.assertEqual(self.judged(Samples(**{SMALL: [(2.0, 1.0)]}), stored(), rounds=3)[0], [SMALL])
        # Where the memory is the limit the best round counts.
        large = lambda best: Samples(**{LARGE: [(50.0, 9.0), (best, 1.0), (50.0, 9.0)]})
        known = stored(names=(LARGE,))
        self.assertEqual(regression.ratios(large(1.7), [CASES[LARGE]], 3), {LARGE: 1.7})
        self.assertEqual(self.judged(large(1.7), known, rounds=3, names=(LARGE,))[0], [])


class Storing(unittest.TestCase):
    def test_a_bar_stays_and_a_ratio_does_not(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "stored.json"
            with mock.patch.object(regression, "text_of", lambda _: "abc\n"):
                regression.store([CASES[SMALL]], {SMALL: 0.5}, stored(names=()), file)
                first = json.loads(file.read_text())
                regression.store([CASES[SMALL]], {SMALL: 4.0}, first, file)
                second = json.loads(file.read_text())
        self.assertEqual(first["cases"], {SMALL: {"ratio": 0.5, "bar": 1.0}})
        self.assertEqual(second["cases"], {SMALL: {"ratio": 4.0, "bar": 1.0}})
        self.assertEqual((second["commit"], second["machine"]), ("abc", regression.machine()))

    def test_ratios_that_were_not_measured_now_are_not_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "stored.json"
            with mock.patch.object(regression, "text_of", lambda _: "abc\n"):
                regression.store([CASES[SMALL]], {SMALL: 0.5}, stored(names=(SMALL, LARGE)), file)
            self.assertEqual(list(json.loads(file.read_text())["cases"]), [SMALL])

    def test_every_case_has_a_bar_that_is_above_its_ratio(self):
        known = json.loads(regression.STORED.read_text())["cases"]
        self.assertEqual(sorted(known), sorted(CASES))
        for name, row in known.items():
            self.assertGreater(row["bar"], row["ratio"], name)


class CommandLine(unittest.TestCase):
    def test_what_would_measure_nothing_or_against_nothing_is_refused(self):
        for words, complaint in (
                (["--cases", "all_reduce/*,reduce/*"], "--cases reduce/*: no case"),
                (["--stored", "/nowhere/stored.json"], "--stored /nowhere/stored.json: there is no such file"),
                (["--store", "--cases", SMALL], "leave out --cases")):
            command = [sys.executable, regression.__file__, *words, "--programs", "/nowhere"]
            ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(complaint, ended.stderr)


# A program that works, tells how much processor time that took, and begins with the line of its interpreter.
WORK = f"""#!{sys.executable}
import json, sys, time
from pathlib import Path

def microseconds(times):
    began = time.process_time()
    for number in range(times):
        number * number % 7
    return (time.process_time() - began) * 1e6

folder = Path(sys.argv[0]).resolve().parent
factors = json.loads((folder / "factors.json").read_text())
def work(name):
    return microseconds(int({{times}} * factors.get(name, 1)))
"""
YARDSTICKS = """
for word in sys.argv[2:]:
    print(word, work("yardsticks"), factors.get("wrong", 0))
"""
BENCHMARK = """
row = {"time": work(Path(sys.argv[0]).name), "nwrong": 0}
report = sys.argv[sys.argv.index("-J") + 1]
Path(report).write_text(json.dumps({"results": [{"in_place": row, "out_of_place": row}]}))
"""
TIMES = 200_000


class Planting(unittest.TestCase):
    """The whole program, on programs whose work is planted."""

    slowed, other = "all_reduce/8B/2", "all_gather/8B/2"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.programs = self.folder / "programs"
        self.programs.mkdir()
        for name, text in (("yardsticks", YARDSTICKS), ("all_reduce_perf", BENCHMARK), ("all_gather_perf", BENCHMARK)):
            program = self.programs / name
            program.write_text(WORK.replace("{times}", str(TIMES)) + text)
            program.chmod(0o755)
        self.plant()
        cases = [CASES[self.slowed], CASES[self.other]]
        ratios = regression.ratios(regression.Programs(self.programs), cases, 3)
        self.stored = self.folder / "stored.json"
        rows = {name: {"ratio": 2 * ratio, "bar": 100 * ratio} for name, ratio in ratios.items()}
        self.stored.write_text(json.dumps(stored(machine=regression.machine()) | {"cases": rows}))

    def plant(self, **factors):
        (self.programs / "factors.json").write_text(json.dumps(factors))

    def found(self):
        """Its exit status, and the verdict of each case."""
        command = [sys.executable, regression.__file__, "--programs", str(self.programs), "--stored", str(self.stored),
                   "--cases", f"{self.slowed},{self.other}", "--rounds", "3"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        lines = [line.split() for line in ended.stdout.splitlines() if not line.startswith("#")]
        return ended.returncode, {words[1]: words[0] for words in lines}

    def test_a_program_that_has_become_slower_is_found(self):
        self.assertEqual(self.found(), (0, {self.slowed: "ok", self.other: "ok"}))
        self.plant(all_reduce_perf=16)
        # With busy neighbours it says that it is in doubt.
        verdicts = {1: "SLOW", 2: "doubt"}
        status, found = self.found()
        self.assertIn(status, verdicts)
        self.assertEqual(found, {self.slowed: verdicts[status], self.other: "ok"})

    def test_what_has_become_slower_with_its_yardstick_is_well(self):
        self.plant(all_reduce_perf=16, all_gather_perf=16, yardsticks=16)
        self.assertEqual(self.found(), (0, {self.slowed: "ok", self.other: "ok"}))

    def test_wrong_results_are_no_times(self):
        self.plant(wrong=1)
        status, found = self.found()
        self.assertEqual((status, found), (1, {}))


if __name__ == "__main__":
    unittest.main()
