"""Which compiled kernels are there, and may they be run?

A code object is looked for in the folder that ``TOPK_LAB_CODE`` names, then in the checkout's
``build/skb``, then among the package's own files. One that does not come from the kernel sources
beside it is refused: what is emulated, checked and shipped must be what is read.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from topk_lab import toolchain

__all__ = ["CodeObjectError", "CodeObjectFile", "find", "kernel_source", "manifest", "sources"]


class CodeObjectError(RuntimeError):
    """A code object is missing, stale or damaged; the message names the remedy."""


@dataclass(frozen=True)
class CodeObjectFile:
    """A compiled code object and how it was made.

    Attributes
    ----------
    path : Path
        The ELF file.
    source : str
        Stem of the HIP file it comes from.
    target : str
        AMD target, such as ``gfx950``.
    sha256 : str
        Hash of the file.
    source_hash : str
        Hash of the kernel sources (`topk_lab.toolchain.source_hash`).
    toolchain, compiler : str
        What compiled it.
    kernels : dict
        Kernel name -> registers, LDS bytes, scratch bytes, waves per SIMD.
    """

    path: Path
    source: str
    target: str
    sha256: str
    source_hash: str
    toolchain: str
    compiler: str
    kernels: dict[str, dict[str, int]]

    def read(self) -> bytes:
        """The file's bytes, once they are known to be those that the manifest lists."""
        image = self.path.read_bytes()
        if hashlib.sha256(image).hexdigest() != self.sha256:
            raise CodeObjectError(
                f"{self.path.name} is not the file its manifest lists; run `{_remedy()}`"
            )
        return image


def _checkout() -> Path | None:
    root = Path(__file__).resolve().parent.parent
    return root if (root / "kernels" / "include" / "topk_lab").is_dir() else None


def _remedy() -> str:
    return toolchain.REBUILD_COMMAND if _checkout() else "pip install --force-reinstall topk-lab"


def _folder() -> Path:
    named = os.environ.get("TOPK_LAB_CODE")
    if named:
        folder = Path(named)
        if not (folder / "manifest.json").is_file():
            raise CodeObjectError(
                f"TOPK_LAB_CODE must name a folder with manifest.json, got {named}"
            )
        return folder
    checkout = _checkout()
    folder = checkout / "build" / "skb" if checkout else Path(__file__).resolve().parent / "code"
    if not (folder / "manifest.json").is_file():
        raise CodeObjectError(f"no compiled kernels were found; run `{_remedy()}`")
    return folder


def _read_manifest() -> tuple[Path, dict]:
    folder = _folder()
    try:
        return folder, json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise CodeObjectError(
            f"manifest.json can't be read ({error}); run `{_remedy()}`"
        ) from error


def _changed_files() -> str:
    compiled = _read_manifest()[1].get("files", {})
    now = toolchain.file_hashes(toolchain.kernels_folder())
    names = sorted(name for name in compiled | now if compiled.get(name) != now.get(name))
    return ", ".join(f"kernels/{name}" for name in names) or "its sources"


def manifest() -> list[CodeObjectFile]:
    """Every compiled code object, fresh or not.

    Returns
    -------
    list of CodeObjectFile

    Raises
    ------
    CodeObjectError
        No manifest, or one that can't be read.
    """
    folder, content = _read_manifest()
    try:
        return [
            CodeObjectFile(
                path=folder / entry["object"],
                source=Path(entry["source"]).stem,
                target=entry["target"],
                sha256=entry["sha256"],
                source_hash=entry["source_hash"],
                toolchain=entry["toolchain"],
                compiler=entry["compiler"],
                kernels=entry["kernels"],
            )
            for entry in content["objects"]
        ]
    except (KeyError, TypeError) as error:
        raise CodeObjectError(f"manifest.json lacks {error}; run `{_remedy()}`") from error


def sources() -> str:
    """Hash of the kernel sources as they are now."""
    return toolchain.source_hash(toolchain.kernels_folder())


def find(source: str, target: str) -> CodeObjectFile:
    """The fresh code object of a source file for a target.

    Parameters
    ----------
    source : str
        Stem of the HIP file, such as ``vllm``.
    target : str
        AMD target, such as ``gfx950``.

    Returns
    -------
    CodeObjectFile

    Raises
    ------
    CodeObjectError
        Missing, or compiled from other sources than those that are there now.
    """
    objects = manifest()
    for candidate in objects:
        if (candidate.source, candidate.target) == (source, target):
            if candidate.source_hash != sources():
                raise CodeObjectError(
                    f"{candidate.path.name} is stale: {_changed_files()} changed since it was "
                    f"compiled; run `{_remedy()}`"
                )
            if not candidate.path.is_file():
                raise CodeObjectError(f"{candidate.path.name} is missing; run `{_remedy()}`")
            return candidate
    listed = ", ".join(sorted({f"{found.source}.{found.target}" for found in objects}))
    raise CodeObjectError(
        f"no code object {source}.{target}; compiled are {listed}; run `{_remedy()}`"
    )


@functools.cache
def kernel_source(kernel: str) -> str:
    """Stem of the HIP file that holds a kernel.

    Parameters
    ----------
    kernel : str
        Kernel name, such as ``vllm_k512_select``.

    Returns
    -------
    str

    Raises
    ------
    CodeObjectError
        No compiled object holds it.
    """
    for candidate in manifest():
        if kernel in candidate.kernels and kernel != "policy_probe":
            return candidate.source
    raise CodeObjectError(f"no code object holds the kernel {kernel}; run `{_remedy()}`")
