"""Is the emulator independent of which tools a machine has, and does it do nothing twice?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from topk_lab import toolchain
from topk_lab.emulator import (
    TARGETS,
    CodeObject,
    Emulator,
    LaunchCount,
    MemoryRegion,
    ToolNotFound,
    disassembly,
    native,
    program,
    toolchain_report,
)

SOURCE = """#include <hip/hip_runtime.h>
extern "C" __global__ void __launch_bounds__(256) prefix_counts(int* out) {
  __shared__ int seen[256];
  const int thread = threadIdx.x;
  seen[thread] = 0;
  __syncthreads();
  atomicAdd(&seen[thread * thread & 255], 1);
  __syncthreads();
  const unsigned long long odd = __ballot(seen[thread] & 1);
  out[256 * blockIdx.x + thread] = seen[thread] + 1000 * __popcll(odd);
}
extern "C" __global__ void __launch_bounds__(64) other(int* out) { out[threadIdx.x] = 1; }
"""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CodeObject]:
    """The kernels above for every target."""
    folder = tmp_path_factory.mktemp("objects")
    source = folder / "kernels.hip"
    source.write_text(SOURCE)
    tools, shim = toolchain.choose(), [toolchain.kernels_folder() / "shim"]
    for target in TARGETS:
        toolchain.compile_object(tools, source, target, folder / f"{target}.hsaco", shim)
    return {target: CodeObject.load(folder / f"{target}.hsaco") for target in TARGETS}


def launch(emulator: Emulator) -> LaunchCount:
    """Run the kernel and check its answer."""
    out = np.zeros(512, np.int32)
    region = MemoryRegion.of("out", out)
    params = region.address.to_bytes(8, "little")
    launched = emulator.launch("prefix_counts", 2, 256, params, [region])
    seen = np.bincount(np.arange(256) ** 2 % 256, minlength=256)
    odd = (seen.reshape(4, 64) & 1).sum(1)
    assert np.array_equal(out, np.tile(seen + 1000 * np.repeat(odd, 64), 2))
    return launched


@pytest.fixture
def warm_cache(tmp_path: Path) -> Path:
    """A cache folder that has the compiled runtime and nothing else."""
    _, library = native.find_compiler(native.cache_folder())
    shutil.copy(library, tmp_path)
    return tmp_path


@pytest.mark.parametrize("target", TARGETS)
def test_disassemblers_agree(target: str, objects: dict[str, CodeObject]) -> None:
    code_object = objects[target]
    found = list(disassembly.available())
    assert any("librocmllvm" in route.name for route in found)
    for kernel in code_object.kernels.values():
        listings = [disassembly.disassemble(code_object, kernel, route) for route in found]
        assert listings[0][-1].mnemonic in ("s_endpgm", "s_nop", "s_code_end")
        for route, listing in zip(found, listings, strict=True):
            assert listing == listings[0], route.name


def test_without_any_tool_on_the_path(
    objects: dict[str, CodeObject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("TOPK_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(disassembly, "_LIBRARY_PATTERNS", ())
    found = toolchain_report()
    assert "librocmllvm" in found["disassembler"]
    assert "ziglang cc" in found["host compiler"]
    for target in TARGETS:
        launch(Emulator(objects[target]))
    assert list(tmp_path.glob("runtime-*.so"))


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("TOPK_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(disassembly, "_libraries", lambda: iter(()))
    monkeypatch.setattr(native, "compilers", lambda: iter(()))
    assert toolchain_report() == {"disassembler": None, "host compiler": None}
    with pytest.raises(ToolNotFound, match="pip install ziglang"):
        native.find_compiler(tmp_path)
    with pytest.raises(ToolNotFound, match="pip install rocm-llvm-python"):
        disassembly.find()


def test_a_compiler_that_does_not_work_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] && echo broken 1 && exit\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    assert next(native.compilers()).version == "broken 1"
    tried: list[native.Compiler] = []
    monkeypatch.setattr(
        native, "_compile", lambda compiler, library: tried.append(compiler) or "no"
    )
    with pytest.raises(ToolNotFound, match="broken 1"):
        native.find_compiler(tmp_path)
    assert len(tried) == len(list(native.compilers())) > 1


def test_nothing_is_done_twice(
    objects: dict[str, CodeObject], warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = launch(Emulator(objects["gfx950"], cache_dir=warm_cache))
    stored = {path.name: path.stat().st_mtime_ns for path in warm_cache.iterdir()}

    def never(*_: object) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr(program, "disassemble", never)
    monkeypatch.setattr(native, "_compile", never)
    assert launch(Emulator(objects["gfx950"], cache_dir=warm_cache)) == first
    assert {path.name: path.stat().st_mtime_ns for path in warm_cache.iterdir()} == stored
    with pytest.raises(AssertionError, match="done again"):
        launch(Emulator(objects["gfx942"], cache_dir=warm_cache))


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_file_in_the_cache_is_made_anew(
    objects: dict[str, CodeObject], warm_cache: Path, damage: bytes | None
) -> None:
    first = launch(Emulator(objects["gfx950"], cache_dir=warm_cache))
    for kept in warm_cache.glob("program-*.npz"):
        content = kept.read_bytes()
        kept.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert launch(Emulator(objects["gfx950"], cache_dir=warm_cache)) == first


def test_kernels_are_prepared_together(objects: dict[str, CodeObject], warm_cache: Path) -> None:
    Emulator(objects["gfx90a"], cache_dir=warm_cache).prepare(jobs=2)
    assert len(list(warm_cache.glob("program-*.npz"))) == 2


def test_the_cache_folder_is_the_environment_s_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPK_LAB_CACHE", str(tmp_path / "named"))
    assert native.cache_folder() == tmp_path / "named"
    assert native.cache_folder(tmp_path / "given") == tmp_path / "given"
    assert (tmp_path / "named").is_dir()


def test_importing_the_emulator_imports_no_heavy_package() -> None:
    code = "import sys, topk_lab.emulator; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numba", "pandas"} & set(done.stdout.split())


def test_sources_name_what_they_stand_for() -> None:
    handlers = native.load(native.cache_folder()).handlers
    kinds = {handler.kind for handler in handlers.values()}
    assert kinds == {"valu", "salu", "smem", "lds", "global", "branch", "barrier", "step"}
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in handlers)
