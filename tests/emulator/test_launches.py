"""Does a launch do what the kernel says, and is every kind of mistake found and named?"""

from __future__ import annotations

import functools
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from topk_lab import toolchain
from topk_lab.emulator import (
    TARGETS,
    CodeObject,
    EmulationFault,
    Emulator,
    LaunchCount,
    MemoryRegion,
    UnsupportedKernel,
)

SOURCE = Path(__file__).parent / "kernels" / "launches.hip"
BINS = 2048


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Emulator]:
    """An emulator of the test kernels, by target."""

    @functools.cache
    def build(target: str) -> Emulator:
        path = tmp_path_factory.mktemp("objects") / f"launches.{target}.hsaco"
        shim = [toolchain.kernels_folder() / "shim"]
        toolchain.compile_object(toolchain.choose(), SOURCE, target, path, shim)
        return Emulator(CodeObject.load(path))

    return build


@pytest.fixture
def gfx950(built: Callable[[str], Emulator]) -> Emulator:
    """The target where it does not matter which."""
    return built("gfx950")


def run(
    emulator: Emulator,
    kernel: str,
    source: np.ndarray,
    out: np.ndarray,
    *,
    n: int = 0,
    which: int = 0,
    grid: int | tuple[int, ...] = 1,
    block: int = 64,
    **options: int | bool | None,
) -> LaunchCount:
    """Launch a kernel that takes `Params`; `source` is read-only."""
    buffers = [MemoryRegion.of("in", source, writable=False), MemoryRegion.of("out", out)]
    params = struct.pack("<QQii", source.ctypes.data, out.ctypes.data, n, which)
    return emulator.launch(kernel, grid, block, params, buffers, **options)


def ints(count: int) -> np.ndarray:
    """`count` zeros with nobody's memory around them."""
    return np.zeros(count + 2048, np.int32)[1024 : 1024 + count]


def histogram_topk(
    emulator: Emulator, kernel: str, values: np.ndarray, k: int, seed: int | None
) -> tuple[bool, LaunchCount]:
    """Run the histogram kernel on rows; is the answer right?"""
    rows, n = values.shape
    histogram = np.full((rows, BINS), -1, np.int32)
    indices = np.full((rows, k), -1, np.int32)
    count = np.full(rows, -1, np.int32)
    arrays = {"values": values, "histogram": histogram, "indices": indices, "count": count}
    buffers = [MemoryRegion.of(name, a, name != "values") for name, a in arrays.items()]
    params = struct.pack("<QQQQii", *(region.address for region in buffers), n, k)
    launched = emulator.launch(kernel, rows, 1024, params, buffers, seed=seed)
    bits = values.view(np.uint32)
    bins = np.where(bits >> 31, ~bits, bits | 0x80000000) >> 21
    right = True
    for row in range(rows):
        expected = np.bincount(bins[row], minlength=BINS)
        from_top = np.cumsum(expected[::-1])
        threshold = BINS - 1 - int(np.searchsorted(from_top, k))
        kept = np.flatnonzero(bins[row] > threshold)
        right &= np.array_equal(histogram[row], expected) and count[row] == len(kept)
        right &= np.array_equal(np.sort(indices[row, : count[row]]), kept)
        right &= (indices[row, count[row] :] == -1).all()
    return bool(right), launched


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_the_kernel_is_right(
    target: str, seed: int | None, built: Callable[[str], Emulator]
) -> None:
    values = np.random.default_rng(3).standard_normal((3, 10007), dtype=np.float32)
    right, launched = histogram_topk(built(target), "histogram_topk_right", values, 256, seed)
    assert right
    assert launched.waves == 48
    assert launched.wave_instructions["barrier"] == 5 * 48


def test_no_seed_makes_the_right_kernel_wrong(gfx950: Emulator) -> None:
    values = np.random.default_rng(4).standard_normal((1, 4096), dtype=np.float32)
    for seed in range(12):
        assert histogram_topk(gfx950, "histogram_topk_right", values, 100, seed)[0]


