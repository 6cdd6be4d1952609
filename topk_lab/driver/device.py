"""What is loaded on a device, and how are a plan's kernels launched there?

Code objects are loaded at a kernel's first use on a device, which must come before a stream is
captured. A launch makes its device current and afterwards the one that was.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_int, c_uint, c_void_p
from typing import NamedTuple

from topk_lab import code_objects, support
from topk_lab.driver.runtime import DriverError, OverlappedLaunch, open_runtime
from topk_lab.plans import POINTER_OFFSETS, Launch, Plan

__all__ = ["Device", "Prepared", "code_target", "launch", "open_device", "prepare"]

# More shared memory than this, static and dynamic together, has to be asked for on CUDA.
_LDS_UNASKED = 48 * 1024

# Prepared plans that a device keeps; plans are cached by shape, so that few are ever alive.
_MAX_PREPARED = 1024


class Function(NamedTuple):
    """A loaded kernel: its handle, bytes of static LDS, and most threads of a block."""

    handle: int
    static_lds: int
    max_threads: int


def code_target(platform: str, arch: str, name: str) -> str:
    """The target whose code objects a device runs.

    Parameters
    ----------
    platform : {"hip", "cuda"}
    arch : str
        Such as ``gfx950``.
    name : str
        What errors call the device.

    Returns
    -------
    str

    Raises
    ------
    DriverError
        The kernels are not compiled for it.
    """
    if platform == "cuda":
        return "cuda"
    compiled = {found.target for found in code_objects.manifest() if found.target.startswith("gfx")}
    if arch not in compiled:
        why = support.refusal(arch)
        raise DriverError(
            f"the kernels are compiled for {', '.join(sorted(compiled))}, not for {name}"
            + (f": {why}" if why else ""),
            "choose another device with HIP_VISIBLE_DEVICES",
        )
    return arch


class Device:
    """A device, the code objects that are loaded on it, and the plans that are prepared for it.

    Parameters
    ----------
    platform : {"hip", "cuda"}
    index : int
        As torch counts devices.

    Attributes
    ----------
    name : str
        Such as ``hip device 0 (gfx950)``.
    arch : str
        Such as ``gfx950`` or ``sm_90``.
    lds_limit : int
        Bytes of LDS (shared memory) that a block may have, static and dynamic together.
    overlaps : bool
        Whether a launch may begin before the one ahead of it has ended.

    Raises
    ------
    ValueError
        No such platform or device.
    DriverError
        The platform can't be used; `topk_lab.driver.status` tells the same.
    """

    def __init__(self, platform: str, index: int) -> None:
        self.runtime = open_runtime(platform)
        count = self.runtime.count()
        if not 0 <= index < count:
            raise ValueError(f"index must be one of {count} {platform} devices, got {index}")
        self.platform, self.index = platform, index
        self.arch, self.lds_limit = self.runtime.describe(index)
        self.overlaps = self.runtime.can_overlap(self.arch)
        self.name = f"{platform} device {index} ({self.arch})"
        self.handle = self.runtime.handle(index)
        self._lock = threading.Lock()
        # The driver may read an image later, so that each stays beside its module.
        self._modules: dict[str, tuple[int, bytes]] = {}
        self._functions: dict[str, Function] = {}
        self._lds_asked: dict[str, int] = {}
        self._prepared: dict[int, Prepared] = {}

    def prepare(self, plan: Plan, stream: int = 0) -> Prepared:
        """As the function `prepare`."""
        found = self._prepared.get(id(plan))
        if found is not None:
            return found
        with self._lock, self.runtime.current(self.handle):
            functions = [self._function(launch, stream) for launch in plan.launches]
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            # It holds the plan, whose id is therefore no other's while it is kept.
            return self._prepared.setdefault(id(plan), Prepared(plan, self, functions))

    def load(self, source: str) -> dict[str, Function]:
        """Load a code object and look up every kernel in it.

        Parameters
        ----------
        source : str
            Stem of the HIP file, such as ``vllm``.

        Returns
        -------
        dict of str to Function
            Kernel name -> what was found.

        Raises
        ------
        DriverError
            The kernels are not compiled for the device, or the driver refused one of them.
        topk_lab.code_objects.CodeObjectError
            The code object is missing or stale.
        """
        with self._lock, self.runtime.current(self.handle):
            return self._load(source)

    def _function(self, launch: Launch, stream: int) -> Function:
        """The launch's kernel, fit for it; this device is current and locked."""
        kernel = launch.kernel
        if kernel not in self._functions:
            self._load_for(kernel, stream)
        function = self._functions[kernel]
        if launch.block > function.max_threads:
            raise DriverError(
                f"{kernel} takes blocks of at most {function.max_threads} threads on {self.name}, "
                f"got {launch.block}"
            )
        lds = function.static_lds + launch.dynamic_lds
        if lds > self.lds_limit:
            raise DriverError(
                f"{kernel} needs {function.static_lds} + {launch.dynamic_lds} bytes of LDS a "
                f"block, {self.name} has {self.lds_limit}"
            )
        if lds > self._lds_asked.get(kernel, _LDS_UNASKED):
            about = f"{kernel} on {self.name}"
            self.runtime.allow_dynamic(function.handle, launch.dynamic_lds, about)
            self._lds_asked[kernel] = lds
        return function

    def _load_for(self, kernel: str, stream: int) -> None:
        """Load a kernel and the others in its code object: one call warms all of them up."""
        refusal = DriverError(
            f"{kernel} isn't loaded on {self.name}, and nothing can be loaded while a stream is "
            "captured",
            "warm up first: make one such call before the capture",
        )
        if self.runtime.is_capturing(stream, self.name):
            raise refusal
        try:
            self._load(code_objects.kernel_source(kernel), kernel)
        except DriverError as error:
            if error.refused_in_capture:
                raise refusal from error
            raise

    def _load(self, source: str, *kernels: str) -> dict[str, Function]:
        """Look up a code object's kernels, and others that it may hold; this device is current."""
        found = code_objects.find(source, code_target(self.platform, self.arch, self.name))
        if source not in self._modules:
            image = found.read()
            module = self.runtime.load(image, f"{found.path.name} on {self.name}")
            self._modules[source] = module, image
        module, _ = self._modules[source]
        functions = {
            name: Function(*self.runtime.function(module, name, f"{name} on {self.name}"))
            for name in dict.fromkeys((*kernels, *found.kernels))
        }
        self._functions |= functions
        return functions


