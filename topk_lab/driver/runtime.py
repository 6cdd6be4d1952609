"""Which driver library does this process use, and how is it called?

A HIP device is driven by the ``libamdhip64`` that the process already maps (torch's), and by that
one only: streams of one runtime mean nothing to another. A CUDA device is driven by ``libcuda``, in
the primary contexts that torch uses too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p
from pathlib import Path
from typing import Any, ClassVar

__all__ = ["HIP_LIBRARY_VARIABLE", "DriverError", "Runtime", "open_runtime", "platform"]

HIP_LIBRARY_VARIABLE = "TOPK_LAB_HIP_LIBRARY"
CUDA_LIBRARY = "libcuda.so.1"
_HIP_STEM = "libamdhip64.so"

# Attributes of a loaded function; both platforms number them alike.
MAX_THREADS, STATIC_LDS = 0, 1
_CUDA_MAX_DYNAMIC_SHARED = 8
_CUDA_MAJOR, _CUDA_MINOR, _CUDA_SHARED_PER_BLOCK_OPT_IN = 75, 76, 97

# hipDeviceProp_tR0600, whose layout HIP 6 and 7 share.
_HIP_PROPERTIES_BYTES = 1472
_HIP_SHARED_PER_BLOCK_AT = 296
_HIP_ARCH_NAME_AT = 1160

# Return codes, alike on both platforms.
_NO_DEVICE = 100
_CAPTURE_CODES = (900, 901, 906)  # unsupported, invalidated, implicit
_FAULT_CODES = (700, 702, 710, 719)  # illegal address, timeout, assert, launch failure

_LAUNCH = (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)

# From this compute capability on a launch of CUDA may overlap the one ahead of it.
_CUDA_OVERLAPS_FROM = 90
_CUDA_STREAM_SERIALIZATION = 6  # the launch attribute that lets it


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int * 16))


class OverlappedLaunch(ctypes.Structure):
    """CUDA's CUlaunchConfig of a launch that may begin before the one ahead of it has ended.

    Parameters
    ----------
    grid : (int, int)
    block : int
    dynamic_lds : int
        Bytes.
    """

    _fields_ = (
        *((name, c_uint) for name in ("grid_x", "grid_y", "grid_z")),
        *((name, c_uint) for name in ("block_x", "block_y", "block_z", "dynamic_lds")),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("num_attributes", c_uint),
    )

    def __init__(self, grid: tuple[int, int], block: int, dynamic_lds: int) -> None:
        allowed = _LaunchAttribute(_CUDA_STREAM_SERIALIZATION, 0, (c_int * 16)(1))
        super().__init__(*(*grid, 1, block, 1, 1, dynamic_lds, None), ctypes.pointer(allowed), 1)


class DriverError(RuntimeError):
    """A device can't do what was asked, or its driver refused.

    Attributes
    ----------
    reason : str
        What went wrong, and where.
    fix : str
        What to do about it; may be empty.
    code : int or None
        What the driver returned.
    """

    def __init__(self, reason: str, fix: str = "", code: int | None = None) -> None:
        super().__init__(f"{reason}; {fix}" if fix else reason)
        self.reason = reason
        self.fix = fix
        self.code = code

    @property
    def refused_in_capture(self) -> bool:
        """Whether the driver refused because a stream is being captured."""
        return self.code in _CAPTURE_CODES

    @property
    def is_fault(self) -> bool:
        """Whether a kernel faulted: the device may answer nothing more to this process."""
        return self.code in _FAULT_CODES


class Runtime:
    """A driver library behind one face for both platforms.

    Each role of `FUNCTIONS` is an attribute that holds the ctypes function: it returns an error
    code, which `call` checks.

    Attributes
    ----------
    path : str
        The library.
    """

    platform: ClassVar[str]
    # Role -> symbol, argument types.
    FUNCTIONS: ClassVar[dict[str, tuple[Any, ...]]]
    # Role -> result type, where it is no error code.
    RESULTS: ClassVar[dict[str, Any]] = {}
    # What `get_current` writes: a device of HIP, a context of CUDA.
    Current: ClassVar[type[c_int] | type[c_void_p]]
    missing_fix: ClassVar[str]
    old_fix: ClassVar[str]
    no_device_fix: ClassVar[str]
    fault_fix: ClassVar[str]

    def can_overlap(self, arch: str) -> bool:
        """Whether a launch may begin on such a device before the one ahead of it has ended."""
        return False

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            raise DriverError(f"{path} can't be loaded ({error})", self.missing_fix) from error
        for role, (symbol, *types) in self.FUNCTIONS.items():
            try:
                function = library[symbol]
            except AttributeError as error:
                raise DriverError(f"{path} has no {symbol}", self.old_fix) from error
            function.argtypes = types
            function.restype = self.RESULTS.get(role, c_int)
            setattr(self, role, function)
        code = self.initialize(0)
        if code not in (0, _NO_DEVICE):
            raise self.error(code, "initialize")
        self._found_none = code == _NO_DEVICE
        if code:
            self.forget()

    def forget(self) -> None:
        """Take back what the library keeps of a failed call."""

    def error(self, code: int, role: str, about: str = "") -> DriverError:
        """The error that a function's return code stands for."""
        self.forget()
        name, text = self._words(code)
        place = f"{about}: " if about else ""
        symbol = self.FUNCTIONS[role][0]
        fix = self.fault_fix if code in _FAULT_CODES else ""
        return DriverError(f"{place}{symbol} returned {name} ({code}): {text}", fix, code)

    def call(self, role: str, *arguments: Any, about: str = "") -> None:
        """Call a function of the driver; raise DriverError where it fails."""
        code = getattr(self, role)(*arguments)
        if code:
            raise self.error(code, role, about)

    def count(self) -> int:
        """Visible devices."""
        if self._found_none:
            return 0
        number = c_int()
        code = self.count_devices(byref(number))
        if code not in (0, _NO_DEVICE):
            raise self.error(code, "count_devices")
        if code:
            self.forget()
            return 0
        return number.value

    def load(self, image: bytes, about: str) -> int:
        """Load a code object on the current device."""
        module = c_void_p()
        self.call("load_module", byref(module), image, about=about)
        return module.value

    def function(self, module: int, kernel: str, about: str) -> tuple[int, int, int]:
        """A kernel's handle, bytes of static LDS, and most threads of a block."""
        function, static_lds, max_threads = c_void_p(), c_int(), c_int()
        self.call("find_function", byref(function), module, kernel.encode(), about=about)
        for value, attribute in ((static_lds, STATIC_LDS), (max_threads, MAX_THREADS)):
            self.call("function_attribute", byref(value), attribute, function, about=about)
        return function.value, static_lds.value, max_threads.value

    def is_capturing(self, stream: int, about: str) -> bool:
        """Whether the stream is captured, or is a default stream that another's capture blocks."""
        state = c_int()
        code = self.capture_status(stream, byref(state))
        if code and code not in _CAPTURE_CODES:
            raise self.error(code, "capture_status", about)
        if code:
            self.forget()
            return True
        return state.value != 0

    @contextlib.contextmanager
    def current(self, handle: int) -> Iterator[None]:
        """A device made current in this thread, then the one that was."""
        before = self.Current()
        self.call("get_current", byref(before))
        changes = before.value != handle
        if changes:
            self.enter(handle)
        try:
            yield
        finally:
            if changes:
                self.leave(before)


