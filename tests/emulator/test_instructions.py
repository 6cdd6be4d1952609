"""Does each instruction do what the instruction set says?

``instructions.txt`` lists cases: one or a few instructions that leave their answer in v[20:21],
s[20:21] or SCC, and what NumPy says about it. All cases of a target are assembled into one kernel,
whose threads hold random and extreme values in known registers. Each case runs with all lanes on,
then with some off.
"""

from __future__ import annotations

import functools
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from topk_lab import toolchain
from topk_lab.emulator import (
    TARGETS,
    CodeObject,
    Emulator,
    MemoryRegion,
    UnsupportedInstruction,
    native,
)

U16, U32, U64 = np.uint16, np.uint32, np.uint64
I16, I32, I64 = np.int16, np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
BLOCKS, THREADS = 8, 256
SIZE = BLOCKS * THREADS
WAVES = SIZE // 64
UNTOUCHED = 0xDEADBEEF
SOME_LANES = 0x0F0F_3335_8001_FFF1

HEADER = """
  .amdgcn_target "amdgcn-amd-amdhsa--{target}"
  .text
"""
KERNEL = """
  .globl {name}
  .p2align 8
  .type {name},@function
{name}:
{body}
  s_endpgm
.size {name}, .-{name}
  .section .rodata,"a",@progbits
  .p2align 6
  .amdhsa_kernel {name}
    .amdhsa_group_segment_fixed_size 16384
    .amdhsa_user_sgpr_kernarg_segment_ptr 1
    .amdhsa_system_sgpr_workgroup_id_x 1
    .amdhsa_kernarg_size 24
    .amdhsa_next_free_vgpr 64
    .amdhsa_next_free_sgpr 48
    .amdhsa_accum_offset 64
    .amdhsa_float_denorm_mode_32 3
  .end_amdhsa_kernel
  .text
"""
METADATA = """
  .amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--{target}
amdhsa.kernels:
{kernels}
...
  .end_amdgpu_metadata
"""
METADATA_KERNEL = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 24
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 16384
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 48
    .vgpr_count: 64
    .max_flat_workgroup_size: 256
    .args:
      - {{.offset: 0, .size: 24, .value_kind: by_value}}
"""

# Arguments: inputs (5, SIZE), outputs (cases, 5, SIZE), scratch (SIZE, 4) of 32-bit words.
# v1..v3 are 32-bit inputs, v[4:5] a 64-bit one, v[6:7] too; v8 is the thread's 16-byte offset into
# scratch, v9 the same into LDS, v10 = v9 of the neighbouring lane (lane ^ 1), v11 the lane.
# v[30:32] copies v1, v2, v3. s1..s3 and s[4:5] are lane 0's inputs; s[12:13] holds v1 > v2; s[8:9]
# points to scratch.
PROLOGUE = f"""
  s_mov_b32 s33, s2
  s_load_dwordx4 s[36:39], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_lshl_add_u32 v0, s33, 8, v0
  v_lshlrev_b32_e32 v12, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v1, v12, s[36:37]
  v_add_u32_e32 v13, {4 * SIZE}, v12
  global_load_dword v2, v13, s[36:37]
  v_add_u32_e32 v13, {4 * SIZE}, v13
  global_load_dword v3, v13, s[36:37]
  v_add_u32_e32 v13, {4 * SIZE}, v13
  global_load_dword v4, v13, s[36:37]
  v_add_u32_e32 v13, {4 * SIZE}, v13
  global_load_dword v5, v13, s[36:37]
  s_waitcnt vmcnt(0)
  v_mov_b32_e32 v6, v3
  v_mov_b32_e32 v7, v1
  v_lshlrev_b32_e32 v8, 4, v0
  v_and_b32_e32 v9, {THREADS * 16 - 1}, v8
  v_xor_b32_e32 v10, 16, v9
  v_and_b32_e32 v11, 63, v0
  v_mov_b32_e32 v14, v12
