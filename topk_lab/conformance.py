"""Do the kernels say the same with ROCm's own headers as with the shim?

The kernels are compiled with a stand-in for the HIP headers (``kernels/shim``). The wheel of
triton carries the real ones, of HIP 7.1, and ROCm's device library; with these a few sources are
compiled here, by clang. What they answer is emulated as ever; what they ask of
a compute unit may differ by `NEAR`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from topk_lab import toolchain
from topk_lab.emulator import native

__all__ = [
    "COMPILED",
    "NEAR",
    "PACKAGE",
    "ClangNotFound",
    "HeadersNotFound",
    "build",
    "differences",
    "headers",
]

PACKAGE = "triton==3.9.0"
HIP_VERSION = (7, 1)
# A source of each kind of kernel that compiles within seconds, on the two targets that matter most.
COMPILED = (("vllm", "gfx942"), ("sglang", "gfx950"), ("aiter", "gfx950"))
# How far the resources of a kernel may be apart: relative, and in units at least. The real headers
# find a thread's place by calls of the device library, which costs a few registers.
NEAR = {
    "vgpr": (0.15, 6),
    "agpr": (0.0, 0),
    "sgpr": (0.1, 8),
    "lds": (0.0, 0),
    "scratch": (0.0, 0),
    "max_flat_workgroup_size": (0.0, 0),
    "code_bytes": (0.05, 64),
}

_INSIDE = "triton/backends/amd/"
# ROCm's clang takes these from bitcode files that its driver picks by target and flags.
_CONTROLS = """#include <hip/hip_runtime.h>
#define HIP_SHIM_DEVICE static __device__ inline __attribute__((always_inline))
extern "C" {
extern __constant__ const int __oclc_ABI_version = 600;
extern __constant__ const int __oclc_ISA_version = TOPK_LAB_ISA_VERSION;
extern __constant__ const unsigned char __oclc_wavefrontsize64 = 1;
extern __constant__ const unsigned char __oclc_unsafe_math_opt = 0;
extern __constant__ const unsigned char __oclc_finite_only_opt = 0;
extern __constant__ const unsigned char __oclc_correctly_rounded_sqrt32 = 1;
extern __constant__ const unsigned char __oclc_daz_opt = 0;
}
"""
_ISA_VERSIONS = {"gfx90a": 9010, "gfx942": 9402, "gfx950": 9500}


class HeadersNotFound(RuntimeError):
    """Neither an installed package nor a registry gave the headers."""


class ClangNotFound(RuntimeError):
    """There is no clang that finds a C++ library: the headers include parts of one.

    The other compilers don't serve: ziglang is told of no C++ library, and hipcc has its headers.
    """


def headers() -> Path:
    """Folder with ``include`` and ``lib`` of ROCm, as triton carries them.

    Returns
    -------
    Path
        Of the installed triton if it has HIP 7.1, else taken from the wheel of `PACKAGE`, which is
        downloaded once.

    Raises
    ------
    HeadersNotFound
        There is no such triton, and pip can't download one.
    """
    spec = importlib.util.find_spec("triton")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "backends" / "amd"
        if _version(folder) == HIP_VERSION:
            return folder
    kept = native.cache_folder() / f"hip-headers-{PACKAGE.replace('==', '-')}"
    if _version(kept) != HIP_VERSION:
        with tempfile.TemporaryDirectory(dir=native.cache_folder()) as scratch:
            _unpack(_downloaded(Path(scratch)), Path(scratch) / "rocm")
            shutil.rmtree(kept, ignore_errors=True)
            (Path(scratch) / "rocm").replace(kept)
    if _version(kept) != HIP_VERSION:
        raise HeadersNotFound(f"{PACKAGE} has HIP {_version(kept)}, {HIP_VERSION} was due")
    return kept


def _version(folder: Path) -> tuple[int, int] | None:
    """HIP's version by its header; None without one."""
    file = folder / "include" / "hip" / "hip_version.h"
    if not file.is_file():
        return None
    words = dict(
        line.split()[1:3] for line in file.read_text().splitlines() if "VERSION_M" in line
        and line.startswith("#define HIP_VERSION_M")
    )  # fmt: skip
    return int(words["HIP_VERSION_MAJOR"]), int(words["HIP_VERSION_MINOR"])