class HipRuntime(Runtime):
    """``libamdhip64``; ROCm 6.3 or newer, which code objects of version 6 need."""

    platform = "hip"
    FUNCTIONS: ClassVar = {
        "initialize": ("hipInit", c_uint),
        "count_devices": ("hipGetDeviceCount", c_void_p),
        "load_module": ("hipModuleLoadData", c_void_p, c_char_p),
        "find_function": ("hipModuleGetFunction", c_void_p, c_void_p, c_char_p),
        "function_attribute": ("hipFuncGetAttribute", c_void_p, c_int, c_void_p),
        "launch_kernel": ("hipModuleLaunchKernel", *_LAUNCH),
        "capture_status": ("hipStreamIsCapturing", c_void_p, c_void_p),
        "stream_device": ("hipStreamGetDevice", c_void_p, c_void_p),
        "get_current": ("hipGetDevice", c_void_p),
        "set_current": ("hipSetDevice", c_int),
        "properties": ("hipGetDevicePropertiesR0600", c_void_p, c_int),
        "last_error": ("hipGetLastError",),
        "error_name": ("hipGetErrorName", c_int),
        "error_text": ("hipGetErrorString", c_int),
    }
    RESULTS: ClassVar = {"error_name": c_char_p, "error_text": c_char_p}
    Current = c_int
    missing_fix = f"install PyTorch for ROCm, or name the library in {HIP_LIBRARY_VARIABLE}"
    old_fix = "ROCm 6.3 or newer is required"
    no_device_fix = (
        "check HIP_VISIBLE_DEVICES, the amdgpu kernel driver, and that this user may open /dev/kfd "
        "(groups render and video)"
    )
    fault_fix = "earlier work on the device may be at fault: AMD_SERIALIZE_KERNEL=3 tells whose"

    def forget(self) -> None:
        """Clear hipGetLastError, where torch would take the error for its own."""
        self.last_error()

    def _words(self, code: int) -> tuple[str, str]:
        return self.error_name(code).decode(), self.error_text(code).decode()

    def describe(self, index: int) -> tuple[str, int]:
        """Architecture of a device, and bytes of LDS that a block may have."""
        properties = ctypes.create_string_buffer(_HIP_PROPERTIES_BYTES)
        self.call("properties", properties, index, about=f"hip device {index}")
        lds = ctypes.c_size_t.from_buffer(properties, _HIP_SHARED_PER_BLOCK_AT).value
        arch = properties.raw[_HIP_ARCH_NAME_AT:].split(b"\0")[0].decode(errors="replace")
        if not arch.startswith("gfx"):
            raise DriverError(
                f"{self.path} describes hip device {index} in an unknown layout", self.old_fix
            )
        return arch.split(":")[0], lds

    def handle(self, index: int) -> int:
        """What `get_current` writes where the device is current."""
        return index

    def enter(self, handle: int) -> None:
        """Make a device current."""
        self.call("set_current", handle)

    def leave(self, before: c_int) -> None:
        """Make the one current that was."""
        self.call("set_current", before)

    def allow_dynamic(self, function: int, nbytes: int, about: str) -> None:
        """All of the LDS may be dynamic here, unasked."""