"""
SETUP = f"""
  s_mov_b64 exec, -1
  v_mov_b32_e32 v20, 0x{UNTOUCHED:x}
  v_mov_b32_e32 v21, 0x{UNTOUCHED:x}
  s_mov_b32 s20, 0x{UNTOUCHED:x}
  s_mov_b32 s21, 0x{UNTOUCHED:x}
  v_readfirstlane_b32 s1, v1
  v_readfirstlane_b32 s2, v2
  v_readfirstlane_b32 s3, v3
  v_readfirstlane_b32 s4, v4
  v_readfirstlane_b32 s5, v5
  v_cmp_gt_u32_e64 s[12:13], v1, v2
  v_mov_b32_e32 v30, v1
  v_mov_b32_e32 v31, v2
  v_mov_b32_e32 v32, v3
  s_cmp_eq_u32 s1, s1
"""
SOME = f"""
  s_mov_b32 exec_lo, 0x{SOME_LANES & 0xFFFFFFFF:x}
  s_mov_b32 exec_hi, 0x{SOME_LANES >> 32:x}
"""
STORE = f"""
  s_cselect_b32 s40, 1, 0
  s_mov_b64 exec, -1
  v_mov_b32_e32 v50, s20
  v_mov_b32_e32 v51, s21
  v_mov_b32_e32 v52, s40
  global_store_dword v14, v20, s[38:39]
  v_add_u32_e32 v14, {4 * SIZE}, v14
  global_store_dword v14, v21, s[38:39]
  v_add_u32_e32 v14, {4 * SIZE}, v14
  global_store_dword v14, v50, s[38:39]
  v_add_u32_e32 v14, {4 * SIZE}, v14
  global_store_dword v14, v51, s[38:39]
  v_add_u32_e32 v14, {4 * SIZE}, v14
  global_store_dword v14, v52, s[38:39]
  v_add_u32_e32 v14, {4 * SIZE}, v14
