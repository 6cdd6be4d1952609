"""Do the counters say what can be worked out by hand, and do blocks add up to the launch?"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from topk_lab import toolchain
from topk_lab.emulator import TARGETS, CodeObject, Emulator, LaunchCount, MemoryRegion

SOURCE = Path(__file__).parent / "kernels" / "counters.hip"
LANES = np.arange(64)
LDS_BYTES = 32768


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Emulator]:
    """An emulator of the kernels that count, by target."""

    @functools.cache
    def build(target: str) -> Emulator:
        path = tmp_path_factory.mktemp("objects") / f"counters.{target}.hsaco"
        shim = [toolchain.kernels_folder() / "shim"]
        toolchain.compile_object(toolchain.choose(), SOURCE, target, path, shim)
        return Emulator(CodeObject.load(path))

    return build


@pytest.fixture
def gfx950(built: Callable[[str], Emulator]) -> Emulator:
    """The target where it does not matter which."""
    return built("gfx950")


def on_a_line(count: int) -> np.ndarray:
    """`count` int32 zeros whose first byte begins a line of 128 bytes."""
    room = np.zeros(count + 32, np.int32)
    begin = -room.ctypes.data % 128 // 4
    return room[begin : begin + count]


def run(
    emulator: Emulator,
    kernel: str,
    places: np.ndarray,
    *,
    which: int = 0,
    grid: int = 1,
    count: str = "full",
) -> LaunchCount:
    """Launch a wave a block; `places` is what its lanes read, at the begin of 64 KiB."""
    source, out = on_a_line(16384), on_a_line(16384)
    source[:64] = places
    buffers = [MemoryRegion.of("in", source, writable=False), MemoryRegion.of("out", out)]
    params = struct.pack("<QQii", source.ctypes.data, out.ctypes.data, 0, which)
    return emulator.launch(
        kernel, grid, 64, params, buffers, dynamic_lds=LDS_BYTES, count=count, races=False
    )


def conflicts(emulator: Emulator, kernel: str, addresses: np.ndarray) -> int:
    """Cycles that bank conflicts add to one access."""
    return run(emulator, kernel, addresses).events["lds_bank_conflict_cycles"]


# Bytes between lanes -> added cycles, worked out by hand: as many lanes as ask for as many words as
# there are banks form a phase; a phase lasts as long as its busiest bank.
@pytest.mark.parametrize(
    ("kernel", "stride", "banks_32", "banks_64"),
    [
        pytest.param("read_b32", 0, 0, 0, id="read-one-word"),
        pytest.param("read_b32", 4, 0, 0, id="read-words-in-order"),
        pytest.param("read_b32", 8, 2, 1, id="read-every-other-word"),
        pytest.param("read_b32", 4 * 33, 0, 0, id="read-padded-columns"),
        pytest.param("read_b32", 4 * 32, 62, 31, id="read-a-column-of-32"),
        pytest.param("read_b32", 4 * 64, 62, 63, id="read-a-column-of-64"),
        pytest.param("read_b64", 8, 0, 0, id="read-pairs-in-order"),
        pytest.param("read_b64", 16, 4, 2, id="read-every-other-pair"),
        pytest.param("read_b128", 16, 0, 0, id="read-quads-in-order"),
        pytest.param("read_b128", 128, 56, 28, id="read-a-column-of-quads"),
        pytest.param("read_b96", 12, 8, 8, id="read-triples-in-order"),
        pytest.param("read_b96", 128, 56, 56, id="read-a-column-of-triples"),
        pytest.param("write_b8", 1, 0, 0, id="write-bytes-in-order"),
        pytest.param("write_b32", 0, 0, 0, id="write-one-word"),
        pytest.param("write_b32", 4, 0, 0, id="write-words-in-order"),
        pytest.param("write_b32", 8, 2, 2, id="write-every-other-word"),
        pytest.param("write_b64", 16, 4, 4, id="write-every-other-pair"),
        pytest.param("write_b96", 12, 0, 0, id="write-triples-in-order"),
        pytest.param("write_b128", 16, 0, 0, id="write-quads-in-order"),
        pytest.param("write_b128", 128, 56, 56, id="write-a-column-of-quads"),
        pytest.param("add_u32", 0, 0, 0, id="add-to-one-word"),
        pytest.param("add_u32", 128, 62, 62, id="add-to-a-column"),
        pytest.param("read2_b32", 8, 4, 2, id="two-accesses-of-every-other-word"),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_bank_conflicts_of_a_stride(
    target: str,
    kernel: str,
    stride: int,
    banks_32: int,
    banks_64: int,
    built: Callable[[str], Emulator],
) -> None:
    added = conflicts(built(target), kernel, LANES * stride)
    assert added == (banks_64 if target == "gfx950" else banks_32)


@pytest.mark.parametrize(
    ("kernel", "target", "phase_of_lane_0"),
    [
        ("read_b32", "gfx942", range(32)),
        ("read_b32", "gfx950", range(64)),
        ("read_b64", "gfx942", range(16)),
        ("read_b64", "gfx950", range(32)),
        ("read_b96", "gfx950", [*range(4), *range(20, 24)]),
        ("read_b128", "gfx942", [*range(4), *range(20, 24)]),
        ("read_b128", "gfx950", [*range(4), *range(12, 16), *range(20, 28)]),
        ("write_b64", "gfx950", range(16)),
        ("write_b128", "gfx942", range(8)),
    ],
)
def test_only_lanes_of_one_phase_conflict(
    kernel: str, target: str, phase_of_lane_0: range | list[int], built: Callable[[str], Emulator]
) -> None:
    emulator = built(target)
    together = []
    for lane in LANES[1:]:
        addresses = np.full(64, -1)
        addresses[[0, lane]] = 0, 1024
        added = conflicts(emulator, kernel, addresses)
        assert added in (0, 1)
        together += [lane] * added
    assert together == [lane for lane in phase_of_lane_0 if lane]


@pytest.mark.parametrize(("distinct", "serialized"), [(1, 63), (2, 62), (16, 48), (64, 0)])
def test_lanes_serialized_by_one_address(distinct: int, serialized: int, gfx950: Emulator) -> None:
    counted = run(gfx950, "add_u32", LANES % distinct * 4, count="basic")
    assert counted.events["lds_atomic_lanes"] == 64
    assert counted.events["lds_atomic_serialized_lanes"] == serialized


# Elements of 4 bytes that lanes touch -> lines of 64 and of 128 bytes. The places themselves are
# 256 bytes in order: 4 and 2 lines more.
@pytest.mark.parametrize(
    ("elements", "lines_64", "lines_128"),
    [
        pytest.param(64 + LANES, 4, 2, id="in-order"),
        pytest.param(65 + LANES, 5, 3, id="in-order-off-a-line"),
        pytest.param(np.full(64, 640), 1, 1, id="one-element"),
        pytest.param(LANES * 16, 64, 32, id="a-line-of-64-each"),
        pytest.param(LANES * 32, 64, 64, id="a-line-of-128-each"),
        pytest.param((LANES * 37 % 64) * 16, 64, 32, id="shuffled"),
        pytest.param(np.where(LANES < 3, 640, -1), 1, 1, id="three-lanes"),
        pytest.param(np.full(64, -1), 0, 0, id="no-lane"),
    ],
)
def test_lines_touched(
    elements: np.ndarray, lines_64: int, lines_128: int, gfx950: Emulator
) -> None:
    active = int((elements >= 0).sum())
    read = run(gfx950, "gather", elements, which=1).events
    assert read["global_lines_64_read"] == 4 + lines_64
    assert read["global_lines_128_read"] == 2 + lines_128
    assert read["global_bytes_read"] == 4 * (64 + active)
    for kernel in ("scatter", "global_add"):
        written = run(gfx950, kernel, elements).events
        assert written["global_lines_64_written"] == lines_64
        assert written["global_lines_128_written"] == lines_128
        assert written["global_lines_64_read"] == 4


def test_an_access_that_crosses_lines_touches_both(gfx950: Emulator) -> None:
    elements = np.where(LANES < 2, 64 + 14 + 128 * LANES, -1)
    events = run(gfx950, "gather_16_bytes", elements).events
    assert events["global_lines_64_read"] == 4 + 4
    assert events["global_lines_128_read"] == 2 + 2
    assert events["global_bytes_read"] == 256 + 2 * 16


@pytest.mark.parametrize("target", TARGETS)
def test_active_lanes_of_vector_instructions(target: str, built: Callable[[str], Emulator]) -> None:
    emulator = built(target)
    counted = run(emulator, "eight_lanes_ten_times", np.zeros(64), count="basic")
    instructions = counted.wave_instructions["valu"]
    lanes = 64 * (instructions - 10) + 8 * 10
    assert counted.events["valu_lanes"] == lanes
    assert counted.active_lane_share == lanes / (64 * instructions)
    none, few, many = (
        run(emulator, "branch_of_ten", np.zeros(64), which=which, count="basic")
        for which in (0, 16, 48)
    )
    in_branch = few.wave_instructions["valu"] - none.wave_instructions["valu"]
    assert in_branch >= 10
    assert few.events["valu_lanes"] - none.events["valu_lanes"] == 16 * in_branch
    assert many.events["valu_lanes"] - none.events["valu_lanes"] == 48 * in_branch


def test_blocks_add_up_to_the_launch(gfx950: Emulator) -> None:
    counted = run(gfx950, "more_by_block", np.zeros(64), grid=7)
    np.testing.assert_array_equal(counted.per_block["global_lines_64_read"], 4 * np.arange(1, 8))
    np.testing.assert_array_equal(counted.per_block["global_bytes_written"], [256] * 7)
    launch = counted.as_dict()
    for name, numbers in counted.per_block.items():
        assert numbers.sum() == launch[name], name
    seeded = gfx950_again(gfx950, seed=3)
    for name, numbers in counted.per_block.items():
        np.testing.assert_array_equal(seeded.per_block[name], numbers)


def gfx950_again(emulator: Emulator, seed: int) -> LaunchCount:
    """`more_by_block` with blocks in another order."""
    source, out = on_a_line(64), on_a_line(7 * 64)
    buffers = [MemoryRegion.of("in", source, writable=False), MemoryRegion.of("out", out)]
    params = struct.pack("<QQii", source.ctypes.data, out.ctypes.data, 0, 0)
    return emulator.launch("more_by_block", 7, 64, params, buffers, count="full", seed=seed)


def test_frames(gfx950: Emulator) -> None:
    counted = run(gfx950, "more_by_block", np.zeros(64), grid=3)
    launch = counted.frame().set_index("counter")["value"]
    assert launch.to_dict() == counted.as_dict()
    blocks = counted.frame(per_block=True)
    assert list(blocks.columns) == ["block", "counter", "value"]
    lines = blocks[blocks["counter"] == "global_lines_64_read"]
    assert lines["value"].tolist() == [4, 8, 12]
    both = counted + counted
    assert both.frame(per_block=True)["block"].max() == 5
    assert both.events["global_lines_64_read"] == 48


def test_a_basic_count_costs_no_lines(gfx950: Emulator) -> None:
    basic = run(gfx950, "gather", LANES, count="basic")
    full = run(gfx950, "gather", LANES)
    assert basic.events["global_lines_64_read"] == 0
    assert basic.mnemonics == full.mnemonics
    with pytest.raises(ValueError, match="per_block needs a launch with count='full'"):
        basic.frame(per_block=True)
    with pytest.raises(ValueError, match="count must be one of basic, full, got 'all'"):
        run(gfx950, "gather", LANES, count="all")
