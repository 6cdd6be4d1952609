import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from topk_lab import code_objects, driver, plans, workloads
from topk_lab.contract import UNWRITTEN, assert_exact
from topk_lab.driver import runtime
from topk_lab.reference import exact
from topk_lab.targets import AMD_TARGETS

_SPEC = importlib.util.spec_from_file_location(
    "stand_in", Path(__file__).parent / "hip_stand_in" / "stand_in.py"
)
stand_in_module = importlib.util.module_from_spec(_SPEC)
sys.modules["stand_in"] = stand_in_module
_SPEC.loader.exec_module(stand_in_module)

MACHINE = (
    "gfx950:sramecc+:xnack-",
    "gfx942:sramecc+:xnack-",
    "gfx1100",
    "gfx950:sramecc+:xnack-",
    "gfx90a:sramecc+:xnack-",
)
INDEX = {"gfx950": 0, "gfx942": 1, "gfx90a": 4}
SMALL = plans.plan("vllm_k512", plans.Shape(2, 1200, 512, 1200, 512))
SPLIT = plans.plan("vllm_k512", plans.Shape(2, 40_000, 512, 40_000, 512))
GENERIC = plans.plan("vllm_generic", plans.Shape(2, 1200, 512, 1200, 512))
ADDRESSES = {"logits": 1 << 40, "row_ends": 2 << 40, "indices": 3 << 40, "workspace": 5 << 40}


@pytest.fixture
def hip(monkeypatch):
    stand_in = stand_in_module.StandIn("hip")
    stand_in.devices(*MACHINE)
    monkeypatch.setenv(driver.HIP_LIBRARY_VARIABLE, str(stand_in.path))
    yield stand_in
    assert stand_in.last_error == 0


@pytest.fixture
def noting(hip):
    """The stand-in that notes launches and emulates none, so that addresses may be anything."""
    hip.emulates = False
    return hip


@pytest.fixture
def cuda(monkeypatch):
    """The stand-in for libcuda; gfx950 plays the CUDA device."""
    stand_in = stand_in_module.StandIn("cuda")
    stand_in.devices("gfx950", "gfx950")
    monkeypatch.setattr(runtime, "CUDA_LIBRARY", str(stand_in.path))
    find = code_objects.find
    monkeypatch.setattr(code_objects, "find", lambda source, target: find(source, "gfx950"))
    return stand_in


@pytest.fixture
def current(noting):
    """Which device is current in this thread, as torch would have set it."""
    library = runtime.open_runtime("hip")

    def read():
        with library.current(0):
            pass
        number = library.Current()
        library.call("get_current", runtime.byref(number))
        return number.value

    yield library.set_current, read
    library.set_current(0)


