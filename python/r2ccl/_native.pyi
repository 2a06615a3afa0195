"""The part of the package that is written in Rust. Import `r2ccl` instead."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, final, overload

from typing_extensions import Buffer, Self

from .errors import Error
from .health import RailHealth

__all__ = [
    "Communicator",
    "Group",
    "Memory",
    "ReduceOp",
    "Registration",
    "Request",
    "UniqueId",
    "__version__",
]

__version__: str

class _Tensor(Protocol):
    """An object that lends its memory by DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

class _CudaArray(Protocol):
    """An object that lends memory of a CUDA device."""

    @property
    def __cuda_array_interface__(self) -> Any: ...

class _CudaStream(Protocol):
    """A stream of a CUDA device."""

    def __cuda_stream__(self) -> tuple[int, int]: ...

class _TorchStream(Protocol):
    """A stream of PyTorch."""

    @property
    def cuda_stream(self) -> int: ...

class _CupyStream(Protocol):
    """A stream of CuPy."""

    @property
    def ptr(self) -> int: ...

_Array: TypeAlias = Buffer | _Tensor | _CudaArray
_Stream: TypeAlias = int | _CudaStream | _TorchStream | _CupyStream

@final
class UniqueId:
    """Brings the ranks of a new communicator together."""

    def __new__(cls) -> Self: ...
    @staticmethod
    def from_bytes(data: bytes) -> UniqueId: ...
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ReduceOp:
    """How contributions are combined."""

    SUM: ReduceOp
    PROD: ReduceOp
    MIN: ReduceOp
    MAX: ReduceOp
    AVG: ReduceOp
    @staticmethod
    def premul_sum(scalar: float) -> ReduceOp: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Request:
    """An operation that goes on in the background."""

    def wait(self, timeout: float | None = None) -> None: ...
    def test(self) -> bool: ...

@final
class Memory:
    """Memory of the library, of which `r2ccl.mem_alloc` makes something that lends its bytes."""

    def __new__(cls, nbytes: int) -> Self: ...
    @property
    def address(self) -> int: ...

@final
class Registration:
    """That a communicator knows of a buffer."""

    @property
    def is_shared(self) -> bool: ...
    def deregister(self) -> None: ...

@final
class Group:
    """A context manager: calls inside it start together, at its end."""

    def __new__(cls, *, async_op: bool = False) -> Self: ...
    @property
    def request(self) -> Request | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class Communicator:
    """One member of a group of ranks."""

    def __new__(
        cls,
        unique_id: UniqueId,
        rank: int,
        size: int,
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Self: ...
    @staticmethod
    def from_environment(
        *, name: str | None = None, timeout: float | None = None
    ) -> Communicator: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str | None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def async_error(self) -> Error | None: ...
    @property
    def lost_ranks(self) -> list[int]: ...
    def health(self) -> list[RailHealth]: ...
    def register(self, buffer: Buffer | _Tensor) -> Registration: ...
    def explain(
        self,
        collective: str,
        count: int,
        dtype: str = "float32",
        op: ReduceOp = ...,
        root: int = 0,
    ) -> str: ...
    def split(
        self,
        color: int | None,
        key: int = 0,
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Communicator | None: ...
    def shrink(
        self,
        exclude_ranks: Sequence[int],
        *,
        abort: bool = False,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Communicator: ...
    def growth_id(self) -> UniqueId: ...
    def grow(
        self, size: int, *, name: str | None = None, timeout: float | None = None
    ) -> Communicator: ...
    @overload
    def all_reduce(
        self,
        input: _Array,
        output: _Array | None = None,
        op: ReduceOp = ...,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def all_reduce(
        self,
        input: _Array,
        output: _Array | None = None,
        op: ReduceOp = ...,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def all_gather(
        self,
        input: _Array,
        output: _Array | None = None,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def all_gather(
        self,
        input: _Array,
        output: _Array | None = None,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def reduce_scatter(
        self,
        input: _Array,
        output: _Array | None = None,
        op: ReduceOp = ...,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def reduce_scatter(
        self,
        input: _Array,
        output: _Array | None = None,
        op: ReduceOp = ...,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def broadcast(
        self,
        buffer: _Array,
        root: int = 0,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def broadcast(
        self,
        buffer: _Array,
        root: int = 0,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def reduce(
        self,
        input: _Array,
        output: _Array | None = None,
        op: ReduceOp = ...,
        root: int = 0,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def reduce(
        self,
        input: _Array,
        output: _Array | None = None,
        op: ReduceOp = ...,
        root: int = 0,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def all_to_all(
        self,
        input: _Array,
        output: _Array | None = None,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def all_to_all(
        self,
        input: _Array,
        output: _Array | None = None,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def all_to_all_v(
        self,
        input: _Array,
        output: _Array,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        send_displacements: Sequence[int] | None = None,
        receive_displacements: Sequence[int] | None = None,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def all_to_all_v(
        self,
        input: _Array,
        output: _Array,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        send_displacements: Sequence[int] | None = None,
        receive_displacements: Sequence[int] | None = None,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def gather(
        self,
        input: _Array,
        output: _Array | None = None,
        root: int = 0,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def gather(
        self,
        input: _Array,
        output: _Array | None = None,
        root: int = 0,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def scatter(
        self,
        input: _Array | None,
        output: _Array | None = None,
        root: int = 0,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def scatter(
        self,
        input: _Array | None,
        output: _Array | None = None,
        root: int = 0,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def send(
        self,
        buffer: _Array,
        peer: int,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def send(
        self,
        buffer: _Array,
        peer: int,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def recv(
        self,
        buffer: _Array,
        peer: int,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def recv(
        self,
        buffer: _Array,
        peer: int,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    @overload
    def barrier(
        self,
        *,
        async_op: Literal[False] = False,
        stream: _Stream | None = None,
    ) -> None: ...
    @overload
    def barrier(
        self,
        *,
        async_op: Literal[True],
        stream: _Stream | None = None,
    ) -> Request: ...
    def finalize(self) -> None: ...
    def destroy(self) -> None: ...
    def abort(self, reason: str = "abort() was called") -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