@pytest.mark.parametrize("barrier", range(1, 6))
def test_a_missing_barrier_shows(barrier: int, gfx950: Emulator) -> None:
    values = np.random.default_rng(5).standard_normal((1, 4096), dtype=np.float32)
    kernel = f"histogram_topk_without_{barrier}"

    def caught(seed: int) -> bool:
        try:
            return not histogram_topk(gfx950, kernel, values, 100, seed)[0]
        except EmulationFault as fault:
            return fault.kernel == kernel

    assert sum(map(caught, range(10))) >= 2


def test_a_seed_repeats_itself(gfx950: Emulator) -> None:
    def once(seed: int | None) -> list[int]:
        out = ints(256)
        run(gfx950, "uninitialised_lds", ints(1), out, block=256, seed=seed, races=False)
        return out.tolist()

    assert once(5) == once(5)
    assert once(None) == once(None)
    assert once(5) != once(6)


def test_lds_starts_as_garbage(gfx950: Emulator) -> None:
    out = ints(256)
    run(gfx950, "uninitialised_lds", ints(1), out, block=256)
    assert len(set(out.tolist())) == 256
    assert 0 not in out
    run(gfx950, "uninitialised_lds", ints(1), out, block=256, which=1)
    assert (out == 7).all()


def test_conflicting_lanes_act_in_an_order_that_the_seed_changes(gfx950: Emulator) -> None:
    def once(seed: int | None) -> tuple[list[int], int]:
        out = ints(65)
        run(gfx950, "conflicting_lanes", ints(64), out, seed=seed)
        return out[:64].tolist(), int(out[64])

    order, last = once(None)
    assert last == 63
    assert order == [lane // 2 * 3 + lane % 2 for lane in range(64)]
    seeded = [once(seed) for seed in range(8)]
    assert len({last for _, last in seeded}) > 1
    assert len({tuple(order) for order, _ in seeded}) > 1
    for order, _ in seeded:
        assert len(set(order)) == 64
        assert max(order) <= 96


@pytest.mark.parametrize(
    ("kernel", "which", "kind", "buffer", "distance", "place"),
    [
        pytest.param(
            "read_too_far", 128 + 70, "global out of bounds", "in", 0, ((1, 0, 0), 1, 6),
            id="past-the-end",
        ),
        pytest.param(
            "write_before_begin", 3, "global out of bounds", "out", -8, ((0, 0, 0), 0, 3),
            id="before-the-begin",
        ),
        pytest.param(
            "write_to_input", 65, "write to read-only buffer", "in", 4 * 65, ((0, 0, 0), 1, 1),
            id="read-only",
        ),
        pytest.param(
            "read_length_too_far", 300, "global out of bounds", "in", 4 * 44, ((0, 0, 0), 0, None),
            id="scalar-load",
        ),
        pytest.param(
            "lds_too_far", 100, "lds out of bounds", "LDS", 4 * 356, ((0, 0, 0), 1, 36), id="lds"
        ),
        pytest.param("misaligned", 9, "misaligned", "in", 37, ((0, 0, 0), 0, 9), id="misaligned"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_access_is_named(
    target: str,
    kernel: str,
    which: int,
    kind: str,
    buffer: str,
    distance: int,
    place: tuple[tuple[int, int, int], int, int | None],
    built: Callable[[str], Emulator],
) -> None:
    source, out = ints(256), ints(256)
    with pytest.raises(EmulationFault) as caught:
        run(
            built(target),
            kernel,
            source,
            out,
            n=256,
            which=which,
            grid=2 if kernel == "read_too_far" else 1,
            block=128,
            dynamic_lds=4 * 128 if kernel == "lds_too_far" else 0,
        )
    fault = caught.value
    assert (fault.kind, fault.kernel, fault.size) == (kind, kernel, 4)
    assert (fault.buffer, fault.distance) == (buffer, distance)
    assert (fault.block, fault.wave, fault.lane) == place
    begin = {"in": source.ctypes.data, "out": out.ctypes.data, "LDS": 0}[buffer]
    end = source.nbytes if kind == "global out of bounds" and distance >= 0 else 0
    assert fault.address == begin + end + distance
    assert fault.pc > 0
    for said in (kernel, kind, f"{fault.pc:#x}", fault.instruction, f"{fault.address:#x}"):
        assert said in str(fault)


def test_the_same_kernels_are_left_alone_when_they_are_right(gfx950: Emulator) -> None:
    source, out = np.arange(256, dtype=np.int32), ints(256)
    run(gfx950, "read_too_far", source, out, n=256, which=-1, grid=2, block=128)
    assert np.array_equal(out, source)
    run(gfx950, "misaligned", source, out, which=-1, block=128)
    assert np.array_equal(out[:128], source[:128])
    run(gfx950, "lds_too_far", source, out, which=-1, block=128, dynamic_lds=512)
    assert np.array_equal(out[:128], np.arange(128))
    run(gfx950, "leave_before_barrier", source, out, which=4, block=256)
    assert (out == 1).all()


def test_a_barrier_that_not_every_wave_reaches(gfx950: Emulator) -> None:
    for seed in (None, 0, 1):
        with pytest.raises(EmulationFault, match="unreached barrier") as caught:
            run(gfx950, "leave_before_barrier", ints(1), ints(256), which=3, block=256, seed=seed)
        assert caught.value.instruction == "s_barrier"
        assert caught.value.wave in (0, 1, 2)
        assert "1 waves of the block have ended" in str(caught.value)


def test_an_endless_loop_is_stopped(gfx950: Emulator) -> None:
    with pytest.raises(EmulationFault, match="step limit") as caught:
        run(gfx950, "wait_forever", ints(1), ints(64), step_limit=10_000)
    assert caught.value.kernel == "wait_forever"
    run(gfx950, "wait_forever", np.ones(1, np.int32), ints(64), step_limit=10_000)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_wave_that_waits_for_another_lets_it_run(gfx950: Emulator, seed: int | None) -> None:
    out = ints(128)
    run(gfx950, "wait_for_other_wave", ints(1), out, which=5, block=128, seed=seed, races=False)
    assert (out == 5).all()


def test_a_trap_is_a_fault(gfx950: Emulator) -> None:
    with pytest.raises(EmulationFault, match="give_up: trap"):
        run(gfx950, "give_up", ints(1), ints(64), which=1)
    run(gfx950, "give_up", ints(1), ints(64))


def test_scratch_is_refused(gfx950: Emulator) -> None:
    with pytest.raises(UnsupportedKernel, match="needs_scratch needs scratch memory"):
        run(gfx950, "needs_scratch", ints(64), ints(64))


@pytest.mark.parametrize("target", TARGETS)
def test_constants_beside_the_code(target: str, built: Callable[[str], Emulator]) -> None:
    source, out = np.arange(64, dtype=np.int32) % 8, ints(64)
    run(built(target), "constant_table", source, out)
    assert np.array_equal(out, source**2)
    source[17] = 1 << 20
    with pytest.raises(EmulationFault, match="global out of bounds") as caught:
        run(built(target), "constant_table", source, out)
    assert caught.value.lane == 17


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", [None, 3])
def test_places(target: str, seed: int | None, built: Callable[[str], Emulator]) -> None:
    out = np.full((5, 3, 100), -1, np.int32)
    launched = run(built(target), "places", ints(1), out, grid=(3, 5), block=100, seed=seed)
    y, x, thread = np.indices(out.shape)
    assert np.array_equal(out, (x << 24) + (y << 16) + thread)
    assert (launched.blocks, launched.waves) == (15, 30)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_on_several_host_threads(threads: int, gfx950: Emulator) -> None:
    emulator = Emulator(gfx950.code_object, threads=threads)
    source = np.random.default_rng(0).integers(-1000, 1000, 100_000, dtype=np.int32)
    blocks = -(-len(source) // 256)
    out = ints(3)
    launched = run(
        emulator, "sum_of_blocks", source, out, n=len(source), which=blocks, grid=blocks, block=256
    )
    assert out[0] == source.sum()
    assert out[1] == blocks
    assert 1 <= out[2] <= blocks
    assert launched.events["global_bytes_read"] == source.nbytes


def test_events_are_counted(gfx950: Emulator) -> None:
    out = ints(128)
    launched = run(gfx950, "lds_too_far", ints(1), out, which=-1, block=128, dynamic_lds=512)
    assert launched.wave_instructions["barrier"] == 2
    assert launched.wave_instructions["global"] == launched.mnemonics["global_store_dword"] == 2
    assert launched.mnemonics["s_endpgm"] == 2
    assert launched.events["global_bytes_written"] == out.nbytes
    assert launched.events["global_bytes_read"] == 0
    assert launched.events["lds_lanes_written"] == launched.events["lds_lanes_read"] == 128
    assert launched.events["lds_atomic_lanes"] == 0
    assert launched.total == sum(launched.mnemonics.values())

    twice = launched + launched
    assert twice.waves == 4
    assert twice.events["lds_lanes_read"] == 256
    assert twice.mnemonics["s_endpgm"] == 4
    assert twice.as_dict()["barrier_instructions"] == 4
    assert twice.as_dict()["global_bytes_written"] == 2 * out.nbytes


@pytest.mark.parametrize(("distinct", "waiting"), [(1, 63), (2, 62), (64, 0)])
def test_lanes_that_share_an_address_are_counted(
    distinct: int, waiting: int, gfx950: Emulator
) -> None:
    exponents = 1.0 + np.arange(8192) % distinct
    values = np.ldexp(1.0, exponents.astype(int) - 40).astype(np.float32)[None]
    right, launched = histogram_topk(gfx950, "histogram_topk_right", values, 4, None)
    assert right
    adds = launched.mnemonics["ds_add_u32"]
    assert adds == 8192 // 64
    assert launched.events["lds_atomic_serialized_lanes"] == waiting * adds


def test_arguments_that_a_device_would_refuse(gfx950: Emulator) -> None:
    out = ints(2048)
    with pytest.raises(ValueError, match="kernel must be one of histogram_topk_right, "):
        run(gfx950, "nothing", out, out)
    with pytest.raises(ValueError, match="block must have at most 1024 threads for places"):
        run(gfx950, "places", out, out, block=1025)
    with pytest.raises(ValueError, match=r"grid must be one to three positive sizes, got \(2, 0\)"):
        run(gfx950, "places", out, out, grid=(2, 0))
    with pytest.raises(ValueError, match="grid must be one to three positive sizes"):
        run(gfx950, "places", out, out, grid=(1.5, 1))
    with pytest.raises(ValueError, match=r"grid must hold fewer than 2\*\*32 threads"):
        run(gfx950, "places", out, out, grid=2**26, block=64)
    with pytest.raises(ValueError, match="step_limit must be positive"):
        run(gfx950, "places", out, out, step_limit=-1)
    with pytest.raises(ValueError, match="dynamic_lds must be 0 to 163840 for places on gfx950"):
        run(gfx950, "places", out, out, dynamic_lds=163844)
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        run(gfx950, "places", out, out, seed=-1)
    with pytest.raises(ValueError, match="params must have 24 bytes for places, got 8"):
        gfx950.launch("places", 1, 64, bytes(8), [])
    with pytest.raises(ValueError, match="strided must be contiguous"):
        MemoryRegion.of("strided", out[::2])


def test_a_fault_survives_a_process_boundary(gfx950: Emulator) -> None:
    with pytest.raises(EmulationFault) as caught:
        run(gfx950, "write_before_begin", ints(1), ints(64))
    copied = pickle.loads(pickle.dumps(caught.value))
    assert str(copied) == str(caught.value)
    assert copied.lane == 0


@pytest.mark.parametrize(
    ("target", "machine"), [("gfx90a", 0x3F), ("gfx942", 0x4C), ("gfx950", 0x4F)]
)
def test_what_a_code_object_says(
    target: str, machine: int, built: Callable[[str], Emulator]
) -> None:
    code_object = built(target).code_object
    assert code_object.target == target
    assert code_object.e_flags & 0xFF == machine
    kernel = code_object.kernels["histogram_topk_right"]
    assert kernel.params_size == 40
    assert kernel.lds == 4 * (BINS + 16 + 2)
    assert kernel.scratch == kernel.agpr == 0
    assert 0 < kernel.vgpr <= 64
    assert kernel.max_flat_workgroup_size == 1024
    assert code_object.kernels["needs_scratch"].scratch >= 256


def test_what_is_no_code_object_is_refused() -> None:
    with pytest.raises(UnsupportedKernel, match="64-bit little-endian ELF"):
        CodeObject.load(b"not an ELF file")
    host = Path("/proc/self/exe").read_bytes()
    with pytest.raises(UnsupportedKernel, match="ELF machine must be AMDGPU"):
        CodeObject.load(host)
