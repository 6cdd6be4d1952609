"""Does the machine code read what a graph replay may change past the scalar cache?

Lengths are device data, written between replays. A plain load of a uniform address becomes a scalar
load, and stale scalar-cache reads inside graphs were reported; an agent-scope atomic load goes
through the vector path and past the caches that are not coherent.
"""

import re

import pytest

from topk_lab import code_objects
from topk_lab.emulator import CodeObject
from topk_lab.emulator.disassembly import disassemble
from topk_lab.targets import AMD_TARGETS

# What an agent-scope load carries on each target.
COHERENT = {"gfx90a": "glc", "gfx942": "sc1", "gfx950": "sc1"}
# Row ends, sequence lengths and row starts: each is read in one place.
REPLAYED_READS = 3

WRITES = re.compile(r"^(s_\w+) (s\[(\d+):(\d+)\]|s(\d+))")
SCALAR_LOAD = re.compile(r"^s_(?:buffer_)?load_dword\w* [^,]+, s\[(\d+):(\d+)\]")


def selection_kernels(source, target):
    code = CodeObject.load(code_objects.find(source, target).read())
    for name, kernel in code.kernels.items():
        if name != "policy_probe":
            yield name, [instruction.text for instruction in disassemble(code, kernel)]


def scalar_load_bases(listing):
    """Base registers of every scalar load, and whether the kernel wrote them before it."""
    written = set()
    for text in listing:
        load = SCALAR_LOAD.match(text)
        if load:
            base = (int(load[1]), int(load[2]))
            yield base, bool(written & set(base))
        write = WRITES.match(text)
        if write and not write[1].startswith(("s_cmp", "s_bitcmp", "s_cbranch")):
            first = int(write[3] or write[5])
            written |= set(range(first, int(write[4] or first) + 1))


@pytest.mark.parametrize("target", AMD_TARGETS)
@pytest.mark.parametrize("source", ["vllm", "vllm_ablations"])
def test_scalar_loads_read_kernel_arguments_alone(source, target):
    for name, listing in selection_kernels(source, target):
        loads = list(scalar_load_bases(listing))
        assert loads, name
        assert len({base for base, _ in loads}) == 1, name
        assert not any(overwritten for _, overwritten in loads), name


@pytest.mark.parametrize("target", AMD_TARGETS)
@pytest.mark.parametrize("source", ["vllm", "vllm_ablations"])
def test_lengths_are_read_by_agent_scope_loads(source, target):
    for name, listing in selection_kernels(source, target):
        coherent = [
            text
            for text in listing
            if re.match(r"global_load_dword v\d+, ", text) and COHERENT[target] in text.split()
        ]
        # The generic merge looks at no length: its splits are always all active.
        due = {2, REPLAYED_READS} if "generic_merge" in name else {REPLAYED_READS}
        assert len(coherent) in due, name


@pytest.mark.parametrize(
    ("listing", "overwritten"),
    [
        (["s_load_dwordx2 s[2:3], s[0:1], 0x8", "s_load_dword s4, s[2:3], 0x0"], [False, True]),
        (["s_mov_b32 s1, s9", "s_load_dword s4, s[0:1], 0x0"], [True]),
        (["s_cmp_lt_i32 s0, s1", "s_load_dword s4, s[0:1], 0x0"], [False]),
    ],
)
def test_a_scalar_load_through_a_loaded_pointer_would_be_seen(listing, overwritten):
    assert [found for _, found in scalar_load_bases(listing)] == overwritten
