"""Does environment.yml ask for what pyproject.toml asks for, and for a ROCm build of torch?

Checked offline, as text. That conda can solve it, and that the wheels are there, is not.
"""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent

CONDA_LINE = re.compile(r"(?P<name>[a-z0-9][a-z0-9_.-]*)(?P<specifier>(?:[<>=!]=?[0-9][0-9.]*)?)")
CONDA_NAMES = {"msgpack-python": "msgpack"}
TOOLS = {"python", "pip", "git", "make"}
# Installed with the package itself, as the extra `emulator` is.
LEFT_TO_PIP = {"tinygrad"}
NAMED_BY_THE_USER = {"jupyterlab", "torch", "numba", "pandas", "seaborn", "pytest"}


@pytest.fixture(scope="module")
def environment():
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def conda(environment):
    """Package -> specifier of the conda lines, under their names on PyPI."""
    packages = {}
    for line in environment["dependencies"]:
        if isinstance(line, dict):
            continue
        found = CONDA_LINE.fullmatch(line)
        assert found, f"{line!r} is no package with a lower bound or a pin"
        name = CONDA_NAMES.get(found["name"], found["name"])
        assert name not in packages, f"{name} stands there twice"
        packages[name] = found["specifier"]
    return packages


@pytest.fixture(scope="module")
def pip_lines(environment):
    (section,) = (line for line in environment["dependencies"] if isinstance(line, dict))
    assert set(section) == {"pip"}
    return section["pip"]


def asked_for(project, extra=None):
    """Package -> specifier of what pyproject.toml asks for, extras of its own resolved."""
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    packages = {}
    for requirement in map(Requirement, lines):
        if requirement.name == project["name"]:
            for inner in requirement.extras:
                packages |= asked_for(project, inner)
        else:
            packages[requirement.name] = requirement.specifier
    return packages


def test_it_is_an_environment_of_conda_forge_alone(environment):
    assert set(environment) == {"name", "channels", "dependencies"}
    assert environment["name"] == "topk-lab"
    assert environment["channels"] == ["conda-forge", "nodefaults"]


def test_torch_can_only_be_a_rocm_build_from_the_index_that_is_named(pip_lines, project):
    index, torch, package = pip_lines
    option, host = index.split()
    assert option == "--extra-index-url"
    pinned = Requirement(torch)
    ((operator, version),) = ((one.operator, Version(one.version)) for one in pinned.specifier)
    assert (pinned.name, operator) == ("torch", "==")
    assert version.local.startswith("rocm")
    assert host.rpartition("/")[2] == version.local
    assert asked_for(project)["torch"].contains(version)
    assert package == "-e .[dev]"


def test_python_is_one_that_the_package_takes(conda, project):
    python = conda["python"].removeprefix("=")
    assert SpecifierSet(project["requires-python"]).contains(python)


def test_conda_brings_what_the_package_asks_for(conda, project):
    required = asked_for(project)
    assert set(required) - set(conda) == {"torch"}
    brought = {name: conda[name] for name in required if name != "torch"}
    assert brought == {name: str(required[name]) for name in brought}


def test_conda_brings_what_developing_asks_for_but_for_what_it_lacks(conda, project):
    required = asked_for(project, "dev")
    only_on_pypi = LEFT_TO_PIP | set(asked_for(project, "emulator"))
    assert set(required) - set(conda) == only_on_pypi
    brought = {name: conda[name] for name in required if name not in only_on_pypi}
    assert brought == {name: str(required[name]) for name in brought}


def test_it_asks_for_nothing_else(conda, project):
    assert set(conda) - TOOLS == (set(asked_for(project)) | set(asked_for(project, "dev"))) - {
        "torch",
        *LEFT_TO_PIP,
        *asked_for(project, "emulator"),
    }


def test_it_brings_what_the_user_named(conda, pip_lines):
    pip = {Requirement(line).name for line in pip_lines if not line.startswith("-")}
    assert set(conda) | pip >= NAMED_BY_THE_USER
