"""How are the kernels compiled, and is a compiled object still the one of these sources?

This file runs on the standard library alone: the build calls it as a script before any package is
there, and the package imports it to tell stale objects from fresh ones.

Three compilers serve for AMD targets. ``clang``: clang 21 or newer with lld, and no ROCm. ``zig``:
the PyPI package ziglang, which carries clang and lld. ``hipcc``: a ROCm install, with its own
headers. The first that compiles a probe kernel is taken; ``TOPK_LAB_TOOLCHAIN`` names one instead.
The target ``cuda`` is a fat binary by nvcc, built where nvcc is found.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

AMD_TARGETS = ("gfx90a", "gfx942", "gfx950")
TARGETS = (*AMD_TARGETS, "cuda")
TOOLCHAINS = ("clang", "zig", "hipcc")
REBUILD_COMMAND = "make build"

_DEVICE_FLAGS = [
    "-x",
    "hip",
    "-O3",
    "-std=c++20",
    "--offload-device-only",
    "-Wall",
    "-Wextra",
    "-Werror",
]
_BARE_FLAGS = ["-nogpuinc", "-nogpulib", "-ffreestanding"]
_PROBE = """#include <hip/hip_runtime.h>
extern "C" __global__ void __launch_bounds__(64) probe(int* out) { out[threadIdx.x] = 1; }
"""
# Machine code for three generations, and PTX for those to come.
_CUDA_ARCHITECTURES = (80, 90, 100)
_CUDA_SHOWN = 90  # the architecture whose resources the manifest states
_PTXAS_KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for 'sm_(?P<arch>\d+)'.*?"
    r"(?P<scratch>\d+) bytes stack frame.*?Used (?P<vgpr>\d+) registers(?P<rest>[^\n]*)",
    re.S,
)

_RESOURCE_LINES = {
    "vgpr": re.compile(r"^; NumVgprs: (\d+)", re.M),
    "agpr": re.compile(r"^; NumAgprs: (\d+)", re.M),
    "sgpr": re.compile(r"^; TotalNumSgprs: (\d+)", re.M),
    "scratch": re.compile(r"^; ScratchSize: (\d+)", re.M),
    "waves_per_simd": re.compile(r"^; Occupancy: (\d+)", re.M),
    "lds": re.compile(r"^; LDSByteSize: (\d+)", re.M),
    "code_bytes": re.compile(r"^; codeLenInByte = (\d+)", re.M),
}


_SHOWN = {
    "vgpr": "VGPR",
    "agpr": "AGPR",
    "sgpr": "SGPR",
    "lds": "B LDS",
    "scratch": "B scratch",
    "waves_per_simd": "waves/SIMD",
}


class ToolchainError(RuntimeError):
    """No usable compiler, or a kernel that does not compile."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler that turns kernels into code objects.

    Attributes
    ----------
    name : {"clang", "zig", "hipcc", "nvcc"}
        Which one.
    version : str
        First line that the compiler prints about itself.
    compile, assemble, link : list of str
        Command prefixes of the three steps: source to assembly, to object, to code object. nvcc
        does all in its first.
    """

    name: str
    version: str
    compile: list[str]
    assemble: list[str]
    link: list[str]


def kernels_folder() -> Path:
    """Folder of the kernel sources: the checkout's, else the installed package's.

    Returns
    -------
    Path

    Raises
    ------
    ToolchainError
        Neither is there.
    """
    package = Path(__file__).resolve().parent
    for folder in (package.parent / "kernels", package / "kernels"):
        if (folder / "include" / "topk_lab").is_dir():
            return folder
    raise ToolchainError(f"no kernel sources beside or in {package}: reinstall topk_lab")


def file_hashes(kernels: Path) -> dict[str, str]:
    """Hash of every file that a code object may be made from.

    Parameters
    ----------
    kernels : Path
        Folder with ``include``, ``shim`` and ``src``.

    Returns
    -------
    dict
        Path within `kernels` -> 16 hexadecimal digits, in a stable order.
    """
    return {
        path.relative_to(kernels).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted(
            kernels.rglob("*"), key=lambda path: path.relative_to(kernels).as_posix()
        )
        if path.is_file() and not path.name.startswith(".")
    }


def source_hash(kernels: Path) -> str:
    """One hash over `file_hashes`: 16 hexadecimal digits."""
    listed = json.dumps(file_hashes(kernels), sort_keys=True)
    return hashlib.sha256(listed.encode()).hexdigest()[:16]


def _run(command: list[str], *, with_errors: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise ToolchainError(f"{command[0]} exited with {done.returncode}: {said}")
    return done.stdout + done.stderr if with_errors else done.stdout


def _first_line(command: list[str]) -> str:
    return _run(command).strip().splitlines()[0]


def _on_path(*names: str) -> str:
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=str(rocm / "llvm" / "bin"))
        if found:
            return found
    raise ToolchainError(f"none of {', '.join(names)} was found")


def _lld(*names: str) -> list[str]:
    return [_on_path(*names), "-shared", "--no-undefined"]


def _clang() -> Toolchain:
    clang = _on_path("clang++-22", "clang++-21", "amdclang++", "clang++")
    return Toolchain(
        "clang",
        _first_line([clang, "--version"]),
        [clang, *_DEVICE_FLAGS, *_BARE_FLAGS],
        [clang, "-target", "amdgcn-amd-amdhsa", "-nogpulib"],
        _lld("ld.lld-22", "ld.lld-21", "ld.lld"),
    )


def _zig() -> Toolchain:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("the package ziglang is not installed")
    home = Path(spec.submodule_search_locations[0])
    zig = str(home / "zig")
    # ziglang carries clang's resource headers in its own place.
    headers = ["-nostdinc", "-isystem", str(home / "lib" / "include")]
    return Toolchain(
        "zig",
        f"zig {_first_line([zig, 'version'])}, {_first_line([zig, 'clang', '--version'])}",
        [zig, "clang", *_DEVICE_FLAGS, *_BARE_FLAGS, *headers],
        [zig, "clang", "-target", "amdgcn-amd-amdhsa", "-nogpulib"],
        [zig, "ld.lld", "-shared", "--no-undefined"],
    )


def _hipcc() -> Toolchain:
    hipcc = _on_path("hipcc")
    return Toolchain(
        "hipcc",
        _first_line([hipcc, "--version"]),
        [hipcc, *_DEVICE_FLAGS],
        [_on_path("amdclang", "clang"), "-target", "amdgcn-amd-amdhsa", "-nogpulib"],
        _lld("ld.lld"),
    )


def _nvcc() -> Toolchain:
    nvcc = _on_path("nvcc")
    release = next(
        line for line in _run([nvcc, "--version"]).splitlines() if line.startswith("Cuda compil")
    )
    code = [
        f"-gencode=arch=compute_{arch},code="
        + (f"[sm_{arch},compute_{arch}]" if arch == max(_CUDA_ARCHITECTURES) else f"sm_{arch}")
        for arch in _CUDA_ARCHITECTURES
    ]
    options = [
        "-x",
        "cu",
        "-O3",
        "-std=c++20",
        "-fatbin",
        "-Xfatbin",
        "-compress-all",
        "-Xptxas",
        "-v",
    ]
    return Toolchain("nvcc", release, [nvcc, *options, "--threads", "0", *code], [], [])


_MAKERS = {"clang": _clang, "zig": _zig, "hipcc": _hipcc}


def compile_object(
    toolchain: Toolchain, source: Path, target: str, output: Path, include: list[Path]
) -> str:
    """Compile one source to a code object.

    Parameters
    ----------
    toolchain : Toolchain
        The compiler.
    source : Path
        A HIP file.
    target : str
        One of `TARGETS`.
    output : Path
        The code object to write; it appears only once it is whole.
    include : list of Path
        Header folders.

    Returns
    -------
    str
        The assembly text, which also states the resources of each kernel.

    Raises
    ------
    ToolchainError
        The compiler, assembler or linker failed.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        assembly = Path(folder) / "kernel.s"
        relocatable = Path(folder) / "kernel.o"
        linked = Path(folder) / "kernel.hsaco"
        flags = [f"-I{path}" for path in include]
        _run(
            [
                *toolchain.compile,
                f"--offload-arch={target}",
                *flags,
                "-S",
                str(source),
                "-o",
                str(assembly),
            ]
        )
        _run([*toolchain.assemble, f"-mcpu={target}", "-c", str(assembly), "-o", str(relocatable)])
        _run([*toolchain.link, str(relocatable), "-o", str(linked)])
        text = assembly.read_text()
        linked.replace(output)
    return text