class CudaRuntime(Runtime):
    """``libcuda``, in primary contexts."""

    platform = "cuda"
    FUNCTIONS: ClassVar = {
        "initialize": ("cuInit", c_uint),
        "count_devices": ("cuDeviceGetCount", c_void_p),
        "load_module": ("cuModuleLoadData", c_void_p, c_char_p),
        "find_function": ("cuModuleGetFunction", c_void_p, c_void_p, c_char_p),
        "function_attribute": ("cuFuncGetAttribute", c_void_p, c_int, c_void_p),
        "launch_kernel": ("cuLaunchKernel", *_LAUNCH),
        "launch_overlapped": ("cuLaunchKernelEx", *[c_void_p] * 4),
        "capture_status": ("cuStreamIsCapturing", c_void_p, c_void_p),
        "get_current": ("cuCtxGetCurrent", c_void_p),
        "push_current": ("cuCtxPushCurrent_v2", c_void_p),
        "pop_current": ("cuCtxPopCurrent_v2", c_void_p),
        "get_device": ("cuDeviceGet", c_void_p, c_int),
        "device_attribute": ("cuDeviceGetAttribute", c_void_p, c_int, c_int),
        "retain_context": ("cuDevicePrimaryCtxRetain", c_void_p, c_int),
        "set_function_attribute": ("cuFuncSetAttribute", c_void_p, c_int, c_int),
        "error_name": ("cuGetErrorName", c_int, c_void_p),
        "error_text": ("cuGetErrorString", c_int, c_void_p),
    }
    Current = c_void_p
    # A stream of another context is refused by the driver itself.
    stream_device = None
    missing_fix = "install the NVIDIA driver"
    old_fix = "update the NVIDIA driver"
    no_device_fix = "check CUDA_VISIBLE_DEVICES and nvidia-smi"
    fault_fix = "earlier work on the device may be at fault: CUDA_LAUNCH_BLOCKING=1 tells whose"

    def can_overlap(self, arch: str) -> bool:
        """From sm_90 on."""
        return int(arch.removeprefix("sm_")) >= _CUDA_OVERLAPS_FROM

    def _words(self, code: int) -> tuple[str, str]:
        words = []
        for lookup in (self.error_name, self.error_text):
            word = c_char_p()
            lookup(code, byref(word))
            words.append((word.value or b"an unknown error").decode())
        return words[0], words[1]

    def _ordinal(self, index: int) -> int:
        ordinal = c_int()
        self.call("get_device", byref(ordinal), index)
        return ordinal.value

    def describe(self, index: int) -> tuple[str, int]:
        """Architecture of a device, and bytes of shared memory that a block may ask for."""
        ordinal, found = self._ordinal(index), []
        for attribute in (_CUDA_MAJOR, _CUDA_MINOR, _CUDA_SHARED_PER_BLOCK_OPT_IN):
            value = c_int()
            self.call("device_attribute", byref(value), attribute, ordinal)
            found.append(value.value)
        major, minor, shared = found
        return f"sm_{major}{minor}", shared

    def handle(self, index: int) -> int:
        """The device's primary context, kept for the rest of the process."""
        context = c_void_p()
        self.call("retain_context", byref(context), self._ordinal(index))
        return context.value

    def enter(self, handle: int) -> None:
        """Make a context current."""
        self.call("push_current", handle)

    def leave(self, before: c_void_p) -> None:
        """Make the one current that was."""
        self.call("pop_current", byref(c_void_p()))

    def allow_dynamic(self, function: int, nbytes: int, about: str) -> None:
        """Let a kernel have so many bytes of dynamic shared memory."""
        self.call("set_function_attribute", function, _CUDA_MAX_DYNAMIC_SHARED, nbytes, about=about)


