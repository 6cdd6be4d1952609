"""Does each instruction do what the manual's pseudocode says?

The cases of ``instructions.txt`` once more, and those of all conditions and atomics, without their
NumPy answers: a small machine here runs a case's instructions one after the other by the manual's
own text (`pseudocode`), and every register that the emulator's kernel stores is compared. Only the
bits that the manual's text assigns are: of a 16-bit result it does not name the upper half.

Cases with modifiers that no text describes (clamp, DPP, SDWA, op_sel) are left to the other test.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def beside(name: str) -> ModuleType:
    """A module of this folder: pytest's importlib mode puts the folder on no path."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"manual_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pseudocode = beside("pseudocode")
instructions = beside("test_instructions")
NotTaken = pseudocode.NotTaken
results = instructions.results
Case = instructions.Case
UNTOUCHED = instructions.UNTOUCHED
Results = Callable[[str], dict[Case, np.ndarray]]

# What no case compares, of all instructions that the cases name.
WITHOUT_TEXT = {"v_nop", "v_accvgpr_mov_b32", "v_accvgpr_read_b32", "v_accvgpr_write_b32"}
TEXT_NOT_TAKEN = {
    "ds_swizzle_b32",  # prose and tables
    *(f"s_load_dword{count}" for count in ("", "x2", "x4", "x8", "x16")),  # not in this machine
}
# The text adds 0.5 and rounds down, which is no rounding to nearest even; see the test of it.
TEXT_ERRS = {"v_rndne_f32"}

ALL_BITS = (1 << 64) - 1
GLOBAL_BASE = 0x1000_0000
WHOLE_WAVES, PARTIAL_WAVES = 12, 2