def select(stand_in, device, variant, logits, k, row_ends, stream=0):
    """One call through the driver, from the plan to (indices, values)."""
    num_rows, num_cols = logits.shape
    shape = plans.Shape(num_rows, num_cols, k, logits.strides[0] // 4, k, k)
    plan = plans.plan(variant, shape)
    indices = np.full((num_rows, k), UNWRITTEN, np.int32)
    values = np.full((num_rows, k), np.float32(UNWRITTEN))
    workspace = np.full(plan.workspace_bytes // 4, UNWRITTEN, np.int32)
    addresses = {
        "logits": stand_in.share("logits", logits, writable=False),
        "row_ends": stand_in.share("row_ends", row_ends, writable=False),
        "indices": stand_in.share("indices", indices),
        "values": stand_in.share("values", values),
        "workspace": stand_in.share("workspace", workspace),
    }
    try:
        driver.launch(plan, addresses, device, stream)
    except driver.DriverError as error:
        if stand_in.faults:
            raise stand_in.faults[0] from error
        raise
    return indices, values


def changed(plan, **fields):
    return dataclasses.replace(plan, launches=(dataclasses.replace(plan.launches[0], **fields),))


@pytest.mark.parametrize("arch", AMD_TARGETS)
@pytest.mark.parametrize(
    ("variant", "workload", "num_cols", "lengths"),
    [
        ("vllm_k512", "normal", 40_000, (40_000, 16_385, 513, 100)),
        ("vllm_k512", "masked_random", 40_000, (40_000, 16_384, 512, 0)),
        ("vllm_k512", "nan", 2000, (2000, 700, 3)),
        ("vllm_generic", "constant", 3000, (3000, 512, 5)),
        ("vllm_generic", "same_leading_bits", 12_288, (12_288, 700)),
        ("sglang_block512", "near_equal", 12_000, (12_000, 5121, 5120, 513, 100, 0)),
        ("sglang_block1024", "constant", 6000, (6000, 5121, 5120, 512)),
        ("sglang_block1024", "nan", 2000, (2000, 700, 3)),
        ("aiter_one_block", "near_equal", 12_000, (12_000, 5121, 513, 512, 100, 0)),
        ("aiter_one_block", "constant", 6001, (6001, 513, 512)),
        ("shared_histogram", "near_equal", 41_000, (41_000, 40_960, 40_959, 513, 512, 0)),
        ("shared_histogram", "constant", 6001, (6001, 513, 512)),
    ],
)
def test_plans_run_exactly_through_the_driver(hip, arch, variant, workload, num_cols, lengths):
    row_ends = np.array(lengths, np.int32)
    logits = workloads.make(workload, len(lengths), num_cols, row_ends=row_ends, poison="nan")
    device = driver.Device("hip", INDEX[arch])
    stream = hip.stream(INDEX[arch])
    indices, values = select(hip, device, variant, logits, 512, row_ends, stream)
    assert_exact(logits, indices, row_ends=row_ends, values=values)
    assert {launched.device for launched in hip.launches} == {INDEX[arch]}
    assert device.arch == arch


def test_kernels_get_what_the_plan_says(noting):
    driver.launch(SPLIT, ADDRESSES, driver.Device("hip", 1), noting.stream(1))
    for launched, launch in zip(noting.launches, SPLIT.launches, strict=True):
        assert launched.kernel == launch.kernel
        assert launched.grid == (*launch.grid, 1)
        assert launched.block == (launch.block, 1, 1)
        assert launched.dynamic_lds == launch.dynamic_lds
        assert launched.params == launch.params(ADDRESSES)


def test_a_prepared_plan_takes_other_addresses(noting):
    device = driver.Device("hip", 0)
    prepared = driver.prepare(SPLIT, device)
    assert driver.prepare(SPLIT, device) is prepared
    assert set(prepared.buffers) == set(ADDRESSES)
    for shift in (0, 64):
        addresses = {name: address + shift for name, address in ADDRESSES.items()}
        prepared.launch([addresses[name] for name in prepared.buffers], 0)
        assert noting.launches[-2].params == SPLIT.launches[0].params(addresses)
    with pytest.raises(ValueError, match=r"addresses must be those of logits, row_ends, .* got 2"):
        prepared.launch((1, 2), 0)
    with pytest.raises(ValueError, match="addresses must name indices, workspace, got logits"):
        driver.launch(SPLIT, {"logits": 1, "row_ends": 2}, device, 0)
    assert len(noting.launches) == 4


def test_threads_do_not_mix_their_arguments(noting):
    prepared = driver.prepare(SPLIT, driver.Device("hip", 0))

    def work(number):
        for turn in range(20):
            at = 1000 * number + turn
            prepared.launch([at << 32 | place for place in range(4)], 0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [plans.TopKParams.from_buffer_copy(launched.params) for launched in noting.launches]
    for params in seen:
        parts = (params.logits, params.row_ends, params.indices, params.split_indices)
        assert len({part >> 32 for part in parts}) == 1
    assert len({params.logits for params in seen}) == 80


def test_a_call_without_rows_launches_nothing(noting):
    empty = plans.plan("vllm_k512", plans.Shape(0, 1200, 512, 1200, 512))
    driver.launch(empty, ADDRESSES, driver.Device("hip", 0), 0)
    assert (noting.launches, noting.loads) == ([], 0)


def test_a_code_object_is_loaded_once_on_each_device(noting):
    devices = [driver.Device("hip", index) for index in (0, 3)]
    for device in devices:
        for plan in (SMALL, SPLIT, GENERIC):
            driver.launch(plan, ADDRESSES, device, noting.stream(device.index))
    assert noting.loads == 2
    assert driver.open_device("hip", 3) is driver.open_device("hip", 3)


def test_the_current_device_is_restored(noting, current):
    set_current, read = current
    device = driver.Device("hip", 0)
    set_current(3)
    driver.launch(SMALL, ADDRESSES, device, 0)
    assert (noting.launches[0].device, read()) == (0, 3)
    noting.fail("hipModuleLaunchKernel", 1)
    with pytest.raises(driver.DriverError):
        driver.launch(SMALL, ADDRESSES, device, 0)
    with pytest.raises(driver.DriverError):
        driver.launch(SMALL, ADDRESSES, driver.Device("hip", 2), 0)
    assert read() == 3


def test_a_stream_of_another_device_is_refused(noting, current):
    set_current, _ = current
    device = driver.Device("hip", 0)
    driver.prepare(SMALL, device)
    foreign = noting.stream(3)
    for setting in ({"now": 0}, {"now": 3}, {"now": 3, "capturing": True}):
        set_current(setting["now"])
        noting.capture(foreign, setting.get("capturing", False))
        with pytest.raises(
            driver.DriverError,
            match=r"stream must be one of hip device 0 \(gfx950\), got one of device 3",
        ):
            driver.launch(SMALL, ADDRESSES, device, foreign)
    noting.fail("hipStreamGetDevice", 709)
    with pytest.raises(driver.DriverError, match=r"stream 0x\w+: hipStreamGetDevice returned"):
        driver.launch(SMALL, ADDRESSES, device, foreign)
    assert noting.launches == []


def test_a_refused_launch_is_named(noting):
    device = driver.Device("hip", 1)
    driver.prepare(SPLIT, device)
    noting.fail("hipModuleLaunchKernel", 1)
    with pytest.raises(driver.DriverError) as caught:
        driver.launch(SPLIT, ADDRESSES, device, 0)
    assert str(caught.value) == (
        "vllm_k512_select on hip device 1 (gfx942): hipModuleLaunchKernel returned "
        "hipErrorInvalidValue (1): invalid argument"
    )
    assert (caught.value.code, caught.value.fix) == (1, "")
    driver.launch(SPLIT, ADDRESSES, device, 0)
    assert [launched.kernel for launched in noting.launches] == [
        "vllm_k512_select",
        "vllm_k512_merge",
    ]


def test_a_kernel_fault_is_told_and_survived(hip):
    row_ends = np.array([1200, 1200], np.int32)
    logits = workloads.make("normal", 2, 1200)
    indices = np.full((2, 512), UNWRITTEN, np.int32)
    device = driver.Device("hip", 0)
    addresses = {
        "logits": hip.share("logits", logits, writable=False),
        "row_ends": hip.share("row_ends", row_ends, writable=False),
        "indices": hip.share("indices", indices[:1]),
    }
    with pytest.raises(driver.DriverError, match=r"hipErrorIllegalAddress \(700\)") as caught:
        driver.launch(SMALL, addresses, device, 0)
    assert caught.value.fix.startswith("earlier work on the device may be at fault")
    assert "indices" in str(hip.faults[0])
    hip.share("indices", indices)
    driver.launch(SMALL, addresses, device, 0)
    assert_exact(logits, indices, row_ends=row_ends)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (lambda image, other: other, r"hipErrorNoBinaryForGpu \(209\): no kernel image"),
        (lambda image, other: b"\0" * 64, r"hipErrorInvalidImage \(200\)"),
    ],
    ids=["another target", "no code object"],
)
def test_code_objects_that_do_not_load_are_named(noting, monkeypatch, image, message):
    read = code_objects.CodeObjectFile.read
    other = read(code_objects.find("vllm", "gfx942"))
    monkeypatch.setattr(
        code_objects.CodeObjectFile, "read", lambda found: image(read(found), other)
    )
    with pytest.raises(driver.DriverError, match=message):
        driver.launch(SPLIT, ADDRESSES, driver.Device("hip", 0), 0)
    assert noting.launches == []


def test_a_kernel_that_the_code_object_lacks_is_named(noting, monkeypatch):
    monkeypatch.setattr(code_objects, "kernel_source", lambda kernel: "vllm")
    with pytest.raises(
        driver.DriverError,
        match=r"absent on hip device 0 \(gfx950\): hipModuleGetFunction returned "
        r"hipErrorNotFound \(500\)",
    ):
        driver.launch(changed(SMALL, kernel="absent"), ADDRESSES, driver.Device("hip", 0), 0)
    assert noting.launches == []


def test_a_device_that_no_kernel_is_compiled_for_is_refused(noting):
    with pytest.raises(
        driver.DriverError,
        match=r"compiled for gfx.*gfx950, not for hip device 2 \(gfx1100\): its waves are of "
        r"32 lanes, the kernels are compiled for waves of 64; choose another device",
    ):
        driver.launch(SMALL, ADDRESSES, driver.Device("hip", 2), 0)


def test_devices_are_counted_and_platforms_known(noting):
    for index in (-1, 5):
        with pytest.raises(ValueError, match=f"index must be one of 5 hip devices, got {index}"):
            driver.Device("hip", index)
    with pytest.raises(ValueError, match="platform must be hip or cuda, got 'metal'"):
        driver.Device("metal", 0)


def test_nothing_is_loaded_while_a_stream_is_captured(noting):
    device, stream = driver.Device("hip", 0), noting.stream(0)
    noting.capture(stream, True)
    refusal = r"vllm_k512_select isn't loaded on hip device 0 .* warm up first: make one such call"
    for used in (stream, 0, noting.stream(0)):
        with pytest.raises(driver.DriverError, match=refusal):
            driver.launch(SMALL, ADDRESSES, device, used)
    assert (noting.loads, noting.launches) == (0, [])

    noting.capture(stream, False)
    driver.launch(GENERIC, ADDRESSES, device, stream)
    noting.capture(stream, True)
    driver.launch(SPLIT, ADDRESSES, device, stream)
    assert [launched.kernel for launched in noting.launches[1:]] == [
        "vllm_k512_select",
        "vllm_k512_merge",
    ]


def test_a_driver_that_cannot_tell_whether_a_stream_is_captured_is_named(noting):
    noting.fail("hipStreamIsCapturing", 1)
    with pytest.raises(driver.DriverError, match=r"hip device 0 .*: hipStreamIsCapturing returned"):
        driver.launch(SMALL, ADDRESSES, driver.Device("hip", 0), 0)


def test_launches_beyond_the_device_are_refused_before(noting):
    device = driver.Device("hip", 1)
    static = code_objects.find("vllm", "gfx942").kernels["vllm_k512_select"]["lds"]
    fits = changed(SMALL, dynamic_lds=65536 - static)
    driver.launch(fits, ADDRESSES, device, 0)
    for plan, message in (
        (
            changed(SMALL, dynamic_lds=65537 - static),
            rf"vllm_k512_select needs {static} \+ {65537 - static} bytes of LDS a block, hip "
            r"device 1 \(gfx942\) has 65536",
        ),
        (changed(SMALL, block=2048), r"blocks of at most 1024 threads on hip device 1 .* got 2048"),
    ):
        with pytest.raises(driver.DriverError, match=message):
            driver.launch(plan, ADDRESSES, device, 0)
    assert [launched.dynamic_lds for launched in noting.launches] == [65536 - static]


def test_two_runtimes_are_refused_by_name(hip, tmp_path, monkeypatch):
    other = tmp_path / "libamdhip64.so.6"
    shutil.copy(hip.path, other)
    monkeypatch.setenv(driver.HIP_LIBRARY_VARIABLE, str(other))
    both = f"this process has two HIP runtimes, {hip.path} and {other}, .*; keep one"
    with pytest.raises(driver.DriverError, match=both):
        driver.Device("hip", 0)
    state = driver.status("hip")
    assert not state.usable
    assert "two HIP runtimes" in state.reason
    assert state.fix.startswith("keep one: check LD_LIBRARY_PATH")


def test_one_runtime_may_have_several_names(hip, tmp_path, monkeypatch):
    link = tmp_path / "libamdhip64.so"
    link.symlink_to(hip.path)
    monkeypatch.setenv(driver.HIP_LIBRARY_VARIABLE, str(link))
    assert driver.Device("hip", 1).arch == "gfx942"


def in_a_process_of_its_own(script, **environment):
    kept = {name: value for name, value in os.environ.items() if name != "ROCM_PATH"}
    kept.pop(driver.HIP_LIBRARY_VARIABLE, None)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=kept | environment,
    )
    return done.stdout.strip()


