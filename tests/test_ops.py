import subprocess
import sys

import pytest
import torch
from torch.library import opcheck

import topk_lab
import topk_lab.ops  # registers the operator
from topk_lab import workloads

VARIANTS = ("reference", "vllm_generic", "vllm_k512", "torch")


def rows(num_rows=3, num_cols=1100, name="normal", **arguments):
    return torch.from_numpy(workloads.make(name, num_rows, num_cols, **arguments))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "name", ["normal", "masked_prefix", "nan", "signed_zeros", "constant", "infinities"]
)
def test_every_variant_is_exact_on_cpu_tensors(variant, name):
    row_ends = torch.tensor([1100, 700, 5], dtype=torch.int32)
    logits = rows(name=name, row_ends=row_ends.numpy(), poison="nan")
    values, indices = topk_lab.topk(
        logits, 512, row_ends=row_ends, variant=variant, return_values=True
    )
    topk_lab.assert_exact(logits, indices, row_ends=row_ends, values=values)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_may_start_anywhere(variant):
    logits = rows(4, 2000)
    starts = torch.tensor([0, 7, 1990, 900], dtype=torch.int32)
    ends = torch.tensor([2000, 1500, 2000, 800], dtype=torch.int32)
    values, indices = topk_lab.topk(
        logits, 512, row_ends=ends, row_starts=starts, variant=variant, return_values=True
    )
    topk_lab.assert_exact(logits, indices, row_ends=ends, row_starts=starts, values=values)


@pytest.mark.parametrize("variant", VARIANTS)
def test_lengths_of_sequences_end_each_token_before_the_next(variant):
    logits = rows(6, 1030)
    seq_lens = torch.tensor([1029, 514], dtype=torch.int32)
    indices = topk_lab.topk(logits, 512, seq_lens=seq_lens, next_n=3, variant=variant)
    topk_lab.assert_exact(logits, indices, seq_lens=seq_lens, next_n=3)
    ends = topk_lab.row_ends_from(seq_lens, 3)
    assert ends.tolist() == [1027, 1028, 1029, 512, 513, 514]


def test_two_dimensional_lengths_are_taken_as_given():
    logits = rows(4, 600)
    seq_lens = torch.tensor([[600, 513], [512, 0]], dtype=torch.int32)
    indices = topk_lab.topk(logits, 512, seq_lens=seq_lens, variant="vllm_k512")
    topk_lab.assert_exact(logits, indices, seq_lens=seq_lens)


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_may_be_slices_and_inputs_views(variant):
    storage = torch.full((3, 1024 + 9), torch.inf)
    logits = storage[:, 1:1025]
    logits.copy_(rows(3, 1024))
    buffer = torch.full((3, 600), -777, dtype=torch.int32)
    out = buffer[:, 40:552]
    assert topk_lab.topk(logits, 512, variant=variant, out=out) is out
    topk_lab.assert_exact(logits, out)
    assert (buffer[:, :40] == -777).all()
    assert (buffer[:, 552:] == -777).all()


def test_one_row_may_be_shared_by_all():
    logits = rows(1, 800).expand(5, 800)
    topk_lab.assert_exact(logits, topk_lab.topk(logits, 512, variant="vllm_generic"))


def test_the_reference_keeps_the_lowest_of_equal_logits():
    logits = torch.ones(2, 1024)
    indices = topk_lab.topk(logits, 512, tie_break="lowest", order="index")
    assert indices.tolist() == [list(range(512))] * 2


def test_descending_values_are_ordered_by_index_when_equal():
    logits = torch.tensor([[1.0, 3.0, float("nan"), 3.0, -0.0, 0.0]])
    indices = topk_lab.topk(logits, 6, order="value")
    assert indices.tolist() == [[2, 1, 3, 0, 4, 5]]


def test_promises_that_a_variant_lacks_are_refused_with_those_that_have_them():
    with pytest.raises(ValueError, match="got 'lowest', which reference offers"):
        topk_lab.topk(rows(), 512, variant="vllm_k512", tie_break="lowest")
    with pytest.raises(ValueError, match="order must be one of any for torch, got 'value'"):
        topk_lab.topk(rows(), 512, variant="torch", order="value")


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("fast", "variant must be one of reference, .*, got 'fast'"),
        ("reference[fits_rule=true]", "variant must be one of reference"),
        ("vllm_k512[final_pad=neg_flt_max]", "for study only"),
        ("vllm_k512[final_order=radix_sort]", "is not compiled"),
    ],
)
def test_variants_that_do_not_serve_are_refused(variant, message):
    with pytest.raises(ValueError, match=message):
        topk_lab.topk(rows(), 512, variant=variant)
    with pytest.raises(TypeError, match="variant must be a str, got int"):
        topk_lab.topk(rows(), 512, variant=3)


