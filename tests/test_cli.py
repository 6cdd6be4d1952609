import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from topk_lab import contract, targets, workloads
from topk_lab.cli import main


def call(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def logits_file(tmp_path):
    path = tmp_path / "logits.npy"
    np.save(path, workloads.make("normal", 3, 1300))
    return path


def refused(done, *words):
    """One line on standard error, exit code 2."""
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("topk-lab: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
    return True


@pytest.mark.parametrize(
    ("variant", "ran"),
    [("auto", "cpu_delegate"), ("vllm_generic", "vllm_generic"), ("vllm_k512", "vllm_k512")],
)
def test_select_writes_exact_indices(logits_file, tmp_path, variant, ran):
    out = tmp_path / "indices.npy"
    done = call("select", logits_file, "--k", 512, "--variant", variant, "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{ran} on numba: 3 rows of 1300, k 512, exact")
    contract.assert_exact(np.load(logits_file), np.load(out))


def test_select_reads_tensors_and_row_ends(tmp_path):
    logits = torch.from_numpy(workloads.make("masked_random", 2, 900))
    torch.save(logits, tmp_path / "logits.pt")
    ends = np.array([900, 100], np.int32)
    np.save(tmp_path / "ends.npy", ends)
    out = tmp_path / "out.npy"
    done = call(
        "select",
        tmp_path / "logits.pt",
        "--k",
        40,
        "--row-ends",
        tmp_path / "ends.npy",
        "--out",
        out,
    )
    assert done.exit_code == 0, done.output
    contract.assert_exact(logits, np.load(out), row_ends=ends)


def test_select_runs_the_compiled_code(amd_target, tmp_path):
    logits = workloads.make("normal", 3, 20_000)
    np.save(tmp_path / "logits.npy", logits)
    picked = {}
    for target in ("numba", amd_target):
        out = tmp_path / f"{target}.npy"
        done = call("select", tmp_path / "logits.npy", "--k", 512, "--target", target, "--out", out)
        assert done.exit_code == 0, done.output
        picked[target] = np.sort(np.load(out), axis=1)
    assert "vllm_k512 on gfx" in done.stdout
    # Normal rows of this seed have no tie at the cutoff, so that the sets agree.
    np.testing.assert_array_equal(picked["numba"], picked[amd_target])


def bad_files(folder):
    """Files that are no tensor file, each with the words that its refusal must hold."""
    with (folder / "pickle.pt").open("wb") as file:
        pickle.dump({"logits": object}, file)
    np.save(folder / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (folder / "text.npy").write_text("not an array")
    (folder / "empty.npy").write_bytes(b"")
    (folder / "empty.pt").write_bytes(b"")
    (folder / "image.png").write_bytes(b"png")
    torch.save({"logits": torch.zeros(2, 2)}, folder / "dict.pt")
    torch.save(torch.zeros(2, 2, dtype=torch.bfloat16), folder / "half.pt")
    np.save(folder / "double.npy", np.zeros((2, 2)))
    np.save(folder / "flat.npy", np.zeros(9, np.float32))
    np.save(folder / "columns.npy", np.asfortranarray(np.zeros((4, 6), np.float32)))
    return {
        "absent.npy": ("logits must be a .npy or .pt file", "found no file"),
        "pickle.pt": ("logits must hold one tensor, got pickle.pt",),
        "objects.npy": ("logits must hold one array, got objects.npy",),
        "text.npy": ("logits must hold one array, got text.npy",),
        "empty.npy": ("logits must hold one array, got empty.npy",),
        "empty.pt": ("logits must hold one tensor, got empty.pt",),
        "image.png": ("logits must be a .npy or .pt file, got image.png",),
        "dict.pt": ("logits must hold one tensor, got dict",),
        "half.pt": ("logits must be float32 or int32, got torch.bfloat16",),
        "double.npy": ("logits must be float32, got float64",),
        "flat.npy": ("logits must have shape (num_rows, num_cols), got (9,)",),
        "columns.npy": ("logits must be contiguous in the last dimension",),
    }


def test_select_refuses_files_that_hold_no_logits(tmp_path):
    out = tmp_path / "out.npy"
    for name, words in bad_files(tmp_path).items():
        assert refused(call("select", tmp_path / name, "--k", 1, "--out", out), *words)
        assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--k", 0], ["k must be at least 1, got 0"]),
        (["--k", 513, "--variant", "vllm_k512"], ["k must be 512 for vllm_k512, got 513"]),
        (["--k", 4096, "--target", "gfx950"], ["k must be in [1, 2048] for vllm_generic"]),
        (["--k", 5, "--target", "gfx1100"], ["target must be one of numba, torch", "'gfx1100'"]),
        (["--k", 5, "--variant", "best"], ["variant must be one of", "'best'"]),
        (
            ["--k", 5, "--variant", "reference", "--target", "gfx950"],
            ["target must be one of numba for reference, got 'gfx950'"],
        ),
        (
            ["--k", 512, "--variant", "vllm_k512[fits_rule=false]"],
            ["is not exact", "for study only"],
        ),
    ],
)
def test_select_refuses_what_no_variant_serves(logits_file, tmp_path, options, words):
    out = tmp_path / "out.npy"
    assert refused(call("select", logits_file, *options, "--out", out), *words)
    assert not out.exists()


def test_select_refuses_wrong_lengths_and_places(logits_file, tmp_path):
    np.save(tmp_path / "ends.npy", np.zeros(4, np.int32))
    np.save(tmp_path / "wide.npy", np.zeros(3, np.int64))
    start = ("select", logits_file, "--k", 5)
    ends = ("--row-ends", tmp_path / "ends.npy")
    assert refused(
        call(*start, *ends, "--out", tmp_path / "out.npy"),
        "row_ends must have shape (num_rows,) = (3,), got (4,)",
    )
    assert refused(
        call(*start, "--row-ends", tmp_path / "wide.npy", "--out", tmp_path / "out.npy"),
        "row_ends must be int32, got int64",
    )
    assert refused(call(*start, "--out", tmp_path / "out.csv"), "--out must be a .npy file")
    assert refused(call(*start, "--out", tmp_path / "no" / "out.npy"), "--out must lie in a folder")
    assert not (tmp_path / "out.npy").exists()


def test_wide_and_tall_inputs_are_outside_the_gate(tmp_path):
    np.save(tmp_path / "tall.npy", np.zeros((385, 600), np.float32))
    assert refused(
        call("select", tmp_path / "tall.npy", "--k", 512, "--variant", "vllm_k512", "--out",
             tmp_path / "out.npy"),
        "num_rows must be at most 384 for vllm_k512, got 385",
    )  # fmt: skip


def test_verify_names_what_ran_and_what_it_saw():
    done = call("verify", "--target", "numba", "--cases", "one-d-lengths,neg-inf-rule")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("exact ")
    assert "one_d_lengths/sliced-rows" in lines[0]
    assert "numba" in lines[0]
    assert "vllm_k512" in lines[0]
    assert "splits 1" in lines[0]
    assert lines[-1] == "8 of 8 checks as due"
    assert any(line.startswith("wrong (as due)") and "legacy-pads" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cases", "everything"], ["cases must be one of boundaries,", "'everything'"]),
        (["--variant", "vllm_k256"], ["variant must be one of"]),
        (["--target", "mi300"], ["target must be one of"]),
        (["--variant", "torch", "--target", "gfx950"], ["target must be one of torch for torch"]),
    ],
)
def test_verify_refuses_what_it_does_not_know(options, words):
    assert refused(call("verify", *options), *words)


