"""Devices as the tests use them: data goes there and back by copies, and gates hold streams."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

_PORTABLE = 1
_AT_LEAST = 0
_ANY_DIRECTION = 4
_NOT_READY = 600
_BROKEN = b"""
.version 9.0
.target sm_80
.address_size 64
.visible .entry broken() {
    .reg .b64 %rd1;
    mov.u64 %rd1, 8;
    st.global.u64 [%rd1], %rd1;
    ret;
}
"""


def device() -> torch.device:
    """The device of this rank: all ranks have the same one."""
    torch.cuda.set_device(0)
    _copy_without_kernels()
    return torch.device("cuda", 0)


def there(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the device, with the same strides."""
    strided = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device()
    )
    reach = sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True)) + 1
    if tensor.numel() > 0:
        whole = torch.as_strided(tensor, (reach,), (1,))
        torch.as_strided(strided, (reach,), (1,)).copy_(whole)
    torch.cuda.synchronize()
    return strided


def bits(tensor: torch.Tensor) -> bytes:
    """Its bytes, after everything on all streams."""
    torch.cuda.synchronize()
    host = tensor.cpu() if tensor.is_contiguous() else _gathered(tensor)
    return host.contiguous().view(torch.uint8).numpy().tobytes()


def pinned(values: torch.Tensor) -> torch.Tensor:
    """A copy that streams can read and write by themselves."""
    copy = torch.empty(values.size(), dtype=values.dtype, pin_memory=True)
    copy.copy_(values)
    return copy


class Gate:
    """Holds streams until it is opened; the host goes on."""

    def __init__(self) -> None:
        device()
        torch.cuda.current_stream().synchronize()
        self._driver = ctypes.CDLL("libcuda.so.1")
        memory = ctypes.c_void_p()
        _succeed(self._driver.cuMemHostAlloc(ctypes.byref(memory), ctypes.c_size_t(4), _PORTABLE))
        self._word = ctypes.c_uint32.from_address(memory.value)
        self._word.value = 0
        self._address = memory.value

    def hold(self, stream: torch.cuda.Stream | None = None) -> None:
        """The stream waits here."""
        chosen = torch.cuda.current_stream() if stream is None else stream
        _succeed(
            self._driver.cuStreamWaitValue32_v2(
                ctypes.c_void_p(chosen.cuda_stream),
                ctypes.c_uint64(self._address),
                ctypes.c_uint32(1),
                ctypes.c_uint(_AT_LEAST),
            )
        )

    def open(self) -> None:
        self._word.value = 1


def event_on(stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
    """Happens when the stream comes past what it has now."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream() if stream is None else stream)
    return event


def break_down() -> None:
    """The device of this rank fails, and so does every later call on it."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel, one = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint(1)
    _succeed(driver.cuModuleLoadData(ctypes.byref(module), _BROKEN))
    _succeed(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"broken"))
    stream = ctypes.c_void_p(torch.cuda.Stream().cuda_stream)
    nothing = ctypes.c_void_p()
    size = (one,) * 6
    _succeed(driver.cuLaunchKernel(kernel, *size, ctypes.c_uint(0), stream, nothing, nothing))
    while driver.cuStreamQuery(stream) in (0, _NOT_READY):
        pass


def is_imitation() -> bool:
    """Whether no kernel can be launched."""
    return "no GPU" in torch.cuda.get_device_name(0)


def _succeed(result: int) -> None:
    assert result == 0, f"the driver says {result}"


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with strides on the host, element by element."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    for place, index in enumerate(_indices(tensor)):
        flat[place : place + 1].copy_(tensor[index].reshape(1))
    return flat


def _indices(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(n) for n in tensor.size())))


@functools.cache
def _copy_without_kernels() -> Any:
    """Copies between tensors of which one is not contiguous are kernels of PyTorch. Where there are none,
    they are made of copies of single elements, in the order of the current stream too."""
    if not is_imitation():
        return None
    library = torch.library.Library("aten", "IMPL")

    library.impl("copy_", _element_by_element(), "CUDA")
    return library


def _element_by_element() -> Callable[..., torch.Tensor]:
    runtime = ctypes.CDLL("libcudart.so.13")

    def copy(
        target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        source = source.expand(target.size())
        assert source.dtype == target.dtype and not source.is_conj() and not source.is_neg()
        on_device = target if target.is_cuda else source
        stream = torch.cuda.current_stream(on_device.device)
        plain = target.is_contiguous() and source.is_contiguous()
        size = target.element_size()
        pairs = (
            [(target.data_ptr(), source.data_ptr(), target.numel() * size)]
            if plain
            else [(_address(target, i), _address(source, i), size) for i in _indices(target)]
        )
        for to, start, count in pairs:
            _succeed(
                runtime.cudaMemcpyAsync(
                    ctypes.c_uint64(to),
                    ctypes.c_uint64(start),
                    ctypes.c_size_t(count),
                    _ANY_DIRECTION,
                    ctypes.c_void_p(stream.cuda_stream),
                )
            )
        if not non_blocking and not (target.is_cuda and source.is_cuda):
            stream.synchronize()
        return target

    return copy


def _address(tensor: torch.Tensor, index: tuple[int, ...]) -> int:
    offset = sum(i * stride for i, stride in zip(index, tensor.stride(), strict=True))
    return int(tensor.data_ptr()) + offset * tensor.element_size()
