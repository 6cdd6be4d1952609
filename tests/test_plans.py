import ctypes

import pytest

from topk_lab.plans import Buffer, Shape, TopKParams, plan


def shape(num_rows=24, num_cols=262_145, k=512, **changes):
    return Shape(num_rows, num_cols, k, changes.pop("row_stride", num_cols), k, **changes)


def test_params_have_the_layout_that_the_kernels_assert():
    assert ctypes.sizeof(TopKParams) == 112
    assert (TopKParams.trace.offset, TopKParams.row_stride.offset) == (56, 64)
    assert (TopKParams.num_rows.offset, TopKParams.max_splits.offset) == (88, 104)


def test_split_rows_are_selected_then_merged():
    planned = plan("vllm_k512", shape())
    select, merge = planned.launches
    assert (select.kernel, select.grid, select.block) == ("vllm_k512_select", (24, 16), 1024)
    assert (merge.kernel, merge.grid, merge.block) == ("vllm_k512_merge", (24, 1), 1024)
    assert (select.dynamic_lds, merge.dynamic_lds) == (8 * 512, 4 * 512)
    assert planned.workspace_bytes == 2 * 24 * 16 * 512 * 4


def test_rows_that_never_split_need_no_workspace():
    planned = plan("vllm_k512", shape(num_rows=384))
    assert [launch.grid for launch in planned.launches] == [(384, 1)]
    assert planned.workspace_bytes == 0
    assert planned.launches[0].dynamic_lds == 4 * 512


@pytest.mark.parametrize(
    ("num_cols", "kernels"),
    [
        pytest.param(12_287, ["vllm_generic_rank_count_select"], id="rank-count-below-12288"),
        pytest.param(12_288, ["vllm_generic_select"], id="sort-from-12288"),
        pytest.param(199_999, ["vllm_generic_select"], id="one-block-below-200000"),
        pytest.param(
            200_000, ["vllm_generic_select", "vllm_generic_merge"], id="splits-from-200000"
        ),
    ],
)
def test_generic_kernels_follow_the_width(num_cols, kernels):
    planned = plan("vllm_generic", shape(num_cols=num_cols))
    assert [launch.kernel for launch in planned.launches] == kernels
    assert {launch.block for launch in planned.launches} <= {512, 1024}


def test_addresses_are_bound_by_name_and_offset():
    planned = plan("vllm_k512", shape(values_stride=512, has_row_starts=True))
    names = ("logits", "row_ends", "row_starts", "indices", "values", "workspace")
    addresses = {name: 1000 * (number + 1) for number, name in enumerate(names)}
    params = TopKParams.from_buffer_copy(planned.launches[0].params(addresses))
    assert [params.logits, params.row_ends, params.row_starts] == [1000, 2000, 3000]
    assert [params.indices, params.values, params.split_indices] == [4000, 5000, 6000]
    assert params.split_logits == 6000 + 24 * 16 * 512 * 4
    assert params.trace == 0
    assert (params.num_rows, params.num_cols, params.k, params.max_splits) == (24, 262_145, 512, 16)


def test_absent_buffers_stay_null():
    planned = plan("vllm_k512", shape(num_rows=300))
    params = TopKParams.from_buffer_copy(
        planned.launches[0].params({"logits": 1, "row_ends": 2, "indices": 3})
    )
    assert params.row_starts == params.values == params.split_indices == params.split_logits == 0


def test_ablations_and_traces_are_kernels_of_their_own():
    planned = plan("vllm_k512[count_neg_inf=false]", shape(), traced=True)
    assert [launch.kernel for launch in planned.launches] == [
        "vllm_k512_no_count_select_traced",
        "vllm_k512_no_count_merge_traced",
    ]
    assert ("trace", Buffer("trace")) in planned.launches[0].pointers
    assert planned.trace_shape == (24, 17, 4)


def test_no_rows_means_no_launch():
    assert plan("vllm_k512", shape(num_rows=0)).launches == ()


def test_equal_shapes_share_one_plan():
    assert plan("vllm_k512", shape()) is plan("vllm_k512", shape())


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("vllm_k512", {"num_rows": 385}, "num_rows must be at most 384 for vllm_k512, got 385"),
        ("vllm_k512", {"k": 100}, "k must be 512 for vllm_k512, got 100"),
        ("vllm_generic", {"k": 4096}, r"k must be in \[1, 2048\] for vllm_generic, got 4096"),
        ("vllm_generic", {"num_rows": 2**22}, "num_rows must be at most 4194303, got 4194304"),
        ("vllm_k512[final_pad=neg_flt_max]", {}, "is not exact .* for study only"),
        ("vllm_k512[fits_rule=false]", {}, "is not exact .*ties with real -inf logits"),
        ("vllm_k512[final_order=rank_count]", {}, "is not compiled"),
    ],
)
def test_what_a_variant_does_not_take_is_refused(variant, changes, message):
    with pytest.raises(ValueError, match=message):
        plan(variant, shape(**changes))
