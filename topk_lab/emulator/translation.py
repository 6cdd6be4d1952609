"""What does each instruction ask the runtime to do?

An instruction becomes one operation of the runtime, or several: operand modifiers (signs, DPP,
SDWA, halves of packed operands) become steps of their own around the plain operation. What the
runtime's tables do not list, and every modifier that is not consumed here, is refused by name.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from topk_lab.emulator import lanes
from topk_lab.emulator.disassembly import Instruction
from topk_lab.emulator.errors import UnsupportedInstruction

__all__ = [
    "SCALAR",
    "SCALAR_REGISTERS",
    "SPREAD",
    "VECTOR",
    "Handler",
    "Operation",
    "Translation",
    "translate",
]

SCALAR_REGISTERS = 128  # constants follow them

# An operand code is a register number times four plus one of these; 0 is no operand. A spread
# scalar is one that a vector operation reads in every lane.
VECTOR, SCALAR, SPREAD = 1, 2, 3

_NAMED_SCALARS = {
    "vcc": 106,
    "vcc_lo": 106,
    "vcc_hi": 107,
    "m0": 124,
    "scc": 125,
    "src_scc": 125,
    "exec": 126,
    "exec_lo": 126,
    "exec_hi": 127,
}
_LAST_NUMBERED_SCALAR = 101
# Numbers of the vector registers of each kind; only those that occur take room in a wave.
_FIRST_OF_KIND = {"v": 0, "a": 256}
_FIRST_TEMPORARY = 512

# Waiting, caches and hints: here memory is coherent and an access is over before the next begins.
_NO_EFFECT = frozenset(
    [
        "s_nop",
        "s_waitcnt",
        "s_sleep",
        "s_setprio",
        "s_icache_inv",
        "s_dcache_inv",
        "s_dcache_wb",
        "buffer_inv",
        "buffer_invl2",
        "buffer_wbl2",
        "buffer_wbinvl1",
        "buffer_wbinvl1_vol",
    ]
)
_COHERENCE = ("sc0", "sc1", "nt", "glc", "slc", "scc")

_TWO_WORDS = frozenset({"U64", "I64", "F64", "S64", "SI64", "MASK", "PF32"})
_SCALARS_ONLY = frozenset({"S32", "S64", "SI64", "K16", "KU16", "MASK"})
_SIGN_BITS = {"F32": 0x80000000, "F16": 0x8000, "F64": 0x80000000}
_FLOAT_CONSTANTS = {
    **dict.fromkeys(("F32", "PF32", "U32", "I32", "S32"), "f4"),
    **dict.fromkeys(("F16", "PF16"), "f2"),
    "F64": "f8",
}
_SELECTIONS = {
    "DWORD": (0, 32),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
}
_UNUSED_BITS = {"UNUSED_PAD": 0, "UNUSED_SEXT": 1, "UNUSED_PRESERVE": 2}

_REGISTER = re.compile(r"([vsa])(?:(\d+)|\[(\d+):(\d+)\])")
_SIGNED_SOURCE = re.compile(r"(-?)(\|?)((?:[vsa][\d\[]|vcc|exec|m0)[^|]*)\|?")
_EXTENDED_SOURCE = re.compile(r"sext\((.+)\)")
_INTEGER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)")
_ENCODING = re.compile(r"_(?:e32|e64|dpp|sdwa)$")


@dataclass(frozen=True)
class Handler:
    """A row of the runtime's tables.

    Attributes
    ----------
    number : int
        Its place in the tables.
    name : str
        Mnemonic without encoding suffix.
    kind : str
        What it counts as: ``valu``, ``salu``, ``smem``, ``lds``, ``global``, ``branch``,
        ``barrier``, or ``step`` where it is no instruction.
    destinations, sources : tuple of str
        Operand types; a memory access has roles instead, all among the sources.
    """

    number: int
    name: str
    kind: str
    destinations: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass
class Operation:
    """One operation of the runtime, with operand codes where the runtime has offsets."""

    handler: int
    pc: int
    dst: Sequence[int] = ()
    src: Sequence[int] = ()
    immediate: int = 0
    extra: tuple[int, int] = (0, 0)
    branch_target: int = -1
    lane_map: int = -1


@dataclass
class Translation:
    """A kernel as operations.

    Attributes
    ----------
    operations : list of Operation
        With a ``step_enter`` before each basic block; branch targets are places in this list.
    constants : list of int
        32-bit words, numbered as scalars from `SCALAR_REGISTERS`.
    lane_maps : list of LaneMap
    vectors : set of int
        Vector registers that occur.
    blocks : list of dict of str to int
        Instructions of each basic block, by mnemonic without encoding suffix.
    """

    operations: list[Operation] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    lane_maps: list[lanes.LaneMap] = field(default_factory=list)
    vectors: set[int] = field(default_factory=lambda: {0})
    blocks: list[Counter[str]] = field(default_factory=list)


class _Refused(Exception):
    """What exactly is not understood."""


@functools.lru_cache(maxsize=1 << 16)
def _split(text: str) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Mnemonic, operands and modifiers of an instruction text."""
    mnemonic, _, rest = text.partition(" ")
    operands, depth, begin = [], 0, 0
    for at, character in enumerate(rest):
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            operands.append(rest[begin:at].strip())
            begin = at + 1
    last, *words = rest[begin:].split() or [""]
    pairs = (word.partition(":") for word in words)
    return (
        _ENCODING.sub("", mnemonic),
        tuple(operand for operand in (*operands, last) if operand),
        tuple((name, value) for name, _, value in pairs),
    )


