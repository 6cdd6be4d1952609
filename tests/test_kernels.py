"""Does the compiled code hold the policies that the host assumes, and would a fault be noticed?"""

import ctypes
import dataclasses
import hashlib
import json
import shutil
import struct

import numpy as np
import pytest

from topk_lab import code_objects, schedules, targets, toolchain, verify
from topk_lab.emulator import CodeObject, Emulator, MemoryRegion
from topk_lab.schedules import ABLATIONS, FINAL_ORDERS, FINAL_PADS, POLICIES

KIBI = 1024
SCHEDULES = ("vllm_generic", "vllm_k512")
PROBED = {
    "vllm": [POLICIES["vllm_generic"], POLICIES["vllm_k512"]],
    "vllm_ablations": [
        dataclasses.replace(POLICIES["vllm_k512"], **fields)
        for fields in ABLATIONS["vllm_k512"].values()
    ],
}


class ProbeParams(ctypes.Structure):
    _fields_ = (
        ("queries", ctypes.c_uint64),
        ("splits", ctypes.c_uint64),
        ("fields", ctypes.c_uint64),
        ("num_queries", ctypes.c_int32),
        ("num_policies", ctypes.c_int32),
    )


def probe(source, target, queries, num_policies):
    """Ask a code object for its splits and its policies."""
    emulator = Emulator(CodeObject.load(code_objects.find(source, target).read()))
    splits = np.full((len(queries), 2), -777, np.int32)
    fields = np.full((num_policies, 9), -777, np.int32)
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
    rows = both_sides(0, 32, 128, 160, 256, 384)
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
    assert set(splits[:, 1].tolist()) == {1, 2, 3, 4, 8, 10, 16}


@pytest.mark.parametrize("source", list(PROBED))
def test_host_and_device_agree_on_every_policy(amd_target, source):
    policies = PROBED[source]
    _, fields = probe(source, amd_target, bound_queries()[:1], len(policies))
    expected = [
        (
            policy.block_size,
            policy.merge_block_size,
            policy.final_capacity,
            policy.max_k,
            policy.count_neg_inf,
            policy.fits_rule,
            FINAL_PADS.index(policy.final_pad),
            FINAL_ORDERS.index(policy.final_order),
            int(source == "vllm_ablations" or policy is POLICIES["vllm_k512"]),
        )
        for policy in policies
    ]
    np.testing.assert_array_equal(fields, expected)