class Memory:
    """Bytes by address."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def read(self, address: int) -> int:
        return sum(self.held.get(address + at, 0) << 8 * at for at in range(8))

    def write(self, address: int, count: int, bits: int) -> None:
        for at in range(count):
            self.held[address + at] = bits >> 8 * at & 255


@dataclass
class Wave:
    """Registers of a wave as `SETUP` of the instructions' test leaves them.

    `unknown` marks bits of v20 and v21 that an instruction may have changed without its text
    saying to what: (lane, register) to a mask.
    """

    vector: list[list[int]]
    scalar: dict[int, int]
    exec: int
    vcc: int = 0
    scc: int = 1
    memory: Memory = field(default_factory=Memory)
    lds: Memory = field(default_factory=Memory)
    unknown: dict[tuple[int, int], int] = field(default_factory=dict)


@functools.cache
def words() -> np.ndarray:
    return instructions.inputs()


def start(number: int, some: bool) -> Wave:
    """Wave `number` of the launch before a case."""
    vector = []
    for lane in range(64):
        thread = 64 * number + lane
        inputs = [int(word) for word in words()[:, thread]]
        lds = 16 * thread % (16 * instructions.THREADS)
        registers = [0] * 64
        registers[1:6] = inputs
        registers[6:12] = inputs[2], inputs[0], 16 * thread, lds, lds ^ 16, lane
        registers[20:22] = UNTOUCHED, UNTOUCHED
        registers[30:33] = inputs[:3]
        vector.append(registers)
    greater = sum((lane[1] > lane[2]) << at for at, lane in enumerate(vector))
    scalar = defaultdict(int, enumerate(vector[0][1:6], 1))
    scalar |= {8: GLOBAL_BASE, 9: 0, 20: UNTOUCHED, 21: UNTOUCHED}
    scalar |= {12: greater & 0xFFFFFFFF, 13: greater >> 32}
    return Wave(vector, scalar, instructions.SOME_LANES if some else ALL_BITS)


# Fields of the encoding in the order of the operands, by the pattern of the mnemonic; the first
# that matches. A name with * is a mask with a bit a lane.
OPERANDS = (
    (r"s_cbranch_.*", "SIMM16"),
    (r"s_(cmp|cmpk|bitcmp).*", "S0 S1"),
    (r"v_cmpx?_.*", "D0* S0 S1"),
    (r"v_(add|sub|subrev)_co_u32", "D0 VCC* S0 S1"),
    (r"v_(addc|subb|subbrev)_co_u32", "D0 VCC* S0 S1 VCC"),
    (r"v_cndmask_b32", "D0 S0 S1 VCC"),
    (r"v_mad_[ui]64_[ui]32", "D0 D1* S0 S1 S2"),
    (r"v_fmamk_f32", "D0 S0 SIMM32 S1"),
    (r"v_fmaak_f32", "D0 S0 S1 SIMM32"),
    (r"v_readlane_b32", "D0 SRC0# S1"),
    (r"v_readfirstlane_b32", "D0 SRC0#"),
    (r"v_writelane_b32", "VDST# S0 S1"),
    (r"v_permlane.*", "VDST# SRC0#"),
    (r"ds_b?permute_b32", "VDST# ADDR# DATA0#"),
    (r"ds_.*rtn.*", "RETURN_DATA ADDR DATA DATA2"),
    (r"ds_read.*", "RETURN_DATA ADDR"),
    (r"ds_.*", "ADDR DATA DATA2"),
    (r"global_load_.*", "VDATA ADDR SADDR"),
    (r"global_store_.*", "ADDR VDATA SADDR"),
    (r"global_atomic_.*_rtn", "RETURN_DATA ADDR DATA SADDR"),
    (r"global_atomic_.*", "ADDR DATA SADDR"),
    (r"[vs]_.*", "D0 S0 S1 S2"),
)
OPERAND = r"-?\|?(?:[vsa]\[\d+:\d+\]|[A-Za-z_.]\w*|-?[\d.]\w*(?:\.\d+)?)\|?"
MODIFIERS = {
    "offset": "OFFSET", "offset0": "OFFSET0", "offset1": "OFFSET1", "bitop3": "", "op_sel": "OPSEL",
    "RETURN": "",
}  # fmt: skip
DESTINATIONS = ("D0", "RETURN_DATA", "VDATA")


@dataclass(frozen=True)
class Instruction:
    """A line of assembly: mnemonic without suffix, field to operand, modifiers."""

    name: str
    run: Callable[[dict[str, object]], dict[str, int]]
    operands: tuple[tuple[str, str], ...]
    modifiers: dict[str, int]

    @property
    def names_offset(self) -> bool:
        """Whether the text adds the offset to the address; where it does not, ADDR has it."""
        return "OFFSET" in pseudocode.manual()[self.name.upper()][0]

    @property
    def per_wave(self) -> bool:
        """Whether it runs once for the wave: scalar, or it names the lanes itself."""
        return self.name.startswith("s_") or any("#" in role for role, _ in self.operands)


def parse(text: str) -> Instruction:
    """A line as an instruction; raises `NotTaken` where no text covers it."""
    found = re.match(rf"(\w+) ?((?:{OPERAND})(?:, (?:{OPERAND}))*)?(.*)", text.strip())
    mnemonic, listed, rest = found.groups()
    if re.search("_(dpp|sdwa)$", mnemonic):
        raise NotTaken("DPP or SDWA")
    name = re.sub("_e(32|64)$", "", mnemonic)
    names = [part for part in (listed or "").split(", ") if part not in ("", "off")]
    modifiers: dict[str, int] = {}
    for word in rest.split():
        key, _, value = word.partition(":")
        elsewhere = key == "op_sel" and name != "v_pk_mov_b32"
        if key not in MODIFIERS or elsewhere or value.startswith("swizzle"):
            raise NotTaken(f"modifier {key}")
        if key == "op_sel":
            modifiers["OPSEL"] = sum(int(bit) << at for at, bit in enumerate(value[1:-1:2]))
        elif key == "bitop3":
            table = int(value, 0)
            modifiers |= {"INST_OMOD": table >> 6, "INST_ABS": table >> 3 & 7}
            modifiers["INST_NEG"] = table & 7
        elif key != "RETURN":
            modifiers[MODIFIERS[key]] = int(value, 0)
    shape = f"{name}_rtn" if "RETURN" in rest else name
    roles = next(roles for form, roles in OPERANDS if re.fullmatch(form, shape)).split()
    run = pseudocode.instruction(name)
    return Instruction(name, run, tuple(zip(roles, names, strict=False)), modifiers)


@functools.cache
def register(operand: str) -> tuple[str, int, int] | None:
    """v[4:5] as ("v", 4, 2); None for anything else."""
    found = re.fullmatch(r"([vsa])(?:(\d+)|\[(\d+):(\d+)\])", operand)
    if not found:
        return None
    first = int(found[2] or found[3])
    return found[1], first, int(found[4] or first) - first + 1


@functools.cache
def source_type(name: str) -> tuple[str, int]:
    """The type of the operands by the mnemonic: its last type."""
    kinds = re.findall(r"_([uifb])(16|32|64)", name)
    return (kinds[-1][0], int(kinds[-1][1])) if kinds else ("b", 32)


@functools.cache
def reader(operand: str, name: str) -> Callable[[Wave, int], int]:
    """How an instruction reads an operand's bits in a lane, with the sign modifiers applied."""
    kind, width = source_type(name)
    bare = operand if re.match(r"-[\d.]", operand) else operand.strip("-|")
    if bare != operand:
        plain, sign = reader(bare, name), 1 << width - 1
        keep, flip = ~sign if "|" in operand else -1, sign if operand.startswith("-") else 0
        return lambda wave, lane: plain(wave, lane) & keep ^ flip
    place = register(bare)
    if place:
        file, first, count = place
        of_lane = file == "v"

        def from_registers(wave: Wave, lane: int) -> int:
            held = wave.vector[lane] if of_lane else wave.scalar
            return sum(held[first + at] << 32 * at for at in range(count))

        return from_registers
    if bare in ("vcc", "exec", "src_scc"):
        return lambda wave, lane: getattr(wave, bare.removeprefix("src_"))
    if "." in bare:
        value = pseudocode.FLOATS[width if kind == "f" else 32](float(bare))
        bits = pseudocode.bits_of(value)
    else:
        bits = int(bare, 0) & ALL_BITS
    return lambda wave, lane: bits


