"""Does the machine code read what a graph replay may change past the scalar cache?

Lengths and page tables are device data, written between replays. A plain load of a uniform address
becomes a scalar load, and stale scalar-cache reads inside graphs were reported; an agent-scope
atomic load goes through the vector path and past the caches that are not coherent.
"""

import re

import pytest

from topk_lab import code_objects, isa_sheet
from topk_lab.emulator import CodeObject
from topk_lab.emulator.disassembly import Instruction, disassemble
from topk_lab.targets import AMD_TARGETS

# Row ends, sequence lengths and row starts: each is read in one place.
REPLAYED_READS = 3
# The page transform looks at indices alone.
READS_OF = {
    "vllm": REPLAYED_READS,
    "vllm_ablations": REPLAYED_READS,
    "vllm_remedies": REPLAYED_READS,
    "vllm_splits": REPLAYED_READS,
    "sglang": REPLAYED_READS,
    "sglang_ablations": REPLAYED_READS,
    "aiter": REPLAYED_READS,
    "shared_histogram": REPLAYED_READS,
    "delegate": REPLAYED_READS,
    "paging": 0,
}

SGPRS = r"s(?:\[(\d+):(\d+)\]|(\d+))"
# Instructions with scalar registers as their destination, and with some as a second one.
DESTINATION = re.compile(rf"^([sv]_\w+) {SGPRS}")
CARRY = re.compile(rf"^(v_\w*(?:_co_|div_scale|mad_[iu]64)\w*) [^,]+, {SGPRS}")
# These only read what they name first.
READERS = ("s_cmp", "s_bitcmp", "s_cbranch")
COPY = re.compile(rf"^s_mov_b64 {SGPRS}, {SGPRS}$")
SCALAR_LOAD = re.compile(rf"^s_(?:buffer_)?load_dword\w* [^,]+, {SGPRS}")


def selection_kernels(source, target):
    code = CodeObject.load(code_objects.find(source, target).read())
    for name, kernel in code.kernels.items():
        if name != "policy_probe":
            yield name, disassemble(code, kernel)


def registers(match, first_group):
    """Scalar registers that a match of SGPRS names, as a bit mask."""
    low, high, single = match.groups()[first_group : first_group + 3]
    low, high = int(low or single), int(high or single)
    return (1 << high + 1) - (1 << low)


def registers_written(text):
    written = 0
    for pattern in (DESTINATION, CARRY):
        match = pattern.match(text)
        if match and not match[1].startswith(READERS):
            written |= registers(match, 1)
    return written


def pointers_after(pointers, text):
    """Register pairs that hold the argument pointer behind an instruction, from those before it."""
    written = registers_written(text)
    copied = COPY.match(text)
    kept = {pair for pair in pointers if not pair & written}
    if copied and registers(copied, 3) in pointers:
        kept.add(registers(copied, 0))
    return frozenset(kept)


def scalar_loads(listing):
    """For every scalar load, whether on some path its base is not the argument pointer.

    A kernel finds that pointer in the base of its first scalar load, and may copy it.
    """
    place = {instruction.pc: number for number, instruction in enumerate(listing)}
    followers = []
    for number, instruction in enumerate(listing):
        after = set()
        if instruction.mnemonic not in ("s_branch", "s_endpgm") and number + 1 < len(listing):
            after.add(number + 1)
        if instruction.mnemonic.startswith(("s_branch", "s_cbranch")):
            after.add(place[instruction.branch_target])
        followers.append(after)
    loads = {
        number: registers(load, 0)
        for number, instruction in enumerate(listing)
        if (load := SCALAR_LOAD.match(instruction.text))
    }
    # Pairs that hold it on every path that reaches an instruction; None: no path does yet.
    before = [None] * len(listing)
    before[0] = frozenset([next(iter(loads.values()))])
    waiting = [0]
    while waiting:
        number = waiting.pop()
        reached = pointers_after(before[number], listing[number].text)
        for follower in followers[number]:
            met = reached if before[follower] is None else before[follower] & reached
            if met != before[follower]:
                before[follower] = met
                waiting.append(follower)
    return [base not in (before[number] or ()) for number, base in loads.items()]


@pytest.mark.parametrize("target", AMD_TARGETS)
@pytest.mark.parametrize("source", list(READS_OF))
def test_scalar_loads_read_kernel_arguments_alone(source, target):
    for name, listing in selection_kernels(source, target):
        listing = list(listing)
        loads = scalar_loads(listing)
        assert loads, name
        spills = any(instruction.mnemonic.startswith("v_writelane") for instruction in listing)
        if any(loads) and spills and name.endswith("_traced"):
            # The pointer may have passed through a vector register, which isn't followed: in a
            # kernel that records its steps and serves no graph.
            continue
        assert not any(loads), name


