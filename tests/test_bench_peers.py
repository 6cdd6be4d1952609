"""Are other packages' selections called as they state it, judged, and never left out in silence?

None of the packages is needed: fakes of their interfaces stand in sys.modules and in torch.ops, and
hold what they are given against what the package states.
"""

import json
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.test_bench import SHORT, Calling, run_on
from topk_lab import environment, results, workloads
from topk_lab.bench import EXPERIMENTS, PEERS, candidates, graphs, measure, peers, run, survey
from topk_lab.bench.device import Gpu
from topk_lab.cli import main

NUM_ROWS, NUM_COLS = 3, 2560
ROW_ENDS = np.array([0, 700, NUM_COLS], np.int32)
FULL = np.full(NUM_ROWS, NUM_COLS, np.int32)

VLLM_SCHEMAS = {
    "top_k_per_row_decode": "(Tensor logits, int next_n, Tensor seq_lens, Tensor! indices, "
    "int numRows, int stride0, int stride1, int topK) -> ()",
    **dict.fromkeys(
        ("persistent_topk", "cooperative_topk"),
        "(Tensor logits, Tensor lengths, Tensor! output, Tensor workspace, int k, "
        "int max_seq_len) -> ()",
    ),
}


class Moving(Calling):
    """Its clock moves at every event too, so that eager calls take time."""

    def event(self):
        event = super().event()
        record = event.record

        def move_and_record():
            self.now += 1.0
            record()

        event.record = move_and_record
        return event


class Gfx950(Moving):
    """A stand-in of an MI355X's kind."""

    target = "hip"
    arch = "gfx950"


class Sm90(Moving):
    """A stand-in of an H200's kind."""

    arch = "sm_90"


def stand_in(peer):
    return Sm90() if "cuda" in peer.archs else Gfx950()


def selected(logits, row_ends, k):
    """The k greatest of each row's live part, -1 past them."""
    out = torch.full((len(logits), k), -1, dtype=torch.int32)
    for row, end in enumerate(row_ends.tolist()):
        found = torch.topk(logits[row, :end], min(k, end)).indices
        out[row, : len(found)] = found
    return out


def dense(tensor, shape, dtype):
    """Whether a tensor is what a kernel takes that is told neither strides nor offsets."""
    assert tuple(tensor.shape) == shape
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    return True


def given(logits, row_ends, k, out=None):
    num_rows = len(logits)
    assert dense(logits, (num_rows, logits.shape[1]), torch.float32)
    assert dense(row_ends, (num_rows,), torch.int32)
    return out is None or dense(out, (num_rows, k), torch.int32)


def top_k_per_row_decode(logits, next_n, seq_lens, indices, num_rows, stride0, stride1, k):
    assert given(logits, seq_lens, k, indices)
    assert (next_n, num_rows) == (1, len(logits))
    assert (stride0, stride1) == logits.stride()
    indices.copy_(selected(logits, seq_lens, k))


def with_workspace(logits, lengths, output, workspace, k, max_seq_len):
    assert given(logits, lengths, k, output)
    assert dense(workspace, (2**20,), torch.uint8)
    assert max_seq_len == logits.shape[1] == logits.stride(0)
    output.copy_(selected(logits, lengths, k))