"""


@dataclass(frozen=True)
class Case:
    """A line of ``instructions.txt``.

    `kind` says where the answer is: ``vector`` (v20, or v[20:21]), ``mask`` (s[20:21], a bit a
    lane), ``both``, or ``scalar`` (s20 or s[20:21], and SCC, which stays 1 where `flags` is empty).
    `whole`: it has a meaning only with all lanes on.
    """

    text: str
    kind: str
    answer: str
    flags: str
    targets: tuple[str, ...]
    whole: bool


def read_cases() -> Iterator[Case]:
    """The cases of the table."""
    kind = ""
    for line in (Path(__file__).parent / "instructions.txt").read_text().splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line and not line.startswith("#"):
            rest, _, conditions = line.partition(" @ ")
            text, answer, *flags = (part.strip() for part in re.split(r"=>(?= |$)", rest))
            targets = tuple(word for word in conditions.split() if word != "whole") or TARGETS
            whole = kind == "scalar" or "whole" in conditions
            yield Case(text, kind, answer, flags[0] if flags else "", targets, whole)


CONDITIONS = {
    "eq": "{0} == {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
}
FLOAT_CONDITIONS = CONDITIONS | {
    "lg": "({0} < {1}) | ({0} > {1})",
    "o": "({0} == {0}) & ({1} == {1})",
    "u": "({0} != {0}) | ({1} != {1})",
    "neq": "~({0} == {1})",
    "nlg": "~(({0} < {1}) | ({0} > {1}))",
    "nlt": "~({0} < {1})",
    "nle": "~({0} <= {1})",
    "ngt": "~({0} > {1})",
    "nge": "~({0} >= {1})",
}
COMPARED = {
    "u32": ("v1, v2", "a", "b"),
    "i32": ("v1, v2", "signed(a)", "signed(b)"),
    "u16": ("v1, v2", "u16(a)", "u16(b)"),
    "i16": ("v1, v2", "i16(a)", "i16(b)"),
    "u64": ("v[4:5], v[6:7]", "p", "q"),
    "i64": ("v[4:5], v[6:7]", "p.view(I64)", "q.view(I64)"),
    "f32": ("v1, v2", "fa", "fb"),
    "f16": ("v1, v2", "halves(a)", "halves(b)"),
    "f64": ("v[4:5], v[6:7]", "p.view(F64)", "q.view(F64)"),
}
SCALARS_COMPARED = {
    "cmp_{0}_u32 s1, s2": ("sa", "sb"),
    "cmp_{0}_i32 s1, s2": ("signed(sa)", "signed(sb)"),
    "cmpk_{0}_u32 s1, 0xfffb": ("wide(sa) % 2**32", "65531"),
    "cmpk_{0}_i32 s1, 0xfffb": ("wide(sa)", "-5"),
}


def compare_cases() -> Iterator[Case]:
    """Every condition of every type."""
    for kind, (operands, *sides) in COMPARED.items():
        integer = CONDITIONS | {"ne": "{0} != {1}"}
        for name, test in (FLOAT_CONDITIONS if kind[0] == "f" else integer).items():
            text = f"v_cmp_{name}_{kind}_e64 s[20:21], {operands}"
            yield Case(text, "mask", test.format(*sides), "", TARGETS, False)
    for text, sides in SCALARS_COMPARED.items():
        for name, test in (CONDITIONS | {"lg": "{0} != {1}"}).items():
            yield Case(f"s_{text.format(name)}", "scalar", "", test.format(*sides), TARGETS, True)


# Results of atomics on what memory holds (x) and the data operand (y).
ATOMICS = {
    "add": "{x} + {y}",
    "sub": "{x} - {y}",
    "rsub": "{y} - {x}",
    "inc": "np.where({x} >= {y}, 0, {x} + 1)",
    "dec": "np.where(({x} == 0) | ({x} > {y}), {y}, {x} - 1)",
    "min": "np.minimum({x}, {y})",
    "max": "np.maximum({x}, {y})",
    "and": "{x} & {y}",
    "or": "{x} | {y}",
    "xor": "{x} ^ {y}",
    "swap": "{y}",
}
LDS_ATOMICS = (
    "add_u32 sub_u32 rsub_u32 inc_u32 dec_u32 min_u32 max_u32 min_i32 max_i32 and_b32 or_b32 "
    "xor_b32 swap_b32 add_u64 min_u64 max_u64 min_i64 max_i64 and_b64 or_b64 swap_b64"
)
GLOBAL_ATOMICS = "add sub umin umax smin smax and or xor swap inc dec"


def atomic_cases() -> Iterator[Case]:
    """Every atomic on one word a lane: what it leaves, and what it returns."""
    forms = []
    for full_name in LDS_ATOMICS.split():
        name, kind = full_name.split("_")
        width = int(kind[1:])
        returning = f"ds_wrxchg_rtn_{kind}" if name == "swap" else f"ds_{name}_rtn_{kind}"
        plain = None if name == "swap" else f"ds_{full_name} v9, DATA"
        write, read = f"ds_write_b{width} v9, MEMORY", f"ds_read_b{width} RESULT, v9"
        forms.append(
            (name, width, kind[0] == "i", write, plain, f"{returning} RESULT, v9, DATA", read)
        )
    for full_name in GLOBAL_ATOMICS.split():
        name = full_name.lstrip("us") if full_name[1:] in ("min", "max") else full_name
        for width, suffix, words in ((32, "", ""), (64, "_x2", "x2")):
            mnemonic = f"global_atomic_{full_name}{suffix}"
            plain = f"{mnemonic} v8, DATA, s[8:9]"
            returning = f"{mnemonic} RESULT, v8, DATA, s[8:9] RETURN"
            write = f"global_store_dword{words} v8, MEMORY, s[8:9]"
            read = f"global_load_dword{words} RESULT, v8, s[8:9]"
            is_signed = full_name[0] == "s" and full_name[1:] in ("min", "max")
            forms.append((name, width, is_signed, write, plain, returning, read))
    for name, width, is_signed, write, plain, returning, read in forms:
        registers = ("v1", "v2", "v20") if width == 32 else ("v[4:5]", "v[6:7]", "v[20:21]")
        x, y = ("a", "b") if width == 32 else ("p", "q")
        sides = [f"{side}.view(I{width})" if is_signed else side for side in (x, y)]
        after = f"({ATOMICS[name].format(x=sides[0], y=sides[1])}).astype(U{width})"
        for parts, answer in (
            ((write, plain or returning, read), after),
            ((write, returning), x),
        ):
            text = " ; ".join(parts)
            for role, register in zip(("MEMORY", "DATA", "RESULT"), registers, strict=True):
                text = text.replace(role, register)
            yield Case(text, "vector", answer, "", TARGETS, False)


CASES = [*read_cases(), *compare_cases(), *atomic_cases()]


# What the table's expressions are made of: whole arrays, one element a thread or a wave.


def signed(x):
    """32-bit words as signed numbers."""
    return x.view(I32)


def wide(x):
    """Signed 32-bit numbers in 64 bits."""
    return x.view(I32).astype(I64)


def long(x):
    """Unsigned 32-bit numbers in 64 bits."""
    return x.astype(U64)


def low_word(x):
    """The lower half of 64 bits."""
    return x.astype(U32)


def high_word(x):
    """The upper half of 64 bits."""
    return (x >> 32).astype(U32)


def pair(low, high):
    """Two 32-bit values as one of 64 bits."""
    return low.view(U32) | high.view(U32).astype(U64) << 32


def u16(x):
    """The low 16 bits."""
    return x.astype(U16)


def i16(x):
    """The low 16 bits as a signed number."""
    return x.astype(U16).view(I16)


def halves(x):
    """The low 16 bits as float16."""
    return x.astype(U16).view(F16)


def word(x):
    """16-bit values, zero-extended."""
    return np.asarray(x).view(U16).astype(U32)


def pack(low, high):
    """Two 16-bit values in a word."""
    return word(low) | word(high) << 16


def low24(x):
    """The low 24 bits."""
    return x & 0xFFFFFF


def signed24(x):
    """The low 24 bits as a signed number, 64 bits wide."""
    return ((x << 8).view(I32) >> 8).astype(I64)


def population(x):
    """Set bits."""
    return np.bitwise_count(x).astype(U32)


def reversed_bits(x):
    """Bit 0 first, within the width of the type."""
    width = 8 * x.itemsize
    return np.array([int(f"{int(v):0{width}b}"[::-1], 2) for v in x], x.dtype)


def leading_zeros(x, width):
    """Zeros above the highest set bit; -1 where there is none."""
    return np.array([width - int(v).bit_length() if v else 2**32 - 1 for v in x], U32)


def trailing_zeros(x):
    """Zeros below the lowest set bit; -1 where there is none."""
    return np.array([(int(v) & -int(v)).bit_length() - 1 if v else 2**32 - 1 for v in x], U32)


def field(x, offset, width):
    """`width` bits from bit `offset` of signed numbers, sign-extended."""

    def one(value, first, count):
        bits = value >> first & (1 << count) - 1
        return bits - (bits >> count - 1 << count) if count else 0

    triples = zip(x.tolist(), offset.tolist(), width.tolist(), strict=True)
    return np.array([one(*triple) for triple in triples]).astype(I32)


def permuted(a, b, selectors):
    """v_perm_b32, byte by byte."""
    result = np.zeros(len(a), U32)
    for at in range(4):
        selector = selectors >> 8 * at & 255
        byte = np.where(selector == 12, 0, 255)
        for i in range(8):
            source = (b if i < 4 else a) >> 8 * (i % 4) & 255
            byte = np.where(selector == i, source, byte)
        for code, source, bit in ((8, b, 15), (9, b, 31), (10, a, 15), (11, a, 31)):
            byte = np.where(selector == code, 255 * (source >> bit & 1), byte)
        result |= byte.astype(U32) << 8 * at
    return result


def saturated(x, low, high):
    """Floats as integers: towards zero, within bounds, NaN as 0."""
    return np.clip(np.nan_to_num(np.trunc(x.astype(F64)), nan=0.0), low, high).astype(I64)


def least(a, b):
    """The lesser number: -0 below +0, a quiet NaN loses, a signalling one wins."""
    quiet_bit = {2: 0x200, 4: 0x400000}[a.itemsize]
    bits_a, bits_b = bits(a), bits(b)
    signals = np.isnan(a) & (bits_a & quiet_bit == 0) | np.isnan(b) & (bits_b & quiet_bit == 0)
    smaller = np.where((a == b) & np.signbit(a), a, np.where(a < b, a, b))
    number = np.where(np.isnan(a), b, np.where(np.isnan(b), a, smaller))
    return np.where(signals, a.dtype.type(np.nan), number).astype(a.dtype)


def greatest(a, b):
    """The greater number, likewise."""
    return -least(-a, -b)


def median(a, b, c):
    """The middle of three numbers; the least where one is NaN."""
    middle = greatest(least(a, b), least(greatest(a, b), c))
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), least(least(a, b), c), middle)


def fused(a, b, c):
    """a * b + c rounded once: the sum is rounded to odd in double, where the product is exact."""
    product, addend = a.astype(F64) * b, c.astype(F64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = (total.view(U64) & 1 == 0) & (error != 0) & np.isfinite(error)
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(even, odd, total).astype(F32)


def spread(x):
    """A wave's scalar in all of its lanes."""
    return np.repeat(x, 64)