def compile_fat_binary(nvcc: Toolchain, source: Path, output: Path, include: list[Path]) -> str:
    """Compile one source for NVIDIA GPUs.

    Parameters
    ----------
    nvcc : Toolchain
        The compiler.
    source : Path
        A HIP file.
    output : Path
        The fat binary to write; it appears only once it is whole.
    include : list of Path
        Header folders.

    Returns
    -------
    str
        What ptxas says about registers and shared memory.

    Raises
    ------
    ToolchainError
        The compiler failed.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        binary = Path(folder) / "kernel.fatbin"
        flags = [f"-I{path}" for path in include]
        said = _run([*nvcc.compile, *flags, str(source), "-o", str(binary)], with_errors=True)
        binary.replace(output)
    return said


def fat_binary_resources(said: str) -> dict[str, dict[str, int]]:
    """Registers and shared memory of every kernel, as ptxas states them.

    Parameters
    ----------
    said : str
        The text that `compile_fat_binary` returns.

    Returns
    -------
    dict
        As `kernel_resources`, for sm_90; AGPR and SGPR do not exist there, scratch is the stack.
    """
    resources = {}
    for kernel in _PTXAS_KERNEL.finditer(said):
        if int(kernel["arch"]) == _CUDA_SHOWN:
            shared = re.search(r"(\d+) bytes smem", kernel["rest"])
            resources[kernel["name"]] = {
                "vgpr": int(kernel["vgpr"]),
                "scratch": int(kernel["scratch"]),
                "lds": int(shared[1]) if shared else 0,
            }
    if not resources:
        raise ToolchainError("ptxas states no resources for sm_90")
    return resources


def usable(name: str) -> Toolchain:
    """The named toolchain, after it has compiled a probe kernel.

    Parameters
    ----------
    name : {"clang", "zig", "hipcc"}
        Which one.

    Returns
    -------
    Toolchain

    Raises
    ------
    ToolchainError
        Not there, or it can't compile for gfx950.
    """
    toolchain = _MAKERS[name]()
    shim = [] if name == "hipcc" else [kernels_folder() / "shim"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.hip"
        source.write_text(_PROBE)
        compile_object(toolchain, source, "gfx950", Path(folder) / "probe.hsaco", shim)
    return toolchain


def choose() -> Toolchain:
    """The toolchain that ``TOPK_LAB_TOOLCHAIN`` names, else the first usable of clang, zig, hipcc.

    Returns
    -------
    Toolchain

    Raises
    ------
    ToolchainError
        With each candidate's reason.
    """
    forced = os.environ.get("TOPK_LAB_TOOLCHAIN", "")
    if forced and forced not in TOOLCHAINS:
        raise ToolchainError(
            f"TOPK_LAB_TOOLCHAIN must be one of {', '.join(TOOLCHAINS)}, got {forced!r}"
        )
    reasons = []
    for name in [forced] if forced else TOOLCHAINS:
        try:
            return usable(name)
        except ToolchainError as error:
            reasons.append(f"{name}: {error}")
    raise ToolchainError("no compiler for AMD targets is usable; " + "; ".join(reasons))


def kernel_resources(assembly: str) -> dict[str, dict[str, int]]:
    """Registers, LDS and occupancy of every kernel, as the compiler states them.

    Parameters
    ----------
    assembly : str
        The text that `compile_object` returns.

    Returns
    -------
    dict
        Kernel name -> {vgpr, agpr, sgpr, scratch, lds (bytes, static), waves_per_simd, code_bytes,
        max_flat_workgroup_size}.

    Raises
    ------
    ToolchainError
        The text lacks one of these for some kernel.
    """
    metadata = assembly[assembly.index(".amdgpu_metadata") :]
    limits = {}
    for block in re.split(r"^  - ", metadata, flags=re.M):
        name = re.search(r"\.name:\s+(\S+)\s*$", block, re.M)
        limit = re.search(r"\.max_flat_workgroup_size:\s+(\d+)", block)
        if name and limit:
            limits[name[1]] = int(limit[1])
    resources = {}
    # Each kernel's figures stand between its descriptor and the next one's.
    parts = re.split(r"^\s*\.amdhsa_kernel (\S+)$", assembly, flags=re.M)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        figures = {key: line.search(text) for key, line in _RESOURCE_LINES.items()}
        missing = [key for key, match in figures.items() if match is None]
        if missing or name not in limits:
            raise ToolchainError(
                f"the compiler states no {', '.join(missing) or 'launch bound'} for {name}"
            )
        resources[name] = {key: int(match[1]) for key, match in figures.items() if match}
        resources[name]["max_flat_workgroup_size"] = limits[name]
    return resources


def _write_json(path: Path, value: object) -> None:
    text = json.dumps(value, indent=1, sort_keys=True) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _command_choose(arguments: argparse.Namespace) -> None:
    toolchain = choose()
    _write_json(arguments.output, asdict(toolchain))
    print(f"kernels: {toolchain.name} ({toolchain.version})")


def _command_probe_nvcc(arguments: argparse.Namespace) -> None:
    nvcc = _on_path("nvcc")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.hip"
        source.write_text(_PROBE)
        include = f"-I{kernels_folder() / 'shim'}"
        output = str(Path(folder) / "probe.cubin")
        arch = f"-arch=sm_{_CUDA_SHOWN}"
        _run([nvcc, "-x", "cu", "-std=c++20", "-cubin", arch, include, str(source), "-o", output])


def _command_compile(arguments: argparse.Namespace) -> None:
    kernels, output, target = arguments.kernels, arguments.output, arguments.target
    source = kernels / arguments.source
    include = [kernels / "include", kernels / "shim"]
    before = source_hash(kernels)
    if target == "cuda":
        toolchain = _nvcc()
        said = compile_fat_binary(toolchain, source, output, include)
    else:
        toolchain = Toolchain(**json.loads(arguments.choice.read_text()))
        if toolchain.name == "hipcc":
            include.pop()
        said = compile_object(toolchain, source, target, output, include)
    if source_hash(kernels) != before:
        # It would look newer than the edit, and not be compiled again.
        output.unlink()
        raise ToolchainError(
            f"{kernels} changed while {arguments.source} was compiled for {target}; build again"
        )
    resources = fat_binary_resources(said) if target == "cuda" else kernel_resources(said)
    for name, figures in resources.items():
        if figures["scratch"] and target != "cuda":
            raise ToolchainError(
                f"{name} for {target} spills {figures['scratch']} bytes of scratch"
            )
    _write_json(
        Path(f"{output}.json"),
        {
            "object": output.name,
            "source": arguments.source,
            "target": target,
            "sha256": hashlib.sha256(output.read_bytes()).hexdigest(),
            "source_hash": before,
            "toolchain": toolchain.name,
            "compiler": toolchain.version,
            "flags": [
                flag for flag in toolchain.compile if flag.startswith("-") and "/" not in flag
            ],
            "kernels": resources,
        },
    )


def _command_manifest(arguments: argparse.Namespace) -> None:
    objects = [json.loads(path.read_text()) for path in arguments.objects]
    _write_json(
        arguments.output,
        {"schema": 1, "files": file_hashes(arguments.kernels), "objects": objects},
    )


def _command_show(arguments: argparse.Namespace) -> None:
    for entry in json.loads(arguments.manifest.read_text())["objects"]:
        kernels = entry["kernels"]
        print(f"{entry['object']} {entry['sha256'][:16]} {entry['toolchain']}, {entry['compiler']}")
        if "ablations" in entry["source"]:
            most = {key: max(each.get(key, 0) for each in kernels.values()) for key in _SHOWN}
            stated = ", ".join(f"{most[key]} {_SHOWN[key]}" for key in ("vgpr", "lds", "scratch"))
            print(f"  {len(kernels)} kernels, at most {stated}")
            continue
        for name, figures in sorted(kernels.items()):
            if name.endswith("_traced"):
                continue
            stated = ", ".join(
                f"{figures[key]} {unit}" for key, unit in _SHOWN.items() if key in figures
            )
            print(f"  {name:31} {stated}")


def main(argv: list[str] | None = None) -> int:
    """Build steps: ``choose``, ``probe-nvcc``, ``compile``, ``manifest``; and ``show``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    commands = parser.add_subparsers(required=True)
    choosing = commands.add_parser("choose")
    choosing.add_argument("--output", type=Path, required=True)
    choosing.set_defaults(run=_command_choose)
    probing = commands.add_parser("probe-nvcc")
    probing.set_defaults(run=_command_probe_nvcc)
    compiling = commands.add_parser("compile")
    compiling.add_argument("--choice", type=Path)
    compiling.add_argument("--kernels", type=Path, required=True)
    compiling.add_argument("--source", required=True)
    compiling.add_argument("--target", choices=TARGETS, required=True)
    compiling.add_argument("--output", type=Path, required=True)
    compiling.set_defaults(run=_command_compile)
    listing = commands.add_parser("manifest")
    listing.add_argument("--kernels", type=Path, required=True)
    listing.add_argument("--output", type=Path, required=True)
    listing.add_argument("objects", type=Path, nargs="+")
    listing.set_defaults(run=_command_manifest)
    showing = commands.add_parser("show")
    showing.add_argument("manifest", type=Path)
    showing.set_defaults(run=_command_show)
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except ToolchainError as error:
        print(f"topk_lab kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
