"""Does kernels/README.md lead from every header to its twin, and state what is compiled?"""

import importlib
import re

import pytest
from numba.core.registry import CPUDispatcher

from topk_lab import plans, schedules, toolchain
from topk_lab.reference import vllm
from topk_lab.reference.rows import RowKernel

KERNELS = toolchain.kernels_folder()
HEADERS = KERNELS / "include" / "topk_lab"
README = (KERNELS / "README.md").read_text(encoding="utf-8")


def table(heading):
    """Lines of the table whose first column has this heading, as dicts."""
    lines = README[README.index(f"\n| {heading} |") + 1 :].split("\n\n")[0].splitlines()
    # A bar inside code does not part columns.
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    names = [cell.strip("| ") for cell in cells[0]]
    return [
        dict(zip(names, [cell.strip("| ") for cell in line], strict=True)) for line in cells[2:]
    ]


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


STEPS, CONCEPTS = table("step"), table("concept")
LINES = STEPS + CONCEPTS


def header_of(line):
    name, link = re.fullmatch(r"\[`(.+)`\]\((.+)\)", line["header"]).groups()
    assert link == f"include/topk_lab/{name}"
    return name


def resolve(dotted):
    """What a name within topk_lab stands for."""
    module, _, name = f"topk_lab.{dotted}".rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_header_is_named_once():
    named = [header_of(line) for line in LINES]
    assert sorted(named) == sorted(path.name for path in HEADERS.glob("*.hpp"))


@pytest.mark.parametrize("line", LINES, ids=header_of)
def test_names_are_in_their_header_and_their_module(line):
    text = (HEADERS / header_of(line)).read_text(encoding="utf-8")
    names = code(line.get("functions") or line["in it"])
    assert names
    for name in names:
        assert re.search(rf"(?:struct|class|define|int32_t|\S) {name}\b", text), name
    for twin in code(line.get("twin") or line.get("host side") or ""):
        assert resolve(twin) is not None


@pytest.mark.parametrize("line", STEPS, ids=header_of)
def test_twins_have_the_names_of_the_steps(line):
    assert [twin.rpartition(".")[2] for twin in code(line["twin"])] == code(line["functions"])
    assert all(isinstance(resolve(twin), CPUDispatcher | RowKernel) for twin in code(line["twin"]))


def test_every_twin_is_named():
    twins = {
        name
        for name, value in vars(vllm).items()
        if isinstance(value, CPUDispatcher | RowKernel) and value.__module__ == vllm.__name__
    }
    assert twins == {
        twin.removeprefix("reference.vllm.")
        for line in LINES
        for twin in code(line.get("twin") or line.get("host side") or "")
        if isinstance(resolve(twin), CPUDispatcher | RowKernel)
        and twin.startswith("reference.vllm.")
    }


def test_launch_table_lists_what_plans_launch():
    planned = {}
    for variant, num_cols in (
        ("vllm_generic", 12_287),
        ("vllm_generic", 200_000),
        ("vllm_k512", 262_144),
    ):
        shape = plans.Shape(8, num_cols, 512, num_cols, 512)
        made = plans.plan(variant, shape)
        for launch in made.launches:
            policy = schedules.POLICIES[variant]
            threads = {policy.block_size, policy.merge_block_size}
            assert launch.block in threads
            planned[launch.kernel] = (launch.grid[1], launch.block)
    for line in table("kernel"):
        (name,) = code(line["kernel"])
        variant = "vllm_k512" if "k512" in name else "vllm_generic"
        splits = schedules.max_splits(variant, 8, 262_144) if "max_splits" in line["grid"] else 1
        threads = getattr(schedules.POLICIES[variant], code(line["threads"])[0])
        assert planned.pop(name) == (splits, threads), name
    assert not planned


def test_policy_table_is_the_policies():
    lines = {code(line["field"])[0]: line for line in table("field")}
    for variant, policy in schedules.POLICIES.items():
        stated = {field: line[f"`{variant}`"] for field, line in lines.items()}
        values = {field: getattr(policy, field) for field in policy.__dataclass_fields__}
        assert stated == {
            field: str(value).lower() if isinstance(value, bool) else str(value)
            for field, value in values.items()
        }