def test_a_wrong_kernel_fails_verification(monkeypatch):
    honest = targets.run

    def last_tie_twice(*arguments, **options):
        outcome = honest(*arguments, **options)
        outcome.indices[:, 1] = outcome.indices[:, 0]
        return outcome

    monkeypatch.setattr(targets, "run", last_tie_twice)
    done = call("verify", "--target", "numba", "--cases", "one-d-lengths")
    assert done.exit_code == 1
    assert done.stdout.startswith("wrong ")
    assert "duplicate" in done.stdout
    assert "0 of 1 checks as due" in done.stdout


def test_doctor_says_for_each_target_whether_it_is_usable():
    done = call("doctor")
    assert done.exit_code == 0, done.output
    for target in ("numba", "torch", "gfx90a", "gfx942", "gfx950", "hip", "cuda"):
        assert any(line.startswith(target) for line in done.stdout.splitlines())
    report = json.loads(call("doctor", "--json").stdout)
    assert {state["target"] for state in report["targets"]} == set(targets.TARGETS)
    for state in report["targets"]:
        assert state["usable"] or (state["reason"] and state["fix"])


def test_doctor_explains_missing_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("TOPK_LAB_CODE", str(tmp_path))
    done = call("doctor")
    assert done.exit_code == 0
    assert "gfx950   no      TOPK_LAB_CODE must name a folder with manifest.json" in done.stdout
    assert refused(
        call("verify", "--target", "gfx950", "--cases", "one-d-lengths"),
        "target gfx950 is not usable",
    )


def test_doctor_names_the_compiler_of_each_object():
    report = json.loads(call("doctor", "--json").stdout)
    names = {found["name"]: found for found in report["code_objects"]}
    assert names["vllm.gfx950.hsaco"]["toolchain"] in ("clang", "zig", "hipcc")
    assert len(names["vllm.gfx950.hsaco"]["sha256"]) == 64


def test_help_is_quick_and_loads_nothing_heavy():
    script = (
        "import sys\nfrom topk_lab.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numba', 'pandas', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "reproduce" in done.stdout


def test_module_and_command_are_one():
    done = subprocess.run(
        [sys.executable, "-m", "topk_lab", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("topk-lab, version 0.1.0")


def test_select_never_overwrites_what_it_reads(logits_file, tmp_path):
    before = logits_file.read_bytes()
    link = tmp_path / "link.npy"
    link.symlink_to(logits_file)
    for out in (logits_file, link, tmp_path / "." / "logits.npy"):
        assert refused(
            call("select", logits_file, "--k", 5, "--out", out), "--out must not be the file of"
        )
    assert logits_file.read_bytes() == before


def test_select_leaves_no_part_of_a_file(logits_file, tmp_path):
    folder = tmp_path / "folder.npy"
    folder.mkdir()
    assert refused(call("select", logits_file, "--k", 5, "--out", folder), "folder.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.npy", "logits.npy"]


def test_archives_and_broken_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "archive.npz", a=np.zeros(3))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    (tmp_path / "short.pt").write_bytes(b"\x80\x02.")
    for name in ("archive.npy", "short.pt"):
        out = tmp_path / "out.npy"
        assert refused(
            call("select", tmp_path / name, "--k", 1, "--out", out), "logits must hold one"
        )


def test_asking_nothing_is_no_success():
    assert refused(
        call("verify", "--cases", "neg-inf-rule", "--variant", "reference"), "asks nothing"
    )
    done = call("verify", "--cases", "neg-inf-rule", "--variant", "vllm_k512[]")
    assert "7 of 7 checks as due" in done.stdout


def test_records_go_to_no_file_that_is_in_the_way(tmp_path):
    (tmp_path / "taken").write_text("mine")
    done = call("verify", "--cases", "one-d-lengths", "--record", tmp_path / "taken")
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "taken").read_text() == "mine"
