import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.library import opcheck

import topk_lab
import topk_lab.ops  # registers the operator
from topk_lab import workloads

VARIANTS = (
    "reference",
    "cpu_delegate",
    "vllm_generic",
    "vllm_k512",
    "vllm_k512_uncrowded",
    "sglang_block512",
    "sglang_block1024",
    "aiter_one_block",
    "shared_histogram",
    "delegate",
    "torch",
)


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


@pytest.mark.parametrize("promises", [{"tie_break": "lowest"}, {"order": "index"}])
@pytest.mark.parametrize("name", ["few_values", "signed_zeros", "nan", "all_neg_inf", "normal"])
@pytest.mark.parametrize("k", [1, 512, 3000])
def test_a_stable_answer_is_that_of_the_reference(name, k, promises):
    row_ends = torch.tensor([2500, 700, 513, 5], dtype=torch.int32)
    logits = rows(4, 2500, name, row_ends=row_ends.numpy(), poison="nan")
    given = {"row_ends": row_ends, "variant": "aiter_one_block", **promises}
    values, indices = topk_lab.topk(logits, k, return_values=True, **given)
    due_values, due = topk_lab.topk(
        logits, k, row_ends=row_ends, tie_break="lowest", order="index", return_values=True
    )
    assert torch.equal(indices, due)
    torch.testing.assert_close(values, due_values, rtol=0, atol=0, equal_nan=True)
    table = tables(4, 40)
    slots = topk_lab.topk_paged(logits, k, table, 64, **given)
    assert torch.equal(slots, slots_due(due, table, 64))


def test_descending_values_are_ordered_by_index_when_equal():
    logits = torch.tensor([[1.0, 3.0, float("nan"), 3.0, -0.0, 0.0]])
    indices = topk_lab.topk(logits, 6, order="value")
    assert indices.tolist() == [[2, 1, 3, 0, 4, 5]]


def test_promises_that_a_variant_lacks_are_refused_with_those_that_have_them():
    able = "reference, cpu_delegate, aiter_one_block, delegate"
    with pytest.raises(ValueError, match=f"got 'lowest', which {able} offers"):
        topk_lab.topk(rows(), 512, variant="vllm_k512", tie_break="lowest")
    with pytest.raises(ValueError, match="order must be one of any for torch, got 'value'"):
        topk_lab.topk(rows(), 512, variant="torch", order="value")
    with pytest.raises(
        ValueError,
        match="order must be one of any for vllm_k512, got 'index', which reference, "
        "cpu_delegate, sglang_block512, sglang_block1024, aiter_one_block, delegate offers",
    ):
        topk_lab.topk(rows(), 512, variant="vllm_k512", order="index")
    with pytest.raises(
        ValueError, match="order must be one of any, index for sglang_block512, got 'value', which"
    ):
        topk_lab.topk(rows(), 512, variant="sglang_block512", order="value")


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("fast", "variant must be one of reference, .*, got 'fast'"),
        ("reference[fits_rule=true]", "variant must be one of reference"),
        ("vllm_k512[final_pad=neg_flt_max]", "for study only"),
        ("vllm_k512[final_capacity=512]", "is not compiled"),
        ("sglang_block1024[overflow=drop]", "for study only"),
        ("sglang_block1024[stash_kib=128]", "is not compiled"),
        ("sglang_block1024[stash_kib=64]", "stash_kib must be one of 40, 48, 128, got 64"),
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


