"""Tells where the device is, without waiting for it: the device itself writes numbers into the shared page.

The training thread launches work ahead of the device. `DriverMarks.write` adds one small operation to the current CUDA
stream: the device stores a 32-bit number into one word of the page as soon as it has finished all that was put into the
stream before. The clock process, which maps the same page, reads the word. The training thread does not wait, and CUDA
starts no host thread.

`cuStreamWriteValue32_v2` does not run on the device's multiprocessors. (The symbol without `_v2` is the interface from
before CUDA 11.7, which most installations of the driver leave disabled.)

Calls of `DriverMarks` keep the interpreter lock: giving it up can cost 5 ms when other Python threads are busy. While a
stream holds about 1,000 operations that have not run, CUDA makes any launch wait, and the call keeps the lock. If
the device then waits for work that another Python thread of this process must launch (such as a send that the stream's
peers wait for), training hangs.

A write that is put into a stream during the capture of a CUDA graph stores the same number at each replay. So it has
`REPLAYED` in place of the step's number (the turn). Writes before and after a replay work as usual.
"""

import ctypes
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pfo_fs.device.shared_page import REPLAYED, TURN_SHIFT
from pfo_fs.errors import DeviceError

LIBRARY = "libcuda.so.1"
PAGE_BYTES = 4096

_PORTABLE_AND_MAPPED = 0x01 | 0x02
_NON_BLOCKING = 0x01


class Driver:
    """Functions of CUDA's driver; `call` raises `DeviceError` if one fails, callers of `function` check it."""

    def __init__(self, load: Callable[[str], ctypes.CDLL], library: str = LIBRARY) -> None:
        try:
            self._library = load(library)
        except OSError as error:
            raise DeviceError(f"CUDA's driver cannot be loaded ({error}); is it installed here?") from None

    def function(self, name: str) -> Callable[..., int]:
        """Returns a function that returns CUDA's error number; callers pass ctypes objects, and small integers."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DeviceError(f"this CUDA driver has no {name}; pfo-fs needs the driver of CUDA 12 or later") from None
        function.restype = ctypes.c_int
        return function  # type: ignore[no-any-return]

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function.

        Raises:
            DeviceError: The function failed, or the driver does not have it.
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
        """Makes the device's context, which torch uses too, current in this thread; undoes that at the end."""
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
                self._driver.call("cuStreamDestroy_v2", stream)  # the device still runs what the stream holds

    def unregister(self) -> None:
        """Waits for the device's last write and takes the page from the device; may be called twice.

        Before this call, the page must stay mapped: the device may still write to it.
        """
        if self._registered:
            with self.context():
                self._driver.call("cuCtxSynchronize")
                self._driver.call("cuMemHostUnregister", self._address)
            self._registered = False
        if self._context.value:
            self._context.value = None
            self._driver.call("cuDevicePrimaryCtxRelease_v2", self._device)


_INVALID_CONTEXT = 201
_CAPTURE_ERRORS = range(900, 909)
_REPLAYED = REPLAYED << TURN_SHIFT
_SINGLE_WRITES = 16
_BURST = 32
"""The self-test writes 16 values one by one, then 32 at once, as training does when it runs ahead of the device."""


