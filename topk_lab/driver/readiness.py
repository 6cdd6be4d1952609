"""Can the devices of a platform be used here, and if not, what has to be done?"""

from __future__ import annotations

from typing import NamedTuple

from topk_lab import code_objects
from topk_lab.driver.device import code_target
from topk_lab.driver.runtime import DriverError, open_runtime, platform

__all__ = ["Readiness", "devices", "status"]

_INSTALL = {"hip": "install PyTorch for ROCm", "cuda": "install PyTorch for CUDA"}
_BUILD = {"hip": "make build", "cuda": "put nvcc on PATH, then make build"}


class Readiness(NamedTuple):
    """Whether a platform can be used; the fields of `topk_lab.targets.Status` after its target."""

    usable: bool
    detail: str
    reason: str = ""
    fix: str = ""


def _code(target: str, archs: list[str]) -> code_objects.CodeObjectFile:
    """The code object of the first device that there is one for."""
    refusals = []
    for index, arch in enumerate(archs):
        try:
            return code_objects.find("vllm", code_target(target, arch, f"device {index} ({arch})"))
        except DriverError as error:
            refusals.append(error)
    raise refusals[0]


def devices(target: str) -> list[str]:
    """Architectures of the devices of a platform, in the order of their numbers.

    Parameters
    ----------
    target : {"hip", "cuda"}

    Returns
    -------
    list of str

    Raises
    ------
    DriverError
        The platform's driver can't be used.
    """
    runtime = open_runtime(target)
    return [runtime.describe(index)[0] for index in range(runtime.count())]


def status(target: str) -> Readiness:
    """Find out whether the devices of a platform can be used.

    Parameters
    ----------
    target : {"hip", "cuda"}

    Returns
    -------
    Readiness
        `detail` tells the devices, the driver library and the code object.
    """
    if platform() != target:
        import torch

        reason = f"torch {torch.__version__} is not built for {target.upper()} devices"
        return Readiness(False, "", reason, _INSTALL[target])
    detail = ""
    try:
        runtime = open_runtime(target)
        archs = devices(target)
        if not archs:
            raise DriverError(f"{runtime.path} sees no device", runtime.no_device_fix)
        detail = f"{', '.join(archs)} by {runtime.path}"
        found = _code(target, archs)
        found.read()
    except DriverError as error:
        return Readiness(False, detail, error.reason, error.fix)
    except code_objects.CodeObjectError as error:
        return Readiness(False, detail, str(error), _BUILD[target])
    return Readiness(
        True,
        f"{detail}; {found.path.name} {found.sha256[:12]} by {found.toolchain} ({found.compiler})",
    )
