"""Does kernels/README.md lead from every header to its twin, and state what is compiled?"""

import dataclasses
import importlib
import re

import pytest
from numba.core.registry import CPUDispatcher

from topk_lab import plans, schedules, toolchain
from topk_lab.reference import (
    aiter,
    delegate,
    key_range,
    paging,
    sglang,
    shared_histogram,
    vllm,
)
from topk_lab.reference.rows import RowKernel

KERNELS = toolchain.kernels_folder()
HEADERS = KERNELS / "include" / "topk_lab"
README = (KERNELS / "README.md").read_text(encoding="utf-8")


def tables(heading):
    """The tables whose first column has this heading, each as a list of dicts."""
    found = []
    for part in README.split(f"\n| {heading} |")[1:]:
        lines = f"| {heading} |{part}".split("\n\n")[0].splitlines()
        # A bar inside code does not part columns.
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
        names = [cell.strip("| ") for cell in cells[0]]
        found.append(
            [
                dict(zip(names, [cell.strip("| ") for cell in line], strict=True))
                for line in cells[2:]
            ]
        )
    return found


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


STEPS = [line for lineage in tables("step") for line in lineage]
(CONCEPTS,) = tables("concept")
(LAUNCHES,) = tables("kernel")
POLICY_TABLES = tables("field")
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


@pytest.mark.parametrize(
    "module",
    [vllm, sglang, aiter, shared_histogram, delegate, key_range, paging],
    ids=lambda module: module.__name__,
)
def test_every_twin_is_named(module):
    prefix = module.__name__.removeprefix("topk_lab.") + "."
    twins = {
        name
        for name, value in vars(module).items()
        if isinstance(value, CPUDispatcher | RowKernel) and value.__module__ == module.__name__
    }
    assert twins
    assert twins == {
        twin.removeprefix(prefix)
        for line in LINES
        for twin in code(line.get("twin") or line.get("host side") or "")
        if isinstance(resolve(twin), CPUDispatcher | RowKernel) and twin.startswith(prefix)
    }


SLOTS = plans.Paging(table_stride=4097, slots_stride=512, bits=6)


@pytest.mark.parametrize("paged", [None, SLOTS], ids=["indices", "slots"])
def test_launch_table_lists_what_plans_launch(paged):
    planned = {}
    for variant, num_cols, tie_break in (
        ("vllm_generic", 12_287, "any"),
        ("vllm_generic", 200_000, "any"),
        ("vllm_k512", 262_144, "any"),
        ("vllm_k512_uncrowded", 262_144, "any"),
        ("sglang_block512", 262_144, "any"),
        ("sglang_block1024", 262_144, "any"),
        ("aiter_one_block", 262_144, "any"),
        ("aiter_one_block", 262_144, "lowest"),
        ("shared_histogram", 262_144, "any"),
    ):
        shape = plans.Shape(8, num_cols, 512, num_cols, 512, tie_break=tie_break, paging=paged)
        for launch in plans.plan(variant, shape).launches:
            assert launch.grid[0] == 8
            planned[launch.kernel] = (launch.grid[1], launch.block)
    for line in LAUNCHES:
        (name,) = code(line["kernel"])
        if name == "page_transform" and paged is None:
            continue
        # The longest name that fits.
        variant = max(
            (known for known in schedules.POLICIES if name.startswith(known)), default=None
        )
        rows, splits = line["grid"].strip("()").split(", ")
        assert rows == "num_rows"
        due = schedules.max_splits(variant, 8, 262_144) if splits == "max_splits" else int(splits)
        (threads,) = code(line["threads"])
        policy = plans if variant is None else schedules.POLICIES[variant]
        assert planned.pop(name) == (due, getattr(policy, threads)), name
    assert not planned


@pytest.mark.parametrize("paged", [None, SLOTS], ids=["indices", "slots"])
@pytest.mark.parametrize("order", ["any", "value"])
@pytest.mark.parametrize(
    ("member", "launches"),
    [
        (member, launches)
        for member, policy in schedules.DELEGATE_POLICIES.items()
        for launches, compiled in (
            ("two", True),
            ("fused", policy.fused_delegates),
            ("fused_global", member in schedules.FUSED_GLOBAL),
        )
        if compiled
    ],
)
def test_delegate_launch_table_lists_what_plans_launch(member, launches, order, paged):
    policy = schedules.DELEGATE_POLICIES[member]
    num_cols = 4096 * policy.segment  # LDS has room for their delegates
    shape = plans.Shape(8, num_cols, 512, num_cols, 512, order=order, paging=paged)
    (lines,) = tables("delegate kernel")
    due = []
    for line in lines:
        (name,) = code(line["delegate kernel"])
        forms = {"reduce_<segment>": "two", "select": "two"}
        form = name.removeprefix("delegate_").removeprefix("<member>_")
        if form != "order" and forms.get(form, form) != launches:
            continue
        name = name.replace("<segment>", str(policy.segment)).replace("<member>", member)
        assert line["grid"].startswith("(num_rows, ")
        blocks = (
            schedules.delegate_blocks(8, num_cols) if "`delegate_blocks`" in line["grid"] else 1
        )
        (threads,) = code(line["threads"])
        owner = policy if hasattr(policy, threads) else plans
        due.append((name, (8, blocks), getattr(owner, threads)))
    planned = plans.plan(f"delegate[member={member},launches={launches}]", shape)
    launched = [(launch.kernel, launch.grid, launch.block) for launch in planned.launches]
    assert launched == (due[:-1] if order == "any" else due)


def test_member_table_is_the_delegate_policies():
    (lines,) = tables("member")
    stated = {}
    for line in lines:
        assert line["for"]
        stated[code(line["member"])[0]] = {
            code(column)[0]: cell
            for column, cell in line.items()
            if column not in ("member", "for")
        }
    assert stated == {
        member: {field: str(value) for field, value in dataclasses.asdict(policy).items()}
        for member, policy in schedules.DELEGATE_POLICIES.items()
    }


@pytest.mark.parametrize("variant", list(schedules.POLICIES))
def test_policy_table_is_the_policies(variant):
    (lines,) = (lines for lines in POLICY_TABLES if f"`{variant}`" in lines[0])
    policy = schedules.POLICIES[variant]
    values = {field: getattr(policy, field) for field in policy.__dataclass_fields__}
    assert {code(line["field"])[0]: line[f"`{variant}`"] for line in lines} == {
        field: str(value).lower() if isinstance(value, bool) else str(value)
        for field, value in values.items()
    }
    assert all(line["meaning"] for line in lines)


def test_the_rule_of_sharing_blocks_is_the_schedules():
    (rule,) = re.findall(r"\| rows, up to \| (.*) \|\n.*\n\| columns from \| (.*) \|", README)
    rows, columns = (cells.split(" | ") for cells in rule)
    assert (rows.pop(), columns.pop()) == ("more", "never shared")
    assert tuple(zip(map(int, rows), map(int, columns), strict=True)) == (
        schedules.SHARED_FROM_COLUMNS
    )


def test_no_policy_table_has_another_column():
    columns = {column for lines in POLICY_TABLES for column in lines[0]}
    assert columns == {"field", "meaning", *(f"`{variant}`" for variant in schedules.POLICIES)}
