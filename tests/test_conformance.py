"""Do the kernels answer the same when they are compiled with ROCm's own headers?

Needs the headers that the wheel of triton carries: an installed one, or a download.
"""

import os

import numpy as np
import pytest

from tests.conftest import require
from topk_lab import code_objects, conformance, targets, toolchain, workloads
from topk_lab.contract import find_violations
from topk_lab.targets import AMD_TARGETS

CALLS = {
    ("vllm", "gfx942"): ("vllm_k512", 512, 40_000),
    ("sglang", "gfx950"): ("sglang_block1024", 1024, 6000),
    ("aiter", "gfx950"): ("aiter_one_block", 2048, 10_000),
}


def build(folder):
    try:
        conformance.build(folder)
    except conformance.ClangNotFound as error:
        pytest.skip(str(error))  # the build's compiler may be another one
    except conformance.HeadersNotFound as error:
        required = set(os.environ.get("TOPK_LAB_REQUIRE", "").split(",")) & set(AMD_TARGETS)
        (pytest.fail if required else pytest.skip)(str(error))


# One test, so that one worker compiles.
def test_kernels_say_the_same_with_the_real_headers(tmp_path, monkeypatch):
    for target in AMD_TARGETS:
        require(target)
    shipped = {built: code_objects.find(*built) for built in conformance.COMPILED}
    build(tmp_path)
    monkeypatch.setenv("TOPK_LAB_CODE", str(tmp_path))
    code_objects.kernel_source.cache_clear()
    try:
        for built in conformance.COMPILED:
            compare(built, shipped[built])
    finally:
        code_objects.kernel_source.cache_clear()


def compare(built, shipped):
    """Resources of a source built with the real headers, and answers of its kernels."""
    found = code_objects.find(*built)
    assert "headers of HIP 7.1" in found.compiler
    assert found.sha256 != shipped.sha256
    assert conformance.differences(shipped.kernels, found.kernels) == []
    variant, k, num_cols = CALLS[built]
    row_ends = np.array([num_cols, num_cols - 1, k + 1, k, 7, 0], np.int32)
    for workload in ("normal", "masked_random", "near_equal", "nan"):
        logits = workloads.make(workload, 6, num_cols, row_ends=row_ends, poison="nan")
        outcome = targets.run(built[1], variant, logits, k, row_ends=row_ends, values=True)
        violations = find_violations(
            logits, outcome.indices, row_ends=row_ends, values=outcome.values
        )
        assert violations == [], workload
        assert outcome.code == found.sha256


def test_a_kernel_that_differs_is_named():
    before = {"select": dict.fromkeys(conformance.NEAR, 100)}
    assert conformance.differences(before, before) == []
    near = {"select": before["select"] | {"vgpr": 115}}
    assert conformance.differences(before, near) == []
    far = {"select": before["select"] | {"vgpr": 116, "scratch": 101}, "merge": {}}
    assert conformance.differences(before, far) == [
        "merge is in one build only",
        "select: vgpr is 116, 100 with the shim",
        "select: scratch is 101, 100 with the shim",
    ]


def test_a_machine_without_clang_is_told(monkeypatch, tmp_path):
    def missing(name):
        raise toolchain.ToolchainError(f"none of {name} was found")

    monkeypatch.setattr(toolchain, "usable", missing)
    with pytest.raises(conformance.ClangNotFound, match="can't be used: none of clang was found"):
        conformance.build(tmp_path)


def test_headers_that_can_not_be_had_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(conformance.native, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(conformance.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(conformance, "PACKAGE", "triton==0.0.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(conformance.HeadersNotFound, match=r"pip download triton==0\.0\.0 failed"):
        conformance.headers()