def test_nothing_is_written_by_a_refused_call():
    out = torch.full((3, 512), -777, dtype=torch.int32)
    with pytest.raises(ValueError, match="num_cols must be at most 1048576"):
        topk_lab.topk(torch.zeros(2**20 + 1).expand(3, -1), 512, variant="vllm_k512", out=out)
    assert (out == -777).all()


def test_a_repeated_call_is_refused_as_the_first_one_was():
    logits, out = rows(2, 600), torch.empty(2, 1, dtype=torch.int32)
    topk_lab.topk(logits, 1, out=out)
    for k in (True, 1.0, [1], "1", None):
        with pytest.raises(TypeError, match="k must be an int"):
            topk_lab.topk(logits, k, out=out)
    with pytest.raises(TypeError, match="logits must be a dense tensor, got layout"):
        topk_lab.topk(logits.to_sparse(), 1)
    with pytest.raises(TypeError, match="out must be a dense tensor, got layout"):
        topk_lab.topk(logits, 1, out=out.to_sparse())
    with pytest.raises(TypeError, match="logits must be a torch"):
        topk_lab.topk(logits.numpy(), 1)


def test_workspace_is_asked_for_by_shape_and_checked():
    required = topk_lab.workspace_size(2, 20_000, 512, "vllm_k512")
    assert required == 2 * 2 * 16 * 512 * 4
    assert topk_lab.workspace_size(2, 20_000, 512) == 0
    logits = rows(2, 20_000)
    enough = torch.empty(required, dtype=torch.uint8)
    indices = topk_lab.topk(logits, 512, variant="vllm_k512", workspace=enough)
    topk_lab.assert_exact(logits, indices)
    with pytest.raises(ValueError, match=f"at least {required} bytes, got {required - 1}"):
        topk_lab.topk(logits, 512, variant="vllm_k512", workspace=enough[:-1])


def test_the_operator_wants_its_workspace():
    logits = rows(2, 20_000)
    ends = torch.full((2,), 20_000, dtype=torch.int32)
    out = torch.empty(2, 512, dtype=torch.int32)
    with pytest.raises(ValueError, match="workspace must hold 131072 bytes, got None"):
        torch.ops.topk_lab.topk_out(
            logits, ends, None, 0, 512, "vllm_k512", "any", "any", out, None, None
        )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_rows", [0, 1, 6])
@pytest.mark.parametrize("num_cols", [0, 20, 1000])
def test_operator_passes_opcheck(variant, num_rows, num_cols):
    ends = torch.full((num_rows,), num_cols, dtype=torch.int32)
    out = torch.empty(num_rows, 512, dtype=torch.int32)
    values = torch.empty(num_rows, 512)
    arguments = (
        rows(num_rows, num_cols), ends, None, 0, 512, variant, "any", "any", out, values, None
    )  # fmt: skip
    assert set(opcheck(torch.ops.topk_lab.topk_out, arguments).values()) == {"SUCCESS"}


def test_compiled_call_equals_eager():
    def selected(logits, buffer):
        return topk_lab.topk(logits, 4, out=buffer[:2, :4], order="index")

    compiled = torch.compile(selected, fullgraph=True, backend="aot_eager")
    logits = rows(2, 50)
    eager_buffer = torch.full((3, 6), -777, dtype=torch.int32)
    buffer = eager_buffer.clone()
    expected = selected(logits, eager_buffer)
    assert torch.equal(compiled(logits, buffer), expected)
    assert torch.equal(buffer, eager_buffer)


def test_compiled_call_serves_other_shapes():
    compiled = torch.compile(
        lambda logits: topk_lab.topk(logits, 512, variant="vllm_k512"),
        fullgraph=True,
        backend="aot_eager",
    )
    for shape in ((2, 900), (3, 20_000), (5, 17_000)):
        logits = rows(*shape)
        topk_lab.assert_exact(logits, compiled(logits))


def test_logits_that_carry_gradients_are_read():
    logits = rows().requires_grad_()
    topk_lab.assert_exact(logits.detach(), topk_lab.topk(logits, 512))


def test_empty_shapes_answer_with_empty_slots():
    assert topk_lab.topk(torch.empty(0, 1024), 512).shape == (0, 512)
    assert (topk_lab.topk(torch.empty(3, 0), 512) == -1).all()
    for variant in VARIANTS:
        assert (topk_lab.topk(torch.empty(3, 0), 512, variant=variant) == -1).all()


def test_variants_of_one_place_are_refused_in_the_other():
    with pytest.raises(ValueError, match="variant must be one of vllm_generic, vllm_k512 on cuda"):
        topk_lab.workspace_size(1, 1024, 512, "reference", device="cuda")