@functools.lru_cache(maxsize=1 << 12)
def _register(text: str) -> tuple[str, int, int] | None:
    """Kind, first number and count of a register operand, or None if it is none."""
    if text in _NAMED_SCALARS:
        return "s", _NAMED_SCALARS[text], 2 if text in ("vcc", "exec") else 1
    match = _REGISTER.fullmatch(text)
    if not match:
        return None
    kind, single, first, last = match.groups()
    number = int(single or first)
    count = 1 if single else int(last) - number + 1
    if kind == "s" and number + count - 1 > _LAST_NUMBERED_SCALAR:
        raise _Refused(f"register {text}")
    return kind, number, count


@functools.lru_cache(maxsize=1 << 12)
def _constant(text: str, kind: str) -> tuple[int, ...]:
    """The words of a constant as an operand of type `kind` reads it.

    An inline constant is sign-extended. A literal, written in hexadecimal, fills the upper half of
    a double, and the lower half of an integer, whose type says how it is extended.
    """
    if _INTEGER.fullmatch(text):
        value = int(text, 0)
        literal = "0x" in text
        if kind in ("K16", "KU16"):
            value &= 0xFFFF
            value -= (value & 0x8000) << 1 if kind == "K16" else 0
        elif literal and kind == "F64":
            value <<= 32
        elif literal and kind in ("I64", "SI64"):
            value -= (value & 0x80000000) << 1
    else:
        try:
            number = np.array(float(text), _FLOAT_CONSTANTS[kind])
        except (KeyError, ValueError):
            raise _Refused(f"operand {text}") from None
        value = int(number.view(f"u{number.itemsize}"))
    return tuple(value >> 32 * word & 0xFFFFFFFF for word in range(1 + (kind in _TWO_WORDS)))


def _bits(modifiers: dict[str, str], name: str, default: int, count: int) -> list[int]:
    """A list modifier such as ``op_sel:[0,1]``, taken out of `modifiers`."""
    text = modifiers.pop(name, None)
    return [int(bit) for bit in text.strip("[]").split(",")] if text else [default] * count


