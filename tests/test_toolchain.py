import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topk_lab import toolchain

KERNELS = toolchain.kernels_folder()


def run_script(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(Path(toolchain.__file__)), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


def test_every_kernel_file_is_hashed():
    names = toolchain.file_hashes(KERNELS)
    assert {"CMakeLists.txt", "src/vllm.hip", "shim/hip/hip_runtime.h"} <= set(names)
    assert "include/topk_lab/order_key.hpp" in names


def test_hash_follows_content_and_name(tmp_path):
    (tmp_path / "a.hpp").write_text("int a;")
    before = toolchain.source_hash(tmp_path)
    (tmp_path / "a.hpp").write_text("int b;")
    edited = toolchain.source_hash(tmp_path)
    (tmp_path / "a.hpp").rename(tmp_path / "b.hpp")
    assert len({before, edited, toolchain.source_hash(tmp_path)}) == 3


def test_an_unknown_toolchain_is_refused(tmp_path):
    done = run_script("choose", "--output", tmp_path / "choice.json", TOPK_LAB_TOOLCHAIN="gcc")
    assert done.returncode == 1
    assert "TOPK_LAB_TOOLCHAIN must be one of clang, zig, hipcc, got 'gcc'" in done.stderr
    assert not (tmp_path / "choice.json").exists()


def test_a_missing_compiler_says_what_was_looked_for(tmp_path):
    done = run_script(
        "choose",
        "--output",
        tmp_path / "choice.json",
        TOPK_LAB_TOOLCHAIN="hipcc",
        PATH=str(tmp_path),
        ROCM_PATH=str(tmp_path),
    )
    assert done.returncode == 1
    assert "hipcc: none of hipcc was found" in done.stderr


def test_a_compiler_counts_only_if_it_compiles_a_probe(tmp_path):
    broken = tmp_path / "clang++-22"
    broken.write_text("#!/bin/sh\ncase $1 in --version) echo fake clang;; *) exit 3;; esac\n")
    broken.chmod(0o755)
    linker = tmp_path / "ld.lld-22"
    linker.write_text("#!/bin/sh\nexit 0\n")
    linker.chmod(0o755)
    done = run_script(
        "choose",
        "--output",
        tmp_path / "choice.json",
        TOPK_LAB_TOOLCHAIN="clang",
        PATH=f"{tmp_path}:/bin:/usr/bin",
    )
    assert done.returncode == 1
    assert "exited with 3" in done.stderr


@pytest.fixture(scope="module")
def zig_object(tmp_path_factory):
    """A small kernel compiled by the PyPI compiler alone."""
    folder = tmp_path_factory.mktemp("zig")
    (folder / "src").mkdir()
    (folder / "src" / "tiny.hip").write_text(
        "#include <hip/hip_runtime.h>\n"
        'extern "C" __global__ void __launch_bounds__(256) tiny(int* out) {\n'
        "  __shared__ int lds[256];\n"
        "  lds[threadIdx.x] = blockIdx.x;\n"
        "  __syncthreads();\n"
        "  out[threadIdx.x] = lds[255 - threadIdx.x];\n"
        "}\n"
    )
    output = folder / "tiny.hsaco"
    text = toolchain.compile_object(
        toolchain.usable("zig"), folder / "src" / "tiny.hip", "gfx950", output, [KERNELS / "shim"]
    )
    return output, text


def test_zig_compiles_without_any_other_compiler(zig_object):
    output, _ = zig_object
    assert output.read_bytes()[:4] == b"\x7fELF"
    assert [path.name for path in output.parent.iterdir()] != []
    assert not list(output.parent.glob("tmp*"))


def test_resources_are_read_from_the_compilers_own_words(zig_object):
    resources = toolchain.kernel_resources(zig_object[1])
    assert set(resources) == {"tiny"}
    assert resources["tiny"]["lds"] == 1024
    assert resources["tiny"]["scratch"] == 0
    assert resources["tiny"]["max_flat_workgroup_size"] == 256
    assert 0 < resources["tiny"]["vgpr"] < 64


def test_a_compile_error_is_reported_with_the_compilers_message(tmp_path):
    source = tmp_path / "bad.hip"
    source.write_text("#include <hip/hip_runtime.h>\n__global__ void bad() { int unused; }\n")
    with pytest.raises(toolchain.ToolchainError, match="unused variable 'unused'"):
        toolchain.compile_object(
            toolchain.usable("zig"), source, "gfx950", tmp_path / "bad.hsaco", [KERNELS / "shim"]
        )
    assert not (tmp_path / "bad.hsaco").exists()


def test_unreached_lds_limits_are_a_compile_error(tmp_path):
    source = tmp_path / "wide.hip"
    source.write_text(
        "#include <hip/hip_runtime.h>\n"
        'extern "C" __global__ void wide(int* out) {\n'
        "  __shared__ int lds[32768];\n"
        "  lds[threadIdx.x] = 1;\n"
        "  __syncthreads();\n"
        "  out[threadIdx.x] = lds[32767 - threadIdx.x];\n"
        "}\n"
    )
    with pytest.raises(toolchain.ToolchainError, match="exceeds limit"):
        toolchain.compile_object(
            toolchain.usable("zig"), source, "gfx942", tmp_path / "wide.hsaco", [KERNELS / "shim"]
        )


def test_an_object_whose_sources_change_while_it_is_compiled_does_not_stay(tmp_path):
    kernels = tmp_path / "kernels"
    (kernels / "include").mkdir(parents=True)
    (kernels / "src").mkdir()
    source = kernels / "src" / "edited.hip"
    source.write_text("// a kernel\n")
    compiler = tmp_path / "compiler"
    compiler.write_text(
        "#!/bin/sh\n"
        f"echo '// another' >> {source}\n"
        'while [ "$1" != -o ]; do shift; done; echo object > "$2"\n'
    )
    compiler.chmod(0o755)
    choice = tmp_path / "choice.json"
    chosen = toolchain.Toolchain("clang", "a compiler", *[[str(compiler)]] * 3)
    choice.write_text(json.dumps(dataclasses.asdict(chosen)))
    done = run_script(
        *("compile", "--choice", choice, "--kernels", kernels, "--source", "src/edited.hip"),
        *("--target", "gfx950", "--output", tmp_path / "edited.gfx950.hsaco"),
    )
    assert done.returncode == 1
    assert "changed while src/edited.hip was compiled for gfx950" in done.stderr
    assert not list(tmp_path.glob("edited*"))


def test_manifest_lists_every_object_once(tmp_path):
    entry = tmp_path / "a.json"
    entry.write_text(json.dumps({"object": "a.hsaco"}))
    done = run_script(
        "manifest", "--kernels", KERNELS, "--output", tmp_path / "manifest.json", entry
    )
    assert done.returncode == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["objects"] == [{"object": "a.hsaco"}]
    assert manifest["files"] == toolchain.file_hashes(KERNELS)


def test_nvcc_that_can_not_compile_does_not_count(tmp_path):
    done = run_script("probe-nvcc", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "none of nvcc was found" in done.stderr
    broken = tmp_path / "nvcc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    done = run_script("probe-nvcc", PATH=f"{tmp_path}:/bin:/usr/bin")
    assert done.returncode == 1
    assert "exited with 1" in done.stderr