def write(wave: Wave, lane: int, operand: str, bits: int, written: int) -> None:
    """Put bits into a register; `written` masks those that the text assigned."""
    if operand in ("vcc", "exec"):
        setattr(wave, operand, bits & ALL_BITS)
        return
    file, first, count = register(operand)
    held = wave.vector[lane] if file == "v" else wave.scalar
    for at in range(count):
        held[first + at] = bits >> 32 * at & 0xFFFFFFFF
        known = written >> 32 * at & 0xFFFFFFFF or 0xFFFFFFFF
        if file == "v":
            wave.unknown[lane, first + at] = ~known & 0xFFFFFFFF


def step(wave: Wave, instruction: Instruction) -> bool:
    """Run one instruction; whether it branches."""
    name = instruction.name
    masks = {}
    before = {"EXEC": wave.exec, "SCC": wave.scc, "VGPR": wave.vector, "EXECZ": wave.exec == 0}
    before |= {"VCCZ": wave.vcc == 0, "MEM": wave.lds if name.startswith("ds_") else wave.memory}
    before |= instruction.modifiers
    if name.startswith("v_cmpx"):
        masks["EXEC"] = ("exec", 0)
        before["EXEC"] = 0
    active = wave.exec
    branches = False
    for lane in range(1 if instruction.per_wave else 64):
        if not instruction.per_wave and not active >> lane & 1:
            continue
        registers = {**before, "laneId": lane}
        targets = {}
        for role, operand in instruction.operands:
            field_name = role.rstrip("*#")
            if role.endswith("#"):
                registers[field_name] = register(operand)[1]
                continue
            if field_name == "SIMM16":
                registers[field_name] = 1
                continue
            if role in DESTINATIONS or role.endswith("*"):
                targets[field_name] = (operand, role.endswith("*"))
            if not role.endswith("*"):
                registers[field_name] = reader(operand, name)(wave, lane)
        if "ADDR" in registers and not instruction.names_offset:
            registers["ADDR"] += instruction.modifiers.get("OFFSET", 0)
        after = instruction.run(registers)
        for field_name, (operand, mask) in targets.items():
            if field_name not in after:
                continue
            bits = after[field_name]
            if mask:
                bit = bits & 1 if field_name == "D1" else bits >> lane & 1
                masks[field_name] = (operand, masks.get(field_name, ("", 0))[1] | bit << lane)
            else:
                write(wave, lane, operand, bits, after["WRITTEN"] if field_name == "D0" else -1)
        if name == "v_swap_b32":
            write(wave, lane, instruction.operands[1][1], after["S0"], -1)
        if instruction.per_wave:
            wave.scc = after.get("SCC", wave.scc)
            wave.exec = after.get("EXEC", wave.exec)
            branches = after.get("PC", 4) != 4
        elif "EXEC" in masks:
            masks["EXEC"] = ("exec", masks["EXEC"][1] | after["EXEC"] & 1 << lane)
    for operand, bits in masks.values():
        write(wave, 0, operand, bits, -1)
    return branches