def lanes(x):
    """One row a wave."""
    return x.reshape(WAVES, 64)


def shuffled(x, source):
    """Lane l of each wave reads lane source(l)."""
    return lanes(x)[:, [source(lane) for lane in range(64)]].ravel()


def row_shift(by):
    """Lane from which ``row_shr:by`` (negative: ``row_shl``) reads."""
    return lambda lane: lane - by if 0 <= lane % 16 - by < 16 else None


def dpp(a, on, source, *, zero=False, rows=15, banks=15):
    """`a` moved by DPP: `source` gives the lane, or None."""
    result = np.full((WAVES, 64), UNTOUCHED, U32)
    for lane in range(64):
        if rows >> lane // 16 & 1 and banks >> lane // 4 % 4 & 1:
            come = source(lane)
            valid = come is not None and on[come]
            if valid or zero:
                result[:, lane] = lanes(a)[:, come] if valid else 0
    return result.ravel()


def pulled(a, on, source):
    """`a` of the lane that `source` names, 0 where that lane is off."""
    named = lanes(source).astype(int)
    taken = np.take_along_axis(lanes(a), named, 1)
    return np.where(np.take_along_axis(lanes(on), named, 1), taken, 0).ravel()


def pushed(a, on, target):
    """`a` sent to the lane that `target` names; the last one to send wins."""
    result = np.zeros((WAVES, 64), U32)
    for lane in np.flatnonzero(lanes(on)[0]):
        result[np.arange(WAVES), lanes(target)[:, lane].astype(int)] = lanes(a)[:, lane]
    return result.ravel()


