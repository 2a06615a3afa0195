"""PyTorch's distributed tests, which are part of its wheel, as classes that can be run.

PyTorch instantiates them in files that the wheel does not have, once for each backend it knows.
Decorators decide when a module is imported whether a test is for the backend, by its name: most
say "gloo" where they mean tensors of the host. So the modules are imported as for Gloo, and get the
name of the backend when a test starts: every backend is asked the same. What is asked of MPI only,
about tensors of the host too, is asked of all.

``WORLD_SIZE`` must be set when this module is imported.
"""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import Any

GLOO = "gloo"

os.environ.update(
    BACKEND=GLOO,
    # Only its scheme is read; every test has a file of its own.
    INIT_METHOD="file:///nowhere",
    # Ranks outnumber processors, and take turns best with one thread each.
    OMP_NUM_THREADS="1",
)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402
from torch.testing._internal.distributed import (  # noqa: E402
    ddp_under_dist_autograd_test,
    distributed_test,
)
from torch.testing._internal.distributed.rpc import (  # noqa: E402
    tensorpipe_rpc_agent_test_fixture,
)

_MPI_ONLY = "Only MPI supports"

SMALL_WORLD = common_distributed.TEST_SKIPS["small_worldsize"].message
"""Why a test is skipped that wants eight ranks."""


class Forked(common_distributed.MultiProcessTestCase):
    """Ranks are forked, because importing PyTorch takes longer than most tests."""

    def setUp(self) -> None:
        """Starts the ranks."""
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def _check_return_codes(self, function: Any, elapsed_seconds: float) -> None:
        super()._check_return_codes(function, elapsed_seconds)
        # PyTorch looks at the first rank only.
        if function not in self.skip_return_code_checks:
            codes = [process.exitcode for process in self.processes]
            self.assertEqual(codes, codes[:1] * len(codes), "ranks ended differently")


class DistributedTest(
    Forked, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    """Collectives, messages, groups and data-parallel training."""

    def _spawn_processes(self) -> None:
        distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]
        super()._spawn_processes()


class DdpUnderDistAutogradTest(
    ddp_under_dist_autograd_test.DdpUnderDistAutogradTest,
    tensorpipe_rpc_agent_test_fixture.TensorPipeRpcAgentTestFixture,
    Forked,
):
    """Data-parallel training in programs of remote calls."""


class DdpComparisonTest(
    ddp_under_dist_autograd_test.DdpComparisonTest,
    tensorpipe_rpc_agent_test_fixture.TensorPipeRpcAgentTestFixture,
    Forked,
):
    """Gradients of data-parallel training, with and without remote calls."""


SUITES = {
    suite.__name__: suite
    for suite in (DistributedTest, DdpUnderDistAutogradTest, DdpComparisonTest)
}


def names(chosen: Callable[[str], object]) -> list[str]:
    """All tests as ``Suite.test_name`` that are chosen, in the order of their suites and names."""
    loader = unittest.TestLoader()
    every = (
        f"{suite}.{name}" for suite, cls in SUITES.items() for name in loader.getTestCaseNames(cls)
    )
    return [name for name in every if chosen(name)]


def instance(name: str) -> common_distributed.MultiProcessTestCase:
    """The test of a name as :func:`names` gives it."""
    suite, _, method = name.partition(".")
    return SUITES[suite](method)


def limit_tests(seconds: float) -> None:
    """Lets PyTorch end its tests after some time, and tell where the ranks are."""
    common_distributed.TIMEOUT_DEFAULT = int(seconds)
    common_distributed.TIMEOUT_OVERRIDE.clear()


def choose_backend(backend: str) -> None:
    """Gives the tests of this process the backend that they are about; once."""
    os.environ["BACKEND"] = backend
    if backend == GLOO:
        return
    distributed_test.BACKEND = _StandIn(backend)
    distributed_test.PROFILING_SUPPORTED_BACKENDS.append(backend)
    distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)
    # Some tests name it where they make their group.
    dist.init_process_group = _in_place_of_gloo(dist.init_process_group, backend)


class _StandIn(str):
    """The name of a backend that is also equal to "gloo", for what a test does only with that."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == GLOO or str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other


def _ask_what_mpi_is_asked() -> None:
    for test in vars(distributed_test.DistributedTest._DistTestBase).values():
        if getattr(test, "__unittest_skip_why__", "").startswith(_MPI_ONLY):
            test.__unittest_skip__ = False


def _in_place_of_gloo(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    def made(*arguments: Any, **options: Any) -> Any:
        if options.get("backend") == GLOO:
            options["backend"] = backend
        return function(*arguments, **options)

    return made


_ask_what_mpi_is_asked()