@pytest.mark.parametrize("target", AMD_TARGETS)
@pytest.mark.parametrize("source", list(READS_OF))
def test_lengths_are_read_by_agent_scope_loads(source, target):
    for name, listing in selection_kernels(source, target):
        coherent = isa_sheet.length_loads(listing, target)
        # The generic merge looks at no length: its splits are always all active. Nor does a kernel
        # that clears.
        due = {2, REPLAYED_READS} if "generic_merge" in name else {READS_OF[source]}
        due = {0} if name.endswith("_clear") else due
        assert coherent in due, name


# What an agent-scope release and acquire are on each target. gfx90a has one L2, and needs but wait.
RELEASE = {"gfx90a": "s_waitcnt vmcnt(0)", "gfx942": "buffer_wbl2 sc1", "gfx950": "buffer_wbl2 sc1"}
ACQUIRE = {"gfx90a": "buffer_wbinvl1_vol", "gfx942": "buffer_inv sc1", "gfx950": "buffer_inv sc1"}


@pytest.mark.parametrize("target", AMD_TARGETS)
def test_blocks_hand_over_by_release_and_acquire(target):
    for name, listing in selection_kernels("shared_histogram", target):
        texts = [" ".join(instruction.text.split()) for instruction in listing]
        released = [at for at, text in enumerate(texts) if text == RELEASE[target]]
        acquired = [at for at, text in enumerate(texts) if text == ACQUIRE[target]]
        if "select" not in name:
            assert not acquired
            continue
        # Whoever wrote to the list is one fence, the arrival another.
        assert len(acquired) == 2
        arrival = max(
            at
            for at, text in enumerate(texts[: acquired[1]])
            if text.startswith("global_atomic_add ")
        )
        assert max(at for at in released if at < arrival) > acquired[0]
        barriers = [at for at, text in enumerate(texts) if text == "s_barrier"]
        assert any(acquired[0] < at < arrival for at in barriers)


def assembled(*texts):
    """Instructions of 4 bytes each; a branch names the number of the one that it goes to."""
    for number, text in enumerate(texts):
        word = 0
        if text.startswith(("s_branch", "s_cbranch")):
            word = int(text.split()[1]) - number - 1 & 0xFFFF
        yield Instruction(4 * number, word, text)


LOAD = "s_load_dword s4, s[0:1], 0x0"
COPIED_LOAD = "s_load_dword s4, s[8:9], 0x0"


@pytest.mark.parametrize(
    ("listing", "overwritten"),
    [
        pytest.param(
            ("s_load_dwordx2 s[2:3], s[0:1], 0x8", "s_load_dword s4, s[2:3], 0x0"),
            [False, True],
            id="through-a-loaded-pointer",
        ),
        pytest.param(("s_mov_b32 s1, s9", LOAD), [True], id="half-of-it-written"),
        pytest.param(("s_cmp_lt_i32 s0, s1", LOAD), [False], id="read-alone"),
        pytest.param(("v_readfirstlane_b32 s0, v3", LOAD), [True], id="from-a-vector-register"),
        pytest.param(("v_cmp_lt_i32_e64 s[0:1], v3, v4", LOAD), [True], id="by-a-comparison"),
        pytest.param(("v_add_co_u32_e64 v3, s[0:1], v3, v4", LOAD), [True], id="by-a-carry"),
        pytest.param(("v_add_u32_e32 v3, s0, v4", LOAD), [False], id="read-by-a-vector"),
        pytest.param(
            ("s_cbranch_scc0 3", "s_mov_b32 s0, 0", "s_endpgm", LOAD),
            [False],
            id="written-on-another-path",
        ),
        pytest.param(
            ("s_cbranch_scc0 2", "s_mov_b32 s0, 0", LOAD), [True], id="written-on-one-of-two-paths"
        ),
        pytest.param(
            ("s_branch 3", LOAD, "s_endpgm", "s_mov_b32 s0, 0", "s_branch 1"),
            [True],
            id="written-further-down-and-back",
        ),
        pytest.param(
            (LOAD, "s_mov_b64 s[8:9], s[0:1]", "s_mov_b32 s0, 0", COPIED_LOAD),
            [False, False],
            id="a-copy-outlives-it",
        ),
        pytest.param(
            (LOAD, "s_mov_b64 s[8:9], s[2:3]", COPIED_LOAD), [False, True], id="a-copy-of-another"
        ),
        pytest.param(
            (LOAD, "s_cbranch_scc0 3", "s_mov_b64 s[8:9], s[0:1]", COPIED_LOAD),
            [False, True],
            id="copied-on-one-of-two-paths",
        ),
    ],
)
def test_a_scalar_load_through_a_loaded_pointer_would_be_seen(listing, overwritten):
    assert scalar_loads(list(assembled(*listing))) == overwritten
