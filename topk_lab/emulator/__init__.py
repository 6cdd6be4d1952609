"""The emulator: what do compiled AMD code objects do, run on a CPU?

A code object for gfx90a, gfx942 or gfx950 is disassembled; each instruction is translated into
operations of a small C runtime, which is compiled once for the machine at hand and runs a wave's 64
lanes an operation at a time. Accesses are checked, instructions and events are counted, and with a
seed the order of waves, lanes and blocks is random.
"""

from topk_lab.emulator.code_object import TARGETS, CodeObject, Kernel
from topk_lab.emulator.counts import LaunchCount
from topk_lab.emulator.emulator import (
    DEFAULT_STEP_LIMIT,
    Emulator,
    MemoryRegion,
    toolchain_report,
)
from topk_lab.emulator.errors import (
    EmulationError,
    EmulationFault,
    ToolNotFound,
    UnsupportedInstruction,
    UnsupportedKernel,
)

__all__ = [
    "DEFAULT_STEP_LIMIT",
    "TARGETS",
    "CodeObject",
    "EmulationError",
    "EmulationFault",
    "Emulator",
    "Kernel",
    "LaunchCount",
    "MemoryRegion",
    "ToolNotFound",
    "UnsupportedInstruction",
    "UnsupportedKernel",
    "toolchain_report",
]