def _downloaded(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise HeadersNotFound(f"pip download {PACKAGE} failed: {said}")
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inside = name.removeprefix(_INSIDE)
            wanted = inside.startswith("include/") or inside == "lib/ockl.bc"
            if inside != name and wanted and not name.endswith("/"):
                place = folder / inside
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.read(name))


def _with_headers(chosen: toolchain.Toolchain, rocm: Path, target: str) -> toolchain.Toolchain:
    options = [
        *("-isystem", str(rocm / "include"), f"-DTOPK_LAB_ISA_VERSION={_ISA_VERSIONS[target]}"),
        *("-include", "controls.h", "-Wno-extern-initializer"),
        # Their warpSize is an int, the shim's is not.
        "-Wno-error=sign-compare",
        *("-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(rocm / "lib" / "ockl.bc")),
    ]
    bare = [flag for flag in chosen.compile if flag != "-ffreestanding"]
    return replace(chosen, compile=[*bare, *options])


def build(folder: Path, chosen: toolchain.Toolchain | None = None) -> dict[str, Any]:
    """Compile `COMPILED` with the real headers.

    Parameters
    ----------
    folder : Path
        Takes the code objects and their manifest: what ``TOPK_LAB_CODE`` may name.
    chosen : Toolchain, optional
        Default: clang.

    Returns
    -------
    dict
        The manifest.

    Raises
    ------
    ClangNotFound
        clang can't be used here.
    HeadersNotFound
        As `headers`.
    topk_lab.toolchain.ToolchainError
        The compiler failed.
    """
    if chosen is None:
        try:
            chosen = toolchain.usable("clang")
        except toolchain.ToolchainError as error:
            raise ClangNotFound(f"clang can't be used: {error}") from error
    rocm = headers()
    kernels = toolchain.kernels_folder()
    overlay = folder / "overlay"
    (overlay / "hip").mkdir(parents=True)
    (overlay / "controls.h").write_text(_CONTROLS)
    # The wheel lacks this one.
    shutil.copy(kernels / "shim" / "hip" / "hip_fp16.h", overlay / "hip")
    objects = []
    for source, target in COMPILED:
        output = folder / f"{source}.{target}.hsaco"
        said = toolchain.compile_object(
            _with_headers(chosen, rocm, target),
            kernels / "src" / f"{source}.hip",
            target,
            output,
            [overlay, kernels / "include"],
        )
        objects.append(
            {
                "object": output.name,
                "source": f"src/{source}.hip",
                "target": target,
                "sha256": hashlib.sha256(output.read_bytes()).hexdigest(),
                "source_hash": toolchain.source_hash(kernels),
                "toolchain": chosen.name,
                "compiler": f"{chosen.version}, headers of HIP {HIP_VERSION[0]}.{HIP_VERSION[1]}",
                "kernels": toolchain.kernel_resources(said),
            }
        )
    manifest = {"schema": 1, "files": toolchain.file_hashes(kernels), "objects": objects}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return manifest


def differences(
    shipped: Mapping[str, Mapping[str, int]], found: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Where two builds of a source are further apart than `NEAR`.

    Parameters
    ----------
    shipped, found : mapping
        Kernel -> resources, as `topk_lab.toolchain.kernel_resources` states them.

    Returns
    -------
    list of str
        A line a kernel and resource.
    """
    lines = [f"{name} is in one build only" for name in sorted(set(shipped) ^ set(found))]
    for name in sorted(set(shipped) & set(found)):
        for resource, (relative, least) in NEAR.items():
            old, new = shipped[name][resource], found[name][resource]
            if abs(new - old) > max(relative * old, least):
                lines.append(f"{name}: {resource} is {new}, {old} with the shim")
    return lines
