"""What can go wrong when compiled code is emulated, and how is it named?"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "EmulationError",
    "EmulationFault",
    "ToolNotFound",
    "UnsupportedInstruction",
    "UnsupportedKernel",
]


class EmulationError(RuntimeError):
    """The emulator cannot go on."""


class ToolNotFound(EmulationError):
    """Neither a program nor a package that can do what is needed was found."""


class UnsupportedKernel(EmulationError):
    """The code object or the kernel needs what the emulator does not have."""


class UnsupportedInstruction(UnsupportedKernel):
    """An instruction, or a modifier of one, that the emulator does not know."""


@dataclass(eq=False)
class EmulationFault(EmulationError):
    """A kernel did what a device would not survive, or what is wrong on any device.

    Attributes
    ----------
    kind : str
        ``"global out of bounds"``, ``"write to read-only buffer"``, ``"lds out of bounds"``,
        ``"misaligned"``, ``"unreached barrier"``, ``"step limit"``, ``"trap"``,
        ``"read of unwritten lds"`` or ``"lds data race"``.
    kernel : str
        Name of the kernel.
    pc : int
        Byte offset of the instruction from the start of the kernel.
    instruction : str
        Its assembly text.
    block : tuple of int
        Block index (x, y, z).
    wave : int
        Wave within the block.
    lane : int or None
        Lane within the wave; None where the whole wave is at fault.
    address : int or None
        First byte of the access: a host address, or an offset into LDS.
    size : int or None
        Bytes of the access.
    buffer : str or None
        The buffer that lies nearest to the address.
    distance : int or None
        Bytes from the nearest byte of that buffer to the first byte of the access that is outside
        (negative before it); the offset into it where the access is inside.
    detail : str
        The rest of the story in words.
    other_pc, other_instruction, other_wave : int, str, int, or None
        Of a data race: the earlier access; `pc`, `instruction` and `wave` are the later one's.
    """

    kind: str
    kernel: str
    pc: int
    instruction: str
    block: tuple[int, int, int]
    wave: int
    lane: int | None = None
    address: int | None = None
    size: int | None = None
    buffer: str | None = None
    distance: int | None = None
    detail: str = ""
    other_pc: int | None = None
    other_instruction: str | None = None
    other_wave: int | None = None

    def __str__(self) -> str:
        place = f"block {self.block}, wave {self.wave}"
        if self.lane is not None:
            place += f", lane {self.lane}"
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.kernel}: {self.kind}{detail}; pc {self.pc:#x} ({self.instruction}), {place}"

    def __reduce__(self) -> tuple[type[EmulationFault], tuple[object, ...]]:
        return type(self), tuple(getattr(self, name) for name in self.__dataclass_fields__)