HELPERS = {
    name: value for name, value in globals().items() if callable(value) or name in ("np", "WAVES")
}


def bits(x):
    """The bit patterns of floats."""
    return x.view({2: U16, 4: U32, 8: U64}[x.itemsize])


def inputs() -> np.ndarray:
    """(5, SIZE) words: random ones, small ones, and the extremes of each type."""
    rng = np.random.default_rng(7)
    extremes = """
        0 1 2 1f 20 7fffffff 80000000 ffffffff fffffffe 7f800000 ff800000 7fc00001 7f800001 3f800000
        bf800000 477ff000 477fefff 33000000 33000001 387fc000 38800000 4f000000 cf000000 4f800000
        7c00 17c01 80008000
    """
    shape = (5, SIZE)
    words = rng.integers(0, 2**32, shape, dtype=U32)
    small = rng.integers(0, 80, shape, dtype=U32)
    floats = rng.standard_normal(shape, dtype=F32).view(U32)
    extreme = rng.choice(np.array([int(word, 16) for word in extremes.split()], U32), shape)
    kind = rng.integers(0, 6, shape)
    words = np.select([kind == 0, kind == 1, kind >= 4], [small, extreme, floats], words)
    words[1, ::7] = words[0, ::7]
    words[3:, ::9] = words[(2, 0), ::9]
    return words


EVERYWHERE = np.ones(SIZE, bool)
SOMEWHERE = np.tile([SOME_LANES >> lane & 1 == 1 for lane in range(64)], WAVES)


