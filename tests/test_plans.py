import ctypes
import re
from pathlib import Path

import pytest

from topk_lab import plans, schedules
from topk_lab.plans import (
    Buffer,
    DelegateParams,
    PagedParams,
    Paging,
    Shape,
    SharedHistogramParams,
    TopKParams,
    plan,
    workspace_bytes,
)

HEADERS = Path(__file__).parents[1] / "kernels" / "include" / "topk_lab"
# What a struct begins with, and the header that it stands in.
STRUCTS = {
    TopKParams: (None, "params"),
    PagedParams: (TopKParams, "params"),
    SharedHistogramParams: (PagedParams, "shared_histogram_storage"),
    DelegateParams: (PagedParams, "params"),
}
SGLANG = ("sglang_block512", "sglang_block1024")


def shape(num_rows=24, num_cols=262_145, k=512, **changes):
    return Shape(num_rows, num_cols, k, changes.pop("row_stride", num_cols), k, **changes)


def paged_shape(num_rows=24, num_cols=20_000, k=512, slots_only=False, **changes):
    """A call for slots of pages of 64, its table and outputs all of different row strides."""
    indices_stride = None if slots_only else k + 8
    paging = Paging(table_stride=400, slots_stride=k + 32, bits=6, next_n=6)
    return Shape(num_rows, num_cols, k, num_cols, indices_stride, paging=paging, **changes)


def bound(launch, *names):
    """A launch's parameters, each of the named buffers at an address of its own."""
    addresses = {name: 1000 * (number + 1) for number, name in enumerate(names)}
    return params_of(launch, launch.params(addresses))


def params_of(launch, written):
    """The struct that a launch's kernel takes, from its bytes."""
    paged = launch.kernel.startswith(("sglang", "aiter", "page_transform"))
    struct = PagedParams if paged else TopKParams
    if launch.kernel.startswith("shared_histogram"):
        struct = SharedHistogramParams
    if launch.kernel.startswith("delegate"):
        struct = PagedParams if launch.kernel == "delegate_order" else DelegateParams
    assert len(written) == ctypes.sizeof(struct)
    return struct.from_buffer_copy(written)


def test_params_have_the_layout_that_the_kernels_assert():
    assert (ctypes.sizeof(TopKParams), ctypes.sizeof(PagedParams)) == (112, 160)
    assert (TopKParams.trace.offset, TopKParams.row_stride.offset) == (56, 64)
    assert (TopKParams.num_rows.offset, TopKParams.max_splits.offset) == (88, 104)
    assert (PagedParams.page_table.offset, PagedParams.order.offset) == (112, 152)
    for name, _ in TopKParams._fields_:
        assert getattr(PagedParams, name).offset == getattr(TopKParams, name).offset
    assert ctypes.sizeof(SharedHistogramParams) == 192
    assert ctypes.sizeof(DelegateParams) == 192
    assert DelegateParams.least_length.offset == 184
    for struct in (SharedHistogramParams, DelegateParams):
        for name, _ in PagedParams._fields_:
            assert getattr(struct, name).offset == getattr(PagedParams, name).offset


@pytest.mark.parametrize("struct", list(STRUCTS))
def test_params_are_the_headers_field_by_field(struct):
    begin, header_name = STRUCTS[struct]
    header = (HEADERS / f"{header_name}.hpp").read_text()
    body = re.search(rf"struct {struct.__name__} \{{(.*?)\n\}};", header, re.DOTALL)[1]
    declared = re.findall(r"^ *(?:const )?([\w ]+?)(\*?) (\w+);", body, re.MULTILINE)
    types = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "Order": ctypes.c_int32}
    fields = list(struct._fields_)
    if begin is not None:
        assert declared.pop(0)[0] == begin.__name__
        fields = fields[len(begin._fields_) :]
    assert fields == [
        (name, ctypes.c_uint64 if star else types[word]) for word, star, name in declared
    ]
    stated = re.findall(rf"offsetof\({struct.__name__}, (\w+)\) == (\d+)", header)
    assert len(stated) >= 2
    for name, kind in struct._fields_:
        if kind is ctypes.c_uint64:
            assert plans.POINTER_OFFSETS[name] == getattr(struct, name).offset
    for name, offset in stated:
        assert getattr(struct, name).offset == int(offset)
    assert f"sizeof({struct.__name__}) == {ctypes.sizeof(struct)}" in header


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
    own = ("shared_histogram", "delegate")
    lineages = (*SGLANG, "aiter_one_block", *own, "vllm_k512", "vllm_generic")
    for variant in lineages:
        assert plan(variant, paged_shape(num_rows=0)).launches == ()


