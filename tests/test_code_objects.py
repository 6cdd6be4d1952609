import dataclasses
import json
import shutil

import pytest
from click.testing import CliRunner

from topk_lab import code_objects, plans, registry, toolchain
from topk_lab.cli import main
from topk_lab.models import resident_blocks
from topk_lab.schedules import (
    ABLATIONS,
    DELEGATE_POLICIES,
    FUSED_GLOBAL,
    POLICIES,
    DelegateChoice,
    OneBlockPolicy,
    SharedHistogramPolicy,
    StashPolicy,
    Variant,
)
from topk_lab.targets import AMD_TARGETS

SOURCES = (
    *("vllm", "vllm_ablations", "vllm_remedies", "vllm_splits"),
    *("sglang", "sglang_ablations", "aiter", "shared_histogram", "delegate", "paging"),
)
# Departures in which this package's own fields differ stand in a source of their own.
REMEDIES = ("equal_shortcut", "increments")
LDS_BYTES = 64 * 1024  # of a compute unit of gfx90a and gfx942


def variants(name):
    """A variant and its ablations: what their kernels' names begin with -> the variant."""
    yield name, Variant(name, POLICIES[name])
    for suffix, fields in ABLATIONS[name].items():
        policy = dataclasses.replace(POLICIES[name], **fields)
        yield f"{name}_{suffix}", Variant(name, policy)


def bounds_of(prefix, policy):
    """Threads of each kernel of a policy, and the most dynamic LDS that it is launched with."""
    if isinstance(policy, StashPolicy):
        return {f"{prefix}_select": (policy.block_size, policy.stash_kib * 1024)}
    if isinstance(policy, OneBlockPolicy):
        names = (f"{prefix}_select", f"{prefix}_stable_select")
        return dict.fromkeys(names, (policy.block_size, 0))
    if isinstance(policy, SharedHistogramPolicy):
        return {
            f"{prefix}_clear": (policy.block_size, 0),
            f"{prefix}_count": (policy.block_size, 0),
            f"{prefix}_select": (policy.block_size, 4 * policy.max_k),
        }
    if isinstance(policy, DelegateChoice):
        segments = {member.segment for member in DELEGATE_POLICIES.values()}
        return {
            **{f"{prefix}_reduce_{segment}": (plans.REDUCE_BLOCK_SIZE, 0) for segment in segments},
            **{
                f"{prefix}_{name}_select": (member.block_size, 0)
                for name, member in DELEGATE_POLICIES.items()
            },
            **{
                f"{prefix}_{name}_fused": (member.block_size, 4 * member.fused_delegates)
                for name, member in DELEGATE_POLICIES.items()
                if member.fused_delegates
            },
            **{
                f"{prefix}_{name}_fused_global": (DELEGATE_POLICIES[name].block_size, 0)
                for name in FUSED_GLOBAL
            },
            f"{prefix}_order": (plans.ORDER_BLOCK_SIZE, 8 * policy.max_k),
        }
    dynamic = 8 * policy.max_k  # a position and a logit for each of the k
    return {
        f"{prefix}_select": (policy.block_size, dynamic),
        f"{prefix}_merge": (policy.merge_block_size, dynamic),
    }


def source_of(variant):
    if isinstance(variant.policy, OneBlockPolicy):
        return "aiter"
    if isinstance(variant.policy, SharedHistogramPolicy):
        return "shared_histogram"
    if isinstance(variant.policy, DelegateChoice):
        return "delegate"
    suffix = "_remedies" if set(variant.changes) & set(REMEDIES) else "_ablations"
    suffix = "_splits" if "splits" in variant.changes else suffix
    return variant.name.partition("_")[0] + (suffix if variant.ablation else "")


