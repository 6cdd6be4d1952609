"""Do the hooks that run before a commit check what `make lint` checks, with the same tools?"""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def hooks():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (local,) = config["repos"]
    assert local["repo"] == "local"
    return {hook["id"]: hook for hook in local["hooks"]}


def test_every_tool_is_pinned(hooks):
    for hook in hooks.values():
        (requirement,) = hook["additional_dependencies"]
        assert re.fullmatch(r"[a-z-]+==[0-9.]+", requirement)
        assert hook["entry"].split()[0] == requirement.partition("==")[0]


def test_ruff_is_the_one_that_the_tests_run_with(hooks):
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (pinned,) = (line for line in constraints if line.startswith("ruff=="))
    used = [hook["additional_dependencies"] for name, hook in hooks.items() if "ruff" in name]
    assert used == [[pinned]] * 4


def test_notebooks_are_looked_at_and_never_changed(hooks):
    looking = [hook["entry"] for hook in hooks.values() if hook.get("types") == ["jupyter"]]
    assert looking == ["ruff check", "ruff format --check"]


def test_kernels_are_formatted_and_nothing_else_is(hooks):
    files = re.compile(hooks["clang-format"]["files"])
    kernels = [path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels").rglob("*.h*")]
    assert len(kernels) > 10
    assert all(files.search(path) for path in kernels)
    assert not files.search("topk_lab/emulator/runtime/state.h")
    assert not files.search("kernels/CMakeLists.txt")