def test_the_mapped_runtime_is_the_one_that_is_used(hip, tmp_path):
    copies = [tmp_path / "libamdhip64.so.6", tmp_path / "libamdhip64.so.7"]
    for copy in copies:
        shutil.copy(hip.path, copy)
    printed = in_a_process_of_its_own(
        "import ctypes\n"
        "from topk_lab import driver\n"
        f"ctypes.CDLL({str(copies[0])!r})\n"
        "device = driver.Device('hip', 0)\n"
        "print(device.name, device.runtime.path)\n"
        f"ctypes.CDLL({str(copies[1])!r})\n"
        "try:\n"
        "    driver.Device('hip', 0)\n"
        "except driver.DriverError as error:\n"
        "    print(error)\n",
        STAND_IN_DEVICES="gfx942:sramecc+",
    )
    first, second = printed.splitlines()
    assert first == f"hip device 0 (gfx942) {copies[0]}"
    assert second.startswith("this process has two HIP runtimes")
    assert all(str(copy) in second for copy in copies)


def test_an_installed_runtime_is_found_and_a_missing_one_explained(hip, tmp_path):
    script = (
        "from topk_lab import driver\n"
        "try:\n"
        "    print(driver.Device('hip', 0).runtime.path)\n"
        "except driver.DriverError as error:\n"
        "    print(error)\n"
    )
    assert in_a_process_of_its_own(script, ROCM_PATH=str(tmp_path)) == (
        "no libamdhip64.so was found: this process maps none, and there is none in rocm_sdk, in "
        "torch/lib, on the loader's path or under ROCM_PATH; install PyTorch for ROCm, or name the "
        "library in TOPK_LAB_HIP_LIBRARY"
    )
    library = tmp_path / "lib" / "libamdhip64.so"
    library.parent.mkdir()
    shutil.copy(hip.path, library)
    printed = in_a_process_of_its_own(script, ROCM_PATH=str(tmp_path), STAND_IN_DEVICES="gfx950")
    assert printed == str(library)


