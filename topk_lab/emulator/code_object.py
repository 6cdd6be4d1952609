"""What does a compiled AMD code object hold, and what does each kernel ask of the device?

Facts from LLVM's "User Guide for AMDGPU Backend": ELF layout, kernel descriptor, metadata note.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

from topk_lab.emulator.errors import UnsupportedKernel

__all__ = ["TARGETS", "Argument", "CodeObject", "Kernel", "Segment"]

TARGETS = ("gfx90a", "gfx942", "gfx950")

_EM_AMDGPU = 224
_PT_LOAD, _PT_GNU_RELRO = 1, 0x6474E552
_SHT_RELA, _SHT_NOTE, _SHT_DYNSYM = 4, 7, 11
_NT_AMDGPU_METADATA = 32
_R_AMDGPU_ABS64, _R_AMDGPU_RELATIVE64 = 3, 13


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel: its kind in the metadata's words, offset and size in bytes."""

    kind: str
    offset: int
    size: int

    @property
    def hidden(self) -> bool:
        """Filled in by the launch, not by the caller."""
        return self.kind.startswith("hidden_")


@dataclass(frozen=True)
class Segment:
    """A loaded part of the file: byte range in the image, and whether the kernel may write it."""

    begin: int
    end: int
    writable: bool
    executable: bool


@dataclass(frozen=True)
class Kernel:
    """A kernel as its symbol, descriptor and metadata describe it.

    Attributes
    ----------
    name : str
    address, size : int
        Where its code lies in the image, and how long it is, in bytes.
    vgpr, agpr, sgpr : int
        Registers of each kind a wave takes.
    lds, scratch : int
        Bytes of static LDS a block and of private memory a lane take.
    max_flat_workgroup_size : int
        Most threads a block may have.
    kernarg_size : int
        Bytes of the whole argument block, hidden arguments included.
    arguments : tuple of Argument
    resources1, resources2, properties : int
        The descriptor's ``compute_pgm_rsrc1``, ``compute_pgm_rsrc2`` and code properties.
    """

    name: str
    address: int
    size: int
    vgpr: int
    agpr: int
    sgpr: int
    lds: int
    scratch: int
    max_flat_workgroup_size: int
    kernarg_size: int
    arguments: tuple[Argument, ...]
    resources1: int
    resources2: int
    properties: int

    @property
    def params_size(self) -> int:
        """Bytes of the arguments that the caller gives."""
        given = [argument for argument in self.arguments if not argument.hidden]
        return max((argument.offset + argument.size for argument in given), default=0)


@dataclass(frozen=True)
class CodeObject:
    """A compiled code object, loaded.

    Attributes
    ----------
    target : str
        ``gfx90a``, ``gfx942`` or ``gfx950``.
    e_flags : int
        The ELF header's flags: processor, xnack, sramecc.
    kernels : dict of str to Kernel
    image : bytes
        The loaded segments at their addresses, not relocated.
    segments : tuple of Segment
    relocations : tuple of (int, int)
        Image offset of a 64-bit word, and the image offset that it points to.
    content : bytes
        The file.
    sha256 : str
        Its hash.
    """

    target: str
    e_flags: int
    kernels: dict[str, Kernel]
    image: bytes = field(repr=False)
    segments: tuple[Segment, ...] = field(repr=False)
    relocations: tuple[tuple[int, int], ...] = field(repr=False)
    content: bytes = field(repr=False)
    sha256: str

    @classmethod
    def load(cls, source: str | os.PathLike[str] | bytes) -> CodeObject:
        """Read a code object.

        Parameters
        ----------
        source : path or bytes
            An ELF file, as ``--offload-device-only --no-gpu-bundle-output`` makes it.

        Returns
        -------
        CodeObject

        Raises
        ------
        UnsupportedKernel
            The bytes are no AMD code object of a known target, or need relocations that only a
            device's loader does.
        """
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        return _Reader(content).code_object()

    def code(self, kernel: Kernel) -> bytes:
        """The machine code of `kernel`."""
        return self.image[kernel.address : kernel.address + kernel.size]