@functools.cache
def program(text: str) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    """A case's instructions, and where its labels are."""
    found, labels = [], {}
    for part in text.split(" ; "):
        if part.endswith(":"):
            labels[part[:-1]] = len(found)
        else:
            found.append(parse(part))
    return tuple(found), labels


def run(case: Case, number: int, some: bool) -> Wave:
    """A wave after the case, by the manual."""
    wave = start(number, some)
    listed, labels = program(case.text)
    at = 0
    with np.errstate(all="ignore"):
        while at < len(listed):
            branches = step(wave, listed[at])
            at = labels[listed[at].operands[0][1]] if branches else at + 1
    return wave


def mnemonics(case: Case) -> set[str]:
    """The instructions of a case, without the encodings' suffixes."""
    words = [part.split()[0] for part in case.text.split(" ; ") if not part.endswith(":")]
    return {re.sub(r"_(e32|e64|dpp|sdwa)$", "", word) for word in words}


def taken(case: Case) -> bool:
    """Whether the manual's texts cover a case."""
    if mnemonics(case) & TEXT_ERRS:
        return False
    try:
        program(case.text)
    except (KeyError, NotTaken):
        return False
    return True


CASES = [case for case in instructions.CASES if taken(case)]


def float_width(case: Case) -> int:
    """Width of the floats that the case leaves, 0 for other results: any NaN is as good."""
    for name in sorted(mnemonics(case)):
        found = re.search(r"_([fuib])(16|32|64)", name)
        if found and found[1] == "f" and not name.startswith("v_cmp"):
            return int(found[2])
    return 0


def with_one_nan(bits: int, width: int) -> int:
    """64 bits whose floats of `width` bits, if NaN, are all the same NaN."""
    if not width:
        return bits
    fraction = {16: 10, 32: 23, 64: 52}[width]
    infinity = (1 << width - 1) - (1 << fraction)
    for at in range(0, 64, width):
        if bits >> at & (1 << width - 1) - 1 > infinity:
            bits |= (1 << width) - 1 << at
    return bits


def differences(case: Case, wave: Wave, found: np.ndarray) -> Iterator[str]:
    """Where a wave by the manual is not what the emulator stored: v20, v21, s20, s21, SCC."""
    floats = float_width(case)
    scalars = [wave.scalar[20], wave.scalar[21], wave.scc]
    if found[2:, 0].tolist() != scalars:
        yield f"s20, s21, SCC: {found[2:, 0].tolist()}, by the manual {scalars}"
    for lane, (low, high) in enumerate(zip(*found[:2].tolist(), strict=True)):
        wanted_low, wanted_high = wave.vector[lane][20:22]
        unknown = wave.unknown.get((lane, 20), 0) | wave.unknown.get((lane, 21), 0) << 32
        pairs = (low | high << 32, wanted_low | wanted_high << 32)
        held, wanted = (with_one_nan(bits | unknown, floats) for bits in pairs)
        if held != wanted:
            yield f"lane {lane}: {held:#x}, by the manual {wanted:#x}"


def compare(case: Case, results: Results, by: Case | None = None) -> list[str]:
    """All differences of a case on all targets; `by`: the case that the manual's side runs."""
    listed = []
    for some in (False,) if case.whole else (False, True):
        whole = instructions.WAVES if case.kind == "scalar" else WHOLE_WAVES
        for number in range(PARTIAL_WAVES if some else whole):
            wave = run(by or case, number, some)
            for target in case.targets:
                found = results(target)[case][int(some)][:, 64 * number : 64 * number + 64]
                where = f"{target}, wave {number}, "
                listed += [where + text for text in differences(case, wave, found)]
    return listed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text)