def planned_bounds():
    """Source -> kernel -> (threads, dynamic LDS), traced kernels left out."""
    found = {source: {} for source in SOURCES}
    for name in POLICIES:
        for prefix, variant in variants(name):
            # The delegate selection's kernels are all those of one choice or another.
            prefix = name if name == "delegate" else prefix
            found[source_of(variant)] |= bounds_of(prefix, variant.policy)
    generic = bounds_of("vllm_generic_rank_count", POLICIES["vllm_generic"])
    found["vllm"]["vllm_generic_rank_count_select"] = generic["vllm_generic_rank_count_select"]
    found["paging"]["page_transform"] = (plans.PAGE_TRANSFORM_BLOCK_SIZE, 0)
    return found


BOUNDS = planned_bounds()
# They have no step to record.
UNTRACED = (
    *("page_transform", "shared_histogram_clear", "delegate_order"),
    *(name for name in BOUNDS["delegate"] if "_reduce_" in name),
)


@pytest.fixture
def copied_code(tmp_path, monkeypatch):
    """The compiled objects in a folder of their own, which TOPK_LAB_CODE names."""
    folder = tmp_path / "code"
    folder.mkdir()
    for found in code_objects.manifest():
        shutil.copy(found.path, folder)
    shutil.copy(found.path.parent / "manifest.json", folder)
    monkeypatch.setenv("TOPK_LAB_CODE", str(folder))
    return folder


