"""Numbers that the device writes into the shared page when it gets there: where the device is, without waiting for it.

The training thread launches work ahead of the device. `DriverMarks.write` adds one small operation to the current CUDA
stream: the device stores a 32-bit number into one word of the page as soon as it has finished all that was put into the
stream before. The clock process, which maps the same page, reads the word. The training thread does not wait, and CUDA
starts no host thread.

Two ways are tried, in this order; the first one whose numbers are seen to arrive is used:

- "stream write": `cuStreamWriteValue32_v2`, which does not run on the device's multiprocessors. The symbol without
  `_v2` is the interface from before CUDA 11.7, which most installations of the driver leave disabled.
- "memset": `cuMemsetD32Async` of one word, which is a small kernel or copy. CUDA documents the `Async` functions as
  asynchronous for memory of the host too.

Calls keep the interpreter lock: giving it up can cost 5 ms when other Python threads are busy. CUDA makes any launch
wait while a stream holds about 1,000 operations that have not run; a call made then holds the lock for that time. So
training must not depend on another Python thread of this process to let the device go on, for example one that launches
the sends which the peers of this stream wait for.

A write that is put into a stream during the capture of a CUDA graph would store the same old number at each replay, so
`write` refuses it. Writes before and after a replay work as usual.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pfo_fs.errors import CapturedStream, DeviceError

LIBRARY = "libcuda.so.1"
PAGE_BYTES = 4096

_PORTABLE_AND_MAPPED = 0x01 | 0x02
_NON_BLOCKING = 0x01


class Driver:
    """The functions of CUDA's driver that are needed here; a nonzero result raises `DeviceError`."""

    def __init__(self, load: Callable[[str], Any], library: str = LIBRARY) -> None:
        try:
            self._library = load(library)
        except OSError as error:
            raise DeviceError(f"CUDA's driver cannot be loaded ({error}); is it installed here?") from None

    def function(self, name: str) -> Callable[..., int]:
        """Returns a function that returns CUDA's error number; callers pass ctypes objects, and small integers."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DeviceError(f"this CUDA driver has no {name}; it needs the driver of CUDA 12 or later") from None
        function.restype = ctypes.c_int
        return function  # type: ignore[no-any-return]

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function.

        Raises:
            DeviceError: It failed, or the driver does not have it.
        """
        if error := self.function(name)(*arguments):
            raise DeviceError(f"{name} failed with {self.error_name(error)}")

    def error_name(self, error: int) -> str:
        """Returns CUDA's name of an error number, and the number."""
        name = ctypes.c_char_p()
        if self.function("cuGetErrorName")(error, ctypes.byref(name)) or name.value is None:
            return f"CUDA error {error}"
        return f"{name.value.decode()} ({error})"


class RegisteredPage:
    """A page of this process's memory that the device can write to."""

    def __init__(self, address: int, device: int, driver: Driver) -> None:
        self._driver = driver
        self._address = ctypes.c_void_p(address)
        self._device = ctypes.c_int()
        self._context = ctypes.c_void_p()
        self._registered = False
        pointer = ctypes.c_uint64()
        driver.call("cuInit", 0)
        driver.call("cuDeviceGet", ctypes.byref(self._device), device)
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        try:
            with self.context():
                size = ctypes.c_size_t(PAGE_BYTES)
                driver.call("cuMemHostRegister_v2", self._address, size, _PORTABLE_AND_MAPPED)
                self._registered = True
                driver.call("cuMemHostGetDevicePointer_v2", ctypes.byref(pointer), self._address, 0)
        except DeviceError:
            self.unregister()
            raise
        self.device_address = pointer.value

    @contextmanager
    def context(self) -> Iterator[None]:
        """Makes the device's context, the one that torch uses too, this thread's current one, and undoes that."""
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    @contextmanager
    def new_stream(self) -> Iterator[int]:
        """Makes a stream that waits for no other one; destroys it at the end."""
        stream = ctypes.c_void_p()
        with self.context():
            self._driver.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
            try:
                yield stream.value or 0
            finally:
                self._driver.call("cuStreamDestroy_v2", stream)  # the device still does what the stream holds

    def unregister(self) -> None:
        """Takes the page from the device after its last write, for which it waits; may be called twice.

        Without that, keep the page mapped.
        """
        if self._registered:
            with self.context():
                self._driver.call("cuCtxSynchronize")
                self._driver.call("cuMemHostUnregister", self._address)
            self._registered = False
        if self._context.value:
            self._context.value = None
            self._driver.call("cuDevicePrimaryCtxRelease_v2", self._device)


WAYS = ("stream write", "memset")
"""What `DriverMarks.how` can be, best first."""

_INVALID_CONTEXT = 201
_CAPTURE_IMPLICIT = 906
_SINGLE_WRITES = 16
_BURST = 32
"""The self-test writes 16 values one by one, then 32 at once, as training does when it runs ahead of the device."""


