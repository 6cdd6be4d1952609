"""What every test needs: one thread a worker, and targets that are required, not skipped."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

# Before Numba or the emulator is imported: workers times threads would starve each other.
if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["NUMBA_NUM_THREADS"] = "1"
    os.environ["TOPK_LAB_THREADS"] = "1"

import pytest

from topk_lab import targets

FLAT_ROWS = (8, 16, 32, 64, 128, 256)  # of the published statement that the time is flat


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


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """Records of one small experiment, with an answer that is wrong as due, and their runs."""
    from topk_lab import environment, results

    folder = tmp_path_factory.mktemp("records")
    run = environment.RunInfo.capture(kernel_hash="c0ffee" * 4, compiler="clang 22.1")
    recorder = results.Recorder(folder, run, check=False)
    for target in ("numba", "gfx950", "gfx942"):
        for variant, status, slots in (
            ("vllm_k512", "ok", 0),
            ("vllm_k512[fits_rule=false,final_pad=neg_flt_max]", "wrong", 212),
        ):
            recorder.record(
                experiment="neg_inf_rule",
                target=target,
                variant=variant,
                status=status,
                reason=None if status == "ok" else "212 slots <hold> no index",
                num_rows=1,
                num_cols=1000,
                k=512,
                workload="masked_prefix",
                counters={"wrong_slots": slots},
            )
    return results.load(folder), results.load_runs(folder)


@pytest.fixture
def mi355x_record(tmp_path: Path) -> Path:
    """A record as an MI355X's owner would send it: of times that nobody measured."""
    from topk_lab import bench, code_objects, contributions, environment, results
    from topk_lab.firstlight.report import Report
    from topk_lab.firstlight.state import record_part

    captured = environment.RunInfo.capture(kernel_hash=code_objects.sources(), compiler="clang 22")
    device = {
        "name": "AMD Instinct MI355X",
        "arch": "gfx950",
        "compute_units": 256,
        "memory_bytes": 2**38,
        "runtime": "HIP 7.2",
        "driver": "6.14",
    }
    run = dataclasses.replace(
        captured,
        environment=captured.environment | {"device": device},
        code=captured.code | {"dirty": False},
    )
    path = tmp_path / "record.jsonl"
    recorder = results.Recorder(path, run)
    record_part(recorder, "hip", "ready", Report("ok", done=1, planned=1, unit="device"), 1.0)
    for cell in bench.EXPERIMENTS["latency_vs_batch"].cells():
        if cell.cache != "warm" or cell.workload_args or cell.num_rows not in FLAT_ROWS:
            continue
        for variant, time_us in (("sglang_block512", 36.8), ("sglang_block1024", 23.0)):
            recorder.record(
                experiment="latency_vs_batch",
                target="hip",
                variant=variant,
                status="ok",
                samples_us=[time_us, time_us + 0.1, time_us + 0.2],
                counters={"units": 256},
                **cell.fields(),
            )
    contributions.seal(path)
    return path


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that are marked gpu without a device, or fail them where gpu is required."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        required = "gpu" in os.environ.get("TOPK_LAB_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(f"torch {torch.__version__} sees no device")
