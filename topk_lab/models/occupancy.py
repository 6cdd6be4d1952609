"""How many blocks of a kernel does a device hold at once, and what keeps it from holding more?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DEVICES", "DeviceLimits", "Occupancy", "resident_blocks"]

MAX_BLOCK_SIZE = 1024


@dataclass(frozen=True)
class DeviceLimits:
    """What a device and each of its compute units (streaming multiprocessors) hold.

    Attributes
    ----------
    name : str
        Device.
    units : int
        Compute units.
    wave_size : int
        Lanes of a wave.
    lds_bytes : int
        LDS (shared memory) of a unit.
    lds_per_block : int
        The most that one block may ask for.
    lds_reserved, lds_granule : int
        Bytes that every block takes on top; what a block takes is a multiple of the granule.
    max_threads, max_blocks : int
        Of a unit.
    simds : int
        Parts of a unit, each with registers of its own.
    registers, register_granule : int
        Vector registers a lane in each part, accumulation registers included; a wave takes a
        multiple of the granule.
    scalar_registers, scalar_granule : int
        Of each part; 0 where scalar registers limit nothing.
    """

    name: str
    units: int
    wave_size: int
    lds_bytes: int
    lds_per_block: int
    lds_granule: int
    lds_reserved: int = 0
    max_threads: int = 2048
    max_blocks: int = 32
    simds: int = 4
    registers: int = 512
    register_granule: int = 8
    scalar_registers: int = 0
    scalar_granule: int = 16

    @property
    def max_waves(self) -> int:
        """Waves of a unit."""
        return self.max_threads // self.wave_size


def _cdna(name: str, units: int, lds_bytes: int, lds_granule: int) -> DeviceLimits:
    return DeviceLimits(
        name=name,
        units=units,
        wave_size=64,
        lds_bytes=lds_bytes,
        lds_per_block=lds_bytes,
        lds_granule=lds_granule,
        scalar_registers=800,
    )


DEVICES: Mapping[str, DeviceLimits] = {
    "gfx90a": _cdna("AMD Instinct MI250X, one die", 110, 64 * 1024, 512),
    "gfx942": _cdna("AMD Instinct MI300X", 304, 64 * 1024, 512),
    "gfx950": _cdna("AMD Instinct MI355X", 256, 160 * 1024, 1280),
    # 65536 registers in units of 256 a wave: 512 a lane in each quarter of the unit, in eights.
    "sm_90": DeviceLimits(
        name="NVIDIA H200",
        units=132,
        wave_size=32,
        lds_bytes=228 * 1024,
        lds_per_block=227 * 1024,
        lds_granule=128,
        lds_reserved=1024,
    ),
}


@dataclass(frozen=True)
class Occupancy:
    """How many blocks are resident.

    Attributes
    ----------
    blocks_per_unit, waves_per_unit : int
        On each compute unit.
    resident_blocks : int
        On the device: more rows than this need another wave of blocks.
    limit : {"threads", "lds", "registers", "blocks"}
        What keeps another block out; of several the first in this order.
    """

    blocks_per_unit: int
    waves_per_unit: int
    resident_blocks: int
    limit: str


def resident_blocks(
    resources: Mapping[str, int],
    block_size: int,
    dynamic_lds: int,
    device: str | DeviceLimits,
) -> Occupancy:
    """Count the blocks of a kernel that a device holds at once.

    Parameters
    ----------
    resources : mapping
        Of the kernel, as the build manifest states them: ``vgpr``, ``lds`` (static bytes), and on
        AMD devices ``agpr`` and ``sgpr``. What is missing counts as none.
    block_size : int
        Threads of a block.
    dynamic_lds : int
        Bytes that the launch asks for on top of the static ones.
    device : str or DeviceLimits
        A name of `DEVICES`, or limits.

    Returns
    -------
    Occupancy

    Raises
    ------
    ValueError
        An unknown device, a block size that is not a whole number of waves or above 1024, or
        resources of which not one block fits.

    Notes
    -----
    AMD: LLVM's "User Guide for AMDGPU Backend" (``granulated_lds_size``: 128 words, on gfx950 320;
    vector registers in eights, accumulation registers behind them from a multiple of 4 on) and
    `llvm-calc-occupancy <https://llvm.org/docs/CommandGuide/llvm-calc-occupancy.html>`_ (8 waves
    a SIMD, 800 scalar registers in sixteens). NVIDIA: compute capability 9.0 in the CUDA
    programming guide and the Hopper tuning guide (1 KiB of shared memory reserved a block).
    A block's waves are taken to spread evenly over the unit's parts.

    Examples
    --------
    >>> from topk_lab.models import resident_blocks
    >>> resident_blocks({"vgpr": 32, "lds": 7 * 1024}, 512, 40 * 1024, "gfx950").blocks_per_unit
    3
    """
    limits = _limits(device)
    waves, rest = divmod(block_size, limits.wave_size)
    if rest or not 0 < block_size <= MAX_BLOCK_SIZE:
        raise ValueError(
            f"block_size must be a multiple of {limits.wave_size} from {limits.wave_size} to "
            f"{MAX_BLOCK_SIZE}, got {block_size}"
        )
    lds = resources.get("lds", 0) + dynamic_lds
    if dynamic_lds < 0 or lds > limits.lds_per_block:
        raise ValueError(
            f"dynamic_lds must be from 0 to {limits.lds_per_block - resources.get('lds', 0)} "
            f"bytes (a block of {limits.name} takes at most {limits.lds_per_block}), "
            f"got {dynamic_lds}"
        )
    taken = _round_up(lds, limits.lds_granule) + limits.lds_reserved
    blocks = {
        "threads": limits.max_waves // waves,
        "lds": limits.lds_bytes // taken if taken else limits.max_blocks,
        "registers": _waves_by_registers(resources, limits) // waves,
        "blocks": limits.max_blocks,
    }
    limit = min(blocks, key=blocks.__getitem__)
    if not blocks[limit]:
        raise ValueError(
            f"resources must leave room for one block of {block_size} threads on {limits.name}, "
            f"got too many {limit}: {dict(resources)}"
        )
    return Occupancy(
        blocks_per_unit=blocks[limit],
        waves_per_unit=blocks[limit] * waves,
        resident_blocks=blocks[limit] * limits.units,
        limit=limit,
    )


def _limits(device: str | DeviceLimits) -> DeviceLimits:
    if isinstance(device, DeviceLimits):
        return device
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
    return DEVICES[device]


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def _waves_by_registers(resources: Mapping[str, int], limits: DeviceLimits) -> int:
    """Waves of a unit that its registers allow."""
    vector, accumulation = resources.get("vgpr", 0), resources.get("agpr", 0)
    if accumulation:
        vector = _round_up(vector, 4) + accumulation
    a_part = limits.registers // _round_up(max(vector, 1), limits.register_granule)
    if limits.scalar_registers:
        scalar = _round_up(max(resources.get("sgpr", 0), 1), limits.scalar_granule)
        a_part = min(a_part, limits.scalar_registers // scalar)
    return min(a_part * limits.simds, limits.max_waves)