def edit_manifest(folder, edit):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("target", AMD_TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_is_compiled_for_every_target(source, target):
    found = code_objects.find(source, target)
    assert found.read()[:4] == b"\x7fELF"
    assert found.toolchain in toolchain.TOOLCHAINS
    assert found.compiler


@pytest.mark.parametrize("target", AMD_TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_objects_hold_the_planned_kernels_each_with_its_traced_twin(source, target):
    kernels = code_objects.find(source, target).kernels.keys()
    traced = {f"{name}_traced" for name in BOUNDS[source] if name not in UNTRACED}
    probe = set() if source == "paging" else {"policy_probe"}
    assert kernels == {*BOUNDS[source], *traced, *probe}


@pytest.mark.parametrize("target", AMD_TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_kernels_keep_their_launch_bounds_and_never_spill(source, target):
    for name, resources in code_objects.find(source, target).kernels.items():
        threads, dynamic = BOUNDS[source].get(name.removesuffix("_traced"), (256, 0))
        assert resources["max_flat_workgroup_size"] == threads, name
        assert resources["scratch"] == 0, name
        assert resources["agpr"] == 0, name
        # Two blocks a compute unit: 64 VGPRs at 1024 threads. Those that keep a row's logits in
        # registers fit once.
        once = source == "delegate" and ("_select" in name or "_fused" in name)
        assert resources["vgpr"] <= (512 // (threads // 256) if once else 64), name
        assert resources["lds"] + dynamic <= LDS_BYTES, name


@pytest.mark.parametrize("target", AMD_TARGETS)
def test_k512_fits_twice_on_a_compute_unit(target):
    resources = code_objects.find("vllm", target).kernels["vllm_k512_select"]
    assert resources["waves_per_simd"] == 8
    assert 2 * (resources["lds"] + 8 * 512) <= LDS_BYTES


@pytest.mark.parametrize(
    ("name", "target", "blocks", "limit"),
    [
        pytest.param("sglang_block512", "gfx950", 3, "lds", id="three-of-512-threads"),
        pytest.param("sglang_block1024", "gfx950", 2, "threads", id="two-of-1024-threads"),
        pytest.param("sglang_block512", "gfx942", 1, "lds", id="one-of-512-threads-in-64-KiB"),
        pytest.param("sglang_block1024", "gfx942", 1, "lds", id="one-of-1024-threads-in-64-KiB"),
        pytest.param("sglang_block512", "gfx90a", 1, "lds", id="one-of-512-threads-before-that"),
        pytest.param("sglang_block1024", "gfx90a", 1, "lds", id="one-of-1024-threads-before-that"),
    ],
)
def test_stashes_that_fit_on_a_compute_unit(name, target, blocks, limit):
    resources = code_objects.find("sglang", target).kernels[f"{name}_select"]
    policy = POLICIES[name]
    held = resident_blocks(resources, policy.block_size, policy.stash_kib * 1024, target)
    assert (held.blocks_per_unit, held.limit) == (blocks, limit)


@pytest.mark.parametrize("target", AMD_TARGETS)
def test_one_block_a_row_fits_twice_on_a_compute_unit(target):
    kernels = code_objects.find("aiter", target).kernels
    for prefix, variant in variants("aiter_one_block"):
        for name in bounds_of(prefix, variant.policy):
            assert kernels[name]["lds"] <= LDS_BYTES // 2
            held = resident_blocks(kernels[name], variant.policy.block_size, 0, target)
            assert (held.blocks_per_unit, held.limit) == (2, "threads")


@pytest.mark.parametrize("target", AMD_TARGETS)
@pytest.mark.parametrize(("k", "blocks", "limit"), [(2048, 2, "threads"), (4096, 1, "lds")])
def test_blocks_that_share_a_row_fit_twice_with_a_k_of_2048(target, k, blocks, limit):
    resources = code_objects.find("shared_histogram", target).kernels["shared_histogram_select"]
    if target == "gfx950":  # of 160 KiB
        blocks, limit = 2, "threads"
    held = resident_blocks(resources, POLICIES["shared_histogram"].block_size, 4 * k, target)
    assert (held.blocks_per_unit, held.limit) == (blocks, limit)


PAGING = plans.Paging(table_stride=4097, slots_stride=512, bits=6)
# What is asked for -> fields of a shape.
ASKED = {
    "indices": {"indices_stride": 512, "values_stride": 512},
    "indices-and-slots": {"indices_stride": 512, "values_stride": 512, "paging": PAGING},
    "slots-alone": {"indices_stride": None, "paging": PAGING},
    "rising-indices": {"indices_stride": 512, "order": "index"},
    "lowest-of-equal-ones": {"indices_stride": 512, "tie_break": "lowest"},
    "rising-slots": {"indices_stride": None, "paging": PAGING, "order": "index"},
}


@pytest.mark.parametrize("num_cols", [12_287, 12_288, 262_145])
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (name, asked)
        for name in POLICIES
        for asked in ASKED
        if ASKED[asked].get("order", "any") in registry.VARIANTS[name].orders
        and ASKED[asked].get("tie_break", "any") in registry.VARIANTS[name].tie_breaks
    ],
)
def test_every_planned_kernel_is_in_an_object(name, asked, num_cols):
    shape = plans.Shape(2, num_cols, 512, num_cols, **ASKED[asked])
    lineage = name.partition("_")[0]
    for prefix, variant in variants(name):
        for traced in (False, True):
            launches = plans.plan(str(variant), shape, study=True, traced=traced).launches
            sources = [code_objects.kernel_source(launch.kernel) for launch in launches]
            selection = source_of(variant)
            behind = ["paging"] if lineage == "vllm" and shape.paging else []
            # The vLLM lineage merges splits, and transforms pages in a launch of its own.
            merges = int(variant.name != "vllm_generic" or num_cols >= 200_000)
            merges *= int(lineage == "vllm" and (num_cols > 16_384))
            merges |= int(variant.ablation == "fixed_splits")
            more = 2 if selection == "shared_histogram" else merges
            if selection == "delegate":
                (part,) = plans.delegate_parts(variant, 2, num_cols, 512)
                more = int(num_cols > part.policy.whole_columns and part.form == "two")
                more += int(shape.order != "any")
            assert sources == [selection] * (1 + more) + behind, prefix
            for launch in launches:
                kernel = launch.kernel.removesuffix("_traced")
                threads, dynamic = BOUNDS[code_objects.kernel_source(launch.kernel)][kernel]
                assert launch.block == threads
                assert launch.dynamic_lds <= dynamic
                assert launch.kernel.endswith("_traced") == (traced and kernel not in UNTRACED)


def test_a_missing_folder_is_refused_by_its_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("TOPK_LAB_CODE", str(tmp_path))
    with pytest.raises(code_objects.CodeObjectError, match=r"TOPK_LAB_CODE must name a folder"):
        code_objects.manifest()


def test_a_stale_object_is_refused_and_the_edited_file_named(copied_code):
    def edit(content):
        content["files"]["include/topk_lab/emission.hpp"] = "0" * 16
        for entry in content["objects"]:
            entry["source_hash"] = "0" * 16

    edit_manifest(copied_code, edit)
    with pytest.raises(
        code_objects.CodeObjectError,
        match=r"vllm.gfx950.hsaco is stale: kernels/include/topk_lab/emission.hpp changed "
        r"since it was compiled; run `make build`",
    ):
        code_objects.find("vllm", "gfx950")


def test_a_swapped_object_is_refused(copied_code):
    shutil.copy(copied_code / "vllm.gfx942.hsaco", copied_code / "vllm.gfx950.hsaco")
    with pytest.raises(code_objects.CodeObjectError, match="is not the file its manifest lists"):
        code_objects.find("vllm", "gfx950").read()


def test_a_deleted_object_is_refused(copied_code):
    (copied_code / "vllm.gfx950.hsaco").unlink()
    with pytest.raises(code_objects.CodeObjectError, match=r"vllm\.gfx950\.hsaco is missing"):
        code_objects.find("vllm", "gfx950")


def test_a_damaged_manifest_is_refused(copied_code):
    (copied_code / "manifest.json").write_text("{")
    with pytest.raises(code_objects.CodeObjectError, match=r"manifest.json can't be read"):
        code_objects.find("vllm", "gfx950")


def test_an_object_that_was_never_compiled_is_listed_against_those_that_were():
    with pytest.raises(
        code_objects.CodeObjectError, match=r"^no code object vllm\.gfx1100; compiled are aiter\."
    ) as refusal:
        code_objects.find("vllm", "gfx1100")
    listed = str(refusal.value).partition("compiled are ")[2].partition(";")[0].split(", ")
    due = {f"{source}.{target}" for source in SOURCES for target in AMD_TARGETS}
    # Those for CUDA are there where nvcc is.
    assert {name for name in listed if not name.endswith(".cuda")} == due
    with pytest.raises(code_objects.CodeObjectError, match=r"^no code object vllm_k512\.gfx950; "):
        code_objects.find("vllm_k512", "gfx950")


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param("fast", id="of-nobody"),
        pytest.param("policy_probe", id="in-several-objects"),
        pytest.param("sglang_block1024_merge", id="of-a-lineage-that-never-splits"),
        pytest.param("page_transform_traced", id="without-a-trace"),
    ],
)
def test_a_kernel_that_was_never_compiled_is_refused(kernel):
    with pytest.raises(
        code_objects.CodeObjectError, match=f"^no code object holds the kernel {kernel}; run `make"
    ):
        code_objects.kernel_source(kernel)


def test_an_edited_header_is_refused_without_a_rebuild(tmp_path, monkeypatch):
    edited = tmp_path / "kernels"
    shutil.copytree(toolchain.kernels_folder(), edited)
    header = edited / "include" / "topk_lab" / "emission.hpp"
    header.write_text(header.read_text().replace("bin < threshold_bin", "bin <= threshold_bin"))
    monkeypatch.setattr(toolchain, "kernels_folder", lambda: edited)

    for command in (["verify", "--target", "gfx950", "--cases", "boundaries"], ["reproduce"]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2
        assert "kernels/include/topk_lab/emission.hpp changed since it was compiled" in done.stderr
        assert "make build" in done.stderr
        assert done.stdout == ""