@pytest.mark.parametrize(
    ("variant", "kernel", "block", "stash_kib"),
    [
        ("sglang_block512", "sglang_block512_select", 512, 40),
        ("sglang_block1024", "sglang_block1024_select", 1024, 40),
        ("sglang_block512[stash_kib=48]", "sglang_block512_stash48_select", 512, 48),
        ("sglang_block1024[stash_kib=48]", "sglang_block1024_stash48_select", 1024, 48),
        ("sglang_block1024[block_size=256]", "sglang_block1024_block256_select", 256, 40),
        ("sglang_block1024[block_size=768]", "sglang_block1024_block768_select", 768, 40),
    ],
)
@pytest.mark.parametrize("num_cols", [1, 262_145, 2**31 - 1])
def test_a_block_a_row_selects_in_one_launch(variant, kernel, block, stash_kib, num_cols):
    planned = plan(variant, shape(num_rows=500, num_cols=num_cols, k=1024))
    (launch,) = planned.launches
    assert (launch.kernel, launch.grid, launch.block) == (kernel, (500, 1), block)
    assert launch.dynamic_lds == stash_kib * 1024
    assert (planned.workspace_bytes, planned.max_splits) == (0, 1)
    assert planned.trace_shape == (500, 1, 5)
    params = bound(launch, "logits", "row_ends", "indices")
    assert (params.num_rows, params.num_cols, params.k, params.max_splits) == (
        500, num_cols, 1024, 1,
    )  # fmt: skip
    assert (params.logits, params.row_ends, params.indices) == (1000, 2000, 3000)
    assert params.values == params.slots == params.page_table == params.trace == 0
    assert params.row_starts == params.split_indices == params.split_logits == 0


def test_a_stash_is_the_same_with_values_and_with_a_trace():
    plain = plan("sglang_block1024", shape(k=1024))
    full = plan("sglang_block1024", shape(k=1024, values_stride=1024), traced=True)
    (launch,) = full.launches
    assert launch.kernel == "sglang_block1024_select_traced"
    assert launch.dynamic_lds == plain.launches[0].dynamic_lds == 40 * 1024
    assert dict(launch.pointers) == {
        name: Buffer(name) for name in ("logits", "row_ends", "indices", "values", "trace")
    }


@pytest.mark.parametrize("variant", SGLANG)
def test_the_order_is_an_argument_of_the_kernel(variant):
    for number, order in enumerate(("any", "index")):
        (launch,) = plan(variant, shape(order=order)).launches
        assert bound(launch, "logits", "row_ends", "indices").order == number


@pytest.mark.parametrize(
    ("promises", "stable"),
    [
        ({}, ""),
        ({"tie_break": "lowest"}, "stable_"),
        ({"order": "index"}, "stable_"),
        ({"tie_break": "lowest", "order": "index"}, "stable_"),
    ],
)
@pytest.mark.parametrize(
    ("variant", "prefix"),
    [
        ("aiter_one_block", "aiter_one_block"),
        ("aiter_one_block[digit_bits=11]", "aiter_one_block_digit11"),
    ],
)
@pytest.mark.parametrize("k", [1, 512, 100_000])
def test_a_promise_is_kept_by_a_kernel_of_its_own(variant, prefix, promises, stable, k):
    for traced in (False, True):
        planned = plan(variant, shape(num_rows=500, k=k, **promises), traced=traced)
        (launch,) = planned.launches
        assert launch.kernel == f"{prefix}_{stable}select{'_traced' if traced else ''}"
        assert (launch.grid, launch.block, launch.dynamic_lds) == ((500, 1), 1024, 0)
        assert (planned.workspace_bytes, planned.max_splits) == (0, 1)
        assert planned.trace_shape == (500, 1, 3)
        params = bound(launch, "logits", "row_ends", "indices", *(["trace"] if traced else []))
        assert (params.num_rows, params.k, params.max_splits) == (500, k, 1)
        assert (params.logits, params.row_ends, params.indices) == (1000, 2000, 3000)
        assert params.trace == (4000 if traced else 0)


