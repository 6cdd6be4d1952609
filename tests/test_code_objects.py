import json
import shutil

import pytest
from click.testing import CliRunner

from topk_lab import code_objects, plans, schedules, toolchain
from topk_lab.cli import main
from topk_lab.targets import AMD_TARGETS

SOURCES = ("vllm", "vllm_ablations")
KERNELS_OF = {
    "vllm": {"vllm_generic", "vllm_generic_rank_count", "vllm_k512"},
    "vllm_ablations": {f"vllm_k512_{suffix}" for suffix in schedules.ABLATIONS["vllm_k512"]},
}


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
def test_kernels_keep_their_launch_bounds_and_never_spill(source, target):
    kernels = code_objects.find(source, target).kernels
    for prefix in KERNELS_OF[source]:
        block = 512 if prefix.startswith("vllm_generic") else 1024
        for suffix in ("_select", "_select_traced"):
            resources = kernels[prefix + suffix]
            assert resources["max_flat_workgroup_size"] == block
            assert resources["scratch"] == 0
            assert resources["agpr"] == 0
            # Two blocks a compute unit: 64 VGPRs at 1024 threads, and half of 64 KiB LDS.
            assert resources["vgpr"] <= 64
            dynamic = 8 * (2048 if block == 512 else 512)
            assert resources["lds"] + dynamic <= 64 * 1024
    traced = {name for name in kernels if name.endswith("_traced")}
    assert {name.removesuffix("_traced") for name in traced} == kernels.keys() - traced - {
        "policy_probe"
    }


@pytest.mark.parametrize("target", AMD_TARGETS)
def test_k512_fits_twice_on_a_compute_unit(target):
    resources = code_objects.find("vllm", target).kernels["vllm_k512_select"]
    assert resources["waves_per_simd"] == 8
    assert 2 * (resources["lds"] + 8 * 512) <= 64 * 1024


def test_every_planned_kernel_is_in_an_object():
    for name, ablations in schedules.ABLATIONS.items():
        for suffix in ["", *ablations]:
            fields = ablations[suffix] if suffix else {}
            inner = ",".join(f"{key}={str(value).lower()}" for key, value in fields.items())
            text = f"{name}[{inner}]" if inner else name
            for traced in (False, True):
                shape = plans.Shape(2, 262_145, 512, 262_145, 512)
                planned = plans.plan(text, shape, study=True, traced=traced)
                for launch in planned.launches:
                    expected = "vllm_ablations" if suffix else "vllm"
                    assert code_objects.kernel_source(launch.kernel) == expected


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
        code_objects.CodeObjectError, match=r"no code object vllm.gfx1100; compiled are vllm"
    ):
        code_objects.find("vllm", "gfx1100")
    with pytest.raises(code_objects.CodeObjectError, match="no code object holds the kernel fast"):
        code_objects.kernel_source("fast")


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
