"""Does the committed sheet say what the compiled kernels ask for, and would a change be named?"""

import pytest

from tests.conftest import require
from topk_lab import isa_sheet, results
from topk_lab.emulator.disassembly import Instruction


@pytest.fixture(scope="module")
def made():
    for target in isa_sheet.COHERENT:
        require(target)
    return isa_sheet.make()


def test_the_sheet_is_that_of_the_compiled_kernels(made):
    found = isa_sheet.differences(isa_sheet.load(), made)
    told = "\n".join(found[:20])
    assert not found, f"{len(found)} differences; {isa_sheet.COMMAND} writes it anew:\n{told}"


def test_every_instruction_is_of_a_kind_and_every_kernel_runs_somewhere(made):
    frame, _ = made
    counted = frame[[*isa_sheet.KINDS, "other"]].sum(axis=1)
    assert (counted == frame["instructions"]).all()
    assert frame["other"].sum() == 0
    assert frame["scratch"].sum() == 0
    assert (frame["blocks_per_cu"] >= 1).all()
    assert set(frame.loc[frame["dynamic_lds"] > 0, "source"]) >= {"sglang", "vllm", "delegate"}


def test_the_page_is_that_of_the_sheet():
    frame, compiler = isa_sheet.load()
    text = isa_sheet.page(frame, compiler)
    folder = results.data_root() / "isa"
    assert (folder / "ISA.md").read_text() == text
    assert compiler in text
    for target in isa_sheet.COHERENT:
        assert f"## {target}: " in text
    assert "| delegate_k512_select |" in text
    assert "_traced" not in text


@pytest.fixture
def sheets():
    frame, compiler = isa_sheet.load()
    return frame, frame.copy(), compiler


def test_a_change_by_the_same_compiler_is_named(sheets):
    before, after, compiler = sheets
    after.loc[0, "valu"] += 1
    key = ".".join(before.loc[0, ["target", "source", "kernel"]])
    old = before.loc[0, "valu"]
    (found,) = isa_sheet.differences((before, compiler), (after, compiler))
    assert found == f"{key}: valu is {old + 1}, the sheet has {old}"


def test_another_compiler_may_differ_a_little(sheets):
    before, after, compiler = sheets
    after["valu"] += 7
    after["vgpr"] += 8
    assert isa_sheet.differences((before, compiler), (after, "another")) == []
    after.loc[3, "length_loads"] -= 1
    after.loc[4, "scratch"] += 64
    found = isa_sheet.differences((before, compiler), (after, "another"))
    assert len(found) == 2
    assert "length_loads is" in found[0]
    assert "scratch is 64, the sheet has 0" in found[1]


def test_kernels_that_come_and_go_are_named(sheets):
    before, after, compiler = sheets
    found = isa_sheet.differences((before, compiler), (after.drop(index=0), compiler))
    assert found == [f"{'.'.join(before.loc[0, ['target', 'source', 'kernel']])} is not compiled"]
    found = isa_sheet.differences((before.drop(index=0), compiler), (after, compiler))
    assert found == [
        f"{'.'.join(before.loc[0, ['target', 'source', 'kernel']])} is not in the sheet"
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("v_add_u32_e32 v0, v1, v2", "valu"),
        ("s_load_dwordx2 s[0:1], s[2:3], 0x0", "smem"),
        ("s_waitcnt vmcnt(0)", "wait"),
        ("s_barrier", "barrier"),
        ("s_cbranch_scc0 3", "branch"),
        ("s_add_u32 s0, s1, s2", "salu"),
        ("global_load_dword v0, v1, s[0:1] sc1", "global_load"),
        ("global_atomic_add v0, v1, s[0:1]", "global_atomic"),
        ("buffer_wbl2 sc1", "cache"),
        ("ds_add_u32 v0, v1", "lds_instructions"),
        ("scratch_load_dword v0, off, s0", "other"),
    ],
)
def test_kinds_are_told_by_the_mnemonic(text, kind):
    counted = isa_sheet.kinds([Instruction(0, 0, text)])
    assert {name for name, count in counted.items() if count} == {kind}


def test_a_length_load_carries_the_word_of_its_target():
    listing = [
        Instruction(0, 0, "global_load_dword v1, v0, s[0:1] sc1"),
        Instruction(8, 0, "global_load_dword v1, v0, s[0:1] glc"),
        Instruction(16, 0, "global_load_dwordx4 v[0:3], v4, s[0:1] sc1"),
        Instruction(24, 0, "s_load_dword s0, s[2:3], 0x0"),
    ]
    assert isa_sheet.length_loads(listing, "gfx950") == 1
    assert isa_sheet.length_loads(listing, "gfx90a") == 1