def paged(scores, seq_lens, page_table, page_indices, page_size, raw_indices=None):
    """Slots, by the tables that the caller made."""
    k = page_indices.shape[1]
    assert given(scores, seq_lens, k, page_indices)
    assert dense(page_table, (len(scores), -(-scores.shape[1] // page_size)), torch.int32)
    assert page_size.bit_count() == 1
    raw = selected(scores, seq_lens, k)
    pages = page_table.gather(1, (raw.clamp(min=0) // page_size).to(torch.int64))
    page_indices.copy_(torch.where(raw < 0, raw, pages * page_size + raw % page_size))


def plan(seq_lens, static_threshold=0):
    return torch.stack((seq_lens, seq_lens))


def planned(scores, seq_lens, page_tables, out, page_size, metadata, out_raw_indices=None):
    assert metadata.tolist() == plan(seq_lens).tolist()
    paged(scores, seq_lens, page_tables, out, page_size)


def fast_topk_v2(score, lengths, topk, row_starts=None):
    assert topk == 2048
    assert given(score, lengths, topk)
    return selected(score, lengths, topk)


def deepselect_topk_fp32(input, topk):
    assert input.stride(0) * 4 % 1024 == 0
    values, indices = torch.topk(input, topk)
    return values, indices.to(torch.int32)


def deep_select_topk(
    input,
    topk,
    sorted=False,
    begin=None,
    end=None,
    indices_type=torch.int64,
    sorted_index=False,
    hint=None,
    output_idx=None,
    output_idx_offset=None,
    idx_oob_fill_value=2**31 - 1,
    value_oob_fill_value=-torch.inf,
    return_value=True,
    abort_when_nan_found=True,
):
    assert given(input, end, topk)
    assert input.stride(0) * 4 % 1024 == 0
    assert (begin, hint, abort_when_nan_found) == (None, None, False)
    chosen = selected(input, end, topk).to(indices_type)
    return None, chosen.masked_fill(chosen < 0, idx_oob_fill_value)


def top_k_ragged_transform(
    input, offsets, lengths, k, deterministic=False, tie_break=0, dsa_graph_safe=False
):
    assert given(input, lengths, k)
    assert dense(offsets, (len(input),), torch.int32)
    local = selected(input, lengths, k)
    return torch.where(local < 0, local, local + offsets[:, None])


def top_k(input, k, sorted=False, deterministic=False):
    return torch.topk(input, k, sorted=sorted)


@pytest.fixture
def install(monkeypatch, request):
    """Put a module with functions into sys.modules, and its parents beside it."""

    def install(name, **functions):
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        for function, value in functions.items():
            monkeypatch.setattr(sys.modules[name], function, value, raising=False)

    def register(**functions):
        """Operators of vLLM's, by the schemas that it states."""
        install("vllm._custom_ops")
        library = torch.library.Library("_C", "FRAGMENT")
        request.addfinalizer(library._destroy)
        for name, function in functions.items():
            library.define(name + VLLM_SCHEMAS[name])
            library.impl(name, function, "CPU")

    install.vllm = register
    return install


@pytest.fixture
def all_packages(install):
    install.vllm(
        top_k_per_row_decode=top_k_per_row_decode,
        persistent_topk=with_workspace,
        cooperative_topk=with_workspace,
    )
    install(
        "sgl_kernel",
        fast_topk_v2=fast_topk_v2,
        deepseek_v4_topk_transform_512=paged,
        deepselect_topk_fp32=deepselect_topk_fp32,
    )
    install(
        "sglang.kernels.ops.attention.dsv4.topk",
        plan_topk_v2=plan,
        topk_transform_paged_v2=planned,
    )
    install("flashinfer", top_k=top_k, top_k_ragged_transform=top_k_ragged_transform)
    install("aiter.ops.topk", top_k_per_row_decode=top_k_per_row_decode)
    install("deep_select", topk=deep_select_topk)


@pytest.fixture
def release(monkeypatch, tmp_path):
    """Write a distribution's metadata where the interpreter looks for it."""

    def release(name, version):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
        monkeypatch.syspath_prepend(tmp_path)

    return release


def timing(variant, device, *, k=512, row_ends=None, shape=(NUM_ROWS, NUM_COLS), **how):
    """What becomes of a peer on a small input, and of another candidate beside it."""
    logits = workloads.make("normal", *shape)
    inputs = candidates.Inputs(logits, device, "warm", row_ends=row_ends)
    made = {name: candidates.stand_for(name, k, inputs) for name in (variant, "read_amax")}
    found = measure(made, device, effort=SHORT, **how)
    assert found["read_amax"].status == "ok"
    return found[variant]


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("variant", PEERS)
def test_a_peer_is_called_as_its_package_states_and_is_exact(variant, mode, all_packages):
    peer = PEERS[variant]
    k = peer.ks[-1] if peer.ks else 512
    row_ends = ROW_ENDS if peer.takes_row_ends else FULL
    found = timing(variant, stand_in(peer), k=k, row_ends=row_ends, mode=mode)
    assert (found.status, found.reason) == ("ok", None)
    assert len(found.samples_us) == 6


def test_the_promise_for_graphs_is_asked_for_by_name(install):
    asked = []

    def ragged(*arguments, dsa_graph_safe=False):
        asked.append(dsa_graph_safe)
        return top_k_ragged_transform(*arguments)

    install("flashinfer", top_k_ragged_transform=ragged)
    for variant, promise in (("ragged", False), ("ragged_graph_safe", True)):
        asked.clear()
        assert timing(f"peer:flashinfer_{variant}", Sm90()).status == "ok"
        assert set(asked) == {promise}


def test_a_plan_follows_row_ends_that_a_replay_changes(install):
    planned_for = []

    def watched(seq_lens, static_threshold=0):
        planned_for.append(seq_lens.tolist())
        return plan(seq_lens)

    install(
        "sglang.kernels.ops.attention.dsv4.topk",
        plan_topk_v2=watched,
        topk_transform_paged_v2=planned,
    )
    device = Sm90()
    inputs = candidates.Inputs(workloads.make("normal", NUM_ROWS, NUM_COLS), device, "warm")
    candidate = candidates.stand_for("peer:sglang_topk_v2", 512, inputs)
    replay = device.capture(candidate.calls)
    candidate.prepare()
    inputs.row_ends.copy_(torch.from_numpy(ROW_ENDS))
    replay()
    assert candidate.check() is None
    assert planned_for == [ROW_ENDS.tolist()]


@pytest.mark.parametrize(
    "module", ["sglang.kernels.ops.attention.dsv4.topk", "sglang.jit_kernel.dsv4.topk"]
)
def test_what_was_renamed_is_found_by_its_older_name(module, install):
    install(module, plan_topk_v2=plan, topk_transform_512_v2=planned)
    assert timing("peer:sglang_topk_v2", Sm90(), row_ends=ROW_ENDS).status == "ok"
    (standing,) = (one for one in survey(Sm90()) if one.package == "sglang")
    assert standing.entry_point == f"{module}.plan_topk_v2 and {module}.topk_transform_512_v2"


@pytest.mark.parametrize("variant", PEERS)
def test_a_package_that_is_not_there_is_said_to_be_missing(variant):
    peer = PEERS[variant]
    found = timing(variant, stand_in(peer))
    if peer.package == "torch":
        assert found.status == "ok"
    else:
        assert (found.status, found.samples_us) == ("skipped", ())
        assert found.reason == f"package {peer.package} is not installed"


def test_an_entry_point_that_a_version_lacks_is_named_with_the_version(install, release):
    install.vllm(top_k_per_row_decode=top_k_per_row_decode)
    release("vllm", "0.9.1")
    reason = timing("peer:vllm_cooperative", Sm90()).reason
    assert reason == "vllm 0.9.1 has no torch.ops._C.cooperative_topk"
    assert timing("peer:vllm_top_k_per_row", Sm90()).status == "ok"
    install("sgl_kernel")
    release("sgl-kernel", "0.1.0")
    reason = timing("peer:sgl_fast_topk_v2", Sm90(), k=2048).reason
    assert reason == "sgl_kernel 0.1.0 has no sgl_kernel.fast_topk_v2"


def test_another_package_of_the_same_name_is_not_taken_for_the_peer(install):
    install("aiter")  # PyPI's is about asynchronous iterators
    reason = timing("peer:aiter_top_k_per_row", Gfx950()).reason
    assert reason == "aiter of unknown version has no aiter.ops.topk.top_k_per_row_decode"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "raise OSError('/usr/lib/libcudart.so.13:\\ncannot open shared object file')",
            "OSError: /usr/lib/libcudart.so.13: cannot open shared object file",
        ),
        ("import no_such_compiler", "ModuleNotFoundError: No module named 'no_such_compiler'"),
        ("import sys\nsys.no_such_name", "AttributeError: module 'sys' has no attribute"),
    ],
)
def test_a_package_that_can_not_be_imported_says_why(source, reason, tmp_path, monkeypatch):
    (tmp_path / "deep_select.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    found = timing("peer:deep_select", Sm90())
    assert found.status == "skipped"
    assert found.reason.startswith(f"deep_select of unknown version can't be imported: {reason}")


@pytest.mark.parametrize(
    ("variant", "device", "reason"),
    [
        ("peer:vllm_persistent", Gpu("hip", "gfx950"), "device must be cuda, got hip gfx950"),
        (
            "peer:vllm_cooperative",
            Gpu("cuda", "sm_120"),
            "device must be cuda sm_90 to sm_119, got cuda sm_120",
        ),
        (
            "peer:sglang_topk_v2",
            Gpu("cuda", "sm_89"),
            "device must be cuda sm_90 or newer or hip, got cuda sm_89",
        ),
        (
            "peer:deep_select",
            Gpu("cuda", "sm_110"),
            "device must be cuda sm_90, sm_100 or sm_103, got cuda sm_110",
        ),
        ("peer:aiter_top_k_per_row", Gpu("cuda", "sm_90"), "device must be hip, got cuda sm_90"),
        ("torch.topk", None, "device must be cuda or hip, torch sees none"),
    ],
)
def test_a_device_that_a_kernel_was_not_built_for_is_named(variant, device, reason, all_packages):
    assert PEERS[variant].refusal(device, 1, 1024, 512) == reason


def test_devices_on_the_other_side_of_each_bound_are_served(all_packages):
    served = {
        "peer:vllm_cooperative": ("sm_90", "sm_103", "sm_119"),
        "peer:sglang_topk_v2": ("sm_90", "sm_120"),
        "peer:deep_select": ("sm_90", "sm_100", "sm_103"),
    }
    for variant, archs in served.items():
        for arch in archs:
            assert PEERS[variant].refusal(Gpu("cuda", arch), 1, 1024, 512) is None


@pytest.mark.parametrize(
    ("variant", "shape", "reason"),
    [
        ("peer:vllm_persistent", (1, 1024, 513), "k must be 512 or 1024 or 2048, got 513"),
        ("peer:vllm_cooperative", (65, 1024, 512), "num_rows must be at most 64, got 65"),
        ("peer:vllm_cooperative", (64, 1022, 512), "num_cols must be a multiple of 4, got 1022"),
        ("peer:sglang_topk_v2", (1, 4096, 2049), "k must be at most 2048, got 2049"),
        ("peer:sglang_topk_v2", (1, 4097, 2048), "num_cols must be a multiple of 4, got 4097"),
        ("peer:sgl_fast_topk_v2", (1, 4096, 512), "k must be 2048, got 512"),
        ("peer:deep_select", (1, 8192, 4097), "k must be at most 4096, got 4097"),
        ("peer:deep_select", (1, 2**23, 512), "num_cols must be at most 8388607, got 8388608"),
        ("peer:deep_select", (1, 8320, 512), "num_cols must be a multiple of 256, got 8320"),
        ("peer:sgl_deepselect_fp32", (1, 256, 512), "k must be at most num_cols = 256, got 512"),
        ("peer:flashinfer_top_k", (1, 511, 512), "k must be at most num_cols = 511, got 512"),
    ],
)
def test_a_shape_that_a_kernel_does_not_serve_is_named(variant, shape, reason, all_packages):
    assert PEERS[variant].refusal(Sm90(), *shape) == reason


def test_shapes_on_the_other_side_of_each_bound_are_served(all_packages):
    for variant, shape in (
        ("peer:vllm_persistent", (4096, 1021, 2048)),
        ("peer:vllm_cooperative", (64, 1024, 512)),
        ("peer:sglang_topk_v2", (1, 4096, 2048)),
        ("peer:sgl_fast_topk_v2", (1, 4096, 2048)),
        ("peer:deep_select", (1, 2**23 - 256, 4096)),
        ("peer:deep_select", (1, 256, 512)),
        ("peer:flashinfer_top_k", (1, 512, 512)),
    ):
        assert PEERS[variant].refusal(Sm90(), *shape) is None


def test_rows_that_are_live_in_part_are_not_given_to_who_takes_no_row_ends(all_packages):
    whole = [variant for variant, peer in PEERS.items() if not peer.takes_row_ends]
    assert whole == ["torch.topk", "peer:sgl_deepselect_fp32", "peer:flashinfer_top_k"]
    for variant in whole:
        found = timing(variant, Sm90(), row_ends=ROW_ENDS)
        assert found.status == "skipped"
        assert found.reason == "row_ends must lie in [2560, 2560], got 0 to 2560"


@pytest.mark.parametrize("ends", [(-1, 7), (7, NUM_COLS + 1)])
def test_row_ends_that_a_peer_would_read_past_are_not_given_to_it(ends, all_packages):
    row_ends = np.array([*ends, 7], np.int32)
    found = timing("peer:vllm_persistent", Sm90(), row_ends=row_ends)
    assert found.status == "skipped"
    assert found.reason == f"row_ends must lie in [0, 2560], got {min(ends)} to {max(ends)}"


def least_instead(logits, lengths, output, workspace, k, max_seq_len):
    output.copy_(selected(-logits, lengths, k))


def leaves_the_last_slot(logits, lengths, output, workspace, k, max_seq_len):
    output[:, :-1] = selected(logits, lengths, k)[:, :-1]


@pytest.mark.parametrize(
    ("kernel", "said"),
    [(least_instead, "3 violations; row 0: wrong_values: "), (leaves_the_last_slot, "unwritten")],
)
def test_a_peer_that_is_not_exact_is_wrong_and_has_no_time(kernel, said, install):
    install.vllm(persistent_topk=kernel)
    found = timing("peer:vllm_persistent", Sm90())
    assert (found.status, found.samples_us) == ("wrong", ())
    assert said in found.reason


def test_an_answer_of_another_call_is_found_where_a_peer_returns_its_own(install):
    answers = []

    def first_forever(score, lengths, topk):
        answers.append(selected(score, lengths, topk))
        return answers[0]

    install("sgl_kernel", fast_topk_v2=first_forever)
    assert timing("peer:sgl_fast_topk_v2", Sm90(), k=2048).status == "wrong"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            lambda score, lengths, topk: selected(score, lengths, topk).to(torch.int64),
            "ValueError: the answer must be (3, 2048) torch.int32, got (3, 2048) torch.int64",
        ),
        (
            lambda score, lengths, topk: selected(score, lengths, topk - 1),
            "ValueError: the answer must be (3, 2048) torch.int32, got (3, 2047) torch.int32",
        ),
        (lambda score, lengths: None, "RuntimeError: TypeError: "),
        (lambda score, lengths, topk: 1 / 0, "RuntimeError: ZeroDivisionError: "),
    ],
)
def test_a_peer_that_raises_is_an_error_and_does_not_stop_the_others(function, reason, install):
    install("sgl_kernel", fast_topk_v2=function)
    found = timing("peer:sgl_fast_topk_v2", Sm90(), k=2048)
    assert found.status == "error"
    assert found.reason.startswith(reason)