def test_emulator_and_manual_agree(case: Case, results: Results) -> None:
    assert compare(case, results)[:3] == []


def test_what_is_not_compared_is_known() -> None:
    named = set().union(*map(mnemonics, instructions.CASES))
    compared = set().union(*map(mnemonics, CASES))
    assert named - compared == WITHOUT_TEXT | TEXT_NOT_TAKEN | TEXT_ERRS
    assert {name for name in named if name.upper() not in pseudocode.manual()} == WITHOUT_TEXT
    left_out = [case.text for case in instructions.CASES if case not in CASES]
    modified = [text for text in left_out if re.search("clamp|_dpp|_sdwa|op_sel|neg_lo", text)]
    others = set(left_out) - set(modified)
    assert all(re.search("v_nop|accvgpr|swizzle|s_load|v_rndne", text) for text in others)


@pytest.mark.parametrize(
    ("case", "by"),
    [
        ("v_add_u32_e32 v20, v1, v2", "v_sub_u32_e32 v20, v1, v2"),
        ("v_max_f32_e32 v20, v1, v2", "v_min_f32_e32 v20, v1, v2"),
        ("v_cmp_lt_i32_e64 s[20:21], v1, v2", "v_cmp_lt_u32_e64 s[20:21], v1, v2"),
        ("v_cvt_f16_f32_e32 v20, v1", "v_cvt_f16_u16_e32 v20, v1"),
        ("s_min_i32 s20, s1, s2", "s_min_u32 s20, s1, s2"),
    ],
)
def test_another_text_is_noticed(case: str, by: str, results: Results) -> None:
    of = {case.text: case for case in CASES}
    assert compare(of[case], results, of[by])


def float_bits(value: float) -> int:
    """A number as float32 bits."""
    return pseudocode.bits_of(np.float32(value))


# Worked by hand from the manual's prose.
BY_HAND = (
    ("v_bfe_i32", {"S0": 0x00F0, "S1": 4, "S2": 4}, 0xFFFFFFFF),
    ("v_alignbit_b32", {"S0": 0x1, "S1": 0x80000000, "S2": 31}, 0x3),
    ("v_perm_b32", {"S0": 0x11223344, "S1": 0x55667788, "S2": 0x0C070D00}, 0x0011FF88),
    ("s_absdiff_i32", {"S0": 3, "S1": 10}, 7),
    ("s_flbit_i32", {"S0": 0xFFFF0000}, 16),
    ("v_bfrev_b32", {"S0": 0x1}, 0x80000000),
    ("v_med3_f32", {f"S{at}": float_bits(x) for at, x in enumerate((3, -1, 2))}, float_bits(2)),
    ("v_max_f32", {"S0": 0x80000000, "S1": 0}, 0),
    ("v_cvt_u32_f32", {"S0": float_bits(-3.5)}, 0),
    ("v_ldexp_f32", {"S0": float_bits(1.5), "S1": 0xFFFFFFFE}, float_bits(0.375)),
)


@pytest.mark.parametrize(("name", "registers", "wanted"), BY_HAND, ids=[row[0] for row in BY_HAND])
def test_pseudocode_gives_what_a_hand_does(
    name: str, registers: dict[str, int], wanted: int
) -> None:
    assert pseudocode.instruction(name)(registers)["D0"] == wanted


def test_fused_multiply_add_rounds_once() -> None:
    a, b = np.float32(1 + 2**-12), np.float32(-(1 + 2**-11))
    assert pseudocode.fma(a, a, b) == np.float32(2**-24)
    tie = np.float32(2**-25)
    assert pseudocode.fma(np.float32(1), np.float32(1), tie) == np.float32(1)
    above_tie = np.float32(2**-24 * (1 + 2**-20))
    assert pseudocode.fma(np.float32(1), np.float32(1), above_tie) == np.float32(1 + 2**-23)


@pytest.mark.parametrize("value", [-0.25, 2**23 + 1, 0.49999997])
def test_text_of_rounding_to_even_does_not_round_to_even(value: float) -> None:
    by_text = pseudocode.instruction("v_rndne_f32")({"S0": float_bits(value)})["D0"]
    assert by_text != float_bits(np.rint(np.float32(value)))