@functools.cache
def registers(some: bool) -> dict[str, object]:
    """The table's names with all or some lanes on; those of a wave's scalars begin with s."""
    a, b, c, low, high = inputs()
    on = SOMEWHERE if some else EVERYWHERE
    first = slice(None, None, 64)
    p, q = pair(low, high), pair(c, a)
    views = {f"f{name}": x.view(F32) for name, x in (("a", a), ("b", b), ("c", c))}
    return {
        **HELPERS, **views, "a": a, "b": b, "c": c, "p": p, "q": q, "fp": low.view(F32),
        "fq": high.view(F32), "gt": a > b, "on": on, "lane": np.arange(SIZE) % 64, "sa": a[first],
        "sb": b[first], "sc": c[first], "sp": p[first], "sq": pair(b, c)[first],
        "dpp": functools.partial(dpp, a, on[:64]), "pulled": functools.partial(pulled, a, on),
        "pushed": functools.partial(pushed, a, on),
    }  # fmt: skip


def assemble(target: str, kernels: dict[str, str], folder: Path) -> CodeObject:
    """Kernels, as the bodies of their assembly text."""
    text = HEADER.format(target=target)
    text += "".join(KERNEL.format(name=name, body=body) for name, body in kernels.items())
    described = "".join(METADATA_KERNEL.format(name=name) for name in kernels)
    text += METADATA.format(target=target, kernels=described)
    source, relocatable, linked = (folder / f"{target}.{ext}" for ext in ("s", "o", "hsaco"))
    source.write_text(text)
    tools = toolchain.choose()
    for command in (
        [*tools.assemble, f"-mcpu={target}", "-c", str(source), "-o", str(relocatable)],
        [*tools.link, str(relocatable), "-o", str(linked)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return CodeObject.load(linked)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[Case, np.ndarray]]:
    """Runs all cases of a target once: (all or some lanes, v20 v21 s20 s21 SCC, thread) each."""

    @functools.cache
    def run(target: str) -> dict[Case, np.ndarray]:
        cases = [case for case in CASES if target in case.targets]
        parts = [PROLOGUE]
        for case in cases:
            text = case.text.replace("RETURN", "glc" if target == "gfx90a" else "sc0")
            text = text.replace(" ; ", "\n  ")
            parts += [SETUP, text, STORE, SETUP, "" if case.whole else SOME + text, STORE]
        folder = tmp_path_factory.mktemp(target)
        code_object = assemble(target, {"cases": "\n".join(parts)}, folder)
        out = np.zeros((len(cases), 2, 5, SIZE), U32)
        arrays = {"words": inputs(), "out": out, "scratch": np.zeros((SIZE, 4), U32)}
        buffers = [MemoryRegion.of(name, array) for name, array in arrays.items()]
        params = struct.pack("<QQQ", *(region.address for region in buffers))
        Emulator(code_object).launch("cases", BLOCKS, THREADS, params, buffers)
        return dict(zip(cases, out, strict=True))

    return run


def same(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Equal bits; floats may differ in which NaN they are."""
    if wanted.dtype.kind != "f":
        return found == wanted.view(found.dtype)
    return (found == bits(wanted)) | (np.isnan(found.view(wanted.dtype)) & np.isnan(wanted))


def holds(low: np.ndarray, high: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where two registers hold the answer: one word, two, two halves, or a pair of floats."""
    if wanted.ndim == 2 and wanted.itemsize == 4:
        return same(low, wanted[0]) & same(high, wanted[1])
    if wanted.itemsize == 8:
        return same(pair(low, high), wanted)
    if wanted.itemsize == 2:
        lower, upper = (
            (wanted[0], wanted[1]) if wanted.ndim == 2 else (wanted, np.zeros_like(wanted))
        )
        return same(u16(low), lower) & same(u16(low >> 16), upper)
    return same(low, wanted)


def answer(case: Case, some: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
    """What NumPy says: the value, and the mask or SCC; None where the case has none."""
    names = registers(some)
    with np.errstate(all="ignore"):
        value = eval(case.answer, names) if case.answer else None
        flags = eval(case.flags, names | {"v": value}) if case.flags else None
    if case.kind == "mask":
        return None, value
    shape = WAVES if case.kind == "scalar" else SIZE
    if value is not None and np.ndim(value) < 2:
        value = np.broadcast_to(value, shape).copy()
    return value, flags


def check_scalar(value: np.ndarray | None, scc: np.ndarray | None, found: np.ndarray) -> None:
    """Compare s[20:21] and SCC with the answer."""
    _, _, low, high, found_scc = found[:, ::64]
    if value is not None:
        np.testing.assert_array_equal(holds(low, high, value), True)
    np.testing.assert_array_equal(found_scc, 1 if scc is None else scc)


def check_lanes(
    value: np.ndarray | None, mask: np.ndarray | None, on: np.ndarray, found: np.ndarray
) -> None:
    """Compare v[20:21] and the mask in s[20:21] with the answer."""
    low, high, *scalars, _ = found
    if value is not None:
        wrong = np.flatnonzero(on & ~holds(low, high, value))
        assert not len(wrong), f"thread {wrong[0]}: {low[wrong[0]]:#x}, {high[wrong[0]]:#x}"
        assert (low[~on] == UNTOUCHED).all()
    if mask is not None:
        bits_set = pair(*scalars)[::64, None] >> np.arange(64, dtype=U64) & 1
        np.testing.assert_array_equal(bits_set.ravel(), on & mask)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text)
def test_instruction(case: Case, results: Callable[[str], dict[Case, np.ndarray]]) -> None:
    for some in (False,) if case.whole else (False, True):
        value, flags = answer(case, some)
        for target in case.targets:
            found = results(target)[case][int(some)]
            if case.kind == "scalar":
                check_scalar(value, flags, found)
            else:
                check_lanes(value, flags, SOMEWHERE if some else EVERYWHERE, found)


# These end, hold up or steer a wave; the launches of other tests run them.
CONTROL = {"s_barrier", "s_endpgm", "s_trap", "s_branch", "s_getpc_b64"}


def test_every_instruction_has_a_case() -> None:
    named = {word for case in CASES for word in re.findall(r"\b(?:[vs]|ds|global)_\w+", case.text)}
    named = {re.sub(r"_(e32|e64|dpp|sdwa)$", "", word) for word in named}
    named |= {f"{case.text.split('_e64')[0]}_clamp" for case in CASES if "clamp" in case.text}
    known = native.load(native.cache_folder()).handlers
    instructions = {name for name, handler in known.items() if handler.kind != "step"}
    assert instructions - named - CONTROL == set()


REFUSED = {
    "v_exp_f32_e32 v20, v1": "instruction",
    "v_mul_f32_e64 v20, v1, v2 mul:2": "modifier mul:2",
    "v_max_f32_e64 v20, v1, v2 clamp": "modifier clamp",
    "v_mad_u16 v20, v1, v2, v3 op_sel:[1,0,0,0]": "modifier op_sel:[1,0,0,0]",
    "v_add_co_u32_dpp v20, vcc, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf": "DPP",
    "v_add_f32_sdwa v20, v1, v2 clamp dst_sel:DWORD dst_unused:UNUSED_PAD "
    "src0_sel:DWORD src1_sel:DWORD": "modifier clamp",
    "v_pk_add_u16 v20, v1, v2 clamp": "modifier clamp",
    "v_pk_mov_b32 v[20:21], 1, v[4:5] op_sel:[1,0]": "upper word of a constant",
    "flat_load_dword v20, v[4:5]": "instruction",
    "scratch_load_dword v20, v1, off": "instruction",
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE), 0": "instruction",
    "s_mov_b64 s[20:21], src_shared_base": "operand src_shared_base",
    "s_mov_b32 s20, flat_scratch_lo": "operand flat_scratch_lo",
    "s_swappc_b64 s[20:21], s[4:5]": "instruction",
    "buffer_load_dword v20, v1, s[4:7], 0 offen": "instruction",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """A kernel for each of `REFUSED`, named by its place."""
    kernels = {f"kernel{at}": f"  v_nop\n  {text}" for at, text in enumerate(REFUSED)}
    return Emulator(assemble("gfx90a", kernels, tmp_path_factory.mktemp("refused")))


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_known_is_refused_by_name(text: str, refused: Emulator) -> None:
    name = f"kernel{list(REFUSED).index(text)}"
    with pytest.raises(UnsupportedInstruction) as caught:
        refused.prepare([name])
    assert f"{name}+0x4: {text.split()[0]}" in str(caught.value)
    assert f"unsupported {REFUSED[text]}" in str(caught.value)