def test_an_index_beyond_int32_is_not_wrapped_into_range():
    wide = torch.tensor([[2**32 + 5, -(2**32), -1, 5]])
    assert peers.as_indices(wide).tolist() == [[2**31 - 1, -(2**31), -1, 5]]
    assert peers.as_indices(wide).dtype == torch.int32


def test_a_peer_that_is_not_listed_is_refused():
    inputs = candidates.Inputs(workloads.make("normal", 1, 600), Sm90(), "warm")
    listed = r"^variant must be one of torch\.topk, peer:.*, got 'peer:x'$"
    with pytest.raises(ValueError, match=listed):
        candidates.stand_for("peer:x", 512, inputs)


def test_peers_are_timed_on_the_published_shapes_beside_everything_else():
    experiment, reference = EXPERIMENTS["peer_shapes"], EXPERIMENTS["reference_shapes"]
    assert [replace(cell, variants=()) for cell in experiment.cells()] == [
        replace(cell, variants=()) for cell in reference.cells()
    ]
    variants = experiment.axes()["variant"]
    own = {"vllm_generic", "vllm_k512", "sglang_block1024", "aiter_one_block"}
    assert {*candidates.READS, *PEERS, *own} <= set(variants)
    assert len(variants) == len(set(variants))
    assert not {"reference", "torch"} & set(variants)


