"""What does not pass, and why. Everything else must."""

from __future__ import annotations

from results import FAILED, PASSED, TIMEOUT

REASONS: dict[str, dict[str, str]] = {
    "r2ccl": {
        "DistributedTest.test_ddp_logging_data_cpu": (
            'DDP logs the name of backends that are not PyTorch\'s own as "custom"'
        ),
    },
    "gloo": dict.fromkeys(
        (
            "DistributedTest.test_all_to_all",
            "DistributedTest.test_all_to_all_complex",
            "DistributedTest.test_all_to_all_full_group",
            "DistributedTest.test_all_to_all_group",
        ),
        "Gloo wants lists of tensors of one size",
    ),
}
"""By backend and test, as ``Suite.test_name``."""


def reason(test: str, backend: str) -> str:
    """Why a test does not pass, or "" if it must."""
    return REASONS[backend].get(test, "")


def surprise(test: str, backend: str, verdict: str) -> str:
    """What is unexpected about a verdict, or ""."""
    failed = verdict in (FAILED, TIMEOUT)
    if failed and not reason(test, backend):
        return f"{test} does not pass with {backend} ({verdict}), and no reason is known"
    if verdict == PASSED and reason(test, backend):
        return f"{test} passes with {backend}, although expected.py says why it cannot"
    return ""