class _Kernel:
    """A translation as it grows."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self.handlers = handlers
        self.result = Translation()
        self.constant_places: dict[tuple[int, ...], int] = {}
        self.lane_map_places: dict[lanes.LaneMap, int] = {}
        self.next_temporary = _FIRST_TEMPORARY
        self.pc = 0

    # Operands

    def vector(self, text: str) -> int:
        """Code of a vector register; all registers of the operand are noted."""
        register = _register(text)
        if register is None or register[0] == "s":
            raise _Refused(f"operand {text} in the place of a vector register")
        kind, number, count = register
        first = _FIRST_OF_KIND[kind] + number
        self.result.vectors.update(range(first, first + count))
        return first << 2 | VECTOR

    def scalar(self, text: str) -> int:
        """Code of a scalar register."""
        register = _register(text)
        if register is None or register[0] != "s":
            raise _Refused(f"operand {text} in the place of a scalar register")
        return register[1] << 2 | SCALAR

    def constant(self, text: str, kind: str) -> int:
        """Scalar number of a constant."""
        words = _constant(text, kind)
        if words not in self.constant_places:
            self.constant_places[words] = SCALAR_REGISTERS + len(self.result.constants)
            self.result.constants.extend(words)
        return self.constant_places[words]

    def source(self, text: str, kind: str) -> int:
        """Code of a source operand without modifiers."""
        if kind == "VGPR":
            return self.vector(text)
        register = _register(text)
        if kind in _SCALARS_ONLY:
            return self.scalar(text) if register else self.constant(text, kind) << 2 | SCALAR
        if register is None:
            return self.constant(text, kind) << 2 | SPREAD
        return register[1] << 2 | SPREAD if register[0] == "s" else self.vector(text)

    def destination(self, text: str, kind: str) -> int:
        """Code of a destination operand."""
        return self.scalar(text) if kind in _SCALARS_ONLY else self.vector(text)

    # Operations

    def emit(self, name: str, dst: Sequence[int] = (), src: Sequence[int] = (), **rest) -> None:
        """Append an operation."""
        number = self.handlers[name].number
        self.result.operations.append(Operation(number, self.pc, dst, src, **rest))

    def temporary(self, words: int = 1) -> int:
        """Code of a vector register that no instruction names."""
        first = self.next_temporary
        self.next_temporary += words
        self.result.vectors.update(range(first, first + words))
        return first << 2 | VECTOR

    def step(self, name: str, code: int, words: int = 1, **rest) -> int:
        """Append a step that prepares a source; the code of its result."""
        result = self.temporary(words)
        self.emit(name, [result], [code], **rest)
        return result

    def lane_map(self, moved: lanes.LaneMap) -> int:
        """Number of a lane map."""
        if moved not in self.lane_map_places:
            self.lane_map_places[moved] = len(self.result.lane_maps)
            self.result.lane_maps.append(moved)
        return self.lane_map_places[moved]

    # Instructions

    def instruction(self, instruction: Instruction) -> None:
        """Append what `instruction` does, or refuse it."""
        self.pc = instruction.pc
        self.next_temporary = _FIRST_TEMPORARY
        name, operands, pairs = _split(instruction.text)
        if name in _NO_EFFECT:
            return
        modifiers = dict(pairs)
        handler = self.handlers.get(name.replace("v_cmpx_", "v_cmp_", 1))
        if handler is None or handler.kind == "step":
            raise _Refused("instruction")
        if handler.kind == "valu":
            form = instruction.mnemonic.rpartition("_")[2]
            self.vector_instruction(handler, form, operands, modifiers)
            if name.startswith("v_cmpx_"):
                self.emit("step_set_exec", [], [self.scalar(operands[0])])
        elif handler.kind == "branch":
            target = instruction.branch_target if "TARGET" in handler.sources else -1
            self.emit(name, branch_target=target)
        elif handler.kind in ("salu", "barrier"):
            dst, src = self.operands_by_type(handler, operands)
            self.emit(name, dst, [self.source(*typed) for typed in src])
        else:
            self.memory_instruction(handler, operands, modifiers, instruction.word)
        if modifiers:
            named = " ".join(f"{key}:{value}" if value else key for key, value in modifiers.items())
            raise _Refused(f"modifier {named}")

    def operands_by_type(
        self, handler: Handler, operands: tuple[str, ...]
    ) -> tuple[list[int], list[tuple[str, str]]]:
        """Codes of the destinations; text and type of the sources."""
        split = len(handler.destinations)
        if len(operands) != split + len(handler.sources):
            raise _Refused(f"form with {len(operands)} operands")
        dst = list(map(self.destination, operands[:split], handler.destinations))
        return dst, list(zip(operands[split:], handler.sources, strict=True))

    def vector_instruction(
        self, handler: Handler, form: str, operands: tuple[str, ...], modifiers: dict[str, str]
    ) -> None:
        """Append a vector instruction with the steps that its modifiers need."""
        clamping = self.handlers.get(f"{handler.name}_clamp")
        if "clamp" in modifiers and clamping:
            handler = clamping
            del modifiers["clamp"]
        dst, sources = self.operands_by_type(handler, operands)
        immediate = 0
        moved = form == "dpp"
        if moved and "MASK" in handler.destinations:
            raise _Refused("DPP of this instruction")
        if handler.name == "v_pk_mov_b32":
            src = [self.source(*typed) for typed in sources]
            words = _bits(modifiers, "op_sel", 0, 2)
            for word, (text, _) in zip(words, sources, strict=True):
                if word and _register(text) is None:
                    raise _Refused("upper word of a constant")
            immediate = words[0] | words[1] << 8
        elif handler.sources and handler.sources[0].startswith("P"):
            src = self.packed_sources(sources, modifiers)
        else:
            src = [
                self.prepared_source(text, kind, place, form, modifiers)
                for place, (text, kind) in enumerate(sources)
            ]
        if handler.name.startswith("v_bitop3_b"):
            immediate = int(modifiers.pop("bitop3", "0"), 0)
        selected = _SELECTIONS[modifiers.pop("dst_sel", "DWORD")]
        unused = _UNUSED_BITS[modifiers.pop("dst_unused", "UNUSED_PAD")]
        if selected == (0, 32):
            self.emit(handler.name, dst, src, immediate=immediate)
        elif handler.name.startswith("v_fmac"):
            raise _Refused("dst_sel of an accumulating instruction")
        else:
            whole = self.temporary()
            self.emit(handler.name, [whole, *dst[1:]], src, immediate=immediate)
            self.emit("step_insert", dst[:1], [whole], immediate=unused, extra=selected)
        if moved:
            self.emit("step_restore_exec")

    def prepared_source(
        self, text: str, kind: str, place: int, form: str, modifiers: dict[str, str]
    ) -> int:
        """Code of a source after the steps that its modifiers need."""
        extended = _EXTENDED_SOURCE.fullmatch(text)
        text = extended[1] if extended else text
        signed = _SIGNED_SOURCE.fullmatch(text)
        negative, absolute, name = signed.groups() if signed else ("", "", text)
        code = self.source(name, kind)
        wide = kind in _TWO_WORDS
        selection = modifiers.pop(f"src{place}_sel", "DWORD")
        if selection != "DWORD":
            code = self.step(
                "step_extract", code, immediate=bool(extended), extra=_SELECTIONS[selection]
            )
        if form == "dpp" and place == 0:
            if wide or code & 3 != VECTOR:
                raise _Refused("DPP of this operand")
            try:
                lane_map = self.lane_map(lanes.dpp(modifiers))
            except lanes.UnknownLaneControl as unknown:
                raise _Refused(str(unknown)) from None
            code = self.step("step_move_lanes", code, lane_map=lane_map)
        if negative or absolute:
            if kind not in _SIGN_BITS:
                raise _Refused(f"sign modifier of {text}")
            sign = _SIGN_BITS[kind]
            keep, flip = 0xFFFFFFFF - (sign if absolute else 0), sign if negative else 0
            name = "step_sign64" if wide else "step_sign"
            code = self.step(name, code, 1 + wide, extra=(keep, flip))
        return code

    def packed_sources(
        self, sources: list[tuple[str, str]], modifiers: dict[str, str]
    ) -> list[int]:
        """Codes of packed sources, halves in place and signs applied."""
        count = len(sources)
        low, high = _bits(modifiers, "op_sel", 0, count), _bits(modifiers, "op_sel_hi", 1, count)
        negative_low = _bits(modifiers, "neg_lo", 0, count)
        negative_high = _bits(modifiers, "neg_hi", 0, count)
        src = []
        for i, (text, kind) in enumerate(sources):
            code = self.source(text, kind)
            if kind not in ("PF16", "PF32") and (negative_low[i] or negative_high[i]):
                raise _Refused("sign modifier of an integer")
            changed = (low[i], high[i], negative_low[i], negative_high[i]) != (0, 1, 0, 0)
            if kind == "PF32":
                if _register(text) is None and (low[i] or high[i]):
                    raise _Refused("upper word of a constant")
                if changed:
                    signs = (negative_low[i] << 31, negative_high[i] << 31)
                    words = low[i] | high[i] << 8
                    code = self.step("step_words", code, 2, immediate=words, extra=signs)
            elif changed:
                signs = (negative_low[i] << 15 | negative_high[i] << 31, 0)
                halves = low[i] << 4 | high[i] << 12
                code = self.step("step_halves", code, immediate=halves, extra=signs)
            src.append(code)
        return src

    def memory_instruction(
        self, handler: Handler, operands: tuple[str, ...], modifiers: dict[str, str], word: int
    ) -> None:
        """Append a memory access; its operands go where their roles say."""
        roles = list(handler.sources)
        returns = "sc0" in modifiers or "glc" in modifiers
        if handler.kind in ("global", "smem"):
            for name in _COHERENCE:
                modifiers.pop(name, None)
        if "old" in roles and not returns:
            roles.remove("old")
        last = roles[-1]
        immediate, extra, lane_map = 0, (0, 0), -1
        if last.startswith("offsets:"):
            unit = int(last.partition(":")[2])
            roles.pop()
            first, second = (int(modifiers.pop(f"offset{i}", "0"), 0) for i in (0, 1))
            extra = (first * unit, second * unit)
        elif last == "swizzle":
            roles.pop()
            modifiers.pop("offset", None)
            try:
                lane_map = self.lane_map(lanes.swizzle(word & 0xFFFF))
            except lanes.UnknownLaneControl as unknown:
                raise _Refused(str(unknown)) from None
        else:
            immediate = int(modifiers.pop("offset", "0"), 0)
        if len(operands) != len(roles):
            raise _Refused(f"form with {len(operands)} operands")
        dst, src, data_at = [], [0, 0, 0, 0], 2
        for text, role in zip(operands, roles, strict=True):
            if role in ("dst", "old"):
                dst = [self.scalar(text) if handler.kind == "smem" else self.vector(text)]
            elif role == "address":
                src[0] = self.vector(text)
            elif role == "base":
                src[1] = 0 if text == "off" else self.scalar(text)
            elif role == "data":
                src[data_at] = self.vector(text)
                data_at += 1
            elif _INTEGER.fullmatch(text):  # variable
                immediate += int(text, 0)
            else:
                src[2] = self.scalar(text)
        self.emit(handler.name, dst, src, immediate=immediate, extra=extra, lane_map=lane_map)


def _changes_exec(instruction: Instruction) -> bool:
    """Whether other lanes may be active behind an instruction."""
    name, operands, _ = _split(instruction.text)
    written = operands[0] if operands else ""
    return written.startswith("exec") or name.startswith("v_cmpx_") or name.endswith("exec_b64")


def _leaders(instructions: Sequence[Instruction], handlers: Mapping[str, Handler]) -> set[int]:
    """The pcs at which basic blocks begin."""
    leaders = {instructions[0].pc}
    for i, instruction in enumerate(instructions):
        handler = handlers.get(instruction.mnemonic)
        if handler is not None and handler.kind == "branch":
            if "TARGET" in handler.sources:
                leaders.add(instruction.branch_target)
            if i + 1 < len(instructions):
                leaders.add(instructions[i + 1].pc)
    return leaders


def translate(
    kernel_name: str, instructions: Sequence[Instruction], handlers: Mapping[str, Handler]
) -> Translation:
    """Translate a kernel.

    Parameters
    ----------
    kernel_name : str
        For messages.
    instructions : sequence of Instruction
    handlers : mapping of str to Handler
        The runtime's tables by name.

    Returns
    -------
    Translation

    Raises
    ------
    UnsupportedInstruction
        An instruction, a form of it or a modifier is not known; it is named with its pc.
    """
    kernel = _Kernel(handlers)
    result = kernel.result
    leaders = _leaders(instructions, handlers)
    enter, lanes_step = handlers["step_enter"].number, handlers["step_lanes"].number
    counted: Operation | None = None  # where the next vector instruction's lanes are counted
    entries: dict[int, int] = {}
    for instruction in instructions:
        if instruction.pc in leaders:
            entries[instruction.pc] = len(result.operations)
            counted = Operation(enter, instruction.pc, immediate=len(result.blocks))
            result.operations.append(counted)
            result.blocks.append(Counter())
        name = _ENCODING.sub("", instruction.mnemonic)
        result.blocks[-1][name] += 1
        handler = handlers.get(name.replace("v_cmpx_", "v_cmp_", 1))
        if handler is not None and handler.kind == "valu":
            if counted is None:
                counted = Operation(lanes_step, instruction.pc)
                result.operations.append(counted)
            counted.extra = (0, counted.extra[1] + 1)
        try:
            kernel.instruction(instruction)
        except _Refused as refused:
            raise UnsupportedInstruction(
                f"{kernel_name}+{instruction.pc:#x}: {instruction.text}: unsupported {refused}"
            ) from None
        if _changes_exec(instruction):
            counted = None
    kernel.pc = instructions[-1].pc
    kernel.emit("s_trap")  # never reached by code that ends
    for operation in result.operations:
        if operation.branch_target >= 0:
            if operation.branch_target not in entries:
                raise UnsupportedInstruction(
                    f"{kernel_name}+{operation.pc:#x}: branch to {operation.branch_target:#x}, "
                    "which is no instruction of the kernel"
                )
            operation.branch_target = entries[operation.branch_target]
        if operation.handler == enter:
            length = sum(result.blocks[operation.immediate].values())
            operation.extra = (length, operation.extra[1])
    return result
