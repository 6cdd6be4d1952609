"""What does the host pay for a call, layer by layer?

Under a captured graph nothing of it is left; in eager mode it stands beside a kernel of some ten
microseconds. Each layer is called many times in a row without waiting for the device, on a row so
short that the device keeps up; layers take turns in random order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from topk_lab import driver, plans
from topk_lab.results import Recorder

__all__ = ["LAYERS", "host_overhead"]

EXPERIMENT = "host_overhead"
VARIANT = "vllm_k512"
NUM_ROWS, NUM_COLS, K = 2, 1024, 512
ROUNDS, CALLS = 40, 200

LAYERS = (
    "raw driver",
    "prepared plan",
    "driver.launch",
    "topk_out",
    "topk with out",
    "topk",
    "torch.topk",
)


def _layers(device_index: int) -> tuple[Any, Any, dict[str, Callable[[], Any]]]:
    """Logits, the output that most layers write, and the layers."""
    import torch

    from topk_lab import ops

    place = torch.device("cuda", device_index)
    logits = torch.randn(NUM_ROWS, NUM_COLS, device=place)
    row_ends = torch.full((NUM_ROWS,), NUM_COLS, dtype=torch.int32, device=place)
    out = torch.empty(NUM_ROWS, K, dtype=torch.int32, device=place)
    device = driver.open_device(driver.platform(), device_index)
    stream = torch.cuda.current_stream(place).cuda_stream
    plan = plans.plan(VARIANT, plans.Shape(NUM_ROWS, NUM_COLS, K, NUM_COLS, K))
    addresses = {
        "logits": logits.data_ptr(),
        "row_ends": row_ends.data_ptr(),
        "indices": out.data_ptr(),
    }
    prepared = driver.prepare(plan, device, stream)
    in_order = tuple(addresses[name] for name in prepared.buffers)
    operator = torch.ops.topk_lab.topk_out
    arguments = (logits, row_ends, None, 0, K, VARIANT, "any", "any", out, None, None)
    layers = {
        "raw driver": prepared.raw_launch(in_order, stream),
        "prepared plan": lambda: prepared.launch(in_order, stream),
        "driver.launch": lambda: driver.launch(plan, addresses, device, stream),
        "topk_out": lambda: operator(*arguments),
        "topk with out": lambda: ops.topk(logits, K, row_ends=row_ends, variant=VARIANT, out=out),
        "topk": lambda: ops.topk(logits, K, row_ends=row_ends, variant=VARIANT),
        "torch.topk": lambda: torch.topk(logits, K, sorted=False),
    }
    return logits, out, layers


def host_overhead(recorder: Recorder, say: Callable[[str], None] = print) -> dict[str, list[float]]:
    """Measure and record the host time of each layer of a call.

    Parameters
    ----------
    recorder : topk_lab.results.Recorder
    say : callable, default print
        Takes a line on every layer.

    Returns
    -------
    dict
        Layer -> host time of a call (us), one sample a round.

    Raises
    ------
    RuntimeError
        A layer's answer is not exact: then nothing is recorded.
    """
    import torch

    from topk_lab.contract import UNWRITTEN, find_violations

    logits, out, layers = _layers(torch.cuda.current_device())
    for name, call in layers.items():
        out.fill_(UNWRITTEN)
        answer = call()
        if name == "torch.topk":
            continue
        torch.cuda.synchronize()
        violations = find_violations(logits.cpu(), (answer if name == "topk" else out).cpu())
        if violations:
            raise RuntimeError(f"{name} is not exact: {violations[0]}")
    samples: dict[str, list[float]] = {name: [] for name in layers}
    order = random.Random(0)
    for turn in range(ROUNDS + 1):
        names = list(layers)
        order.shuffle(names)
        for name in names:
            call = layers[name]
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            taken = time.perf_counter() - begin
            torch.cuda.synchronize()
            if turn:  # the first round warms up
                samples[name].append(1e6 * taken / CALLS)
    raw = sorted(samples["raw driver"])[ROUNDS // 2]
    for name, times in samples.items():
        cell = recorder.record(
            experiment=EXPERIMENT,
            target=driver.platform(),
            variant="torch" if name == "torch.topk" else VARIANT,
            status="ok",
            num_rows=NUM_ROWS,
            num_cols=NUM_COLS,
            k=K,
            next_n=0,
            workload="normal",
            workload_args={"layer": name},
            mode="eager",
            cache="warm",
            samples_us=times,
        )
        say(f"{name:14} {cell['median_us']:7.2f} us a call, {cell['median_us'] - raw:+6.2f} us")
    return samples