@pytest.mark.parametrize("target", targets.AMD_TARGETS)
@pytest.mark.parametrize("source", list(PROBED))
def test_objects_are_what_a_rocm_loader_expects(source, target):
    image = code_objects.find(source, target).read()
    machine, abi_version = struct.unpack_from("<H", image, 18)[0], image[8]
    flags = struct.unpack_from("<I", image, 48)[0]
    assert (machine, image[7]) == (0xE0, 0x40)  # EM_AMDGPU, ELFOSABI_AMDGPU_HSA
    assert abi_version == 4  # code object version 6
    assert flags & 0xFF == {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx950": 0x4F}[target]
    # Any xnack, any sramecc: one object loads whatever the node has set.
    assert (flags & 0x300, flags & 0xC00) == (0x100, 0x400)


def test_ablations_that_stay_sound_stay_exact(amd_target):
    for fields in ABLATIONS["vllm_k512"].values():
        policy = dataclasses.replace(POLICIES["vllm_k512"], **fields)
        if policy.sound:
            variant = str(schedules.Variant("vllm_k512", policy))
            for check in verify.checks("workloads", variant, amd_target):
                finding = verify.run(check)
                assert finding.status == "ok", verify.line(check, finding)


MUTANTS = {
    "one-bin-too-many": (
        "include/topk_lab/emission.hpp",
        "if (bin < threshold_bin) {",
        "if (bin <= threshold_bin) {",
    ),
    "pads-before-logits": (
        "include/topk_lab/order_key.hpp",
        "inline constexpr uint32_t pad_bits = 0xffffffffu;",
        "inline constexpr uint32_t pad_bits = 0x7f800000u;",
    ),
    "worst-items-first": (
        "include/topk_lab/final_items.hpp",
        "slot += other_key < key",
        "slot += other_key > key",
    ),
    "row-0-only": (
        "include/topk_lab/row_kernels.hpp",
        "params.logits + static_cast<int64_t>(row) * params.row_stride",
        "params.logits + static_cast<int64_t>(row - row) * params.row_stride",
    ),
    "a-column-past-the-end": (
        "include/topk_lab/row_kernels.hpp",
        "split == active - 1 ? bounds.length - first : share}",
        "split == active - 1 ? bounds.length - first + 1 : share}",
    ),
    "tail-lost": (
        "include/topk_lab/row_slice.hpp",
        "const int32_t rest = head + (slice.length - tail);",
        "const int32_t rest = head + 0 * tail;",
    ),
    "ballot-of-32-lanes": (
        "include/topk_lab/platform.hpp",
        "__popcll(mask & ((1ull << lane_index()) - 1ull))",
        "__popcll(static_cast<uint32_t>(mask) & ((1ull << lane_index()) - 1ull))",
    ),
    "ties-unbounded": (
        "include/topk_lab/emission.hpp",
        "if (slot < k) select_into(selected, slot, bits, position);",
        "if (slot <= k + 4096) select_into(selected, slot, bits, position);",
    ),
}

BARRIER = "__syncthreads();\n"


def barrier_mutants():
    """Every kernel barrier, taken away alone."""
    headers = sorted((toolchain.kernels_folder() / "include").rglob("*.hpp"))
    for header in headers:
        for number in range(header.read_text().count(BARRIER)):
            yield (
                f"no-barrier-{number}-in-{header.stem}",
                (f"include/topk_lab/{header.name}", BARRIER, "\n", number),
            )


MUTANTS |= dict(barrier_mutants())


def compiled_mutant(folder, header, old, new, occurrence=0):
    """Compile the kernels with one change; returns the folders of sources and objects."""
    kernels = folder / "kernels"
    shutil.copytree(toolchain.kernels_folder(), kernels)
    path = kernels / header
    text = path.read_text()
    parts = text.split(old)
    assert len(parts) > occurrence + 1
    changed = old.join(parts[: occurrence + 1]) + new + old.join(parts[occurrence + 1 :])
    path.write_text(changed)
    code = folder / "code"
    built = code_objects.find("vllm", "gfx950")
    chosen = toolchain.usable(built.toolchain)
    include = [kernels / "include"]
    if chosen.name != "hipcc":
        include.append(kernels / "shim")
    assembly = toolchain.compile_object(
        chosen, kernels / "src" / "vllm.hip", "gfx950", code / "vllm.gfx950.hsaco", include
    )
    image = (code / "vllm.gfx950.hsaco").read_bytes()
    entry = {
        "object": "vllm.gfx950.hsaco",
        "source": "src/vllm.hip",
        "target": "gfx950",
        "sha256": hashlib.sha256(image).hexdigest(),
        "source_hash": toolchain.source_hash(kernels),
        "toolchain": chosen.name,
        "compiler": chosen.version,
        "kernels": toolchain.kernel_resources(assembly),
    }
    manifest = {"schema": 1, "files": toolchain.file_hashes(kernels), "objects": [entry]}
    (code / "manifest.json").write_text(json.dumps(manifest))
    return kernels, code


@pytest.mark.parametrize("mutant", list(MUTANTS))
def test_a_broken_kernel_is_caught(mutant, tmp_path, monkeypatch):
    kernels, code = compiled_mutant(tmp_path, *MUTANTS[mutant])
    monkeypatch.setattr(toolchain, "kernels_folder", lambda: kernels)
    monkeypatch.setenv("TOPK_LAB_CODE", str(code))
    code_objects.kernel_source.cache_clear()
    findings = [
        verify.run(check)
        for variant in ("vllm_k512", "vllm_generic")
        for seed in (None, 3)
        for check in verify.checks("workloads", variant, "gfx950", seed)
        if check.workload in ("normal", "masked_blocks", "few_values")
    ]
    code_objects.kernel_source.cache_clear()
    reasons = [finding.reason for finding in findings if finding.status != "ok"]
    assert reasons, f"{mutant} went unnoticed"
    if mutant.startswith("no-barrier"):
        assert any("lds data race" in reason for reason in reasons), reasons
