"""What runs calls, captures them and tells the time: a GPU behind torch, or a stand-in for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["PRESSURE_BYTES", "Call", "Device", "Event", "Gpu", "TorchDevice", "current_gpu"]

PRESSURE_BYTES = 256 * 2**20

# Caches that the runtime does not report: behind the L2 of these devices lies one of 256 MiB.
MEMORY_SIDE_CACHE_BYTES = {"gfx942": 256 * 2**20, "gfx950": 256 * 2**20}

Call = Callable[[], None]


class Event(Protocol):
    """A point in the stream's time."""

    def record(self) -> None:
        """Mark this point, behind all that was queued before."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from here to `end`; both have passed."""


class Device(Protocol):
    """What times calls: a GPU behind torch, or a stand-in for it.

    Attributes
    ----------
    target : {"hip", "cuda"}
        As records name it.
    place : str
        Where torch puts tensors for it.
    cache_bytes : int
        Size of the last-level cache.
    arch : str
        ``sm_90``, ``gfx950``, ...
    """

    target: str
    place: str
    cache_bytes: int
    arch: str

    def capture(self, calls: Sequence[Call]) -> Call:
        """Record calls as one graph, and return what replays it."""

    def event(self) -> Event:
        """Make an event that has not passed yet."""

    def write_pressure(self) -> None:
        """Queue a write of `PRESSURE_BYTES`."""

    def read_other(self, nbytes: int) -> None:
        """Queue a read of so many bytes that no call uses."""

    def kernel_us(self, run: Call, replays: int) -> float:
        """Time of the kernels of so many runs (us), by the device's profiler."""

    def synchronize(self) -> None:
        """Wait for everything queued."""

    def clocks(self) -> dict[str, float]:
        """Clock (MHz), power (W) and temperature (C) now, as far as they can be read."""


class Gpu(NamedTuple):
    """What kind a device is of: ``target`` and ``arch`` of `Device`."""

    target: str
    arch: str


def current_gpu() -> Gpu | None:
    """What kind torch's current GPU is of; None if it sees none."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    if torch.version.hip:
        return Gpu("hip", found.gcnArchName.split(":")[0])
    return Gpu("cuda", f"sm_{found.major}{found.minor}")


class TorchDevice:
    """The current GPU of torch, HIP or CUDA, and its current stream.

    Raises
    ------
    ValueError
        torch sees no GPU.
    """

    place = "cuda"

    def __init__(self) -> None:
        import torch

        gpu = current_gpu()
        if gpu is None:
            raise ValueError(
                f"a time must be taken on a hip or cuda device, torch {torch.__version__} sees "
                "none; topk-lab doctor says why"
            )
        self._torch = torch
        self.target, self.arch = gpu
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.cache_bytes = MEMORY_SIDE_CACHE_BYTES.get(self.arch, found.L2_cache_size)
        self._pressure = torch.empty(PRESSURE_BYTES, dtype=torch.uint8, device=self.place)
        self._other = None

    def capture(self, calls: Sequence[Call]) -> Call:
        """Record calls as one graph, and return what replays it."""
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for call in calls:
                call()
        return graph.replay

    def event(self) -> Event:
        """Make an event that has not passed yet."""
        return self._torch.cuda.Event(enable_timing=True)

    def write_pressure(self) -> None:
        """Queue a write of `PRESSURE_BYTES`."""
        self._pressure.zero_()

    def read_other(self, nbytes: int) -> None:
        """Queue a read of so many bytes that no call uses."""
        torch = self._torch
        if self._other is None or self._other.numel() < nbytes // 4:
            self._other = torch.zeros(nbytes // 4, device=self.place)
            self._read = torch.empty((), device=self.place)
        torch.amax(self._other[: nbytes // 4], dim=0, out=self._read)

    def kernel_us(self, run: Call, replays: int) -> float:
        """Time of the kernels of so many runs (us), by the device's profiler."""
        profiler = self._torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(replays):
                run()
            self.synchronize()
        return float(sum(event.self_device_time_total for event in profile.key_averages()))

    def synchronize(self) -> None:
        """Wait for everything queued."""
        self._torch.cuda.synchronize()

    def clocks(self) -> dict[str, float]:
        """Clock (MHz), power (W) and temperature (C) now, as far as they can be read."""
        cuda = self._torch.cuda
        # torch hands on what NVML counts in milliwatts and AMD's library in watts.
        watts = 1.0 if self.target == "hip" else 1e-3
        readings = {}
        for name, read, unit in (
            ("clock_mhz", cuda.clock_rate, 1.0),
            ("power_w", cuda.power_draw, watts),
            ("temperature_c", cuda.temperature, 1.0),
        ):
            try:
                readings[name] = read() * unit
            except Exception:  # the vendors' libraries, where installed, raise types of their own
                continue
        return readings
