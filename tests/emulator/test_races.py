"""Is a data race in LDS found whatever the answer is, and are sound kernels left alone?"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from topk_lab import schedules, targets, toolchain, workloads
from topk_lab.emulator import TARGETS, CodeObject, EmulationFault, Emulator, MemoryRegion

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Emulator]:
    """An emulator of a file of test kernels, by name and target."""

    @functools.cache
    def build(name: str, target: str) -> Emulator:
        path = tmp_path_factory.mktemp("objects") / f"{name}.{target}.hsaco"
        shim = [toolchain.kernels_folder() / "shim"]
        toolchain.compile_object(toolchain.choose(), KERNELS / f"{name}.hip", target, path, shim)
        return Emulator(CodeObject.load(path))

    return build


def run(
    emulator: Emulator, kernel: str, which: int, block: int = 128, **options: int | bool | None
) -> np.ndarray:
    """Launch one block; what it wrote."""
    source, out = np.ones(256, np.int32), np.zeros(256, np.int32)
    buffers = [MemoryRegion.of("in", source, writable=False), MemoryRegion.of("out", out)]
    params = struct.pack("<QQii", source.ctypes.data, out.ctypes.data, 0, which)
    emulator.launch(kernel, 1, block, params, buffers, **options)
    return out


RIGHT = {
    "hand_over": (slice(64), np.arange(1, 65)),
    "write_behind_reader": (slice(64), (np.arange(64) ^ 1) + 1),
    "count_together": (slice(1), [128]),
}


@pytest.mark.parametrize("kernel", RIGHT)
@pytest.mark.parametrize("target", TARGETS)
def test_a_race_is_named_though_the_answer_is_right(
    target: str, kernel: str, built: Callable[[str, str], Emulator]
) -> None:
    emulator = built("races", target)
    where, expected = RIGHT[kernel]
    assert np.array_equal(run(emulator, kernel, 0, races=False)[where], expected)
    with pytest.raises(EmulationFault, match=f"{kernel}: lds data race") as caught:
        run(emulator, kernel, 0, races=True)
    fault = caught.value
    assert {fault.wave, fault.other_wave} == {0, 1}
    assert fault.pc > 0
    assert fault.other_pc > 0
    assert fault.instruction.startswith("ds_")
    assert fault.other_instruction.startswith("ds_")
    assert (fault.buffer, fault.size) == ("LDS", 4)
    for said in (f"{fault.pc:#x}", f"{fault.other_pc:#x}", fault.instruction):
        assert said in str(fault)
    assert str(pickle.loads(pickle.dumps(fault))) == str(fault)


@pytest.mark.parametrize("kernel", RIGHT)
@pytest.mark.parametrize("target", TARGETS)
def test_the_barrier_makes_it_right(
    target: str, kernel: str, built: Callable[[str, str], Emulator]
) -> None:
    where, expected = RIGHT[kernel]
    for seed in (None, 1, 2, 3):
        out = run(built("races", target), kernel, 1, seed=seed, races=True)
        assert np.array_equal(out[where], expected)


def test_the_pcs_are_those_of_the_accesses(built: Callable[[str, str], Emulator]) -> None:
    with pytest.raises(EmulationFault) as caught:
        run(built("races", "gfx950"), "hand_over", 0, races=True)
    fault = caught.value
    assert fault.instruction.startswith("ds_read_b32")
    assert fault.other_instruction.startswith("ds_write_b32")
    assert (fault.wave, fault.other_wave, fault.lane, fault.address) == (1, 0, 0, 0)


def test_two_plain_writes_are_a_race_and_words_apart_are_none(
    built: Callable[[str, str], Emulator],
) -> None:
    emulator = built("races", "gfx950")
    with pytest.raises(EmulationFault, match="same_value: lds data race"):
        run(emulator, "same_value", 0, races=True)
    assert run(emulator, "same_value", 0, block=64, races=True)[0] == 7
    out = run(emulator, "neighbours", 0, seed=1)
    assert np.array_equal(out[:128], np.arange(128) ^ 1)


def test_a_seed_switches_it_on(built: Callable[[str, str], Emulator]) -> None:
    emulator = built("races", "gfx950")
    run(emulator, "same_value", 0)
    run(emulator, "same_value", 0, seed=1, races=False)
    with pytest.raises(EmulationFault, match="lds data race"):
        run(emulator, "same_value", 0, seed=1)


@pytest.mark.parametrize("target", TARGETS)
def test_a_read_of_what_nothing_wrote(target: str, built: Callable[[str, str], Emulator]) -> None:
    emulator = built("launches", target)
    with pytest.raises(EmulationFault, match="read of unwritten lds") as caught:
        run(emulator, "uninitialised_lds", 0, races=True)
    fault = caught.value
    assert fault.instruction.startswith("ds_read_b32")
    assert (fault.wave, fault.lane, fault.address, fault.size) == (0, 0, 4, 4)
    assert (run(emulator, "uninitialised_lds", 1, races=True)[:128] == 7).all()


@pytest.mark.parametrize("barrier", range(6))
@pytest.mark.parametrize("target", TARGETS)
def test_each_barrier_of_a_histogram_is_needed(
    target: str, barrier: int, built: Callable[[str, str], Emulator]
) -> None:
    values = np.random.default_rng(5).standard_normal((1, 4096), dtype=np.float32)
    arrays = {
        "values": values,
        "histogram": np.zeros(2048, np.int32),
        "indices": np.zeros(100, np.int32),
        "count": np.zeros(1, np.int32),
    }
    buffers = [MemoryRegion.of(name, array, name != "values") for name, array in arrays.items()]
    params = struct.pack("<QQQQii", *(region.address for region in buffers), 4096, 100)
    kernel = f"histogram_topk_without_{barrier}" if barrier else "histogram_topk_right"
    for seed in (None, 1, 2):
        if not barrier:
            built("launches", target).launch(
                kernel, 1, 1024, params, buffers, seed=seed, races=True
            )
            continue
        with pytest.raises(EmulationFault, match=f"{kernel}: lds data race"):
            built("launches", target).launch(
                kernel, 1, 1024, params, buffers, seed=seed, races=True
            )


ABLATIONS = [
    str(
        schedules.Variant("vllm_k512", dataclasses.replace(schedules.POLICIES["vllm_k512"], **some))
    )
    for some in schedules.ABLATIONS["vllm_k512"].values()
]


@pytest.mark.parametrize("variant", ["aiter_one_block", "aiter_one_block[digit_bits=11]"])
@pytest.mark.parametrize("tie_break", ["any", "lowest"])
def test_no_seed_finds_a_race_in_one_block_a_row(
    amd_target: str, variant: str, tie_break: str
) -> None:
    row_ends = np.array([33_001, 513, 100], np.int32)
    for seed, workload in enumerate(("normal", "masked_blocks", "few_values", "constant")):
        logits = workloads.make(workload, 3, 33_001, row_ends=row_ends)
        for traced in (False, True):
            outcome = targets.run(
                amd_target,
                variant,
                logits,
                512,
                row_ends=row_ends,
                tie_break=tie_break,
                traced=traced,
                seed=seed,
            )
            assert (outcome.indices[2, 100:] == -1).all()


@pytest.mark.parametrize("traced", [False, True])
def test_no_seed_finds_a_race_in_blocks_that_share_a_row(amd_target: str, traced: bool) -> None:
    row_ends = np.array([41_001, 40_959, 513, 100], np.int32)
    # Ties that are ranked, told apart in the list, and looked for in the row.
    for seed, workload in enumerate(("normal", "same_leading_bits", "few_values", "constant")):
        logits = workloads.make(workload, 4, 41_001, row_ends=row_ends)
        for k in (512, 4096):
            outcome = targets.run(
                amd_target,
                "shared_histogram",
                logits,
                k,
                row_ends=row_ends,
                traced=traced,
                seed=seed,
            )
            assert (outcome.indices[3, 100:] == -1).all()


@pytest.mark.parametrize("variant", ["vllm_generic", "vllm_k512", *ABLATIONS])
def test_no_seed_finds_a_race_in_the_selections(amd_target: str, variant: str) -> None:
    row_ends = np.array([33_000, 513, 100], np.int32)
    for seed, workload in enumerate(("normal", "masked_blocks", "few_values", "constant")):
        logits = workloads.make(workload, 3, 33_000, row_ends=row_ends)
        outcome = targets.run(
            amd_target, variant, logits, 512, row_ends=row_ends, study=True, seed=seed
        )
        assert (outcome.indices[2, 100:] == -1).all()
