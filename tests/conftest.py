"""What every test needs: one thread a worker, and targets that are required, not skipped."""

from __future__ import annotations

import os

# Before Numba or the emulator is imported: workers times threads would starve each other.
if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["NUMBA_NUM_THREADS"] = "1"
    os.environ["TOPK_LAB_THREADS"] = "1"

import pytest

from topk_lab import targets


def require(target: str) -> None:
    """Fail where a target that TOPK_LAB_REQUIRE names is unusable; skip where another is."""
    state = targets.status(target)
    if state.usable:
        return
    if target in os.environ.get("TOPK_LAB_REQUIRE", "").split(","):
        pytest.fail(f"{target} is required and not usable: {state.reason}", pytrace=False)
    pytest.skip(f"{target}: {state.reason}")


@pytest.fixture(params=targets.AMD_TARGETS)
def amd_target(request: pytest.FixtureRequest) -> str:
    """Each AMD target that the kernels are compiled for."""
    require(request.param)
    return request.param


@pytest.fixture(params=("numba", *targets.AMD_TARGETS))
def vllm_target(request: pytest.FixtureRequest) -> str:
    """Each target that the vLLM selections run on."""
    require(request.param)
    return request.param


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that are marked gpu without a device, or fail them where gpu is required."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        required = "gpu" in os.environ.get("TOPK_LAB_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(f"torch {torch.__version__} sees no device")