@pytest.mark.parametrize("promises", [{}, {"tie_break": "lowest"}])
@pytest.mark.parametrize("slots_only", [False, True])
def test_aiter_writes_slots_itself(promises, slots_only):
    (launch,) = plan("aiter_one_block", paged_shape(slots_only=slots_only, **promises)).launches
    written = ["page_table", "slots"] if slots_only else ["indices", "page_table", "slots"]
    assert [name for name, _ in launch.pointers] == ["logits", "row_ends", *written]
    params = bound(launch, "logits", "row_ends", *written)
    assert_paged(params)
    assert params.indices == (0 if slots_only else 3000)


# ---- a histogram shared by blocks ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_rows", "num_cols", "blocks"),
    [
        pytest.param(8, 40_959, 1, id="a-block-a-row-below-40960"),
        pytest.param(8, 40_960, 8, id="eight-from-there-on"),
        pytest.param(1, 40_960, 32, id="never-more-than-32"),
        pytest.param(24, 262_145, 4, id="never-fewer-than-4"),
        pytest.param(64, 114_688, 4, id="most-rows-that-share"),
        pytest.param(65, 1 << 20, 1, id="a-block-a-row-behind-them"),
        pytest.param(500, 2**31 - 1, 1, id="many-rows"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_rows_are_counted_then_selected_by_the_same_blocks(num_rows, num_cols, blocks, traced):
    wanted = shape(num_rows=num_rows, num_cols=num_cols, k=4096, values_stride=4096)
    planned = plan("shared_histogram", wanted, traced=traced)
    suffix = "_traced" if traced else ""
    assert [(launch.kernel, launch.grid, launch.dynamic_lds) for launch in planned.launches] == [
        ("shared_histogram_clear", (num_rows, 1), 0),
        (f"shared_histogram_count{suffix}", (num_rows, blocks), 0),
        (f"shared_histogram_select{suffix}", (num_rows, blocks), 4 * 4096),
    ]
    assert {launch.block for launch in planned.launches} == {1024}
    assert planned.max_splits == blocks
    assert planned.trace_shape == (num_rows, blocks + 1, 4)
    # 4096 counts, a line of 128 bytes, and a list of 2048 logits and as many positions.
    assert planned.workspace_bytes == num_rows * (4 * 4096 + 128 + 8 * 2048)


def test_arrays_of_the_workspace_lie_one_behind_another():
    planned = plan("shared_histogram", shape(num_rows=3, values_stride=512, has_row_starts=True))
    names = ("logits", "row_ends", "row_starts", "indices", "values", "workspace")
    clear, count, select = (
        params_of(launch, launch.params({name: 10**6 * at for at, name in enumerate(names, 1)}))
        for launch in planned.launches
    )
    begin = 6 * 10**6
    ends = [begin + 3 * row for row in (16_384, 16_512, 24_704, 32_896)]
    found = [select.histograms, select.counters, select.tie_logits, select.tie_positions]
    assert found == [begin, *ends[:-1]]
    assert ends[-1] == begin + planned.workspace_bytes
    assert (clear.histograms, clear.counters, clear.logits) == (begin, ends[0], 0)
    assert (count.histograms, count.counters, count.indices) == (begin, 0, 0)
    assert (count.logits, count.row_ends, count.row_starts) == (10**6, 2 * 10**6, 3 * 10**6)
    assert (select.logits, select.indices, select.values) == (10**6, 4 * 10**6, 5 * 10**6)
    assert (select.num_rows, select.k, select.max_splits) == (3, 512, 21)
    assert select.trace == select.page_table == select.slots == 0


@pytest.mark.parametrize("slots_only", [False, True])
def test_blocks_that_share_a_row_write_slots_themselves(slots_only):
    planned = plan("shared_histogram", paged_shape(slots_only=slots_only))
    written = ["page_table", "slots"] if slots_only else ["indices", "page_table", "slots"]
    select = planned.launches[-1]
    assert [name for name, _ in select.pointers] == [
        *("logits", "row_ends", *written),
        *("histograms", "counters", "tie_logits", "tie_positions"),
    ]
    params = bound(select, "logits", "row_ends", *written, "workspace")
    assert_paged(params)
    assert params.indices == (0 if slots_only else 3000)


def test_drop_is_planned_for_study_alone():
    for variant, kernel in (
        ("sglang_block512[overflow=drop]", "sglang_block512_drop_select"),
        ("sglang_block1024[stash_kib=48,overflow=drop]", "sglang_block1024_drop_stash48_select"),
    ):
        with pytest.raises(ValueError, match=r"is not exact \(overflow=drop loses candidates"):
            plan(variant, shape())
        assert [launch.kernel for launch in plan(variant, shape(), study=True).launches] == [kernel]


# ---- page tables ---------------------------------------------------------------------------------


def assert_paged(params):
    assert (params.page_table_stride, params.slots_stride) == (400, 512 + 32)
    assert (params.page_bits, params.table_next_n) == (6, 6)


@pytest.mark.parametrize("variant", SGLANG)
def test_sglang_writes_slots_itself(variant):
    (launch,) = plan(variant, paged_shape()).launches
    assert launch.kernel == f"{variant}_select"
    assert launch.dynamic_lds == 40 * 1024
    params = bound(launch, "logits", "row_ends", "indices", "page_table", "slots")
    assert_paged(params)
    assert (params.indices, params.page_table, params.slots) == (3000, 4000, 5000)
    assert params.indices_stride == 512 + 8


@pytest.mark.parametrize("variant", SGLANG)
def test_sglang_writes_slots_alone_where_no_indices_are_wanted(variant):
    (launch,) = plan(variant, paged_shape(slots_only=True)).launches
    assert [name for name, _ in launch.pointers] == ["logits", "row_ends", "page_table", "slots"]
    params = bound(launch, "logits", "row_ends", "page_table", "slots")
    assert_paged(params)
    assert (params.indices, params.page_table, params.slots) == (0, 3000, 4000)


@pytest.mark.parametrize(
    ("variant", "changes", "kernels"),
    [
        pytest.param(
            "vllm_k512",
            {},
            ["vllm_k512_select", "vllm_k512_merge", "page_transform"],
            id="split-rows-are-merged-first",
        ),
        pytest.param(
            "vllm_k512", {"num_rows": 48}, ["vllm_k512_select", "page_transform"], id="whole-rows"
        ),
        pytest.param(
            "vllm_generic",
            {"num_cols": 12_287},
            ["vllm_generic_rank_count_select", "page_transform"],
            id="narrow-generic",
        ),
        pytest.param(
            "vllm_generic",
            {"num_cols": 200_000},
            ["vllm_generic_select", "vllm_generic_merge", "page_transform"],
            id="wide-generic",
        ),
    ],
)
@pytest.mark.parametrize("slots_only", [False, True])
def test_vllm_transforms_what_it_selected(variant, changes, kernels, slots_only):
    wanted = paged_shape(slots_only=slots_only, **changes)
    planned = plan(variant, wanted)
    assert [launch.kernel for launch in planned.launches] == kernels
    # Slots alone: the transform works in place.
    indices = Buffer("slots" if slots_only else "indices")
    for launch in planned.launches:
        assert dict(launch.pointers)["indices"] == indices
        params = params_of(launch, launch.scalars)
        if launch.kernel == "page_transform":
            assert_paged(params)
        assert params.indices_stride == (512 + 32 if slots_only else 512 + 8)
    for launch in planned.launches[:-1]:
        assert not {"page_table", "slots"} & set(dict(launch.pointers))
    transform = planned.launches[-1]
    assert (transform.grid, transform.block) == ((wanted.num_rows, 1), 256)
    assert transform.dynamic_lds == 0
    assert dict(transform.pointers) == {
        "indices": indices,
        "page_table": Buffer("page_table"),
        "slots": Buffer("slots"),
    }
    assert planned.workspace_bytes == workspace_bytes(
        variant, wanted.num_rows, wanted.num_cols, 512
    )


def test_a_traced_plan_has_no_traced_transform():
    planned = plan("vllm_k512", paged_shape(num_rows=48), traced=True)
    assert [launch.kernel for launch in planned.launches] == [
        "vllm_k512_select_traced",
        "page_transform",
    ]


def test_calls_without_a_page_table_have_one_row_a_table():
    for variant in SGLANG:
        (launch,) = plan(variant, shape()).launches
        params = params_of(launch, launch.scalars)
        assert (params.page_table_stride, params.slots_stride, params.page_bits) == (0, 0, 0)
        assert params.table_next_n == 1


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
        ("vllm_k512[final_capacity=512]", {}, "is not compiled"),
        (
            "sglang_block1024",
            {"k": 1025},
            r"^k must be in \[1, 1024\] for sglang_block1024, got 1025$",
        ),
        ("sglang_block512", {"k": 0}, r"^k must be in \[1, 1024\] for sglang_block512, got 0$"),
        ("sglang_block512", {"num_rows": 2**22}, "num_rows must be at most 4194303, got 4194304"),
        (
            "sglang_block1024[stash_kib=128]",
            {},
            r"^variant sglang_block1024\[stash_kib=128\] is not compiled; it runs on target numba "
            "only$",
        ),
        ("sglang_block512[block_size=256]", {}, "is not compiled; it runs on target numba only"),
        ("sglang_block512[overflow=drop]", {}, "is not exact .* for study only"),
        ("aiter_one_block", {"k": 0}, r"^k must be at least 1 for aiter_one_block, got 0$"),
        (
            "shared_histogram",
            {"k": 4097},
            r"^k must be in \[1, 4096\] for shared_histogram, got 4097$",
        ),
        ("shared_histogram", {"num_rows": 2**22}, "num_rows must be at most 4194303, got 4194304"),
        ("delegate", {"k": 4097}, r"^k must be in \[1, 4096\] for delegate, got 4097$"),
        ("delegate", {"num_rows": 2**22}, "num_rows must be at most 4194303, got 4194304"),
        (
            "delegate[member=k512_pair]",
            {"k": 513},
            r"^k must be at most 512 for delegate\[member=k512_pair\], got 513$",
        ),
        ("shared_histogram[tie_capacity=64]", {}, "is not compiled; it runs on target numba only"),
        ("aiter_one_block[block_size=512]", {}, "is not compiled; it runs on target numba only"),
        (
            "sglang_block1024[stash_kib=128,overflow=drop]",
            {},
            "is not exact .*loses candidates beyond 16384",
        ),
    ],
)
def test_what_a_variant_does_not_take_is_refused(variant, changes, message):
    with pytest.raises(ValueError, match=message):
        plan(variant, shape(**changes))


