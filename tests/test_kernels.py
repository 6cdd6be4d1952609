"""Does the compiled code hold the policies that the host assumes, and would a fault be noticed?"""

import ctypes
import dataclasses
import functools
import hashlib
import json
import re
import shutil
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from topk_lab import code_objects, keys, schedules, targets, toolchain, verify
from topk_lab.contract import UNWRITTEN, find_violations
from topk_lab.emulator import CodeObject, Emulator, MemoryRegion
from topk_lab.reference import shared_histogram
from topk_lab.schedules import (
    ABLATIONS,
    FINAL_ORDERS,
    FINAL_PADS,
    INCREMENTS,
    MOST_FIXED_SPLITS,
    OVERFLOWS,
    POLICIES,
    SPLIT_SCHEDULES,
)

KIBI = 1024
INF_BIN, NEG_INF_BIN = 63, 4032  # of 4096 half bins
# A variant for each of the schedules, in the order of the kernels' words.
SCHEDULES = (
    *("vllm_generic", "vllm_k512", "vllm_k512[splits=h200]"),
    f"vllm_k512[splits=fixed_{MOST_FIXED_SPLITS}]",
)
SOURCES = (
    *("vllm", "vllm_ablations", "vllm_remedies", "vllm_splits"),
    *("sglang", "sglang_ablations", "aiter", "shared_histogram", "delegate", "paging"),
)


def ablations(name):
    """The compiled departures from a policy, in the order in which they are probed."""
    return [variant.policy for variant in schedules.ablations(name)]


def k512_ablations(what):
    """Those of vllm_k512 that undo a change of the source, try a remedy, or split otherwise."""
    own = POLICIES["vllm_k512"]

    def kind(policy):
        if policy.splits != own.splits:
            return "splits"
        remedied = policy.equal_shortcut or policy.increments != own.increments
        return "remedies" if remedied else "undone"

    return [policy for policy in ablations("vllm_k512") if kind(policy) == what]


PROBED = {
    "vllm": [POLICIES[name] for name in ("vllm_generic", "vllm_k512", "vllm_k512_uncrowded")],
    "vllm_ablations": k512_ablations("undone"),
    "vllm_remedies": k512_ablations("remedies"),
    "vllm_splits": k512_ablations("splits"),
}
STASHES_PROBED = {
    "sglang": [POLICIES["sglang_block512"], POLICIES["sglang_block1024"]],
    "sglang_ablations": ablations("sglang_block1024") + ablations("sglang_block512"),
}


ONE_BLOCKS_PROBED = [POLICIES["aiter_one_block"], *ablations("aiter_one_block")]


class ProbeParams(ctypes.Structure):
    _fields_ = (
        ("queries", ctypes.c_uint64),
        ("splits", ctypes.c_uint64),
        ("fields", ctypes.c_uint64),
        ("num_queries", ctypes.c_int32),
        ("num_policies", ctypes.c_int32),
    )


