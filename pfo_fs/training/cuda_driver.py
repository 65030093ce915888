"""CUDA's driver: the few of its C functions that stream marks need, and a page that the device can write to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pfo_fs.errors import DeviceError

LIBRARY = "libcuda.so.1"
PAGE_BYTES = 4096

_PORTABLE_AND_MAPPED = 0x01 | 0x02
_NON_BLOCKING = 0x01
_ALREADY_REGISTERED = 712

_pointer = ctypes.c_void_p
_out = ctypes.c_void_p
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuGetErrorName": (ctypes.c_int, _out),
    "cuDeviceGet": (_out, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_out, ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxPushCurrent_v2": (_pointer,),
    "cuCtxPopCurrent_v2": (_out,),
    "cuCtxSynchronize": (),
    "cuMemHostRegister_v2": (_pointer, ctypes.c_size_t, ctypes.c_uint),
    "cuMemHostUnregister": (_pointer,),
    "cuMemHostGetDevicePointer_v2": (_out, _pointer, ctypes.c_uint),
    "cuStreamCreate": (_out, ctypes.c_uint),
    "cuStreamDestroy_v2": (_pointer,),
}


class Driver:
    """The functions of CUDA's driver that are needed here; a nonzero result raises `DeviceError`."""

    def __init__(self, load: Callable[[str], Any], library: str = LIBRARY) -> None:
        try:
            self._library = load(library)
        except OSError as error:
            raise DeviceError(f"CUDA's driver cannot be loaded ({error}); is it installed here?") from None

    def function(self, name: str) -> Callable[..., int]:
        """Returns the function that returns CUDA's error number."""
        found = self.bare_function(name)
        found.argtypes = _ARGUMENTS[name]  # type: ignore[attr-defined]
        return found

    def bare_function(self, name: str) -> Callable[..., int]:
        """Returns the function, to which the caller passes ctypes objects: a call takes half as long."""
        try:
            found = getattr(self._library, name)
        except AttributeError:
            raise DeviceError(f"this CUDA driver has no {name}; it needs the driver of CUDA 12 or later") from None
        found.restype = ctypes.c_int
        return found  # type: ignore[no-any-return]

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function.

        Raises:
            DeviceError: It failed, or the driver does not have it.
        """
        error = self.function(name)(*arguments)
        if error:
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
        self._address = address
        self._device = ctypes.c_int()
        self._context = ctypes.c_void_p()
        self._registered = False
        pointer = ctypes.c_uint64()
        driver.call("cuInit", 0)
        driver.call("cuDeviceGet", ctypes.byref(self._device), device)
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        try:
            with self.context():
                self._register()
                driver.call("cuMemHostGetDevicePointer_v2", ctypes.byref(pointer), address, 0)
        except DeviceError:
            self.unregister()
            raise
        self.device_address = pointer.value

    def _register(self) -> None:
        error = self._driver.function("cuMemHostRegister_v2")(self._address, PAGE_BYTES, _PORTABLE_AND_MAPPED)
        if error:
            hint = "; close the stream marks that were opened on it before" if error == _ALREADY_REGISTERED else ""
            raise DeviceError(
                f"the shared page cannot be given to the device: cuMemHostRegister failed with "
                f"{self._driver.error_name(error)}{hint}"
            )
        self._registered = True

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
        """Takes the page from the device after its last write. Without that, keep the page mapped."""
        if self._registered:
            with self.context():
                self._driver.call("cuCtxSynchronize")
                self._driver.call("cuMemHostUnregister", self._address)
            self._registered = False
        if self._context.value:
            self._context.value = None
            self._driver.call("cuDevicePrimaryCtxRelease_v2", self._device)