def test_a_promise_that_a_kernel_does_not_keep_is_not_planned():
    assert plan("sglang_block512", shape(order="index")).launches
    for variant, order in (
        ("vllm_k512", "index"),
        ("sglang_block512", "value"),
        ("aiter_one_block", "value"),
        ("shared_histogram", "index"),
    ):
        with pytest.raises(ValueError, match=f"order must be one of any.*, got '{order}'"):
            plan(variant, shape(order=order))
    for variant in ("vllm_k512", *SGLANG, "shared_histogram"):
        with pytest.raises(ValueError, match=r"^tie_break must be one of any, got 'lowest'$"):
            plan(variant, shape(tie_break="lowest"))


# ---- delegates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_rows", "num_cols", "k", "member", "blocks"),
    [
        pytest.param(24, 12_285, 512, "k512", 0, id="kept-whole-by-a-block"),
        pytest.param(24, 51_201, 512, "k512", 7, id="more-columns-than-so-many-rows-let-fuse"),
        pytest.param(1, 131_072, 512, "k512", 16, id="no-more-blocks-than-tiles"),
        pytest.param(1, 131_073, 1, "k512_long", 17, id="fewer-delegates-from-131073-columns"),
        pytest.param(132, 12_285, 512, "k512", 0, id="as-many-rows-as-multiprocessors"),
        pytest.param(133, 12_285, 512, "k512_pair", 0, id="small-blocks-from-there-on"),
        pytest.param(265, 10_237, 512, "k512_crowd", 0, id="three-of-them-on-each"),
        pytest.param(63, 327_650, 512, "k512_long", 5, id="more-delegates-than-lds-holds"),
        pytest.param(63, 2**31 - 1, 512, "k512_long", 5, id="as-wide-as-can-be"),
        pytest.param(8, 100_000, 513, "k1024", 13, id="k-above-512"),
        pytest.param(2, 100_000, 1025, "k2048", 13, id="k-above-1024"),
        pytest.param(2, 100_000, 4096, "k4096", 13, id="k-above-2048"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_segments_are_reduced_then_a_block_selects(num_rows, num_cols, k, member, blocks, traced):
    planned = plan("delegate", shape(num_rows=num_rows, num_cols=num_cols, k=k), traced=traced)
    assert schedules.delegate_member(num_rows, num_cols, k) == member
    policy = schedules.DELEGATE_POLICIES[member]
    *reduce, select = planned.launches
    suffix = "_traced" if traced else ""
    assert (select.kernel, select.grid) == (f"delegate_{member}_select{suffix}", (num_rows, 1))
    assert (select.block, select.dynamic_lds) == (policy.block_size, 0)
    assert [(one.kernel, one.grid, one.block) for one in reduce] == (
        [(f"delegate_reduce_{policy.segment}", (num_rows, blocks), 256)] if blocks else []
    )
    assert {launch.overlaps for launch in planned.launches} == {num_rows <= 128}
    assert planned.trace_shape == (num_rows, 1, 23)
    # A delegate for each segment that holds a column, wherever on a line the row begins.
    most = -(-(num_cols + policy.segment - 1) // policy.segment)
    stride = planned.workspace_bytes // (4 * num_rows)
    assert planned.workspace_bytes == 4 * num_rows * stride
    assert stride % 4 == 0
    assert (most <= stride < most + 4) if blocks else stride == 0


@pytest.mark.parametrize(
    ("num_rows", "num_cols", "k", "member"),
    [
        pytest.param(24, 12_286, 512, "k512", id="a-column-more-than-is-kept"),
        pytest.param(1, 21_760, 512, "k512", id="one-short-row"),
        pytest.param(24, 51_200, 512, "k512", id="few-columns-for-so-many-rows"),
        pytest.param(64, 131_072, 512, "k512", id="many-rows"),
        pytest.param(64, 327_649, 512, "k512_long", id="as-many-delegates-as-lds-holds"),
        pytest.param(133, 12_286, 512, "k512_pair", id="two-blocks-on-a-multiprocessor"),
        pytest.param(265, 10_238, 512, "k512_crowd", id="three"),
        pytest.param(132, 327_649, 512, "k512_long", id="as-many-rows-as-multiprocessors"),
        pytest.param(500, 100_000, 513, "k1024", id="k-above-512"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_a_block_that_selects_from_its_row_reduces_it_too(num_rows, num_cols, k, member, traced):
    planned = plan("delegate", shape(num_rows=num_rows, num_cols=num_cols, k=k), traced=traced)
    assert schedules.delegate_member(num_rows, num_cols, k) == member
    policy = schedules.DELEGATE_POLICIES[member]
    (fused,) = planned.launches
    assert fused.kernel == f"delegate_{member}_fused" + ("_traced" if traced else "")
    assert (fused.grid, fused.block) == ((num_rows, 1), policy.block_size)
    assert fused.overlaps == (num_rows <= 128)
    assert planned.workspace_bytes == 0
    assert planned.trace_shape == (num_rows, 1, 23)
    stride = policy.delegates_stride(num_cols)
    most = -(-(num_cols + policy.segment - 1) // policy.segment)
    assert most <= stride < most + 4
    assert fused.dynamic_lds == 4 * stride <= 4 * policy.fused_delegates
    assert "workspace" not in {place.name for _, place in fused.pointers}


@pytest.mark.parametrize(
    ("num_rows", "num_cols", "k", "member"),
    [
        pytest.param(64, 327_650, 512, "k512_long", id="more-delegates-than-lds-holds"),
        pytest.param(64, 139_300, 1024, "k1024", id="k-above-512"),
        pytest.param(500, 24_574, 1025, "k2048", id="lds-holds-none"),
        pytest.param(64, 2**31 - 1, 4096, "k4096", id="as-wide-as-can-be"),
    ],
)
def test_delegates_that_lds_has_no_room_for_are_in_memory(num_rows, num_cols, k, member):
    assert schedules.delegate_member(num_rows, num_cols, k) == member
    policy = schedules.DELEGATE_POLICIES[member]
    wanted = shape(num_rows=num_rows, num_cols=num_cols, k=k)
    planned = plan("delegate", wanted)
    (fused,) = planned.launches
    assert fused.kernel == f"delegate_{member}_fused_global"
    assert (fused.grid, fused.block, fused.dynamic_lds) == ((num_rows, 1), policy.block_size, 0)
    assert planned.workspace_bytes == 4 * num_rows * policy.delegates_stride(num_cols)
    assert "delegates" in {name for name, _ in fused.pointers}
    fewer = plan("delegate", shape(num_rows=63, num_cols=num_cols, k=k))
    assert [launch.kernel for launch in fewer.launches] == [
        f"delegate_reduce_{policy.segment}",
        f"delegate_{member}_select",
    ]


@pytest.mark.parametrize("order", ["any", "index"])
@pytest.mark.parametrize(
    ("num_rows", "num_cols", "short", "form"),
    [
        pytest.param(133, 262_145, "k512_pair", "fused", id="two-blocks-on-a-multiprocessor"),
        pytest.param(264, 327_650, "k512_pair", "fused_global", id="more-than-lds-holds"),
        pytest.param(265, 2**31 - 1, "k512_crowd", "fused_global", id="three"),
    ],
)
def test_a_wide_buffer_of_many_rows_has_a_kernel_for_short_ones(
    num_rows, num_cols, short, form, order
):
    planned = plan("delegate", shape(num_rows=num_rows, num_cols=num_cols, order=order))
    first, second, *behind = planned.launches
    assert first.kernel == f"delegate_{short}_fused"
    assert second.kernel == f"delegate_k512_long_{form}"
    assert [launch.kernel for launch in behind] == ["delegate_order"] * (order != "any")
    names = ("logits", "row_ends", "indices", "workspace")
    one, other = (bound(launch, *names) for launch in (first, second))
    # Every length is one's, and LDS holds what the first one's rows have.
    assert (one.least_length, one.most_length) == (0, 131_072)
    assert (other.least_length, other.most_length) == (131_073, 2**31 - 1)
    assert first.dynamic_lds == 4 * one.delegates_stride == 4 * 8196
    assert one.delegates == 0
    long = schedules.DELEGATE_POLICIES["k512_long"]
    assert other.delegates_stride == long.delegates_stride(num_cols)
    due = 4 * num_rows * other.delegates_stride if form == "fused_global" else 0
    assert planned.workspace_bytes == due
    # No more rows than multiprocessors, or no wider a buffer, and one kernel does all.
    for rows, cols in ((132, num_cols), (num_rows, 262_144)):
        (alone,) = plan("delegate", shape(num_rows=rows, num_cols=cols)).launches
        params = bound(alone, *names)
        assert alone.kernel.startswith("delegate_k512_long_fused")
        assert (params.least_length, params.most_length) == (0, 2**31 - 1)


@pytest.mark.parametrize(
    ("variant", "k", "message"),
    [
        (
            "delegate[member=k512,launches=fused_global]",
            512,
            "member must be one of k512_long, k1024, k2048, k4096 for launches=fused_global, "
            "got 'k512'",
        ),
        (
            "delegate[member=k512_long,launches=mixed]",
            512,
            r"launches=mixed must have members by shape and k up to 512, got delegate.*, k=512",
        ),
        (
            "delegate[launches=mixed]",
            513,
            r"launches=mixed must have members by shape and k up to 512, got delegate.*, k=513",
        ),
    ],
)
def test_launches_that_a_member_does_not_take_are_refused(variant, k, message):
    with pytest.raises(ValueError, match=message):
        plan(variant, shape(num_cols=150_000, k=k))


def test_launches_may_be_asked_for():
    wide = shape(num_rows=128, num_cols=131_072)
    names = [launch.kernel for launch in plan("delegate[launches=two]", wide).launches]
    assert names == ["delegate_reduce_16", "delegate_k512_select"]
    few = shape(num_rows=1, num_cols=131_072)
    (fused,) = plan("delegate[launches=fused]", few).launches
    assert fused.kernel == "delegate_k512_fused"
    # A row that is kept whole has no delegates, however it is asked for.
    for launches in ("two", "fused", "mixed"):
        (whole,) = plan(f"delegate[launches={launches}]", shape(num_cols=9000)).launches
        assert whole.kernel == "delegate_k512_select"


@pytest.mark.parametrize(("num_cols", "k", "most"), [(327_650, 512, 10_240), (70_000, 1025, 0)])
def test_delegates_that_lds_has_no_room_for_are_not_fused_on_demand(num_cols, k, most):
    stride = schedules.delegate_policy("delegate", 24, num_cols, k)[1].delegates_stride(num_cols)
    message = (
        f"num_cols must leave no more than {most} delegates a row for launches=fused, "
        f"got {num_cols}: {stride} of them"
    )
    with pytest.raises(ValueError, match=message):
        plan("delegate[launches=fused]", shape(num_cols=num_cols, k=k))


def test_delegates_are_the_workspace_and_whole_columns_the_members():
    planned = plan("delegate", shape(num_cols=60_000))
    for launch in planned.launches:
        params = bound(launch, "logits", "row_ends", "indices", "workspace", "trace")
        assert params.delegates == 4000
        assert (params.delegates_stride, params.blocks_per_row) == (3752, 8)
        assert params.whole_columns == 4 * 6 * 512 - 3
    assert planned.workspace_bytes == 4 * 24 * 3752


def test_which_of_equal_logits_are_kept_changes_nothing_of_the_plan():
    for num_cols in (10_000, 100_000):
        asked = [
            plan("delegate", shape(num_cols=num_cols, tie_break=tie_break)).launches
            for tie_break in ("any", "lowest")
        ]
        assert asked[0] == asked[1]


@pytest.mark.parametrize("order", ["index", "value"])
@pytest.mark.parametrize("slots_only", [False, True])
def test_an_order_is_made_in_a_launch_of_its_own(order, slots_only):
    asked = paged_shape(slots_only=slots_only, order=order)
    alone, _ = plan("delegate[launches=fused]", asked).launches
    assert alone.kernel == "delegate_k512_fused"
    planned = plan("delegate[launches=two]", asked)
    reduce, select, ordered = planned.launches
    assert reduce.kernel == "delegate_reduce_16"
    assert dict(alone.pointers)["indices"] == dict(select.pointers)["indices"]
    assert (ordered.kernel, ordered.grid, ordered.block) == ("delegate_order", (24, 1), 512)
    assert ordered.dynamic_lds == 8 * 512
    # Until then the indices stand where the answer goes.
    place = "slots" if slots_only else "indices"
    assert dict(select.pointers)["indices"] == Buffer(place)
    assert "page_table" not in dict(select.pointers)
    assert "values" not in dict(select.pointers)
    names = ["logits", "row_ends", "indices", "page_table", "slots"]
    params = bound(ordered, *names)
    assert_paged(params)
    assert params.indices == (0 if slots_only else 3000)
    assert params.order == ("any", "index", "value").index(order)
    select_params = bound(select, *names, "workspace")
    assert select_params.indices_stride == (params.slots_stride if slots_only else 520)


@pytest.mark.parametrize(
    ("num_rows", "launched"), [(1, 1), (7, 7), (8, 8), (9, 16), (24, 24), (25, 32)]
)
def test_rows_are_reduced_in_multiples_of_the_dies(num_rows, launched):
    wanted = shape(num_rows=num_rows)
    reduce, select = plan("delegate[launches=two,dies=8]", wanted).launches
    assert reduce.grid[0] == launched
    assert select.grid == (num_rows, 1)
    assert plan("delegate[launches=two]", wanted).launches[0].grid[0] == num_rows
    # A block that does both has nobody to meet.
    (fused,) = plan("delegate[launches=fused,dies=8]", wanted).launches
    assert fused.grid == (num_rows, 1)