class DriverMarks:
    """Makes the device write numbers into one word of the shared page, in the order of the current stream.

    Made by `open_stream_marks`.

    Args:
        hot: The driver; calls of it keep the interpreter lock.
        target: The word's address on the device.
    """

    def __init__(
        self, page: RegisteredPage, hot: Driver, target: ctypes.c_uint64, current_stream: Callable[[], int]
    ) -> None:
        self.current_stream = current_stream
        """Returns the handle of the stream that work of this thread goes to."""
        self.page = page
        self._driver = hot
        self._handles: dict[int, ctypes.c_void_p] = {}
        self._capturing = ctypes.c_int()
        self._to_capturing = ctypes.byref(self._capturing)
        self._is_capturing = hot.function("cuStreamIsCapturing")
        write, flags = hot.function("cuStreamWriteValue32_v2"), ctypes.c_uint(0)
        self._put: Callable[[ctypes.c_void_p, int], int] = lambda handle, value: write(handle, target, value, flags)

    def write(self, value: int) -> bool:
        """Adds to the current CUDA stream: store the lowest 32 bits of `value` when all work before it has run.

        Returns:
            Whether the stream is being captured into a CUDA graph.

        Raises:
            DeviceError: The driver refused; the message has CUDA's name of the error.
        """
        return self.write_on(self.current_stream(), value)

    def write_on(self, stream: int, value: int) -> bool:
        """Does what `write` does, on the stream with this handle (0: the default stream)."""
        handle = self._handles.get(stream)
        if handle is None:
            handle = self._handles[stream] = ctypes.c_void_p(stream)
        error = self._is_capturing(handle, self._to_capturing)
        captured = not error and self._capturing.value != 0
        if not error:
            error = self._put(handle, value | _REPLAYED if captured else value)
        if error == _INVALID_CONTEXT:  # this thread has not used CUDA yet
            with self.page.context():
                error = self._put(handle, value)
        if not error or error in _CAPTURE_ERRORS:  # a failed or another thread's capture costs one mark only
            return captured
        raise DeviceError(f"the write into the stream failed with {self._driver.error_name(error)}")


def open_stream_marks(
    address: int,
    device: int,
    *,
    current_stream: Callable[[], int] | None = None,
    library: str = LIBRARY,
    timeout_s: float = 1.0,
) -> DriverMarks:
    """Lets the device write to the shared page; returns the object that does so, after a self-test.

    It starts CUDA on the device if torch has not. The self-test takes some `timeout_s` at most, and restores the word.

    Args:
        address: Address of the word in this process, in the first 4,096 bytes of the page; a multiple of 4.
        device: The device's number as torch counts.
        current_stream: Returns the handle of the current stream; by default torch's.

    Raises:
        DeviceError: The device cannot write to the page; the message says why.
    """
    if address % 4:
        raise DeviceError(f"the word at {address:#x} is not aligned: its address must be a multiple of 4")
    page_address = address - address % PAGE_BYTES
    setup = Driver(ctypes.CDLL, library)  # gives up the interpreter lock, since these calls can take long
    hot = Driver(ctypes.PyDLL, library)
    current = current_stream or _torch_stream(device)
    page = RegisteredPage(page_address, device, setup)
    word = ctypes.c_uint32.from_address(address)
    try:
        marks = DriverMarks(page, hot, ctypes.c_uint64(page.device_address + address - page_address), current)
        reason = self_test(marks, lambda: word.value, timeout_s)
    except DeviceError as error:
        reason = str(error)
    if reason:
        page.unregister()
        raise DeviceError(f"the device cannot write into the shared page: {reason}")
    return marks


def self_test(marks: DriverMarks, read: Callable[[], int], timeout_s: float = 1.0) -> str:
    """Writes numbers by a stream of its own, and checks that they arrive in order; then restores the word.

    It takes about 2 ms on an idle device. `read` returns the word, which no other thread writes meanwhile.

    Returns:
        Why the device cannot write; empty if it can.
    """
    before = last = read()
    deadline_s = time.monotonic() + timeout_s
    reason = ""
    marks.current_stream()
    with marks.page.new_stream() as stream:
        for values in (*([value] for value in range(_SINGLE_WRITES)), list(range(16, 16 + _BURST)), [before]):
            places = {value: place for place, value in enumerate([last, *values])}
            for value in values:
                marks.write_on(stream, value)
            while not reason and last != values[-1]:
                seen = read()
                if places.get(seen, -1) < places[last]:
                    reason = f"after {last}, the number {seen} arrived, although numbers were written in order"
                elif seen != values[-1] and time.monotonic() > deadline_s:
                    reason = f"the number {values[-1]} did not arrive in time"
                last = seen
    return reason


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