@pytest.fixture
def bench(tmp_path):
    """Run peer_shapes at its smallest shape, warm, on one or a few variants."""

    def bench(*variants, device=None, **more):
        recorder = results.Recorder(tmp_path / "records", run_on(), check=True)
        axes = {"num_rows": [6], "cache": ["warm"], "variant": variants}
        said = []
        more = {"device": device or Sm90(), "effort": SHORT, "say": said.append} | more
        run("peer-shapes", recorder, axes=axes, **more)
        return said

    bench.records = tmp_path / "records"
    return bench


def test_every_peer_that_can_not_run_leaves_a_record_that_says_why(bench):
    said = bench(*PEERS)
    assert results.validate(bench.records) == len(said) == len(PEERS)
    frame = results.load(bench.records).set_index("variant")
    assert frame.loc["torch.topk", "status"] == "ok"
    skipped = frame.drop("torch.topk")
    assert set(skipped["status"]) == {"skipped"}
    for variant, reason in skipped["reason"].items():
        assert reason == f"package {PEERS[variant].package} is not installed"
    assert set(skipped["n"]) == {0}
    assert (
        "6 x 10240 masked_random fraction=0.9, graph, warm: peer:deep_select skipped: "
        "package deep_select is not installed"
    ) in said


def test_exact_wrong_and_refused_peers_are_told_apart_in_one_run(bench, install, monkeypatch):
    install.vllm(
        top_k_per_row_decode=top_k_per_row_decode,
        persistent_topk=least_instead,
        cooperative_topk=with_workspace,
    )
    few = replace(PEERS["peer:vllm_cooperative"], max_rows=5)
    monkeypatch.setitem(PEERS, few.variant, few)
    bench("torch.topk", *(variant for variant in PEERS if variant.startswith("peer:vllm")))
    frame = results.load(bench.records).set_index("variant")
    assert frame["status"].to_dict() == {
        "torch.topk": "ok",
        "peer:vllm_top_k_per_row": "ok",
        "peer:vllm_persistent": "wrong",
        "peer:vllm_cooperative": "skipped",
    }
    assert frame.loc["peer:vllm_persistent", "samples_us"] is None
    assert frame.loc["peer:vllm_cooperative", "reason"] == "num_rows must be at most 5, got 6"