class _Block:
    """Arguments of a plan's launches, in memory that one thread uses at a time."""

    def __init__(self, prepared: Prepared) -> None:
        self.current = prepared.device.runtime.Current()
        self.current_at = byref(self.current)
        self.stream_device = c_int()
        self.stream_device_at = byref(self.stream_device)
        self.calls = []
        position = {name: number for number, name in enumerate(prepared.buffers)}
        for launch, function in zip(prepared.plan.launches, prepared.functions, strict=True):
            params = (ctypes.c_uint64 * -(-len(launch.scalars) // 8))()
            ctypes.memmove(params, launch.scalars, len(launch.scalars))
            table = (c_void_p * 1)(ctypes.addressof(params))
            pointers = [
                (
                    POINTER_OFFSETS[field] // 8,
                    position[place.name],
                    place.offset,
                )
                for field, place in launch.pointers
            ]
            # Converted once: that is most of what a ctypes call costs.
            sizes = (*launch.grid, 1, launch.block, 1, 1, launch.dynamic_lds)
            before_stream = (c_void_p(function.handle), *map(c_uint, sizes))
            overlapped = None
            if launch.overlaps and prepared.device.overlaps:
                overlapped = OverlappedLaunch(launch.grid, launch.block, launch.dynamic_lds)
            self.calls.append((launch.kernel, params, pointers, before_stream, table, overlapped))


class Prepared:
    """A plan whose kernels are loaded on a device: what a repeated call launches.

    Attributes
    ----------
    plan : Plan
    device : Device
    functions : list of Function
        One a launch.
    buffers : tuple of str
        Names of the buffers, in the order in which `launch` takes their addresses.
    """

    def __init__(self, plan: Plan, device: Device, functions: list[Function]) -> None:
        self.plan = plan
        self.device = device
        self.functions = functions
        names = [place.name for launch in plan.launches for _, place in launch.pointers]
        self.buffers = tuple(dict.fromkeys(names))
        # Threads take a block and put it back; both are atomic, so that none is shared.
        self._blocks: list[_Block] = []

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launch the plan's kernels, in order, on a stream.

        Parameters
        ----------
        addresses : sequence of int
            Device addresses of `buffers`.
        stream : int
            The raw handle of a stream of the device; 0 is its default stream.

        Raises
        ------
        ValueError
            More or fewer addresses than buffers.
        DriverError
            The stream is another device's, or the driver refused; a fault of earlier work on the
            device may show here too.
        """
        if len(addresses) != len(self.buffers):
            raise ValueError(
                f"addresses must be those of {', '.join(self.buffers)}, got {len(addresses)}"
            )
        try:
            block = self._blocks.pop()
        except IndexError:
            block = _Block(self)
        try:
            self._launch(block, addresses, stream)
        finally:
            self._blocks.append(block)

    def raw_launch(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """The bare calls of the driver library that `launch` comes to, to be compared with it.

        Parameters
        ----------
        addresses, stream
            As for `launch`, which is called once.

        Returns
        -------
        callable
            Launches with these very arguments, checks nothing.
        """
        self.launch(addresses, stream)
        block = self._blocks.pop()  # kept out of circulation
        runtime = self.device.runtime
        calls = [
            (runtime.launch_overlapped, (byref(overlapped), before_stream[0], table, None))
            if overlapped
            else (runtime.launch_kernel, (*before_stream, stream, table, None))
            for *_, before_stream, table, overlapped in block.calls
        ]

        # The arguments hold addresses only: what is there stays alive with the block.
        def launch(block: _Block = block) -> None:
            for call, arguments in calls:
                call(*arguments)

        return launch

    def _launch(self, block: _Block, addresses: Sequence[int], stream: int) -> None:
        device = self.device
        runtime = device.runtime
        code = runtime.get_current(block.current_at)
        if code:
            raise runtime.error(code, "get_current", device.name)
        elsewhere = block.current.value != device.handle
        if elsewhere:
            runtime.enter(device.handle)
        try:
            if stream and runtime.stream_device:
                self._check_stream(block, stream)
            for kernel, params, pointers, before_stream, table, overlapped in block.calls:
                for word, number, offset in pointers:
                    params[word] = addresses[number] + offset
                if overlapped:
                    role = "launch_overlapped"
                    overlapped.stream = stream
                    code = runtime.launch_overlapped(
                        byref(overlapped), before_stream[0], table, None
                    )
                else:
                    role = "launch_kernel"
                    code = runtime.launch_kernel(*before_stream, stream, table, None)
                if code:
                    raise runtime.error(code, role, f"{kernel} on {device.name}")
        finally:
            if elsewhere:
                runtime.leave(block.current)

    def _check_stream(self, block: _Block, stream: int) -> None:
        """HIP launches where the stream is, and checks nothing while it is captured."""
        device = self.device
        code = device.runtime.stream_device(stream, block.stream_device_at)
        if code:
            raise device.runtime.error(code, "stream_device", f"stream {stream:#x}")
        if block.stream_device.value != device.index:
            raise DriverError(
                f"stream must be one of {device.name}, got one of device "
                f"{block.stream_device.value}"
            )


@functools.cache
def open_device(platform: str, index: int) -> Device:
    """The device, one object for the whole process.

    Parameters
    ----------
    platform : {"hip", "cuda"}
    index : int
        As torch counts devices.

    Returns
    -------
    Device

    Raises
    ------
    ValueError, DriverError
        As `Device`.
    """
    return Device(platform, index)


def prepare(plan: Plan, device: Device, stream: int = 0) -> Prepared:
    """Load a plan's kernels on a device; again for the same plan it is a look-up.

    Parameters
    ----------
    plan : Plan
        As `topk_lab.plans.plan` made it: recognised by identity.
    device : Device
    stream : int, default 0
        The stream about to be used; nothing is loaded while it is captured.

    Returns
    -------
    Prepared

    Raises
    ------
    DriverError
        The kernels are not compiled for the device, one of them asks for more than it has or is
        not loaded while the stream is captured, or the driver refused.
    topk_lab.code_objects.CodeObjectError
        The code object is missing or stale.
    """
    return device.prepare(plan, stream)


def launch(plan: Plan, addresses: Mapping[str, int], device: Device, stream: int) -> None:
    """Launch a plan's kernels, in order, on a stream.

    Parameters
    ----------
    plan : Plan
    addresses : mapping of str to int
        Buffer name -> device address; names that the plan doesn't use are ignored.
    device : Device
    stream : int
        The raw handle of a stream of the device; 0 is its default stream.

    Raises
    ------
    ValueError
        A buffer without an address.
    DriverError, topk_lab.code_objects.CodeObjectError
        As `prepare` and `Prepared.launch`.
    """
    prepared = device.prepare(plan, stream)
    missing = [name for name in prepared.buffers if name not in addresses]
    if missing:
        raise ValueError(f"addresses must name {', '.join(missing)}, got {', '.join(addresses)}")
    prepared.launch([addresses[name] for name in prepared.buffers], stream)
