"""What can go wrong, by what the caller can do about it.

`InvalidArgumentError` and `InvalidUsageError` leave the communicator as it was. All others end it, on
all ranks: destroy it and create another. A network card that fails while another one works is no error.
"""

from __future__ import annotations

import enum

__all__ = [
    "AbortedError",
    "CudaError",
    "DeadlineError",
    "DisagreementError",
    "Error",
    "InternalError",
    "InvalidArgumentError",
    "InvalidUsageError",
    "OperatingSystemError",
    "PeerLostError",
    "ResultCode",
]


class ResultCode(enum.IntEnum):
    """The numbers of `ccl_result_t` and `ncclResult_t`."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7
    TIMEOUT = 8


class Error(Exception):
    """A call failed. Its text says what happened; the attributes are for programs.

    Attributes:
        code: The number that the C interface returns for it.
        rank: The rank that the error is about, or None where there is no single one.
        rail: The rail that the error is about, or None.
        reason: What happened, without the names above, or None.
        remedy: What to do about it, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int = ResultCode.INTERNAL_ERROR,
        rank: int | None = None,
        rail: int | None = None,
        reason: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = ResultCode(code)
        self.rank = rank
        self.rail = rail
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}; {self.remedy}" if self.remedy else message


class InvalidArgumentError(Error, ValueError):
    """An argument has an impossible value. Nothing has happened; correct the call."""


class InvalidUsageError(Error):
    """The calls of the program do not fit together. Nothing has happened; correct the program."""


class DisagreementError(Error):
    """Ranks asked for different things in the same place of the sequence of calls.

    `rank` called something else than `noticed_by`.
    """

    def __init__(self, message: str, *, noticed_by: int | None = None, **known: object) -> None:
        super().__init__(message, **known)  # type: ignore[arg-type]
        self.noticed_by = noticed_by


class PeerLostError(Error):
    """`rank` is gone and will not come back. Create a communicator without it."""


class DeadlineError(Error, TimeoutError):
    """The call did not finish within the timeout of the communicator, which has ended with it.

    `reason` names the ranks that were waited for.
    """


class AbortedError(Error):
    """`rank` aborted the communicator, for `reason`."""


class OperatingSystemError(Error):
    """The operating system refused something. Its operator can mend it."""


class CudaError(Error):
    """A CUDA device or its driver failed, or there is none."""


class InternalError(Error):
    """A bug of the library. Report it with the log."""