def probe(source, target, queries, num_policies, num_fields=11):
    """Ask a code object for its splits and its policies."""
    emulator = Emulator(CodeObject.load(code_objects.find(source, target).read()))
    splits = np.full((len(queries), 2), UNWRITTEN, np.int32)
    fields = np.full((num_policies, num_fields), UNWRITTEN, np.int32)
    arrays = {"queries": queries, "splits": splits, "fields": fields}
    regions = [
        MemoryRegion(name, array.ctypes.data, array.nbytes, name != "queries")
        for name, array in arrays.items()
    ]
    addresses = [region.address for region in regions]
    params = ProbeParams(*addresses, len(queries), num_policies)
    emulator.launch("policy_probe", -(-len(queries) // 256), 256, bytes(params), regions)
    return splits, fields


def both_sides(*bounds):
    return sorted({max(value, 0) for bound in bounds for value in (bound - 1, bound, bound + 1)})


def bound_queries():
    """Every bound of the schedules, and one to each side of it."""
    rows = both_sides(0, 4, 8, 16, 32, 64, 128, 160, 256, 384)
    columns = both_sides(
        0, 12_288, 16 * KIBI, 64 * KIBI, 200_000, 256 * KIBI, 512 * KIBI, 1024 * KIBI
    )
    lengths = both_sides(
        0, 512, 1024, 16 * KIBI, 64 * KIBI, 128 * KIBI, 256 * KIBI, 512 * KIBI, 1024 * KIBI
    )
    return np.array(
        [
            (schedule, num_rows, num_cols, length)
            for schedule in range(len(SCHEDULES))
            for num_rows in rows
            for num_cols in columns
            for length in lengths
            if length <= num_cols
        ],
        np.int32,
    )


@pytest.mark.parametrize("source", list(PROBED))
def test_host_and_device_agree_on_every_split(amd_target, source):
    queries = bound_queries()
    splits, _ = probe(source, amd_target, queries, 0)
    expected = []
    for schedule, num_rows, num_cols, length in queries.tolist():
        limit = schedules.max_splits(SCHEDULES[schedule], num_rows, num_cols)
        expected.append(
            (limit, schedules.active_splits(SCHEDULES[schedule], num_rows, length, limit))
        )
    np.testing.assert_array_equal(splits, expected)
    assert set(splits[:, 1].tolist()) == {1, 2, 3, 4, 8, 10, 16, 31, 32, MOST_FIXED_SPLITS}


@pytest.mark.parametrize("source", list(PROBED))
def test_host_and_device_agree_on_every_policy(amd_target, source):
    policies = PROBED[source]
    # One more than are compiled: its place stays as it was.
    _, fields = probe(source, amd_target, bound_queries()[:1], len(policies) + 1)
    expected = [
        (
            policy.block_size,
            policy.merge_block_size,
            policy.final_capacity,
            policy.max_k,
            policy.count_neg_inf,
            policy.fits_rule,
            policy.equal_shortcut,
            FINAL_PADS.index(policy.final_pad),
            FINAL_ORDERS.index(policy.final_order),
            INCREMENTS.index(policy.increments),
            SPLIT_SCHEDULES.index(policy.split_schedule),
        )
        for policy in policies
    ]
    np.testing.assert_array_equal(fields, [*expected, (UNWRITTEN,) * 11])


@pytest.mark.parametrize("source", list(STASHES_PROBED))
def test_host_and_device_agree_on_every_stash_policy(amd_target, source):
    policies = STASHES_PROBED[source]
    splits, fields = probe(source, amd_target, bound_queries()[:1], len(policies) + 1, num_fields=4)
    expected = [
        (policy.block_size, policy.stash_kib, policy.max_k, OVERFLOWS.index(policy.overflow))
        for policy in policies
    ]
    np.testing.assert_array_equal(fields, [*expected, (UNWRITTEN,) * 4])
    assert (splits == UNWRITTEN).all()  # a row of this lineage is never split


def test_host_and_device_agree_on_every_one_block_policy(amd_target):
    policies = ONE_BLOCKS_PROBED
    queries = bound_queries()[:1]
    splits, fields = probe("aiter", amd_target, queries, len(policies) + 1, num_fields=2)
    expected = [(policy.block_size, policy.digit_bits) for policy in policies]
    np.testing.assert_array_equal(fields, [*expected, (UNWRITTEN,) * 2])
    assert (splits == UNWRITTEN).all()  # a row of this lineage is never split


def sharing_queries():
    """Every bound of the blocks that share a row, and one to each side of it."""
    # 64 // rows changes at each of the first numbers.
    rows = both_sides(0, 4, 8, 10, 12, 16, 21, 32, 64, 384)
    columns = both_sides(0, *(start for _, start in schedules.SHARED_FROM_COLUMNS), 1024 * KIBI)
    return np.array(
        [
            (0, num_rows, num_cols, length)
            for num_rows in rows
            for num_cols in columns
            for length in columns
            if length <= num_cols
        ],
        np.int32,
    )


def test_host_and_device_agree_on_the_blocks_that_share_a_row(amd_target):
    queries = sharing_queries()
    policy = POLICIES["shared_histogram"]
    splits, fields = probe("shared_histogram", amd_target, queries, 2, num_fields=4)
    expected = []
    for _, num_rows, num_cols, length in queries.tolist():
        limit = schedules.max_splits("shared_histogram", num_rows, num_cols)
        active = schedules.active_splits("shared_histogram", num_rows, length, limit)
        assert active <= limit
        expected.append((limit, active))
    np.testing.assert_array_equal(splits, expected)
    # 64 over the number of rows, rounded down, within 4 and 32.
    assert set(splits[:, 1].tolist()) == {1, 4, 5, 6, 7, 8, 9, 12, 16, 21, 32}
    due = (policy.block_size, policy.tie_capacity, policy.rank_limit, policy.max_k)
    np.testing.assert_array_equal(fields, [due, (UNWRITTEN,) * 4])


def test_host_and_device_agree_on_every_delegate_policy(amd_target):
    policies = list(schedules.DELEGATE_POLICIES.values())
    queries = bound_queries()[:1]
    splits, fields = probe("delegate", amd_target, queries, len(policies) + 1, num_fields=12)
    expected = [
        (
            *dataclasses.astuple(policy),
            *(policy.segment_capacity, policy.whole_columns, policy.item_capacity),
            *(policy.joined_groups, policy.loose_groups),
        )
        for policy in policies
    ]
    np.testing.assert_array_equal(fields, [*expected, (UNWRITTEN,) * 12])
    assert (splits == UNWRITTEN).all()  # a row of this lineage is never split


@pytest.mark.parametrize("target", targets.AMD_TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_objects_are_what_a_rocm_loader_expects(source, target):
    image = code_objects.find(source, target).read()
    machine, abi_version = struct.unpack_from("<H", image, 18)[0], image[8]
    flags = struct.unpack_from("<I", image, 48)[0]
    assert (machine, image[7]) == (0xE0, 0x40)  # EM_AMDGPU, ELFOSABI_AMDGPU_HSA
    assert abi_version == 4  # code object version 6
    assert flags & 0xFF == {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx950": 0x4F}[target]
    # Any xnack, any sramecc: one object loads whatever the node has set.
    assert (flags & 0x300, flags & 0xC00) == (0x100, 0x400)


def sound_ablations():
    for name in ABLATIONS:
        for policy in ablations(name):
            if policy.sound:
                yield str(schedules.Variant(name, policy))


@pytest.mark.parametrize("variant", list(sound_ablations()))
def test_ablations_that_stay_sound_stay_exact(amd_target, variant):
    for check in verify.checks("workloads", variant, amd_target):
        finding = verify.run(check)
        assert finding.status == "ok", verify.line(check, finding)


# ---- broken kernels ------------------------------------------------------------------------------

TARGET = "gfx950"


def vllm_checks(seed):
    for variant in ("vllm_k512", "vllm_generic"):
        for check in verify.checks("workloads", variant, TARGET, seed):
            if check.workload in ("normal", "masked_blocks", "few_values"):
                yield check
    for check in verify.checks("workloads", "vllm_k512_uncrowded", TARGET, seed):
        if check.workload in ("ascending", "odd_one_out", "relu_zeros", "finite_min"):
            yield check
    yield from verify.checks("pass_by_pass", "vllm_k512_uncrowded", TARGET, seed)


def remedy_checks(seed):
    for increments in ("wave", "crowd", "opaque"):
        variant = f"vllm_k512[count_neg_inf=false,increments={increments}]"
        for check in verify.checks("workloads", variant, TARGET, seed):
            if check.workload in ("normal", "masked_blocks", "ascending"):
                yield check


def sglang_checks(seed):
    for variant in ("sglang_block1024", "sglang_block512"):
        yield from verify.checks("workloads", variant, TARGET, seed)
        yield from verify.checks("page_tables", variant, TARGET, seed)
        yield from verify.checks("pass_by_pass", variant, TARGET, seed)


def aiter_checks(seed):
    for experiment in ("pass_by_pass", "page_tables", "workloads", "stable_answers"):
        yield from verify.checks(experiment, "aiter_one_block", TARGET, seed)


def bin_edges():
    """Rows of logits that stand where half bins begin, on both sides; and NaN before -inf."""
    begins = (INF_BIN, 64, 1087, 2030, 2046, 2047, 2048, 2050, 3008, NEG_INF_BIN)
    rows = np.full((len(begins) + 1, 3000), -np.inf, np.float32)
    for row, begin in zip(rows, begins, strict=False):
        starts = [int(shared_histogram.half_bin_start(begin + step)) for step in range(-2, 4)]
        near = [start - behind for start in starts for behind in (0, 1)]
        bits = [keys.canonical_bits(np.uint32(keys.complement_key(np.uint32(key)))) for key in near]
        row[:] = np.repeat(np.array(bits, np.uint32), 3000 // len(bits)).view(np.float32)
    rows[-1, :100] = np.nan
    return rows


def _judged(found):
    return verify.Finding("wrong" if found else "ok", str(found[0]) if found else None)


def _edges_body(logits, k, target, seed):
    outcome = targets.run(target, "shared_histogram", logits, k, values=True, seed=seed)
    found = find_violations(logits, outcome.indices, values=outcome.values)
    if not found:
        kernel, twin = (
            targets.run(place, "shared_histogram", logits, k, traced=True, seed=seed).steps
            for place in (target, "numba")
        )
        found = [
            f"{name} differs" for name in kernel.dtype.names if (kernel[name] != twin[name]).any()
        ]
    return _judged(found)


def edge_checks(target, seed):
    """Both sides of every bound between equal logits, and the middle between two."""
    logits = bin_edges()
    some = verify.checks("workloads", "shared_histogram", target, seed)[0]
    for k in (1, *range(125, 3000, 125), 2999):
        body = functools.partial(_edges_body, logits, k, target, seed)
        yield dataclasses.replace(some, id=f"edges-{k}", k=k, body=body)


def shared_checks(seed):
    yield from edge_checks(TARGET, seed)
    for experiment in ("pass_by_pass", "page_tables", "workloads"):
        yield from verify.checks(experiment, "shared_histogram", TARGET, seed)


def test_logits_where_half_bins_begin_go_to_their_bin(amd_target):
    for check in edge_checks(amd_target, None):
        finding = verify.run(check)
        assert finding.status == "ok", verify.line(check, finding)


def paging_checks(seed):
    yield from verify.checks("page_tables", "vllm_k512", TARGET, seed)


def greatest_rows(columns):
    """Rows whose 512th logit is the greatest finite one, +inf or NaN, with some above it."""
    counts = ((0, 5, 900), (7, 0, 900), (7, 900, 0), (900, 0, 0), (0, 0, 900))  # NaN, +inf, finite
    rows = np.random.default_rng(0).standard_normal((len(counts), columns)).astype(np.float32)
    greatest = (np.nan, np.inf, np.finfo(np.float32).max)
    for row, numbers in zip(rows, counts, strict=True):
        row[: sum(numbers)] = np.repeat(np.array(greatest, np.float32), numbers)
    return np.random.default_rng(1).permuted(rows, axis=1)


def crowded_rows():
    """Rows of more delegates above a low bound than segments are gathered of, some of them equal.

    The greatest are in pairs that share a group, and so in fewer than k groups.
    """
    rows = np.zeros((3, 4096, 16), np.float32)
    held = np.r_[0:400, 2048:2448]
    rows[:, held, 3] = 1 + np.arange(held.size) * np.float32(2**-20)
    rows[1, held, 9] = 1
    rows[2, held, 3] = 1
    return rows.reshape(3, -1)


def _greatest_body(variant, logits, target, seed):
    outcome = targets.run(target, variant, logits, 512, values=True, tie_break="lowest", seed=seed)
    return _judged(
        find_violations(logits, outcome.indices, values=outcome.values, tie_break="lowest")
    )


def greatest_checks(variant, target, seed):
    """Cuts at the greatest logits, of rows that a block keeps whole and of longer ones."""
    some = verify.checks("workloads", variant, target, seed)[0]
    named = {f"greatest-{columns}": greatest_rows(columns) for columns in (3000, 40003)}
    for name, logits in (named | {"crowded": crowded_rows()}).items():
        body = functools.partial(_greatest_body, variant, logits, target, seed)
        yield dataclasses.replace(some, id=name, k=512, body=body)


def test_delegates_tell_the_greatest_logits_apart(amd_target):
    for check in greatest_checks("delegate", amd_target, None):
        finding = verify.run(check)
        assert finding.status == "ok", verify.line(check, finding)


def delegate_checks(seed):
    yield from greatest_checks("delegate[member=k512]", TARGET, seed)
    for experiment in ("pass_by_pass", "stable_answers"):
        for check in verify.checks(experiment, "delegate[member=k512]", TARGET, seed):
            if check.k == 512:
                yield check


@dataclasses.dataclass(frozen=True)
class Lineage:
    """Kernels of a source, what they are run on, and the sources they are launched behind.

    Lines of the source that match `unused` make kernels that no check runs: they take long to
    compile.
    """

    checks: Callable[[int | None], Iterator[verify.Check]]
    behind: tuple[str, ...] = ()
    unused: str | None = None


LINEAGES = {
    "vllm": Lineage(vllm_checks),
    "vllm_remedies": Lineage(remedy_checks),
    "sglang": Lineage(sglang_checks),
    "aiter": Lineage(aiter_checks),
    "shared_histogram": Lineage(shared_checks),
    "delegate": Lineage(delegate_checks, unused=r"TOPK_LAB_DELEGATE_KERNEL\((?!k512,)"),
    "paging": Lineage(paging_checks, ("vllm",)),
}
SEEDS = (None, 3)


@pytest.mark.parametrize("source", list(LINEAGES))
def test_what_a_broken_kernel_fails_is_passed_by_the_real_one(source):
    for seed in SEEDS:
        for check in LINEAGES[source].checks(seed):
            finding = verify.run(check)
            assert finding.status == "ok", verify.line(check, finding)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of a header that breaks the kernels of a source."""

    source: str
    header: str
    old: str
    new: str
    occurrence: int = 0


def mutants_of(source, changes):
    return {
        f"{source}-{name}": Mutant(source, header, old, new)
        for name, (header, old, new) in changes.items()
    }


VLLM_CHANGES = {
    "one-bin-too-many": (
        "emission",
        "if (bin < threshold_bin) {\n      if (Step > 0",
        "if (bin <= threshold_bin) {\n      if (Step > 0",
    ),
    "pads-before-logits": (
        "order_key",
        "inline constexpr uint32_t pad_bits = 0xffffffffu;",
        "inline constexpr uint32_t pad_bits = 0x7f800000u;",
    ),
    "worst-items-first": ("final_items", "slot += other_key < key", "slot += other_key > key"),
    "row-0-only": (
        "row_bounds",
        "params.logits + static_cast<int64_t>(row) * params.row_stride",
        "params.logits + static_cast<int64_t>(row - row) * params.row_stride",
    ),
    "a-column-past-the-end": (
        "row_kernels",
        "split == active - 1 ? bounds.length - first : share}",
        "split == active - 1 ? bounds.length - first + 1 : share}",
    ),
    "tail-lost": (
        "row_slice",
        "const int32_t rest = head + (slice.length - tail);",
        "const int32_t rest = head + 0 * tail;",
    ),
    "ballot-of-32-lanes": (
        "platform",
        "__popcll(mask & ((1ull << lane_index()) - 1ull))",
        "__popcll(static_cast<uint32_t>(mask) & ((1ull << lane_index()) - 1ull))",
    ),
    "ties-unbounded": (
        "emission",
        "if (slot < k) select_into(selected, slot, bits, position);",
        "if (slot <= k + 4096) select_into(selected, slot, bits, position);",
    ),
}

# Of what vllm_k512_uncrowded does otherwise.
UNCROWDED_CHANGES = {
    "kept-logits-forgotten": (
        "bin_counter",
        "if (kept > 0) atomicAdd(&histogram[bin], kept);\n    bin = shared_bin;",
        "bin = shared_bin;",
    ),
    "kept-logits-counted-twice": ("bin_counter", "    kept = 0;\n", ""),
    "last-kept-logits-lost": (
        "bin_counter",
        "if (bin != shared_bin && kept > 0)",
        "if (bin != shared_bin && kept > 4)",
    ),
    "shared-logits-lost": (
        "bin_counter",
        "lane_index() == wave_size - 1 && shared > 0",
        "lane_index() == wave_size && shared > 0",
    ),
    "presumed-whatever-is-found": ("emission", "if (least <= greatest &&", "if (false &&"),
    "presumed-by-the-least-alone": (
        "emission",
        "(least != tie_bits || greatest != tie_bits)",
        "least != tie_bits",
    ),
    "slots-kept-after-a-failed-presumption": (
        "emission",
        "if (Step == 0 && !equal && threadIdx.x == 0) lds.found = 0;",
        "",
    ),
    "mixed-once-mixed-for-ever": (
        "threshold_bin",
        "lds.num_mixed = 0;",
        "lds.num_mixed += 0;",
    ),
    "compared-while-slots-are-left": (
        "emission",
        "      // Compared to the last,",
        "      if (!slots_left) return;\n      // Compared to the last,",
    ),
    "compared-by-each-thread-alone": (
        "emission",
        "(least != tie_bits || greatest != tie_bits)",
        "least != greatest && tie_bits != 1u",
    ),
    "a-tie-too-many": ("emission", "slots_left = slot < k;", "slots_left = slot <= k;"),
    "a-tie-too-few": ("emission", "slots_left = slot < k;", "slots_left = slot < k - 1;"),
}
REMEDY_CHANGES = {
    "sharers-add-for-themselves-alone": ("bin_counter", "__popcll(sharers));", "1);"),
    "second-sharer-adds": ("bin_counter", "lanes_below(sharers) == 0", "lanes_below(sharers) == 1"),
    "first-lane-alone-counts": ("bin_counter", "if (bin != shared_bin) {", "if (false) {"),
}

SGLANG_CHANGES = {
    # Shared with the vLLM lineage.
    "row-0-only": VLLM_CHANGES["row-0-only"],
    "tail-lost": VLLM_CHANGES["tail-lost"],
    # Keys.
    "coarse-bins-without-the-sign": (
        "order_key",
        "((half & 0x8000u) != 0 ? ~half & 0xffffu : half | 0x8000u) >> 8",
        "half >> 8",
    ),
    "negative-coarse-bins-fall": (
        "order_key",
        "? ~half & 0xffffu : half | 0x8000u",
        "? half & 0x7fffu : half | 0x8000u",
    ),
    "negative-keys-fall": ("order_key", "return ~complement_key(bits);", "return bits;"),
    "digits-of-7-bits": ("order_key", "& (num_digit_bins - 1));", "& (num_digit_bins / 2 - 1));"),
    # Count.
    "counts-not-cleared": (
        "digit_histogram",
        "lds.histogram[thread] = 0;",
        "lds.histogram[thread] += 0;",
    ),
    "stash-not-emptied": (
        "digit_histogram",
        "lds.num_stashed[next] = 0;",
        "lds.num_stashed[next] += 0;",
    ),
    "ties-from-slot-0": (
        "digit_histogram",
        "lds.tie_cursor = tie_cursor;",
        "lds.tie_cursor = 0 * tie_cursor;",
    ),
    "counts-digits-of-any-coarse-bin": (
        "digit_histogram",
        "if (coarse_bin(bits) != cutoff.coarse_bin) return;",
        "",
    ),
    "counts-digits-of-lower-prefixes": (
        "digit_histogram",
        "(key & cutoff.fixed) == cutoff.prefix",
        "(key & cutoff.fixed) <= cutoff.prefix",
    ),
    # Threshold bin.
    "two-bins-qualify": ("suffix_sum", "remaining_k < with_bin", "remaining_k <= with_bin"),
    "no-bin-of-which-nothing-is-needed": (
        "suffix_sum",
        "above <= remaining_k",
        "above < remaining_k",
    ),
    "best-bin-not-summed": (
        "suffix_sum",
        "bin + distance < num_digit_bins ?",
        "bin + distance < num_digit_bins - 1 ?",
    ),
    # Cutoff.
    "what-is-above-still-missing": (
        "stash_storage",
        "cutoff.remaining_k -= above;",
        "cutoff.remaining_k -= 0 * above;",
    ),
    "prefix-forgotten": ("stash_storage", "cutoff.prefix |=", "cutoff.prefix ="),
    "fixed-bits-forgotten": ("stash_storage", "cutoff.fixed |=", "cutoff.fixed ="),
    # Collect and refine.
    "ties-unbounded": ("stash", "if (slot < cutoff.k)", "if (slot < cutoff.k + 4096)"),
    "last-tie-lost": ("stash", "if (slot < cutoff.k)", "if (slot < cutoff.k - 1)"),
    "stashes-what-nobody-needs": ("stash", "if (cutoff.remaining_k == 0) return;", ""),
    "last-entry-lost": (
        "stash",
        "if (entry < stash_capacity<Policy>)",
        "if (entry < stash_capacity<Policy> - 1)",
    ),
    "above-the-prefix-lost": ("stash", "|| known > cutoff.prefix", ""),
    "threshold-bin-selected": (
        "stash",
        "bin > cutoff.coarse_bin ||",
        "bin >= cutoff.coarse_bin ||",
    ),
    "threshold-digit-selected": ("stash", "its_digit > digit", "its_digit >= digit"),
    "refines-by-the-next-digit": ("stash", "cutoff.shift + 8", "cutoff.shift"),
    "refines-into-its-own-list": (
        "stash",
        "stash + (1 - from) * stash_capacity<Policy>",
        "stash + from * stash_capacity<Policy>",
    ),
    # All passes.
    "overflow-drops": (
        "stash_select",
        "while (wave_uniform(lds.bin_size) > stash_capacity<Policy> &&",
        "while (false &&",
    ),
    "rescans-one-too-late": (
        "stash_select",
        "wave_uniform(lds.bin_size) > stash_capacity<Policy> &&",
        "wave_uniform(lds.bin_size) > stash_capacity<Policy> + 1 &&",
    ),
    "rescans-what-fits": (
        "stash_select",
        "wave_uniform(lds.bin_size) > stash_capacity<Policy> &&",
        "wave_uniform(lds.bin_size) >= stash_capacity<Policy> &&",
    ),
    # Order.
    "positions-fall": (
        "index_order",
        "(first > second) == ((low & run) == 0)",
        "(first > second) != ((low & run) == 0)",
    ),
    "runs-all-rise": ("index_order", "== ((low & run) == 0)", "== true"),
    "places-past-k-first": ("index_order", "after_all = 0x7fffffff", "after_all = -1"),
    "sorts-a-power-of-two-alone": (
        "index_order",
        "while (padded < k) padded *= 2;",
        "while (2 * padded <= k) padded *= 2;",
    ),
    # Answer and launch.
    "values-of-another-position": (
        "answer",
        "canonical_bits<LogitSource::row>(logits[index])",
        "canonical_bits<LogitSource::row>(logits[slot])",
    ),
    "nan-for-no-column": ("answer", "index < 0 ? neg_inf_bits : bits", "index < 0 ? ~0u : bits"),
    "slots-of-another-position": (
        "answer",
        "page_slot(params, row, index);",
        "page_slot(params, row, index < 0 ? -1 : slot);",
    ),
    "a-row-of-k-is-compared": (
        "stash_kernels",
        "slice.length <= call.k",
        "slice.length < call.k",
    ),
    "a-column-past-the-end": ("stash_kernels", "i < slice.length ? i", "i <= slice.length ? i"),
}

AITER_CHANGES = {
    # Shared with the other lineages.
    "row-0-only": VLLM_CHANGES["row-0-only"],
    "tail-lost": VLLM_CHANGES["tail-lost"],
    "values-of-another-position": SGLANG_CHANGES["values-of-another-position"],
    "slots-of-another-position": SGLANG_CHANGES["slots-of-another-position"],
    # Keys and digits.
    "zeros-told-apart": ("order_key", "bits == 0x80000000u ? 0u : bits", "bits"),
    "zeros-alike-by-arrival-alone": (
        "one_block_storage",
        "Kind == Emission::row_order ?",
        "Kind == Emission::arrival ?",
    ),
    "digits-short-of-a-bit": (
        "one_block_storage",
        "(1u << (upper - shift)) - 1u",
        "(1u << (upper - shift)) - 2u",
    ),
    "last-digit-of-full-width": (
        "one_block_storage",
        "upper > Policy.digit_bits ? upper - Policy.digit_bits : 0",
        "upper > Policy.digit_bits ? upper - Policy.digit_bits : 1",
    ),
    # Cutoff.
    "what-is-above-still-missing": (
        "one_block_storage",
        "cutoff.remaining_k -= above;",
        "cutoff.remaining_k -= 0 * above;",
    ),
    "prefix-forgotten": ("one_block_storage", "cutoff.prefix |=", "cutoff.prefix ="),
    "fixed-bits-forgotten": ("one_block_storage", "cutoff.fixed |=", "cutoff.fixed ="),
    # Histogram.
    "counts-not-cleared": (
        "matching_digits",
        "lds.histogram[bin] = 0;",
        "lds.histogram[bin] += 0;",
    ),
    "counts-whatever-the-prefix": (
        "matching_digits",
        "(key & cutoff.fixed) == cutoff.prefix",
        "(key & cutoff.fixed) >= 0u * cutoff.prefix",
    ),
    # Threshold bin.
    "a-bin-too-late": ("digit_bin", "above < remaining_k &&", "above <= remaining_k &&"),
    "a-bin-too-early": (
        "digit_bin",
        "remaining_k <= above + populations[i]",
        "remaining_k < above + populations[i]",
    ),
    "bins-of-a-thread-not-added-up": ("digit_bin", "    above += populations[i];\n", ""),
    # All passes.
    "stops-too-early": (
        "one_block_select",
        "settled = wave_uniform(lds.bin_size) == cutoff.remaining_k;",
        "settled = wave_uniform(lds.bin_size) <= cutoff.remaining_k + 1;",
    ),
    "never-stops-early": (
        "one_block_select",
        "settled = wave_uniform(lds.bin_size) == cutoff.remaining_k;",
        "settled = false;",
    ),
    "a-pass-too-few": (
        "one_block_select",
        "while (!settled && cutoff.num_digits < num_digit_passes<Policy>)",
        "while (!settled && cutoff.num_digits < num_digit_passes<Policy> - 1)",
    ),
    "winners-from-slot-1": ("one_block_select", "lds.found = 0;", "lds.found = 1;"),
    # Collect, by arrival.
    "ties-unbounded": (
        "one_block_collect",
        "if (tie >= cutoff.remaining_k) return;",
        "if (tie >= cutoff.k) return;",
    ),
    "last-tie-lost": (
        "one_block_collect",
        "if (tie >= cutoff.remaining_k) return;",
        "if (tie >= cutoff.remaining_k - 1) return;",
    ),
    "ties-from-the-front": ("one_block_collect", "slot = cutoff.k - 1 - tie;", "slot = tie;"),
    "losers-taken": (
        "one_block_collect",
        "if (known > cutoff.prefix) return;",
        "if (known > cutoff.prefix + 1u) return;",
    ),
    # Collect, in row order.
    "what-lies-outside-taken": (
        "one_block_collect",
        "first + i < static_cast<uint32_t>(slice.length)",
        "first + i < static_cast<uint32_t>(slice.length) + 1u",
    ),
    "winners-of-a-tile-forgotten": (
        "one_block_collect",
        "winners += scan.total & 0xffff;",
        "winners += 0;",
    ),
    "ties-of-a-tile-forgotten": ("one_block_collect", "ties += scan.total >> 16;", "ties += 0;"),
    "last-wanted-tie-lost-in-order": (
        "one_block_collect",
        "(fates[i] == a_tie && ties_before < cutoff.remaining_k)",
        "(fates[i] == a_tie && ties_before < cutoff.remaining_k - 1)",
    ),
    "more-ties-than-wanted-in-order": (
        "one_block_collect",
        "(fates[i] == a_tie && ties_before < cutoff.remaining_k)",
        "(fates[i] == a_tie && ties_before <= cutoff.remaining_k)",
    ),
    "walk-ends-a-tile-early": (
        "one_block_collect",
        "winners + wanted(ties) < cutoff.k;",
        "winners + wanted(ties) < cutoff.k - 1;",
    ),
    "one-scan-without-a-barrier": ("one_block_collect", "turn ^= 1;", "turn ^= 0;"),
    "first-quad-taken-for-whole": (
        "row_slice",
        "if (first < length && first + 3u < length)",
        "if (first + 3u < length)",
    ),
    "last-quad-taken-for-whole": (
        "row_slice",
        "if (first < length && first + 3u < length)",
        "if (first < length)",
    ),
    "last-quad-lost": (
        "row_slice",
        "count((lead + length + 3u) >> 2)",
        "count((lead + length) >> 2)",
    ),
    # Launch.
    "a-row-of-k-is-compared": (
        "one_block_kernels",
        "slice.length <= call.k",
        "slice.length < call.k",
    ),
    "a-column-past-the-end": ("one_block_kernels", "i < slice.length ? i", "i <= slice.length ? i"),
}

SHARED_CHANGES = {
    # Shared with the other lineages.
    "row-0-only": VLLM_CHANGES["row-0-only"],
    "values-of-another-position": SGLANG_CHANGES["values-of-another-position"],
    "slots-of-another-position": SGLANG_CHANGES["slots-of-another-position"],
    "what-is-above-still-missing": AITER_CHANGES["what-is-above-still-missing"],
    # Half bins.
    "zeros-told-apart": AITER_CHANGES["zeros-told-apart"],
    "bins-of-11-bits": ("half_bins", "~half & 0x7fffu) >> 4", "~half & 0x7fffu) >> 5"),
    "negative-bins-rise": ("half_bins", "!= 0 ? half :", "!= 0 ? half ^ 0x7fffu :"),
    "bins-begin-on-halves": ("half_bins", "+ (112u << 23) + (1u << 12)", "+ (112u << 23)"),
    "subnormal-bins-begin-on-halves": ("half_bins", "(2 * half + 1)", "(2 * half)"),
    "middle-in-the-lesser-positive-bin": (
        "half_bins",
        "complement_key(midpoint_above(greatest) - 1u)",
        "complement_key(midpoint_above(greatest))",
    ),
    "middle-in-the-lesser-negative-bin": (
        "half_bins",
        "sign_bit | midpoint_above(least - 1u)",
        "sign_bit | (midpoint_above(least - 1u) + 1u)",
    ),
    "zero-below-zero": ("half_bins", "return sign_bit + 1u;", "return sign_bit - 1u;"),
    "neg-inf-behind-all": ("half_bins", "return neg_inf_bits + 1u;", "return neg_inf_bits;"),
    "nan-beside-inf": ("half_bins", "complement_key(0x7f800000u)", "1u"),
    # Chunks.
    "last-chunk-short": (
        "shared_histogram_storage",
        "block == blocks - 1 ? rest : share",
        "block == blocks ? rest : share",
    ),
    "chunks-overlap": (
        "shared_histogram_storage",
        "const int32_t start = block * share;",
        "const int32_t start = block * (share - 1);",
    ),
    "shared-a-column-late": (
        "shared_histogram_policy",
        "row_len < shared_from_columns(num_rows) ? 1",
        "row_len <= shared_from_columns(num_rows) ? 1",
    ),
    # Histogram.
    "counts-not-cleared": ("shared_count", "    histogram[bin] = 0;", "    histogram[bin] += 0;"),
    "last-block-counts-alone": (
        "shared_count",
        "atomicAdd(&row_histogram[bin], histogram[bin])",
        "row_histogram[bin] = histogram[bin]",
    ),
    "single-logits-not-added": (
        "shared_count",
        "if (histogram[bin] > 0)",
        "if (histogram[bin] > 1)",
    ),
    # Collect.
    "nan-less-than-all": ("shared_collect", "!(logit <= greatest)", "logit > greatest"),
    "greatest-of-the-bin-wins": ("shared_collect", "!(logit <= greatest)", "!(logit < greatest)"),
    "greatest-of-the-next-bin-ties": (
        "shared_collect",
        "if (logit <= next_greatest) return;",
        "if (logit < next_greatest) return;",
    ),
    "nan-wins-in-its-own-bin": (
        "shared_collect",
        "any_winner = cutoff.above > 0;",
        "any_winner = cutoff.above >= 0;",
    ),
    "a-bin-of-the-list-s-size-does-not-fit": (
        "shared_collect",
        "bin_size <= Policy.tie_capacity}",
        "bin_size < Policy.tie_capacity}",
    ),
    "a-bin-one-larger-fits": (
        "shared_collect",
        "bin_size <= Policy.tie_capacity}",
        "bin_size <= Policy.tie_capacity + 1}",
    ),
    "blocks-share-slots": (
        "shared_collect",
        "wave_uniform(lds.ticket) & 0xffff",
        "wave_uniform(lds.ticket) & 0",
    ),
    "blocks-share-places": ("shared_collect", "(wave_uniform(lds.ticket) >> 16)", "0"),
    "winners-relative-to-the-chunk": (
        "shared_collect",
        "write(first_slot + i, shared.chunk_start + dynamic_lds[i])",
        "write(first_slot + i, dynamic_lds[i])",
    ),
    "ties-relative-to-the-chunk": (
        "shared_collect",
        "shared.chunk_start + lds.staged_positions()[i]",
        "lds.staged_positions()[i]",
    ),
    "first-block-resolves": (
        "shared_collect",
        "wave_uniform(lds.ticket) == shared.blocks - 1",
        "wave_uniform(lds.ticket) == 0",
    ),
    # Ties.
    "worst-ties-first": ("shared_ties", "keys[other] < key ||", "keys[other] > key ||"),
    "equal-ties-share-a-slot": (
        "shared_ties",
        "|| (keys[other] == key && other < own)",
        "",
    ),
    "a-tie-too-many": ("shared_ties", "if (slot < k) write", "if (slot <= k) write"),
    "other-bins-tie": ("shared_ties", "if (key < range.width) visit", "visit"),
    "digits-short-of-a-bit": (
        "shared_ties",
        "(1u << (upper - shift)) - 1u}",
        "(1u << (upper - shift)) - 2u}",
    ),
    "a-digit-too-few": (
        "shared_ties",
        "while (!settled && upper > 0)",
        "while (!settled && upper > 12)",
    ),
    "never-stops-early": (
        "shared_ties",
        "settled = wave_uniform(lds.digits.bin_size) == cutoff.remaining_k;",
        "settled = false;",
    ),
    "stops-too-early": (
        "shared_ties",
        "settled = wave_uniform(lds.digits.bin_size) == cutoff.remaining_k;",
        "settled = wave_uniform(lds.digits.bin_size) <= cutoff.remaining_k + 1;",
    ),
    "tie-digits-not-cleared": (
        "shared_ties",
        "lds.digits.histogram[bin] = 0;",
        "lds.digits.histogram[bin] += 0;",
    ),
    "counts-whatever-the-prefix": (
        "shared_ties",
        "(key & cutoff.fixed) == cutoff.prefix",
        "(key & cutoff.fixed) >= 0u * cutoff.prefix",
    ),
    "ties-from-slot-0": (
        "shared_ties",
        "lds.digits.found = cutoff.above;",
        "lds.digits.found = 0;",
    ),
    "ties-unbounded": (
        "shared_ties",
        "if (tie >= cutoff.remaining_k) return;",
        "if (tie >= cutoff.k) return;",
    ),
    "last-tie-lost": (
        "shared_ties",
        "if (tie >= cutoff.remaining_k) return;",
        "if (tie >= cutoff.remaining_k - 1) return;",
    ),
    "places-taken-for-positions": (
        "shared_ties",
        "ties.positions == nullptr ? i : ties.positions[i]",
        "i",
    ),
    "more-ranked-than-threads-hold": (
        "shared_ties",
        "cutoff.bin_size <= Policy.rank_limit",
        "cutoff.bin_size <= Policy.tie_capacity",
    ),
    # Launch.
    "counters-not-cleared": (
        "shared_kernels",
        "params.counters[row * counter_words + thread] = 0;",
        "params.counters[row * counter_words + thread] += 0;",
    ),
    "row-histogram-not-cleared": (
        "shared_kernels",
        "params.histograms[row * num_half_bins + bin] = 0;",
        "params.histograms[row * num_half_bins + bin] += 0;",
    ),
    "a-row-of-k-is-compared": (
        "shared_kernels",
        "  if (row.length <= call.k) {",
        "  if (row.length < call.k) {",
    ),
    "a-column-past-the-end": ("shared_kernels", "i < row.length ? i", "i <= row.length ? i"),
    "row-searched-where-the-list-holds-it": (
        "shared_kernels",
        "const TieSource ties = cutoff.fits ?",
        "const TieSource ties = !cutoff.fits ?",
    ),
}

# Of the page transform, whether it is fused or a pass of its own.
SLOT_CHANGES = {
    "slot-for-no-column": ("page_table", "if (index < 0) return -1;", "if (index < 0) return 0;"),
    "absent-page-named": ("page_table", "page < 0 || slot", "slot"),
    "far-slot-wraps": ("page_table", "|| slot > greatest_slot", ""),
    "last-slot-refused": ("page_table", "slot > greatest_slot", "slot >= greatest_slot"),
    "slot-in-32-bits": (
        "page_table",
        "(static_cast<int64_t>(page) << params.page_bits)",
        "static_cast<int64_t>(page << params.page_bits)",
    ),
    "pages-twice-as-long": (
        "page_table",
        "index >> params.page_bits",
        "index >> (params.page_bits + 1)",
    ),
    "odd-columns-lost": ("page_table", "<< params.page_bits) - 1)", "<< params.page_bits) - 2)"),
    "table-of-another-sequence": (
        "page_table",
        "row / params.table_next_n",
        "row % params.table_next_n",
    ),
}
PAGING_CHANGES = {
    "last-slot-not-written": (
        "page_table",
        "i < params.call.k;",
        "i < params.call.k - 1;",
    ),
    "indices-of-row-0": (
        "page_table",
        "params.call.indices + static_cast<int64_t>(row) * params.call.indices_stride",
        "params.call.indices + static_cast<int64_t>(row - row) * params.call.indices_stride",
    ),
    "first-threads-alone": (
        "page_table",
        "i += page_transform_block_size",
        "i += 2 * page_transform_block_size",
    ),
}

DELEGATE_CHANGES = {
    "segments-at-the-floor-lost": (
        "delegate_lists",
        "kept.above(bar)",
        "kept.above(bar + 1u)",
    ),
    "groups-of-neg-inf-left-out": (
        "delegate_kernels",
        "if (bound.above + bound.inside < k) return lowest;",
        "",
    ),
    "nan-above-infinity-lost": (
        "delegate_kernels",
        "is_one_key && low != inf_key &&",
        "is_one_key &&",
    ),
    "nan-is-less": ("delegate_lists", "!(kept.logit(i) < passing)", "kept.logit(i) >= passing"),
    "least-key-of-a-negative-place": (
        "key_range",
        "~first_key(~place + 1) + 1u",
        "~first_key(~place + 1) + 2u",
    ),
    "last-of-equal-items": (
        "delegate_lists",
        "0u : ~0u - 1u - position(i);",
        "0u : 1u + position(i);",
    ),
    "last-rank-of-a-bin": ("narrow_range", "inclusive >= rank", "inclusive > rank"),
    "worst-ties-first": ("delegate_lists", "other_key > key ||", "other_key < key ||"),
    "last-of-equal-ties": (
        "delegate_lists",
        "lds.tie_positions[other] < position",
        "lds.tie_positions[other] > position",
    ),
    "equal-ones-beside-lost": (
        "delegate_lists",
        "kept.key(kept.count - 1) == cut",
        "kept.key(kept.count - 1) > cut",
    ),
    "delegates-of-row-0": (
        "delegate_kernels",
        "maxima = params.delegates + static_cast<int64_t>(row)",
        "maxima = params.delegates + static_cast<int64_t>(row - row)",
    ),
    "fused-waves-reduce-the-same": (
        "delegate_kernels",
        "maxima, room, static_cast<uint32_t>(wave), waves);",
        "maxima, room, static_cast<uint32_t>(wave / 2), waves);",
    ),
    "joined-groups-have-the-last-s-key": (
        "delegate_kernels",
        "joined = greatest[j] > joined ? greatest[j] : joined;",
        "joined = greatest[j];",
    ),
    "segments-at-the-cut-lost": (
        "delegate_lists",
        "lds.segments[above_before + wanted(equal_before)]",
        "lds.segments[above_before]",
    ),
}

BARRIER = "__syncthreads();"


def included(path):
    """Names of the headers that a file includes, directly or not."""
    found = set()
    for name in re.findall(r"#include <topk_lab/(\w+)\.hpp>", path.read_text()):
        header = toolchain.kernels_folder() / "include" / "topk_lab" / f"{name}.hpp"
        found |= {name} | included(header)
    return found


def barrier_mutants():
    """Every kernel barrier, taken away alone."""
    kernels = toolchain.kernels_folder()
    reached = {source: included(kernels / "src" / f"{source}.hip") for source in LINEAGES}
    for header in sorted((kernels / "include").rglob("*.hpp")):
        for number in range(header.read_text().count(BARRIER)):
            # Of the lineages that share a header, the first is enough.
            source = next((name for name in LINEAGES if header.stem in reached[name]), None)
            if source is not None:
                yield (
                    f"no-barrier-{number}-in-{header.stem}",
                    Mutant(source, header.stem, BARRIER, "", number),
                )


BARRIER_MUTANTS = dict(barrier_mutants())
MUTANTS = {
    **mutants_of("vllm", VLLM_CHANGES | UNCROWDED_CHANGES),
    **mutants_of("vllm_remedies", REMEDY_CHANGES),
    **mutants_of("sglang", SGLANG_CHANGES | SLOT_CHANGES),
    **mutants_of("aiter", AITER_CHANGES),
    **mutants_of("shared_histogram", SHARED_CHANGES),
    **mutants_of("delegate", DELEGATE_CHANGES),
    **mutants_of("paging", PAGING_CHANGES | SLOT_CHANGES),
    **BARRIER_MUTANTS,
}


def test_every_barrier_has_its_mutant():
    kernels = toolchain.kernels_folder()
    texts = [path.read_text() for path in kernels.rglob("*.h*p*")]
    barriers = sum(len(re.findall(r"\b__syncthreads\b", text)) for text in texts)
    assert len(BARRIER_MUTANTS) == len(list(barrier_mutants())) == barriers


@functools.cache
def compiler(name):
    return toolchain.usable(name)


def broken_code(folder, mutant):
    """Compile a source with one change; returns the folders of sources and objects."""
    kernels, code = folder / "kernels", folder / "code"
    shutil.copytree(toolchain.kernels_folder(), kernels)
    path = kernels / "include" / "topk_lab" / f"{mutant.header}.hpp"
    parts = path.read_text().split(mutant.old)
    assert len(parts) > mutant.occurrence + 1
    assert len(parts) == 2 or mutant.old == BARRIER
    before, after = parts[: mutant.occurrence + 1], parts[mutant.occurrence + 1 :]
    path.write_text(mutant.old.join(before) + mutant.new + mutant.old.join(after))
    built = code_objects.find(mutant.source, TARGET)
    chosen = compiler(built.toolchain)
    include = [kernels / "include"]
    if chosen.name != "hipcc":
        include.append(kernels / "shim")
    broken = code / built.path.name
    source = kernels / "src" / f"{mutant.source}.hip"
    unused = LINEAGES[mutant.source].unused
    if unused:
        lines = source.read_text().splitlines(keepends=True)
        source.write_text("".join(line for line in lines if not re.match(unused, line)))
    assembly = toolchain.compile_object(chosen, source, TARGET, broken, include)
    resources = {mutant.source: toolchain.kernel_resources(assembly)}
    for name in LINEAGES[mutant.source].behind:
        whole = code_objects.find(name, TARGET)
        shutil.copy(whole.path, code)
        resources[name] = whole.kernels
    entries = [
        {
            "object": f"{name}.{TARGET}.hsaco",
            "source": f"src/{name}.hip",
            "target": TARGET,
            "sha256": hashlib.sha256((code / f"{name}.{TARGET}.hsaco").read_bytes()).hexdigest(),
            "source_hash": toolchain.source_hash(kernels),
            "toolchain": chosen.name,
            "compiler": chosen.version,
            "kernels": figures,
        }
        for name, figures in resources.items()
    ]
    manifest = {"schema": 1, "files": toolchain.file_hashes(kernels), "objects": entries}
    (code / "manifest.json").write_text(json.dumps(manifest))
    return kernels, code


@pytest.fixture
def broken(request, tmp_path, monkeypatch):
    """The named mutant, whose code is what runs."""
    mutant = MUTANTS[request.param]
    kernels, code = broken_code(tmp_path, mutant)
    monkeypatch.setattr(toolchain, "kernels_folder", lambda: kernels)
    monkeypatch.setenv("TOPK_LAB_CODE", str(code))
    code_objects.kernel_source.cache_clear()
    yield mutant
    code_objects.kernel_source.cache_clear()


def faults(mutant, seeds):
    """What is found wrong with a mutant, one check after another."""
    for seed in seeds:
        for check in LINEAGES[mutant.source].checks(seed):
            finding = verify.run(check)
            if finding.status != "ok":
                yield finding.reason


@pytest.mark.parametrize(
    "broken", [name for name in MUTANTS if name not in BARRIER_MUTANTS], indirect=True
)
def test_a_broken_kernel_is_caught(broken):
    assert next(faults(broken, SEEDS), None), "it went unnoticed"


@pytest.mark.parametrize("broken", list(BARRIER_MUTANTS), indirect=True)
def test_every_barrier_is_needed(broken):
    # Races are watched in runs with a seed. Who comes too early may find nothing written yet.
    signs = ("lds data race", "read of unwritten lds")
    found = faults(broken, SEEDS[1:])
    assert any(sign in reason for reason in found for sign in signs)