def test_libraries_that_do_not_serve_are_named(hip, monkeypatch, tmp_path):
    monkeypatch.setenv(driver.HIP_LIBRARY_VARIABLE, str(tmp_path / "libamdhip64.so"))
    with pytest.raises(driver.DriverError, match=r"TOPK_LAB_HIP_LIBRARY names .*which is no file"):
        driver.Device("hip", 0)
    with pytest.raises(driver.DriverError, match=r"can't be loaded .*; install PyTorch for ROCm"):
        runtime.HipRuntime(__file__)
    with pytest.raises(driver.DriverError, match=r"has no hipInit; ROCm 6.3 or newer is required"):
        runtime.HipRuntime(str(stand_in_module.build("cuda")))
    monkeypatch.setattr(runtime, "CUDA_LIBRARY", "libcuda-nowhere.so.1")
    with pytest.raises(driver.DriverError, match=r"libcuda-nowhere.* install the NVIDIA driver"):
        driver.Device("cuda", 0)


def test_status_tells_devices_library_and_code(hip):
    state = driver.status("hip")
    found = code_objects.find("vllm", "gfx950")
    assert driver.platform() == "hip"
    assert state.usable
    assert state.detail.startswith(
        f"gfx950, gfx942, gfx1100, gfx950, gfx90a by {hip.path}; {found.path.name}"
    )
    assert found.sha256[:12] in state.detail


@pytest.mark.parametrize(
    ("archs", "reason", "fix"),
    [
        ((), "sees no device", "check HIP_VISIBLE_DEVICES"),
        (
            ("gfx1100", "gfx1201"),
            "gfx942, gfx950, not for device 0 (gfx1100)",
            "choose another device",
        ),
        (("sm_90",), "describes hip device 0 in an unknown layout", "ROCm 6.3 or newer"),
    ],
    ids=["no device", "no target", "layout"],
)
def test_status_tells_what_is_missing(hip, archs, reason, fix):
    hip.devices(*archs)
    state = driver.status("hip")
    assert not state.usable
    assert reason in state.reason
    assert state.fix.startswith(fix)