def test_devices_get_the_gated_selection():
    inside = topk_lab.workspace_size(24, 262_145, 512, device="cuda")
    assert inside == topk_lab.workspace_size(24, 262_145, 512, "vllm_k512")
    outside = topk_lab.workspace_size(385, 262_145, 512, device="cuda")
    assert outside == topk_lab.workspace_size(385, 262_145, 512, "vllm_generic")


def test_variants_are_listed_with_what_they_offer():
    table = topk_lab.variants()
    assert set(table["variant"]) == {"reference", "torch", "vllm_generic", "vllm_k512"}
    on_cpu = table[table["target"] == "numba"]
    assert on_cpu["usable"].all()
    k512 = table[table["variant"] == "vllm_k512"]
    assert set(k512["target"]) == {"numba", "gfx90a", "gfx942", "gfx950", "hip", "cuda"}
    assert set(k512["max_k"]) == {512}


def test_import_loads_neither_torch_nor_numba():
    script = (
        "import sys, topk_lab, topk_lab.contract, topk_lab.schedules, topk_lab.workloads\n"
        "print(sorted({'torch', 'numba', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_package_attributes_are_those_it_lists():
    assert set(topk_lab.__all__) <= set(dir(topk_lab))
    assert all(callable(getattr(topk_lab, name)) for name in topk_lab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'top_k'"):
        _ = topk_lab.top_k


def test_a_row_alone_answers_as_among_others():
    logits = rows(40, 1500)
    among = topk_lab.topk(logits, 512, variant="vllm_k512")
    for row in (0, 17, 39):
        alone = topk_lab.topk(logits[row : row + 1], 512, variant="vllm_k512")
        assert set(alone[0].tolist()) == set(among[row].tolist())


def test_values_are_the_logits_of_the_indices():
    logits = rows(2, 900)
    values, indices = topk_lab.topk(logits, 512, return_values=True, variant="vllm_generic")
    assert torch.equal(values, logits.gather(1, indices.long()))
    assert values.dtype is torch.float32
    assert indices.dtype is torch.int32


def test_parameters_are_checked_for_shared_memory_too():
    logits = rows(2, 60)
    out = torch.nn.Parameter(torch.zeros(2, 5, dtype=torch.int32), requires_grad=False)
    with pytest.raises(ValueError, match="out must not share memory with values_out"):
        topk_lab.topk(logits, 5, out=out, values_out=out.data.view(torch.float32))
    held = torch.nn.Parameter(logits)
    with pytest.raises(ValueError, match="out must not share memory with logits"):
        topk_lab.topk(held, 5, out=held.detach().view(torch.int32)[:, :5])


def test_a_parameter_whose_memory_moves_is_read_where_it_is():
    logits = rows(2, 600)
    out = torch.nn.Parameter(torch.zeros(2, 5, dtype=torch.int32), requires_grad=False)
    for _ in range(3):
        out.data = torch.full((2, 5), -777, dtype=torch.int32)
        topk_lab.topk(logits, 5, out=out)
        topk_lab.assert_exact(logits, out.data)


def test_outputs_that_autograd_or_inference_would_refuse_are_refused_first():
    logits = rows(2, 60)
    out = torch.full((2, 5), -777, dtype=torch.int32)
    with pytest.raises(ValueError, match="values_out must not require a gradient"):
        topk_lab.topk(logits, 5, out=out, values_out=torch.zeros(2, 5, requires_grad=True))
    with torch.inference_mode():
        sealed = torch.zeros(2, 5)
    with pytest.raises(ValueError, match="values_out must not be an inference tensor"):
        topk_lab.topk(logits, 5, out=out, values_out=sealed)
    assert (out == -777).all()


def test_lazily_negated_logits_are_refused_whatever_was_called_before():
    logits = rows(2, 60)
    topk_lab.topk(logits, 5)
    with pytest.raises(TypeError, match="lazily negated"):
        topk_lab.topk(torch._neg_view(logits), 5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, 20_000, 512, "vllm_k512"), ValueError, "num_rows must be at least 1"),
        ((1, 2**31, 512, "vllm_generic"), ValueError, "num_cols must be at most 2147483647"),
        (("2", 8, 1), TypeError, "num_rows must be an int"),
        ((2, 8, True), TypeError, "k must be an int"),
        ((2, 8, 1, "auto", "nope"), ValueError, "device must name a torch device, got 'nope'"),
        ((2, 8, 1, "auto", []), ValueError, r"device must name a torch device, got \[\]"),
    ],
)
def test_workspace_size_refuses_what_is_no_shape(arguments, error, message):
    with pytest.raises(error, match=message):
        topk_lab.workspace_size(*arguments)
