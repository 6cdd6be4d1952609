"""Runs ``topk-lab`` with the stand-in in the place of a HIP device, or of a faulty one.

    python tests/hip_stand_in/device.py --arch gfx950 -- firstlight --target hip --out out

The children that the command starts run through here too.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from stand_in import LIBRARIES, StandIn

from topk_lab import driver, targets
from topk_lab.emulator import CodeObject
from topk_lab.emulator.disassembly import disassemble

NOP = (0xBF800000).to_bytes(4, "little")
FAULTS = (
    "broken-kernel",
    "stale-lengths",
    "missing-symbol",
    "second-runtime",
    "memory-fault",
    "endless-kernel",
)
BROKEN = "aiter_one_block"  # whose kernels a fault is about


class HostMemory:
    """Plays `topk_lab.driver.Memory`: the device's memory is the host's, a graph is its call."""

    def __init__(self, stand_in: StandIn, arch: str) -> None:
        import torch

        self.place = torch.device("cpu")
        self.opened = driver.open_device("hip", 0)
        self.target = arch
        self._stand_in = stand_in
        self._stream = 0

    def launch(self, plan, tensors) -> None:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._stand_in.forget()
        addresses = {
            name: self._stand_in.share(name, array, name not in targets.READ_ONLY)
            for name, array in arrays.items()
        }
        driver.launch(plan, addresses, self.opened, self._stream)

    def synchronize(self) -> None:
        pass

    @contextlib.contextmanager
    def side_stream(self) -> Iterator[None]:
        self._stream = self._stand_in.stream(0)
        yield
        self._stream = 0

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        stream = self._stand_in.stream(0)
        self._stream, self._stand_in.emulates = stream, False
        self._stand_in.capture(stream, True)
        try:
            call()
        finally:
            self._stand_in.capture(stream, False)
            self._stream, self._stand_in.emulates = 0, True

        def replay() -> None:
            self._stand_in.replaying = True
            call()
            self._stand_in.replaying = False

        return replay


def broken(content: bytes) -> bytes:
    """A code object whose kernels of one variant leave a step out: no order of negative logits."""
    code = CodeObject.load(content)
    for name, kernel in code.kernels.items():
        if not name.startswith(BROKEN):
            continue
        text = bytearray(code.code(kernel))
        begin = content.index(bytes(text))
        for instruction in disassemble(code, kernel):
            if re.match(r"v_xor_b32_e32 v\d+, 0x7fffffff, ", instruction.text):
                text[instruction.pc : instruction.pc + 8] = NOP * 2
        content = content[:begin] + bytes(text) + content[begin + len(text) :]
    return content


class FaultyStandIn(StandIn):
    """A stand-in with one thing wrong."""

    fault = ""
    replaying = False
    _lengths: np.ndarray | None = None
    _served = False

    def content(self, image: int) -> bytes:
        found = super().content(image)
        return broken(found) if self.fault == "broken-kernel" else found

    def _on_describe(self, image, kernel, max_threads, static_lds) -> int:
        if self.fault == "missing-symbol" and kernel.decode() == f"{BROKEN}_select":
            return 0
        return super()._on_describe(image, kernel, max_threads, static_lds)

    def _on_launch(self, device, image, kernel, *sizes) -> int:
        about = kernel.decode().startswith(BROKEN) and self.emulates
        if about and self.fault == "memory-fault":
            print("Memory access fault by GPU node-1 on address 0x1000.", file=sys.stderr)
            sys.stderr.flush()
            os.abort()
        if about and self.fault == "endless-kernel":
            time.sleep(3600)
        if self.fault == "stale-lengths" and self.replaying:
            return self._with_stale_lengths(device, image, kernel, *sizes)
        return super()._on_launch(device, image, kernel, *sizes)

    def _with_stale_lengths(self, *launch) -> int:
        """Once, a kernel is served the lengths that stood there at the launch before."""
        place = self._memory["row_ends"][0]
        now, before = place.copy(), self._lengths
        self._lengths = now
        stale = before is not None and before.shape == now.shape and (before != now).any()
        if not stale or self._served:
            return super()._on_launch(*launch)
        self._served = True
        place[...] = before
        code = super()._on_launch(*launch)
        place[...] = now
        return code


def main() -> None:
    """Take the stand-in's options, then the command line of ``topk-lab``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="gfx950")
    parser.add_argument("--fault", choices=FAULTS, default="")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    FaultyStandIn.fault = asked.fault
    stand_in = FaultyStandIn("hip")
    stand_in.devices(f"{asked.arch}:sramecc+:xnack-")
    os.environ[driver.HIP_LIBRARY_VARIABLE] = str(stand_in.path)
    if asked.fault == "second-runtime":
        second = Path(os.environ.get("TMPDIR", "/tmp"), f"second-{os.getpid()}")
        second.mkdir()
        copy = shutil.copy(stand_in.path, second / LIBRARIES["hip"])
        ctypes.CDLL(str(copy))
        atexit.register(shutil.rmtree, second)
    driver.open_memory = lambda platform: HostMemory(stand_in, asked.arch)

    from topk_lab import cli
    from topk_lab.firstlight import supervisor

    supervisor.COMMAND = (
        *(sys.executable, __file__, "--arch", asked.arch),
        *(("--fault", asked.fault) if asked.fault else ()),
        "--",
    )
    cli.main(asked.arguments[1:] if asked.arguments[:1] == ["--"] else asked.arguments)


if __name__ == "__main__":
    main()