def workspace_of(variant, num_rows, num_cols):
    """As little as a call for 512 needs; None for none."""
    required = topk_lab.workspace_size(num_rows, num_cols, 512, variant)
    return torch.empty(required, dtype=torch.uint8) if required else None


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_rows", [0, 1, 6])
@pytest.mark.parametrize("num_cols", [0, 20, 1000])
def test_operator_passes_opcheck(variant, num_rows, num_cols):
    ends = torch.full((num_rows,), num_cols, dtype=torch.int32)
    out = torch.empty(num_rows, 512, dtype=torch.int32)
    values = torch.empty(num_rows, 512)
    arguments = (
        rows(num_rows, num_cols), ends, None, 0, 512, variant, "any", "any", out, values,
        workspace_of(variant, num_rows, num_cols),
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
    compiled = ", ".join(VARIANTS[2:-1])
    with pytest.raises(ValueError, match=f"variant must be one of {compiled} on cuda, got 'ref"):
        topk_lab.workspace_size(1, 1024, 512, "reference", device="cuda")


@pytest.mark.parametrize(
    ("shape", "variants"),
    [
        ((24, 262_145, 512), {"delegate"}),
        ((24, 10_000, 512), {"delegate", "vllm_k512"}),  # as promises are asked for
        ((24, 262_145, 5000), {"aiter_one_block"}),
    ],
)
def test_devices_get_workspace_for_whatever_is_chosen(shape, variants):
    due = max(topk_lab.workspace_size(*shape, variant) for variant in variants)
    assert topk_lab.workspace_size(*shape, device="cuda") == due


def test_variants_are_listed_with_what_they_offer():
    table = topk_lab.variants()
    assert set(table["variant"]) == set(VARIANTS)
    on_cpu = table[table["target"] == "numba"]
    assert on_cpu["usable"].all()
    k512 = table[table["variant"] == "vllm_k512"]
    assert set(k512["target"]) == {"numba", "gfx90a", "gfx942", "gfx950", "hip", "cuda"}
    assert set(k512["max_k"]) == {512}
    for name in ("sglang_block512", "sglang_block1024"):
        sglang = table[table["variant"] == name]
        assert set(sglang["target"]) == set(k512["target"])
        assert set(sglang["max_k"]) == {1024}
        assert set(sglang["orders"]) == {"any, index"}
        assert set(sglang["tie_breaks"]) == {"any"}
    aiter = table[table["variant"] == "aiter_one_block"]
    assert set(aiter["target"]) == set(k512["target"])
    assert aiter["max_k"].isna().all()
    assert set(aiter["orders"]) == {"any, index"}
    assert set(aiter["tie_breaks"]) == {"any, lowest"}
    shared = table[table["variant"] == "shared_histogram"]
    assert set(shared["target"]) == set(k512["target"])
    assert set(shared["max_k"]) == {4096}
    assert set(shared["orders"]) == set(shared["tie_breaks"]) == {"any"}
    ours = table[table["variant"] == "delegate"]
    assert set(ours["target"]) == set(k512["target"])
    assert set(ours["max_k"]) == {4096}
    assert set(ours["orders"]) == {"any, index, value"}
    assert set(ours["tie_breaks"]) == {"any, lowest"}


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


# ---- page tables ---------------------------------------------------------------------------------

UNWRITTEN = -777


def tables(num_tables, pages, seed=0):
    """Every page of a pool once, in random order: (num_tables, pages) int32."""
    pool = np.random.default_rng(seed).permutation(num_tables * pages)
    return torch.from_numpy(pool.reshape(num_tables, pages).astype(np.int32))


def slots_due(indices, table, page_size):
    """Slots that indices stand for, by division and in int64."""
    table = table.repeat_interleave(len(indices) // max(len(table), 1), dim=0).long()
    columns = indices.clamp(min=0).long()
    slots = table.gather(1, columns // page_size) * page_size + columns % page_size
    return torch.where(indices < 0, -1, slots).int()


def unwritten(*shape):
    return torch.full(shape, UNWRITTEN, dtype=torch.int32)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("page_size", [1, 64, 2048])
@pytest.mark.parametrize("name", ["normal", "masked_prefix", "few_values"])
def test_slots_are_those_of_exact_indices(variant, page_size, name):
    row_ends = torch.tensor([1100, 700, 5, 0], dtype=torch.int32)
    logits = rows(4, 1100, name, row_ends=row_ends.numpy(), poison="nan")
    table = tables(4, -(-1100 // page_size))
    out, raw_out = unwritten(4, 512), unwritten(4, 512)

    slots = topk_lab.topk_paged(
        logits, 512, table, page_size, row_ends=row_ends, variant=variant, out=out, raw_out=raw_out
    )

    assert slots is out
    topk_lab.assert_exact(logits, raw_out, row_ends=row_ends)
    assert torch.equal(out, slots_due(raw_out, table, page_size))
    alone = topk_lab.topk_paged(logits, 512, table, page_size, row_ends=row_ends, variant=variant)
    assert torch.equal(alone, out)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shared", [False, True], ids=["a-table-a-row", "a-table-a-sequence"])
@pytest.mark.parametrize("form", ["1-d", "2-d"])
def test_slots_of_sequences(variant, shared, form):
    logits = rows(6, 1030)
    lengths = {"seq_lens": torch.tensor([1029, 514], dtype=torch.int32), "next_n": 3}
    if form == "2-d":
        lengths = {"seq_lens": torch.tensor([[1030, 513, 0], [512, 700, -4]], dtype=torch.int32)}
    table = tables(2 if shared else 6, 33)
    raw_out = unwritten(6, 512)

    slots = topk_lab.topk_paged(logits, 512, table, 32, variant=variant, raw_out=raw_out, **lengths)

    topk_lab.assert_exact(logits, raw_out, **lengths)
    assert torch.equal(slots, slots_due(raw_out, table, 32))


@pytest.mark.parametrize("variant", VARIANTS)
def test_slots_may_be_slices_and_tables_views(variant):
    logits = rows(4, 1024)
    wide = unwritten(4, 40)
    wide[:, 5:21] = tables(4, 16)
    buffer = unwritten(4, 1200)
    out, raw_out = buffer[:, 40:552], buffer[:, 600:1112]
    for table in (wide[:, 5:21], wide[2:3, 5:21].expand(4, 16)):
        buffer.fill_(UNWRITTEN)
        topk_lab.topk_paged(logits, 512, table, 64, variant=variant, out=out, raw_out=raw_out)
        topk_lab.assert_exact(logits, raw_out)
        assert torch.equal(out, slots_due(raw_out, table, 64))
        for margin in (buffer[:, :40], buffer[:, 552:600], buffer[:, 1112:]):
            assert (margin == UNWRITTEN).all()


@pytest.mark.parametrize(
    "variant", ["reference", "sglang_block512", "sglang_block1024", "aiter_one_block"]
)
def test_the_columns_of_slots_rise_where_that_is_asked(variant):
    logits = rows(3, 6000, "near_equal")
    table = tables(3, 94)
    rising = topk_lab.topk(logits, 512, order="index", variant=variant)
    slots = topk_lab.topk_paged(logits, 512, table, 64, order="index", variant=variant)
    topk_lab.assert_exact(logits, rising, order="index")
    assert torch.equal(slots, slots_due(rising, table, 64))


def test_slots_keep_the_references_promises():
    logits = torch.ones(2, 1024)
    table = tables(2, 16)
    slots = topk_lab.topk_paged(logits, 512, table, 64, tie_break="lowest", order="value")
    assert torch.equal(slots, slots_due(torch.arange(512).expand(2, 512), table, 64))
    with pytest.raises(ValueError, match="tie_break must be one of any for sglang_block512"):
        topk_lab.topk_paged(logits, 512, table, 64, variant="sglang_block512", tie_break="lowest")


@pytest.mark.parametrize("variant", VARIANTS)
def test_pages_that_are_not_there_give_no_slots(variant):
    logits = rows(1, 1024, "descending")
    table = torch.arange(16, dtype=torch.int32)[None].clone()
    table[0, 3], table[0, 5] = -1, 2**31 // 64
    table[0, 7] = 2**31 // 64 - 1
    raw_out = unwritten(1, 512)
    slots = topk_lab.topk_paged(logits, 512, table, 64, variant=variant, raw_out=raw_out)
    assert sorted(raw_out[0].tolist()) == list(range(512))
    page = raw_out // 64
    absent = (page == 3) | (page == 5)
    assert (slots[absent] == -1).all()
    assert absent.sum() == 128
    assert torch.equal(slots[~absent], slots_due(raw_out, table, 64)[~absent])
    assert slots.max() == 2**31 - 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_repeated_call_reads_lengths_logits_and_table_anew(variant):
    logits, table = rows(2, 700), tables(2, 11)
    row_ends = torch.tensor([700, 600], dtype=torch.int32)
    out, raw_out = unwritten(2, 512), unwritten(2, 512)
    seen = []
    for _ in range(3):
        topk_lab.topk_paged(
            logits, 512, table, 64, row_ends=row_ends, variant=variant, out=out, raw_out=raw_out
        )
        topk_lab.assert_exact(logits, raw_out, row_ends=row_ends)
        assert torch.equal(out, slots_due(raw_out, table, 64))
        seen.append(out.tolist())
        table.copy_(table.flip(1))
        row_ends.sub_(100)
        logits.copy_(logits.flip(1))
    assert seen[0] != seen[1] != seen[2]


def test_a_repeated_call_with_another_table_or_page_size_is_another():
    logits, out = rows(1, 600), unwritten(1, 512)
    first, second = tables(1, 600, seed=1), tables(1, 600, seed=2)
    raw_out = topk_lab.topk(logits, 512, order="index")
    for table, page_size in ((first, 1), (second, 1), (first, 2), (first, 1), (second[:, 50:], 2)):
        topk_lab.topk_paged(logits, 512, table, page_size, order="index", out=out)
        assert torch.equal(out, slots_due(raw_out, table, page_size))
    for page_size in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match="page_size must be an int"):
            topk_lab.topk_paged(logits, 512, first, page_size, order="index", out=out)


def test_empty_shapes_have_no_slots():
    for variant in VARIANTS:
        none = topk_lab.topk_paged(torch.empty(0, 1024), 512, tables(0, 16), 64, variant=variant)
        assert (none.shape, none.dtype) == ((0, 512), torch.int32)
        raw_out = unwritten(3, 512)
        slots = topk_lab.topk_paged(
            torch.empty(3, 0), 512, tables(3, 2), 64, variant=variant, raw_out=raw_out
        )
        assert (slots == -1).all()
        assert (raw_out == -1).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_rows", [0, 6])
@pytest.mark.parametrize("num_cols", [20, 1000])
@pytest.mark.parametrize("raw", [False, True], ids=["slots-alone", "with-indices"])
def test_paged_operator_passes_opcheck(variant, num_rows, num_cols, raw):
    ends = torch.full((num_rows,), num_cols, dtype=torch.int32)
    arguments = (
        rows(num_rows, num_cols), ends, 0, 512, tables(num_rows, 20), 64, variant, "any", "any",
        unwritten(num_rows, 512), unwritten(num_rows, 512) if raw else None,
        workspace_of(variant, num_rows, num_cols),
    )  # fmt: skip
    assert set(opcheck(torch.ops.topk_lab.topk_paged_out, arguments).values()) == {"SUCCESS"}


def test_paged_operator_refuses_what_the_call_does():
    arguments = {
        "logits": rows(2, 20_000),
        "row_ends": torch.full((2,), 20_000, dtype=torch.int32),
        "next_n": 0,
        "k": 512,
        "page_table": tables(2, 313),
        "page_size": 64,
        "variant": "vllm_k512",
        "tie_break": "any",
        "order": "any",
        "out": unwritten(2, 512),
        "raw_out": unwritten(2, 512),
        "workspace": None,
    }
    for changes, message in (
        ({}, "workspace must hold 131072 bytes, got None"),
        ({"page_size": 48}, "page_size must be a power of two, got 48"),
        ({"page_table": tables(2, 312)}, "at least 313 pages of 64 for 20000 columns, got 312"),
        ({"raw_out": arguments["out"]}, "out must not share memory with raw_out"),
        ({"variant": "sglang_block512", "k": 1025}, "out must have shape"),
        ({"order": "index"}, "order must be one of any for vllm_k512"),
    ):
        with pytest.raises(ValueError, match=message):
            torch.ops.topk_lab.topk_paged_out(**arguments | changes)
    assert (arguments["out"] == UNWRITTEN).all()
    assert (arguments["raw_out"] == UNWRITTEN).all()
    topk_lab.ops.topk_paged(
        *(arguments[name] for name in ("logits", "k", "page_table", "page_size")),
        variant="vllm_k512", raw_out=arguments["raw_out"],
    )  # fmt: skip
    topk_lab.assert_exact(arguments["logits"], arguments["raw_out"])


@pytest.mark.parametrize("variant", ["sglang_block1024", "vllm_k512"])
def test_compiled_paged_call_equals_eager(variant):
    def selected(logits, table, buffer):
        return topk_lab.topk_paged(
            logits, 512, table, 64, variant=variant, out=buffer[:2, :512], raw_out=buffer[:2, 600:]
        )

    compiled = torch.compile(selected, fullgraph=True, backend="aot_eager")
    logits, table = rows(2, 900), tables(2, 15)
    eager_buffer = unwritten(3, 1112)
    buffer = eager_buffer.clone()
    expected = selected(logits, table, eager_buffer)
    assert torch.equal(compiled(logits, table, buffer), expected)
    assert torch.equal(buffer, eager_buffer)
    topk_lab.assert_exact(logits, buffer[:2, 600:])
    assert torch.equal(expected, slots_due(buffer[:2, 600:], table, 64))


def test_compiled_paged_call_reads_a_changed_table():
    compiled = torch.compile(
        lambda logits, table: topk_lab.topk_paged(logits, 512, table, 64, order="index"),
        fullgraph=True,
        backend="aot_eager",
    )
    logits, table = rows(2, 900), tables(2, 15)
    indices = topk_lab.topk(logits, 512, order="index")
    for _ in range(2):
        assert torch.equal(compiled(logits, table), slots_due(indices, table, 64))
        table.copy_(table.flip(1))


# ---- faults that page transforms have had (shared/cases/faults.md, G) ----------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_g1_padding_is_not_a_position(variant):
    logits = rows(1, 640, row_ends=np.array([100]), poison="inf")
    table = torch.tensor([[9, 4, 7, 3, 8, 1, 6, 2, 5, 0]], dtype=torch.int32)
    row_ends = torch.tensor([100], dtype=torch.int32)
    slots = topk_lab.topk_paged(
        logits, 512, table, 64, row_ends=row_ends, variant=variant, out=unwritten(1, 512)
    )[0]
    assert sorted(slots[:100].tolist()) == [*range(256, 292), *range(576, 640)]
    assert slots[100:].tolist() == [-1] * 412


@pytest.mark.parametrize("variant", VARIANTS)
def test_g2_a_table_as_wide_as_the_true_length_is_refused(variant):
    logits = torch.zeros(1, 131_072).expand(8, 131_072)
    row_ends = torch.full((8,), 4096, dtype=torch.int32)
    table, out = tables(8, 4096), unwritten(8, 512)
    with pytest.raises(
        ValueError,
        match=r"^page_table must have at least 131072 pages of 1 for 131072 columns, got 4096 in "
        r"shape \(8, 4096\)$",
    ):
        topk_lab.topk_paged(logits, 512, table, 1, row_ends=row_ends, variant=variant, out=out)
    assert (out == UNWRITTEN).all()
    raw_out = unwritten(8, 512)
    topk_lab.topk_paged(
        logits[:, :4096], 512, table, 1, row_ends=row_ends, variant=variant, out=out,
        raw_out=raw_out,
    )  # fmt: skip
    topk_lab.assert_exact(logits[:, :4096], raw_out)
    assert torch.equal(out, slots_due(raw_out, table, 1))


@pytest.mark.parametrize(
    ("variant", "k"),
    [
        (variant, k)
        for variant in VARIANTS
        for k in (512, 1024, 2048)
        if (not variant.startswith("vllm_k512") or k == 512)
        and ("sglang" not in variant or k <= 1024)
    ],
)
def test_g4_every_slot_is_written_whatever_k_and_block(variant, k):
    row_ends = torch.tensor([2500, k + 1, k, 3], dtype=torch.int32)
    logits, table = rows(4, 2500), tables(4, 40)
    out, raw_out = unwritten(4, k), unwritten(4, k)
    topk_lab.topk_paged(
        logits, k, table, 64, row_ends=row_ends, variant=variant, out=out, raw_out=raw_out
    )
    assert (out != UNWRITTEN).all()
    topk_lab.assert_exact(logits, raw_out, row_ends=row_ends)
    assert torch.equal(out, slots_due(raw_out, table, 64))


@pytest.mark.parametrize("variant", VARIANTS)
def test_g5_pages_of_48_are_refused(variant):
    out = unwritten(1, 512)
    with pytest.raises(ValueError, match=r"^page_size must be a power of two, got 48$"):
        topk_lab.topk_paged(rows(1, 600), 512, tables(1, 13), 48, variant=variant, out=out)
    assert (out == UNWRITTEN).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_g6_lengths_and_pages_count_logit_columns(variant):
    # 9 tokens, two of them new, 4 tokens a column: divided once, before the call.
    row_ends = topk_lab.row_ends_from(torch.tensor([9, 4000], dtype=torch.int32), 2, 4)
    assert row_ends.tolist() == [2, 2, 999, 1000]
    logits, table = rows(4, 1000), tables(2, 16)
    raw_out = unwritten(4, 512)
    slots = topk_lab.topk_paged(
        logits, 512, table, 64, row_ends=row_ends, variant=variant, raw_out=raw_out
    )
    assert (raw_out >= 0).sum(dim=1).tolist() == [2, 2, 512, 512]
    topk_lab.assert_exact(logits, raw_out, row_ends=row_ends)
    assert torch.equal(slots, slots_due(raw_out, table, 64))


@pytest.mark.parametrize("variant", VARIANTS)
def test_f1_lengths_below_zero_and_beyond_the_row_have_slots_all_the_same(variant):
    lengths = [-1, 0, 511, 512, 513, -(2**31), 2**31 - 1]
    row_ends = torch.tensor(lengths, dtype=torch.int32)
    logits = torch.full((7, 1024), torch.inf)
    logits[:, :700] = torch.arange(700.0)
    table = tables(7, 16)
    logits[6] = torch.arange(1024.0)
    raw_out = unwritten(7, 512)
    slots = topk_lab.topk_paged(
        logits, 512, table, 64, row_ends=row_ends, variant=variant, raw_out=raw_out
    )
    kept = [sorted(set(line) - {-1}) for line in raw_out.tolist()]
    ends = [0, 0, 511, 512, 513, 0, 1024]
    assert kept == [list(range(max(end - 512, 0), end)) for end in ends]
    assert torch.equal(slots, slots_due(raw_out, table, 64))


@pytest.mark.parametrize("variant", VARIANTS)
def test_f8_a_short_row_leaves_no_old_slots(variant):
    logits, table = rows(1, 1000), tables(1, 16)
    out, row_ends = unwritten(1, 512), torch.tensor([1000], dtype=torch.int32)
    arguments = {"row_ends": row_ends, "variant": variant, "out": out}
    topk_lab.topk_paged(logits, 512, table, 64, **arguments)
    assert (out >= 0).all()
    row_ends.fill_(5)
    topk_lab.topk_paged(logits, 512, table, 64, **arguments)
    assert sorted(out[0, :5].tolist()) == [table[0, 0] * 64 + i for i in range(5)]
    assert (out[0, 5:] == -1).all()


def test_a_lazily_negated_table_is_refused_whatever_was_called_before():
    logits = rows(2, 60)
    table = torch.ones(2, 1, dtype=torch.int32)
    topk_lab.topk_paged(logits, 5, table, 64)
    with pytest.raises(TypeError, match="page_table must hold its values in memory"):
        topk_lab.topk_paged(logits, 5, torch._neg_view(table), 64)


def test_a_compiled_call_of_any_size_takes_a_table_a_sequence():
    def selected(logits, table, seq_lens):
        return topk_lab.topk_paged(logits, 5, table, 64, seq_lens=seq_lens, next_n=2)

    compiled = torch.compile(selected, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (2, 3):
        logits = rows(2 * batch, 1000)
        table = torch.arange(16 * batch, dtype=torch.int32).view(batch, 16)
        seq_lens = torch.full((batch,), 600, dtype=torch.int32)
        assert torch.equal(
            compiled(logits, table, seq_lens).sort().values,
            selected(logits, table, seq_lens).sort().values,
        )
