"""Where, and on what code, does this process run?

Asked once for every run that is recorded. Neither host, user, path nor serial number is looked at:
records are published.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from topk_lab import __version__

__all__ = [
    "CPU_TARGETS",
    "DEVICE_TARGETS",
    "EMULATED_TARGETS",
    "RECORD_SCHEMA",
    "RunInfo",
    "device_name_of",
    "package_version",
    "without_paths",
]

RECORD_SCHEMA = 1

CPU_TARGETS = ("numba", "torch")
EMULATED_TARGETS = ("gfx90a", "gfx942", "gfx950")
DEVICE_TARGETS = ("hip", "cuda")

# Module -> the distributions that have carried it; those that bring peers are recorded too.
DISTRIBUTIONS = {
    "vllm": ("vllm",),
    "sglang": ("sglang",),
    "sgl_kernel": ("sglang-kernel", "sgl-kernel"),
    "flashinfer": ("flashinfer-python",),
    "aiter": ("amd-aiter", "aiter"),
    "deep_select": ("deep_select",),
}
RECORDED_PACKAGES = (
    *("numpy", "numba", "llvmlite", "torch", "pandas"),
    *(name for names in DISTRIBUTIONS.values() for name in names),
)
FILE_PATH = re.compile(
    r"(?:(?<=^)|(?<=[^A-Za-z0-9_.>]))"
    r"(?:~?/(?:[A-Za-z0-9_.+-]+/)+|[A-Za-z]:\\(?:[^\\\s]+\\)*)"
)


def without_paths(value: Any) -> Any:
    """Keep the last part only of every file path in a text, or in the texts of a list or dict."""
    if isinstance(value, str):
        return FILE_PATH.sub("", value)
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    return value


def _command_output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}".strip()


def _distribution_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of those that are installed."""
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def package_version(module: str) -> str | None:
    """Version of the distribution that a module came with, from its metadata; None without any."""
    found = _distribution_versions(DISTRIBUTIONS.get(module, (module,)))
    return next(iter(found.values()), None)


def _device(target: str) -> dict[str, Any]:
    import torch

    hip = torch.version.hip is not None
    if not torch.cuda.is_available() or hip != (target == "hip"):
        raise RuntimeError(
            f"target {target} must be a device that this torch sees, got torch {torch.__version__}"
        )
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    if hip:
        driver = Path("/sys/module/amdgpu/version")
        driver_version = driver.read_text().strip() if driver.is_file() else None
    else:
        listed = _command_output(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
        )
        driver_version = listed.splitlines()[0] if listed else None
    return {
        "name": found.name,
        "arch": found.gcnArchName.split(":")[0] if hip else f"sm_{found.major}{found.minor}",
        "compute_units": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "runtime": f"HIP {torch.version.hip}" if hip else f"CUDA {torch.version.cuda}",
        "driver": driver_version,
    }


def _git_state() -> tuple[str | None, bool | None]:
    """Commit of the checkout that this module runs from, and whether its code was edited since."""
    checkout = Path(__file__).resolve().parent.parent
    if not (checkout / ".git").exists():
        return None, None
    commit = _command_output("git", "-C", str(checkout), "rev-parse", "HEAD")
    if commit is None:
        return None, None
    edited = _command_output(
        "git", "-C", str(checkout), "status", "--porcelain", "--", "topk_lab", "kernels"
    )
    return commit, None if edited is None else bool(edited)


@dataclass(frozen=True)
class RunInfo:
    """Where and on what code the cells of one run were made.

    Attributes
    ----------
    run : str
        Random id, 32 hexadecimal digits.
    time : str
        Start, UTC, ``YYYY-MM-DDTHH:MM:SSZ``.
    environment : dict
        os, machine, cpu, cpu_threads, python, packages, device (None without a GPU target).
    code : dict
        package, git, dirty, kernel_hash, compiler.
    """

    run: str
    time: str
    environment: dict[str, Any]
    code: dict[str, Any]

    @classmethod
    def capture(
        cls,
        *,
        target: str | None = None,
        kernel_hash: str | None = None,
        compiler: str | None = None,
    ) -> RunInfo:
        """Describe this process. Neither host, user, path nor serial number is looked at.

        Parameters
        ----------
        target : {"hip", "cuda"}, optional
            Device target whose GPU is described; any other target needs none.
        kernel_hash : str, optional
            Hash of the kernel sources that the code objects were built from (hexadecimal).
        compiler : str, optional
            Compiler of the code objects, for example ``"clang 22.1.2"``.

        Returns
        -------
        RunInfo

        Raises
        ------
        RuntimeError
            A device target without such a device.
        """
        commit, dirty = _git_state()
        now = datetime.datetime.now(datetime.UTC)
        return cls(
            run=uuid.uuid4().hex,
            time=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            environment={
                "os": _os_name(),
                "machine": platform.machine(),
                "cpu": _cpu_model(),
                "cpu_threads": os.cpu_count() or 1,
                "python": platform.python_version(),
                "packages": _distribution_versions(RECORDED_PACKAGES),
                "device": _device(target) if target in DEVICE_TARGETS else None,
            },
            code={
                "package": __version__,
                "git": commit,
                "dirty": dirty,
                "kernel_hash": kernel_hash,
                "compiler": without_paths(compiler),
            },
        )

    def line(self) -> dict[str, Any]:
        """The run line as a record file holds it."""
        return {"schema": RECORD_SCHEMA, **asdict(self)}

    def device_name(self, target: str) -> str:
        """Where a cell of `target` runs, see `device_name_of`."""
        return device_name_of(target, self.environment)


def device_name_of(target: str, environment: dict[str, Any]) -> str:
    """Where a cell of `target` ran: a GPU's name, an emulated target itself, or a CPU's name."""
    if target in EMULATED_TARGETS:
        return target
    if target in DEVICE_TARGETS and environment["device"]:
        return environment["device"]["name"]
    return environment["cpu"] or environment["machine"]