def test_a_run_resumes_with_the_peers_that_were_installed_since(bench, install):
    both = ("torch.topk", "peer:vllm_persistent")
    assert len(bench(*both)) == 2
    assert bench(*both, resume=True) == []
    install.vllm(persistent_topk=with_workspace)
    assert len(bench(*both, resume=True)) == 2
    assert bench(*both, resume=True) == []
    statuses = results.load(bench.records).query("variant == 'peer:vllm_persistent'")["status"]
    assert statuses.tolist() == ["skipped", "ok"]


def test_other_experiments_may_name_a_peer_too(install):
    shape = {"num_rows": 2, "num_cols": 4096, "seed": 1}
    (cell,) = graphs.replay_cells()
    cell = replace(cell, **shape, variants=("peer:vllm_persistent", "peer:deep_select"))
    install.vllm(persistent_topk=with_workspace)
    made = graphs.replay_candidates(cell, Sm90())
    found = measure(made, Sm90(), effort=SHORT)
    assert found["peer:deep_select"].status == "skipped"
    assert found["peer:vllm_persistent"].status == "ok"


def test_doctor_lists_peers_when_asked(install, release, monkeypatch):
    install.vllm(top_k_per_row_decode=top_k_per_row_decode)
    release("vllm", "0.33.0")
    monkeypatch.setattr("topk_lab.bench.current_gpu", lambda: Gpu("cuda", "sm_90"))
    lines = CliRunner().invoke(main, ["doctor", "--peers"]).stdout.splitlines()
    listed = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[-len(PEERS) :]}
    assert list(listed) == list(PEERS)
    assert listed["torch.topk"] == ["usable", f"torch {torch.__version__}: torch.topk"]
    assert listed["peer:vllm_top_k_per_row"] == [
        "usable",
        "vllm 0.33.0: torch.ops._C.top_k_per_row_decode",
    ]
    assert listed["peer:vllm_persistent"] == [
        "no",
        "vllm 0.33.0 has no torch.ops._C.persistent_topk",
    ]
    assert listed["peer:flashinfer_top_k"] == ["no", "package flashinfer is not installed"]
    assert "peer:" not in CliRunner().invoke(main, ["doctor"]).stdout


def test_doctor_tells_peers_as_json(monkeypatch):
    monkeypatch.setattr("topk_lab.bench.current_gpu", lambda: None)
    report = json.loads(CliRunner().invoke(main, ["doctor", "--json", "--peers"]).stdout)
    assert [peer["variant"] for peer in report["peers"]] == list(PEERS)
    assert report["peers"][0] == {
        "variant": "torch.topk",
        "package": "torch",
        "version": torch.__version__,
        "entry_point": None,
        "reason": "device must be cuda or hip, torch sees none",
    }
    assert "peers" not in json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)


def test_a_run_records_the_versions_of_the_packages_that_bring_peers(release, tmp_path):
    release("vllm", "0.33.0")
    release("flashinfer-python", "0.7.2")
    release("deep_select", "1.0.0+382d62a.20260910.120000")
    packages = environment.RunInfo.capture().environment["packages"]
    assert (packages["vllm"], packages["flashinfer-python"]) == ("0.33.0", "0.7.2")
    recorder = results.Recorder(tmp_path, environment.RunInfo.capture(), check=True)
    recorder.record(experiment="peer_shapes", target="torch", variant="torch.topk", status="ok")
    assert results.validate(tmp_path) == 1
