"""Are the LDS atomics of a listing told apart by whether lanes share them?"""

import pytest

from topk_lab import lds_atomics
from topk_lab.lds_atomics import count_listing

AMD = (
    "ds_add_u32 v6, v20",
    "v_mbcnt_lo_u32_b32 v30, s60, 0",
    "v_mbcnt_hi_u32_b32 v30, s61, v30",
    "v_cmp_eq_u32_e32 vcc, 0, v30",
    "s_and_saveexec_b64 s[52:53], vcc",
    "ds_add_rtn_u32 v31, v17, v31 offset:9296",
    "ds_write_b32 v30, v6",
)
CUDA = (
    "@!P1 BRA 0x28d0",
    "ATOMS.POPC.INC.32 RZ, [R6+UR11]",
    "VOTEU.ANY UR6, UPT, PT",
    "POPC R27, UR6",
    "@P5 ATOMS.ADD R28, [UR11+0x2890], R27",
    "@P0 ATOMS.ADD RZ, [UR11+0x1f80], R3",
    "STS [R27], R26",
)


def test_amd_atomics_are_counted_by_what_they_return():
    found = count_listing(AMD)
    assert found.mnemonics == {"ds_add_rtn_u32": 1, "ds_add_u32": 1}
    assert (found.increments, found.summing_increments) == (1, 0)
    assert (found.returning, found.shared_returning) == (1, 1)
    alone = count_listing([text for text in AMD if "mbcnt" not in text])
    assert (alone.returning, alone.shared_returning) == (1, 0)


def test_cuda_atomics_are_counted_by_what_they_return():
    found = count_listing(CUDA)
    assert found.mnemonics == {"ATOMS.ADD": 2, "ATOMS.POPC.INC.32": 1}
    assert (found.increments, found.summing_increments) == (2, 1)
    assert (found.returning, found.shared_returning) == (1, 1)
    alone = count_listing([text for text in CUDA if "POPC R" not in text])
    assert (alone.returning, alone.shared_returning) == (1, 0)


def test_lanes_that_were_counted_for_another_atomic_share_nothing():
    twice = [*AMD[1:6], AMD[5]]
    found = count_listing(twice)
    assert (found.returning, found.shared_returning) == (2, 1)


def test_lanes_counted_long_before_share_nothing():
    far = [*AMD[1:3], *["s_nop 0"] * lds_atomics.WINDOW, AMD[5]]
    assert count_listing(far).shared_returning == 0


def test_a_disassembly_of_the_toolkit_is_read(tmp_path, monkeypatch):
    tool = tmp_path / "cuobjdump"
    listing = "\n".join(
        f"        /*{16 * n:04x}*/  {text} ;  /* 0x0 */" for n, text in enumerate(CUDA)
    )
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n\tFunction : $5\n{listing}\n  /* 0x0 */\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setenv("TOPK_LAB_CUOBJDUMP", str(tool))

    class Found:
        path = tmp_path / "vllm.cuda.fatbin"

        def read(self):
            return b""

    monkeypatch.setattr(lds_atomics.code_objects, "kernel_source", lambda kernel: "vllm")
    monkeypatch.setattr(lds_atomics.code_objects, "find", lambda source, target: Found())
    assert lds_atomics.lds_atomics("vllm_k512_select", "cuda") == count_listing(CUDA)


def test_what_is_no_listing_or_target_is_refused():
    with pytest.raises(TypeError, match="listing must be a sequence of instructions, got one str"):
        count_listing("ds_add_u32 v6, v20")
    with pytest.raises(ValueError, match="target must be one of gfx90a, gfx942, gfx950, cuda, got"):
        lds_atomics.lds_atomics("vllm_k512_select", "numba")


def test_without_the_toolkit_cuda_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("TOPK_LAB_CUOBJDUMP", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(lds_atomics.code_objects, "kernel_source", lambda kernel: "vllm")
    monkeypatch.setattr(lds_atomics.code_objects, "find", lambda source, target: None)
    with pytest.raises(FileNotFoundError, match="cuobjdump must be on PATH or in TOPK_LAB_CUOBJDU"):
        lds_atomics.lds_atomics("vllm_k512_select", "cuda")