class _Reader:
    """Takes an ELF file apart."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        if content[:6] != b"\x7fELF\x02\x01" or len(content) < 64:
            raise UnsupportedKernel("code object must be a 64-bit little-endian ELF file")
        (machine,) = struct.unpack_from("<H", content, 18)
        if machine != _EM_AMDGPU:
            raise UnsupportedKernel(f"ELF machine must be AMDGPU ({_EM_AMDGPU}), got {machine}")
        program_at, section_at = struct.unpack_from("<QQ", content, 32)
        self.e_flags, _, program_size, programs, section_size, sections = struct.unpack_from(
            "<IHHHHH", content, 48
        )
        self.programs = [
            struct.unpack_from("<IIQQQQQQ", content, program_at + i * program_size)
            for i in range(programs)
        ]
        self.sections = [
            struct.unpack_from("<IIQQQQIIQQ", content, section_at + i * section_size)
            for i in range(sections)
        ]

    def code_object(self) -> CodeObject:
        image, segments = self._load()
        symbols = self._symbols()
        metadata = self._metadata()
        target = re.search(r"gfx[0-9a-f]+", metadata["amdhsa.target"])
        if not target or target[0] not in TARGETS:
            raise UnsupportedKernel(
                f"target must be one of {', '.join(TARGETS)}, got {metadata['amdhsa.target']}"
            )
        kernels = {
            entry[".name"]: self._kernel(entry, image, symbols)
            for entry in metadata["amdhsa.kernels"]
        }
        return CodeObject(
            target=target[0],
            e_flags=self.e_flags,
            kernels=kernels,
            image=image,
            segments=segments,
            relocations=self._relocations(symbols),
            content=self.content,
            sha256=hashlib.sha256(self.content).hexdigest(),
        )

    def _load(self) -> tuple[bytes, tuple[Segment, ...]]:
        loaded = [header for header in self.programs if header[0] == _PT_LOAD]
        image = bytearray(max(header[3] + header[6] for header in loaded))
        relro = [(h[3], h[3] + h[6]) for h in self.programs if h[0] == _PT_GNU_RELRO]
        segments = []
        for _, flags, offset, address, _, file_size, memory_size, _ in loaded:
            image[address : address + file_size] = self.content[offset : offset + file_size]
            end = address + memory_size
            writable = bool(flags & 2) and not any(b <= address and end <= e for b, e in relro)
            segments.append(Segment(address, end, writable, bool(flags & 1)))
        return bytes(image), tuple(segments)

    def _symbols(self) -> list[tuple[str, int, int]]:
        """Name, value and size of the dynamic symbols, by index."""
        for _, kind, _, _, offset, size, link, *_ in self.sections:
            if kind == _SHT_DYNSYM:
                names_at = self.sections[link][4]
                found = []
                for at in range(offset, offset + size, 24):
                    name, _, _, _, value, length = struct.unpack_from("<IBBHQQ", self.content, at)
                    begin = names_at + name
                    end = self.content.index(b"\0", begin)
                    found.append((self.content[begin:end].decode(), value, length))
                return found
        raise UnsupportedKernel("code object must be linked: it has no dynamic symbols")

    def _metadata(self) -> dict:
        for _, kind, _, _, offset, size, *_ in self.sections:
            at = offset
            while kind == _SHT_NOTE and at < offset + size:
                name_size, size_here, note = struct.unpack_from("<III", self.content, at)
                begin = at + 12 + (name_size + 3 & ~3)
                if note == _NT_AMDGPU_METADATA:
                    import msgpack  # a device node that emulates nothing lacks it

                    return msgpack.unpackb(self.content[begin : begin + size_here])
                at = begin + (size_here + 3 & ~3)
        raise UnsupportedKernel(
            "code object must have an AMDGPU metadata note (version 3 or later)"
        )

    def _relocations(self, symbols: list[tuple[str, int, int]]) -> tuple[tuple[int, int], ...]:
        found = []
        for _, kind, _, _, offset, size, *_ in self.sections:
            for at in range(offset, offset + size, 24) if kind == _SHT_RELA else ():
                place, info, addend = struct.unpack_from("<QQq", self.content, at)
                symbol, relocation = info >> 32, info & 0xFFFFFFFF
                if relocation == _R_AMDGPU_RELATIVE64:
                    found.append((place, addend))
                elif relocation == _R_AMDGPU_ABS64 and symbols[symbol][1]:
                    found.append((place, symbols[symbol][1] + addend))
                else:
                    raise UnsupportedKernel(
                        f"relocation of type {relocation} against {symbols[symbol][0]!r} "
                        "needs a device's loader"
                    )
        return tuple(found)

    def _kernel(self, entry: dict, image: bytes, symbols: list[tuple[str, int, int]]) -> Kernel:
        places = {name: (value, size) for name, value, size in symbols}
        name = entry[".name"]
        descriptor, _ = places[entry[".symbol"]]
        lds, scratch, kernarg_size = struct.unpack_from("<III", image, descriptor)
        (entry_offset,) = struct.unpack_from("<q", image, descriptor + 16)
        resources1, resources2, properties = struct.unpack_from("<IIH", image, descriptor + 48)
        address, size = places[name]
        if descriptor + entry_offset != address:
            raise UnsupportedKernel(f"{name}: its descriptor must point to its first instruction")
        arguments = tuple(
            Argument(argument[".value_kind"], argument[".offset"], argument[".size"])
            for argument in entry.get(".args", ())
        )
        return Kernel(
            name=name,
            address=address,
            size=size,
            vgpr=entry[".vgpr_count"],
            agpr=entry.get(".agpr_count", 0),
            sgpr=entry[".sgpr_count"],
            lds=lds,
            scratch=scratch,
            max_flat_workgroup_size=entry[".max_flat_workgroup_size"],
            kernarg_size=kernarg_size,
            arguments=arguments,
            resources1=resources1,
            resources2=resources2,
            properties=properties,
        )