def test_status_asks_for_fresh_code(hip, monkeypatch, tmp_path):
    monkeypatch.setenv("TOPK_LAB_CODE", str(tmp_path))
    state = driver.status("hip")
    assert (state.usable, state.fix) == (False, "make build")
    assert "TOPK_LAB_CODE must name a folder" in state.reason


def test_the_platform_is_what_torch_was_built_for(monkeypatch):
    import torch

    monkeypatch.delenv(driver.HIP_LIBRARY_VARIABLE, raising=False)
    for hip_version, cuda_version, expected in (
        (None, None, None),
        ("7.2.1", None, "hip"),
        (None, "13.0", "cuda"),
    ):
        monkeypatch.setattr(torch.version, "hip", hip_version)
        monkeypatch.setattr(torch.version, "cuda", cuda_version)
        assert driver.platform() == expected
    state = driver.status("hip")
    assert state.reason == f"torch {torch.__version__} is not built for HIP devices"
    assert state.fix == "install PyTorch for ROCm"


def test_plans_run_exactly_through_the_cuda_driver(cuda):
    row_ends = np.array([40_000, 16_385, 7], np.int32)
    logits = workloads.make("masked_random", 3, 40_000, row_ends=row_ends, poison="inf")
    device = driver.Device("cuda", 1)
    assert (device.arch, device.lds_limit) == ("sm_95", 163840)
    indices, values = select(cuda, device, "vllm_k512", logits, 512, row_ends, cuda.stream(1))
    assert_exact(logits, indices, row_ends=row_ends, values=values)


@pytest.mark.parametrize("launches", [2, 3])
@pytest.mark.parametrize("num_rows", [128, 129])
def test_launches_overlap_where_the_plan_says_so(cuda, num_rows, launches):
    shape = plans.Shape(num_rows, 20_000, 512, 20_000, 512, order="value")
    form = "fused" if launches == 2 else "two"
    plan = plans.plan(f"delegate[launches={form}]", shape)
    overlapped = launches if num_rows == 128 else 0
    assert [launch.overlaps for launch in plan.launches] == [overlapped > 0] * launches
    cuda.emulates = False
    device = driver.Device("cuda", 0)
    assert device.overlaps
    before = cuda.overlapped
    driver.launch(plan, ADDRESSES, device, cuda.stream(0))
    assert cuda.overlapped - before == overlapped
    prepared = driver.prepare(plan, device)
    raw = prepared.raw_launch([ADDRESSES[name] for name in prepared.buffers], 0)
    cuda.launches.clear()
    with device.runtime.current(device.handle):
        raw()
    launched = [(one.kernel, one.grid, one.block, one.dynamic_lds) for one in cuda.launches]
    assert launched == [
        (one.kernel, (*one.grid, 1), (one.block, 1, 1), one.dynamic_lds) for one in plan.launches
    ]


def test_launches_that_overlap_are_exact_and_refused_like_others(cuda):
    row_ends = np.array([40_000, 16_385, 7], np.int32)
    logits = workloads.make("masked_random", 3, 40_000, row_ends=row_ends, poison="inf")
    device = driver.Device("cuda", 1)
    before = cuda.overlapped
    indices, values = select(cuda, device, "delegate", logits, 512, row_ends, cuda.stream(1))
    assert_exact(logits, indices, row_ends=row_ends, values=values)
    assert cuda.overlapped == before + 2
    plan = plans.plan("delegate", plans.Shape(3, 1200, 512, 1200, 512))
    with pytest.raises(
        driver.DriverError,
        match=r"delegate_k512_select on cuda device 1 .*cuLaunchKernelEx returned "
        r"CUDA_ERROR_INVALID_HANDLE \(400\): invalid resource handle",
    ):
        driver.launch(plan, ADDRESSES, device, cuda.stream(0))


@pytest.mark.parametrize(
    ("arch", "overlaps"), [("sm_80", False), ("sm_89", False), ("sm_90", True)]
)
def test_no_launch_overlaps_on_older_devices(cuda, arch, overlaps):
    assert driver.Device("cuda", 0).runtime.can_overlap(arch) is overlaps


def test_no_launch_of_hip_overlaps(noting):
    assert not driver.Device("hip", 0).overlaps


def test_cuda_contexts_are_left_as_they_were(cuda):
    cuda.emulates = False
    device = driver.Device("cuda", 1)
    library = device.runtime

    def context():
        number = library.Current()
        library.call("get_current", runtime.byref(number))
        return number.value

    driver.launch(SMALL, ADDRESSES, device, 0)
    assert context() is None
    with library.current(library.handle(0)):
        driver.launch(SMALL, ADDRESSES, device, 0)
        with pytest.raises(
            driver.DriverError,
            match=r"vllm_k512_select on cuda device 1 .*cuLaunchKernel returned "
            r"CUDA_ERROR_INVALID_HANDLE \(400\): invalid resource handle",
        ):
            driver.launch(SMALL, ADDRESSES, device, cuda.stream(0))
        assert context() == library.handle(0)
    assert [launched.device for launched in cuda.launches] == [1, 1]


