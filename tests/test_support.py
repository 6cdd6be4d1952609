"""Is one table behind what doctor, the refusals and the page say of support?"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from topk_lab import code_objects, models, readme, results, support
from topk_lab.cli import main
from topk_lab.targets import AMD_TARGETS

STAND_IN = Path(__file__).parent / "hip_stand_in" / "device.py"


def test_every_row_has_a_source_and_says_who_ran_it():
    for row in support.rows():
        assert row.says, row.name
        assert row.source, row.name
        assert row.ran, row.name
    assert [row.group for row in support.rows()] == sorted(
        (row.group for row in support.rows()), key=list(support.GROUPS).index
    )
    assert {row.group for row in support.rows()} == set(support.GROUPS)


def test_every_compiled_target_is_a_device_of_the_table():
    for target in AMD_TARGETS:
        row = support.row_of(target)
        assert row.minimum.split(".")[0] in ("6", "7")
        assert "nobody ran it yet" in row.ran
        assert support.refusal(target) is None
        assert models.DEVICES[target].name.split()[2].rstrip(",") in row.device
    assert {row.name for row in support.rows() if row.name.startswith("gfx") and row.minimum} == {
        found.target for found in code_objects.manifest() if found.target.startswith("gfx")
    }


def test_what_was_measured_is_recorded():
    measured = [row for row in support.rows() if row.ran.startswith("measured on an NVIDIA H200")]
    assert measured
    folder = results.data_root() / "measured" / "nvidia-h200"
    assert any(folder.glob("*.jsonl"))
    assert not any("measured" in row.ran for row in support.rows() if row.name.startswith("gfx"))


@pytest.mark.parametrize(
    ("arch", "refused"),
    [
        ("gfx1100", "waves are of 32 lanes"),
        ("gfx1201", "waves are of 32 lanes"),
        ("gfx1036", "waves are of 32 lanes"),
        ("gfx908", "no code object is compiled for it"),
        ("gfx940", "ROCm dropped it"),
        ("gfx942", None),
        ("gfx950", None),
        ("sm_90", None),
    ],
)
def test_architectures_are_refused_by_name(arch, refused):
    found = support.refusal(arch)
    assert (found is None) == (refused is None)
    if refused:
        assert refused in found
        assert support.of_device(arch, "7.2").startswith(f"{arch}: refused: ")


@pytest.mark.parametrize(
    ("arch", "version", "words"),
    [
        ("gfx950", "6.4.43482", "torch is built for 6.4.43482, which is too old"),
        ("gfx950", "7.2.1", "ROCm 7.0 or newer; emulated; nobody ran it yet"),
        ("gfx942", "6.3", "MI300X, MI300A, MI325X; ROCm 6.3 or newer"),
        ("gfx942", None, "ROCm 6.3 or newer"),
        ("sm_90", None, "measured on an NVIDIA H200"),
        ("gfx951", "7.2", "not in the table"),
    ],
)
def test_a_device_is_held_against_its_row(arch, version, words):
    said = support.of_device(arch, version)
    assert words in said
    assert ("too old" in said) == ("too old" in words)


def test_doctor_says_what_the_table_has():
    told = CliRunner().invoke(main, ["doctor", "--support"])
    assert told.exit_code == 0
    assert support.markdown() in told.output
    told = CliRunner().invoke(main, ["doctor", "--json"])
    rows = json.loads(told.output)["support"]
    assert rows == [dataclasses.asdict(row) for row in support.rows()]


@pytest.mark.parametrize(
    ("arch", "line"),
    [
        ("gfx950", "support  gfx950: MI350X, MI355X; ROCm 7.0 or newer"),
        ("gfx1100", "support  gfx1100: refused: its waves are of 32 lanes"),
    ],
)
def test_doctor_says_it_of_the_devices_at_hand(arch, line):
    done = subprocess.run(
        [sys.executable, str(STAND_IN), "--arch", arch, "--", "doctor"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert line in done.stdout


def test_the_page_for_a_node_has_the_table():
    text = readme.node_page().read_text(encoding="utf-8")
    blocks = readme.node_blocks()
    assert readme.check_markers(text, blocks) == []
    assert blocks["support"] == support.markdown()
    assert blocks["expected"].count("published: ") == 2


def test_a_row_of_no_group_is_refused(tmp_path, monkeypatch):
    (tmp_path / "support.toml").write_text(
        '[[row]]\ngroup = "moon"\nname = "a"\ndevice = "b"\nsays = "c"\nsource = "d"\n'
    )
    monkeypatch.setattr(results, "data_root", lambda: tmp_path)
    support.rows.cache_clear()
    with pytest.raises(ValueError, match=r"row 'a' of support\.toml must have a group of device"):
        support.rows()
    support.rows.cache_clear()