class DriverMarks:
    """Has the device write numbers into one word of the shared page, in the order of the current stream.

    Made by `open_stream_marks`.

    Attributes:
        how: One of `WAYS`, for `status`.
    """

    def __init__(
        self, how: str, page: RegisteredPage, hot: Driver, offset: int, current_stream: Callable[[], int]
    ) -> None:
        self.how = how
        self.current_stream = current_stream
        """Returns the handle of the stream that work of this thread goes to."""
        self.page = page
        self._driver = hot
        self._handles: dict[int, ctypes.c_void_p] = {}
        self._capturing = ctypes.c_int()
        self._to_capturing = ctypes.byref(self._capturing)
        self._is_capturing = hot.function("cuStreamIsCapturing")
        target = ctypes.c_uint64(page.device_address + offset)
        self._put = _stream_write(hot, target) if how == "stream write" else _memset(hot, target)

    def write(self, value: int) -> None:
        """Adds to the current CUDA stream: store the lowest 32 bits of `value` when all work before it has run.

        Raises:
            CapturedStream: The stream is being captured into a CUDA graph; nothing was added.
            DeviceError: The driver refused; the message has CUDA's name of the error.
        """
        self.write_on(self.current_stream(), value)

    def write_on(self, stream: int, value: int) -> None:
        """Does what `write` does, on a stream of which the caller gives the handle (0: the default stream)."""
        handle = self._handles.get(stream)
        if handle is None:
            handle = self._handles[stream] = ctypes.c_void_p(stream)
        error = self._is_capturing(handle, self._to_capturing)
        if not error and not self._capturing.value:
            error = self._put(handle, value)
            if not error:
                return
        self._write_otherwise(handle, value, error)

    def _write_otherwise(self, handle: ctypes.c_void_p, value: int, error: int) -> None:
        """Tries again in the device's context if this thread has none; otherwise raises what is wrong."""
        if error == _INVALID_CONTEXT:  # this thread has not used CUDA yet
            with self.page.context():
                error = self._put(handle, value)
            if not error:
                return
        if not error or error == _CAPTURE_IMPLICIT:
            raise CapturedStream("a CUDA graph is being captured; a mark in it would repeat an old number")
        raise DeviceError(f"the {self.how} into the stream failed with {self._driver.error_name(error)}")


_Put = Callable[[ctypes.c_void_p, int], int]


def _stream_write(driver: Driver, target: ctypes.c_uint64) -> _Put:
    write, flags = driver.function("cuStreamWriteValue32_v2"), ctypes.c_uint(0)
    return lambda handle, value: write(handle, target, value, flags)


def _memset(driver: Driver, target: ctypes.c_uint64) -> _Put:
    memset, words = driver.function("cuMemsetD32Async"), ctypes.c_size_t(1)
    return lambda handle, value: memset(target, value, words, handle)


def open_stream_marks(
    address: int,
    device: int,
    *,
    ways: Sequence[str] = WAYS,
    current_stream: Callable[[], int] | None = None,
    library: str = LIBRARY,
    timeout_s: float = 1.0,
) -> DriverMarks:
    """Gives the shared page to the device, and returns the first way of writing into it that passes its self-test.

    It starts CUDA on the device if torch has not done so yet. The self-test leaves the word as it was.

    Args:
        address: Address of the word in this process, in the first 4,096 bytes of the page; a multiple of 4.
        device: The device's number as torch counts.
        current_stream: Returns the handle of the current stream; by default torch's.

    Raises:
        DeviceError: Why it does not work here, for each way.
    """
    if address % 4:
        raise DeviceError(f"the word at {address:#x} is not aligned: its address must be a multiple of 4")
    page_address = address - address % PAGE_BYTES
    setup = Driver(ctypes.CDLL, library)  # gives up the interpreter lock, since these calls can take long
    hot = Driver(ctypes.PyDLL, library)
    current = current_stream or _torch_stream(device)
    page = RegisteredPage(page_address, device, setup)
    word = ctypes.c_uint32.from_address(address)
    problems = []
    for how in ways:
        try:
            marks = DriverMarks(how, page, hot, address - page_address, current)
        except DeviceError as error:
            problems.append(f"{how}: {error}")
            continue
        reason = self_test(marks, lambda: word.value, timeout_s)
        if not reason:
            return marks
        problems.append(f"{how}: {reason}")
    page.unregister()
    raise DeviceError(f"the device cannot write into the shared page ({'; '.join(problems)})")


def self_test(marks: DriverMarks, read: Callable[[], int], timeout_s: float = 1.0) -> str:
    """Writes numbers through a stream of its own and sees them arrive, in order; then writes back what was there.

    It takes a millisecond or two on an idle device. No other thread writes the word meanwhile, which `read` returns.

    Returns:
        Why it does not work; empty if it does.
    """
    before = read()
    deadline_s = time.monotonic() + timeout_s
    one_by_one = [[value] for value in range(_SINGLE_WRITES + 1)]
    burst = list(range(_SINGLE_WRITES + 1, _SINGLE_WRITES + _BURST + 1))
    reason = ""
    marks.current_stream()
    try:
        with marks.page.new_stream() as stream:
            for values in (*one_by_one, burst):
                reason = reason or _arrive(marks, stream, read, values, deadline_s)
            back = _arrive(marks, stream, read, [before], deadline_s)
            return reason or back
    except DeviceError as error:
        return str(error)


def _arrive(marks: DriverMarks, stream: int, read: Callable[[], int], values: list[int], deadline_s: float) -> str:
    """Writes numbers at once; returns what was wrong in how they arrived, or nothing."""
    last = read()
    places = {value: place for place, value in enumerate([last, *values])}
    for value in values:
        marks.write_on(stream, value)
    while True:
        seen = read()
        if places.get(seen, -1) < places[last]:
            return f"after {last}, the number {seen} arrived, although numbers up to {values[-1]} were written in order"
        last = seen
        if last == values[-1]:
            return ""
        if time.monotonic() > deadline_s:
            return f"the number {values[-1]} did not arrive in time"


def _torch_stream(device: int) -> Callable[[], int]:
    """Returns a function that gives the handle of torch's current stream on a device, as cheaply as torch can."""
    try:
        import torch
    except ImportError as error:
        raise DeviceError(f"torch cannot be imported ({error}), so the current CUDA stream is not known") from None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return functools.partial(raw, device)
    return lambda: int(torch.cuda.current_stream(device).cuda_stream)