def test_cuda_is_asked_for_more_than_48_kib(cuda):
    cuda.emulates = False
    device = driver.Device("cuda", 0)
    large, larger = (changed(SMALL, dynamic_lds=nbytes) for nbytes in (60_000, 100_000))
    for plan in (large, larger, large):
        driver.launch(plan, ADDRESSES, device, 0)
    assert [launched.dynamic_lds for launched in cuda.launches] == [60_000, 100_000, 60_000]
    with pytest.raises(driver.DriverError, match=r"\+ 163840 bytes of LDS a block"):
        driver.launch(changed(SMALL, dynamic_lds=163_840), ADDRESSES, device, 0)


def test_unknown_cuda_errors_keep_their_number(cuda):
    device = driver.Device("cuda", 0)
    error = device.runtime.error(12345, "launch_kernel")
    assert str(error) == "cuLaunchKernel returned an unknown error (12345): an unknown error"


@pytest.fixture(params=AMD_TARGETS)
def operator(request, hip, monkeypatch):
    """`topk_lab.topk` and `topk_paged` on CPU tensors, launched on a device of the stand-in."""
    import torch

    from topk_lab.ops import operators

    monkeypatch.setattr(operators, "_place", lambda logits: ("hip", INDEX[request.param]))
    monkeypatch.setattr(operators, "current_stream", lambda index: 0)
    monkeypatch.setattr(operators, "_device_calls", {})
    library = torch.library.Library("topk_lab", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name in ("topk_out", "topk_paged_out"):
            on_device = getattr(operators, f"_{name}_device")
            library.impl(name, on_device, "CPU", allow_override=True)
    yield request.param
    library._destroy()


@pytest.mark.parametrize(
    "variant",
    ["vllm_k512", "vllm_generic", "sglang_block1024", "aiter_one_block", "shared_histogram"],
)
@pytest.mark.parametrize("name", ["normal", "masked_prefix", "same_leading_bits", "nan"])
def test_topk_reaches_the_oracle_through_the_hip_driver(hip, operator, variant, name):
    import torch

    import topk_lab

    row_ends = torch.tensor([40_000, 513, 100], dtype=torch.int32)
    logits = torch.from_numpy(
        workloads.make(name, 3, 40_000, row_ends=row_ends.numpy(), poison="nan")
    )
    out = torch.full((3, 512), UNWRITTEN, dtype=torch.int32)
    values = torch.full((3, 512), float(UNWRITTEN))
    required = topk_lab.workspace_size(3, 40_000, 512, variant)
    workspace = torch.zeros(max(required, 4), dtype=torch.uint8)
    for label, tensor in {
        "logits": logits,
        "row_ends": row_ends,
        "indices": out,
        "values": values,
        "workspace": workspace,
    }.items():
        hip.share(label, tensor.numpy())

    topk_lab.topk(
        logits, 512, row_ends=row_ends, variant=variant, out=out, values_out=values,
        workspace=workspace,
    )  # fmt: skip

    assert {launch.device for launch in hip.launches} == {INDEX[operator]}
    assert all(launch.kernel.startswith(variant) for launch in hip.launches)
    topk_lab.assert_exact(logits, out, row_ends=row_ends, values=values)


def test_a_repeated_topk_reads_what_memory_holds_now(hip, operator):
    import torch

    import topk_lab

    logits = torch.from_numpy(workloads.make("normal", 2, 1200))
    row_ends = torch.tensor([1200, 600], dtype=torch.int32)
    out = torch.full((2, 512), UNWRITTEN, dtype=torch.int32)
    for label, tensor in {"logits": logits, "row_ends": row_ends, "indices": out}.items():
        hip.share(label, tensor.numpy())
    for lengths in ([1200, 600], [513, 0], [512, 1200]):
        row_ends.copy_(torch.tensor(lengths, dtype=torch.int32))
        logits.copy_(logits.flip(1))
        out.fill_(UNWRITTEN)
        topk_lab.topk(logits, 512, row_ends=row_ends, variant="vllm_k512", out=out)
        topk_lab.assert_exact(logits, out, row_ends=row_ends)
    assert len(hip.launches) == 3


def shared(stand_in, **tensors):
    """Let kernels touch the memory of tensors, each as one piece."""
    for label, tensor in tensors.items():
        read_only = label in ("logits", "row_ends", "page_table")
        stand_in.share(label, tensor.numpy(), writable=not read_only)


def page_tables(num_tables, pages):
    """Every page of a pool once, in random order."""
    import torch

    pool = np.random.default_rng(7).permutation(num_tables * pages).astype(np.int32)
    return torch.from_numpy(pool.reshape(num_tables, pages))


def slots_due(indices, table, page_size):
    """Slots that indices (num_rows, k) stand for, by division and in int64."""
    tables = np.repeat(table.numpy(), len(indices) // len(table), axis=0).astype(np.int64)
    columns = np.maximum(indices.numpy(), 0)
    pages = np.take_along_axis(tables, columns // page_size, axis=1)
    return np.where(indices.numpy() < 0, -1, pages * page_size + columns % page_size)


PAGED_KERNELS = {
    "vllm_k512": ["vllm_k512_select", "vllm_k512_merge", "page_transform"],
    "sglang_block1024": ["sglang_block1024_select"],
    "aiter_one_block": ["aiter_one_block_select"],
    "shared_histogram": [f"shared_histogram_{name}" for name in ("clear", "count", "select")],
}


@pytest.mark.parametrize("variant", PAGED_KERNELS)
@pytest.mark.parametrize("raw", [True, False], ids=["with-indices", "slots-alone"])
@pytest.mark.parametrize("name", ["normal", "near_equal", "masked_prefix"])
def test_topk_paged_reaches_the_contract_through_the_hip_driver(hip, operator, variant, raw, name):
    import torch

    import topk_lab

    # Two rows a sequence share a row of a wide table; slots and indices have guards beside them.
    seq_lens = torch.tensor([40_000, 514, 101], dtype=torch.int32)
    row_ends = topk_lab.row_ends_from(seq_lens, 2)
    logits = torch.from_numpy(
        workloads.make(name, 6, 40_000, row_ends=row_ends.numpy(), poison="nan")
    )
    wide = torch.full((3, 700), UNWRITTEN, dtype=torch.int32)
    table = wide[:, 10:635]
    table.copy_(page_tables(3, 625))
    buffers = [torch.full((6, 560), UNWRITTEN, dtype=torch.int32) for _ in range(2)]
    out, raw_out = (buffer[:, 24:536] for buffer in buffers)
    required = topk_lab.workspace_size(6, 40_000, 512, variant)
    workspace = torch.zeros(max(required, 4), dtype=torch.uint8)
    shared(
        hip, logits=logits, row_ends=seq_lens, page_table=wide, workspace=workspace,
        slots=buffers[0], indices=buffers[1],
    )  # fmt: skip
    arguments = {"seq_lens": seq_lens, "next_n": 2, "variant": variant, "workspace": workspace}

    answer = topk_lab.topk_paged(
        logits, 512, table, 64, out=out, raw_out=raw_out if raw else None, **arguments
    )

    assert answer is out
    assert [launch.kernel for launch in hip.launches] == PAGED_KERNELS[variant]
    assert {launch.device for launch in hip.launches} == {INDEX[operator]}
    for buffer in buffers:
        assert (buffer[:, :24] == UNWRITTEN).all()
        assert (buffer[:, 536:] == UNWRITTEN).all()
    indices = raw_out
    if not raw:
        assert (buffers[1] == UNWRITTEN).all()
        # A slot names its page, a page its place in the table: the column comes back.
        places = torch.full((3 * 625,), -1, dtype=torch.int64)
        places[table.reshape(-1).long()] = torch.arange(625).repeat(3)
        indices = torch.where(out < 0, -1, places[out.clamp(min=0) // 64] * 64 + out % 64).int()
    topk_lab.assert_exact(logits, indices, seq_lens=seq_lens, next_n=2)
    np.testing.assert_array_equal(out.numpy(), slots_due(indices, table, 64))


def test_a_repeated_topk_paged_reads_what_memory_holds_now(hip, operator):
    import torch

    import topk_lab

    logits = torch.from_numpy(workloads.make("normal", 2, 6000))
    row_ends = torch.tensor([6000, 600], dtype=torch.int32)
    table = page_tables(2, 94)
    out, raw_out = (torch.full((2, 512), UNWRITTEN, dtype=torch.int32) for _ in range(2))
    shared(hip, logits=logits, row_ends=row_ends, page_table=table, slots=out, indices=raw_out)
    for lengths in ([6000, 600], [513, 0], [5121, 6000]):
        row_ends.copy_(torch.tensor(lengths, dtype=torch.int32))
        logits.copy_(logits.flip(1))
        table.copy_(table.flip(1))
        out.fill_(UNWRITTEN)
        topk_lab.topk_paged(
            logits, 512, table, 64, row_ends=row_ends, variant="sglang_block1024", out=out,
            raw_out=raw_out, order="index",
        )  # fmt: skip
        topk_lab.assert_exact(logits, raw_out, row_ends=row_ends, order="index")
        np.testing.assert_array_equal(out.numpy(), slots_due(raw_out, table, 64))
    assert len(hip.launches) == 3


def test_a_stable_answer_through_the_hip_driver(hip, operator):
    import torch

    import topk_lab

    logits = torch.from_numpy(workloads.make("few_values", 2, 6001))
    row_ends = torch.tensor([6001, 700], dtype=torch.int32)
    table = page_tables(2, 94)
    due = torch.from_numpy(exact.select(logits, 512, ends=row_ends.numpy())[0])
    kernels = set()
    for promises in ({"tie_break": "lowest"}, {"order": "index"}):
        out, raw_out = (torch.full((2, 512), UNWRITTEN, dtype=torch.int32) for _ in range(2))
        shared(hip, logits=logits, row_ends=row_ends, page_table=table, slots=out, indices=raw_out)
        topk_lab.topk_paged(
            logits, 512, table, 64, row_ends=row_ends, variant="aiter_one_block", out=out,
            raw_out=raw_out, **promises,
        )  # fmt: skip
        assert torch.equal(raw_out, due)
        np.testing.assert_array_equal(out.numpy(), slots_due(due, table, 64))
        kernels |= {launched.kernel for launched in hip.launches}
    assert kernels == {"aiter_one_block_stable_select"}


def test_another_table_or_page_size_is_another_call(hip, operator):
    import torch

    import topk_lab

    logits = torch.from_numpy(workloads.make("normal", 1, 600))
    row_ends = torch.tensor([600], dtype=torch.int32)
    tables = page_tables(2, 600)
    out, raw_out = (torch.full((1, 512), UNWRITTEN, dtype=torch.int32) for _ in range(2))
    shared(hip, logits=logits, row_ends=row_ends, page_table=tables, slots=out, indices=raw_out)
    for table, page_size in ((tables[:1], 1), (tables[1:], 1), (tables[:1], 4), (tables[:1], 1)):
        out.fill_(UNWRITTEN)
        topk_lab.topk_paged(
            logits, 512, table, page_size, row_ends=row_ends, variant="sglang_block1024", out=out,
            raw_out=raw_out,
        )  # fmt: skip
        np.testing.assert_array_equal(out.numpy(), slots_due(raw_out, table, page_size))


@pytest.mark.parametrize(
    ("variant", "k"),
    [
        ("sglang_block512", 512),
        ("sglang_block512", 1024),
        ("sglang_block1024", 512),
        ("sglang_block1024", 1024),
        ("vllm_k512", 512),
        ("vllm_generic", 2048),
        ("aiter_one_block", 512),
        ("aiter_one_block", 2499),
    ],
)
def test_g4_kernels_write_every_slot_whatever_k_and_block(hip, operator, variant, k):
    import torch

    import topk_lab

    row_ends = torch.tensor([2500, k + 1, k, 3, 0], dtype=torch.int32)
    logits = torch.from_numpy(
        workloads.make("normal", 5, 2500, row_ends=row_ends.numpy(), poison="inf")
    )
    table = page_tables(5, 40)
    out, raw_out = (torch.full((5, k), UNWRITTEN, dtype=torch.int32) for _ in range(2))
    shared(hip, logits=logits, row_ends=row_ends, page_table=table, slots=out, indices=raw_out)
    topk_lab.topk_paged(
        logits, k, table, 64, row_ends=row_ends, variant=variant, out=out, raw_out=raw_out
    )
    assert (out != UNWRITTEN).all()
    topk_lab.assert_exact(logits, raw_out, row_ends=row_ends)
    np.testing.assert_array_equal(out.numpy(), slots_due(raw_out, table, 64))


@pytest.mark.parametrize(
    "variant", ["sglang_block512", "sglang_block1024", "vllm_k512", "aiter_one_block"]
)
def test_g1_kernels_do_not_take_padding_for_a_position(hip, operator, variant):
    import torch

    import topk_lab

    logits = torch.from_numpy(
        workloads.make("normal", 1, 640, row_ends=np.array([100]), poison="inf")
    )
    row_ends = torch.tensor([100], dtype=torch.int32)
    table = torch.tensor([[9, 4, 7, 3, 8, 1, 6, 2, 5, 0]], dtype=torch.int32)
    out = torch.full((1, 512), UNWRITTEN, dtype=torch.int32)
    shared(hip, logits=logits, row_ends=row_ends, page_table=table, slots=out)
    topk_lab.topk_paged(logits, 512, table, 64, row_ends=row_ends, variant=variant, out=out)
    assert sorted(out[0, :100].tolist()) == [*range(256, 292), *range(576, 640)]
    assert out[0, 100:].tolist() == [-1] * 412


def test_a_page_transform_is_loaded_with_its_selection(noting):
    paging = plans.Paging(table_stride=20, slots_stride=512, bits=6)
    shape = plans.Shape(2, 1200, 512, 1200, 512, paging=paging)
    addresses = {**ADDRESSES, "page_table": 6 << 40, "slots": 7 << 40}
    device = driver.Device("hip", 0)
    for variant, loads, kernels in (
        ("sglang_block1024", 1, ["sglang_block1024_select"]),
        ("vllm_k512", 3, ["vllm_k512_select", "page_transform"]),
        ("vllm_generic", 3, ["vllm_generic_rank_count_select", "page_transform"]),
    ):
        noting.launches.clear()
        plan = plans.plan(variant, shape)
        driver.launch(plan, addresses, device, 0)
        assert [launched.kernel for launched in noting.launches] == kernels
        assert noting.loads == loads
        for launched, launch in zip(noting.launches, plan.launches, strict=True):
            assert launched.params == launch.params(addresses)
            assert launched.dynamic_lds == launch.dynamic_lds


def test_raw_launches_are_those_of_the_prepared_plan(noting):
    device = driver.Device("hip", 0)
    prepared = driver.prepare(SPLIT, device)
    in_order = [ADDRESSES[name] for name in prepared.buffers]
    raw = prepared.raw_launch(in_order, 0)
    checked = list(noting.launches)
    raw()
    assert len(checked) == 2
    assert noting.launches[2:] == checked