def platform() -> str | None:
    """The kind of device that this process drives.

    Returns
    -------
    {"hip", "cuda"} or None
        What torch was built for. ``TOPK_LAB_HIP_LIBRARY`` in the environment makes it ``hip``.
    """
    if os.environ.get(HIP_LIBRARY_VARIABLE):
        return "hip"
    import torch

    if torch.version.hip:
        return "hip"
    return "cuda" if torch.version.cuda else None


def _mapped(stem: str) -> list[str]:
    """Mapped files whose name begins so, each once whatever its links are called."""
    found: dict[tuple[str, str], str] = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and os.path.basename(fields[5]).startswith(stem):
                found.setdefault((fields[3], fields[4]), fields[5])
    return list(found.values())


def _installed() -> Iterator[str]:
    """Where a HIP runtime may be that nothing has loaded yet, best first."""
    if importlib.util.find_spec("rocm_sdk"):
        import rocm_sdk

        with contextlib.suppress(ImportError, OSError):
            yield from map(str, rocm_sdk.find_libraries("amdhip64"))
    torch = importlib.util.find_spec("torch")
    for folder in (torch and torch.submodule_search_locations) or ():
        yield from map(str, sorted(Path(folder, "lib").glob(f"{_HIP_STEM}*")))
    yield from (_HIP_STEM, f"{_HIP_STEM}.7", f"{_HIP_STEM}.6")
    yield str(Path(os.environ.get("ROCM_PATH", "/opt/rocm"), "lib", _HIP_STEM))


def _hip_library() -> str:
    """The one HIP runtime of this process: named or mapped, else an installed one, loaded now."""
    named = os.environ.get(HIP_LIBRARY_VARIABLE)
    if named and not os.path.isfile(named):
        raise DriverError(f"{HIP_LIBRARY_VARIABLE} names {named}, which is no file")
    runtimes = _mapped(_HIP_STEM)
    if named and not any(
        os.path.exists(path) and os.path.samefile(path, named) for path in runtimes
    ):
        runtimes.append(named)
    if len(runtimes) > 1:
        raise DriverError(
            f"this process has two HIP runtimes, {' and '.join(runtimes)}, and streams of one mean "
            "nothing to the other",
            f"keep one: check LD_LIBRARY_PATH, {HIP_LIBRARY_VARIABLE} and packages that bring "
            "their own",
        )
    if runtimes:
        return runtimes[0]
    for candidate in _installed():
        with contextlib.suppress(OSError):
            ctypes.CDLL(candidate)
            return _mapped(_HIP_STEM)[0]
    raise DriverError(
        f"no {_HIP_STEM} was found: this process maps none, and there is none in rocm_sdk, in "
        "torch/lib, on the loader's path or under ROCM_PATH",
        HipRuntime.missing_fix,
    )


@functools.cache
def _open(kind: type[Runtime], path: str) -> Runtime:
    return kind(path)


def open_runtime(name: str) -> Runtime:
    """The driver library of a platform.

    Parameters
    ----------
    name : {"hip", "cuda"}

    Returns
    -------
    Runtime

    Raises
    ------
    ValueError
        No such platform.
    DriverError
        No library, two of them, or one that is too old.
    """
    if name == "hip":
        return _open(HipRuntime, _hip_library())
    if name == "cuda":
        return _open(CudaRuntime, CUDA_LIBRARY)
    raise ValueError(f"platform must be hip or cuda, got {name!r}")
