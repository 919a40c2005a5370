"""Kernels of libraries that are not installed here, launched under the names they register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from registered_kernels import LAUNCH

Emulate = Callable[..., Any]

# Apex, csrc/multi_tensor_apply.cuh: chunk size, flag, {addresses[1][110], sizes[110], tensor of a block[320], chunk of
# a block[320], first tensor}. Two tensors of 5 and 100,000 elements in chunks of 65,536.
LISTS = """
class Lists(ctypes.Structure):
    _fields_ = [("addresses", ctypes.c_void_p * 110), ("sizes", ctypes.c_int * 110),
                ("tensor", ctypes.c_ubyte * 320), ("chunk", ctypes.c_int * 320), ("first", ctypes.c_int)]
lists = Lists()
tensors = [torch.zeros(5, device="cuda"), torch.zeros(100_000, device="cuda")]
for number, tensor in enumerate(tensors):
    lists.addresses[number], lists.sizes[number] = tensor.data_ptr(), tensor.numel()
for block, (tensor, chunk) in enumerate([(0, 0), (1, 0), (1, 1)]):
    lists.tensor[block], lists.chunk[block] = tensor, chunk
"""


def test_apex_and_transformer_engine_tell_the_elements_of_their_tensor_lists(emulate: Emulate) -> None:
    run = emulate(
        "import torch\n" + LAUNCH + LISTS
        + """
name = (b"_Z25multi_tensor_apply_kernelI18TensorListMetadataILi1ELb0EEN18transformer_engine19multi_tensor_l2norm"
        b"13L2NormFunctorIfEEJPfS5_biEEvlPViT_T0_DpT1_")
out = torch.zeros(4, device="cuda")
before = len(tensors[0].tolist())
launch(name, 3, 512, ctypes.c_int64(65536), ctypes.c_void_p(), lists, ctypes.c_byte(),
       ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_bool(False), ctypes.c_int(1))
scale = (b"_Z25multi_tensor_apply_kernelI18TensorListMetadataILi1EE12ScaleFunctorIfEJfEEvlPViT_T0_DpT1_")
launch(scale, 3, 512, ctypes.c_int64(65536), ctypes.c_void_p(), lists, ctypes.c_byte(), ctypes.c_float(2))
"""
    )  # fmt: skip
    lists = [kernel for kernel in run.launched("kernel") if "multi_tensor_apply" in kernel["kernel"]]
    assert [kernel["elements"] for kernel in lists] == [100_005, 100_005]


def test_transformer_engine_tells_what_its_kernels_read_and_write(emulate: Emulate) -> None:
    run = emulate(
        "import torch\n" + LAUNCH
        + """
none = ctypes.c_void_p()
size = ctypes.c_size_t
cast = (b"_ZN18transformer_engine6detail50_GLOBAL__N__18ff0267_17_cast_transpose_cu_f1c1739d29"
        b"cast_transpose_general_kernelILm4ELm4E13__nv_bfloat1613__nv_fp8_e4m3EEvPKT1_PKfPT2_SB_S9_PfSC_mm")
launch(cast, 64, 128, none, none, none, none, none, none, none, size(512), size(1024))
rope = (b"_ZN18transformer_engine25fused_rope_forward_kernelI13__nv_bfloat16EEvPKT_PKiPKfS6_PS2_biiiiiiiiiiiiiii")
numbers = [ctypes.c_int(n) for n in (1, 0, 256, 8, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0)]
launch(rope, 256, 256, none, none, none, none, none, ctypes.c_bool(False), *numbers)
current = b"_ZN18transformer_engine51_GLOBAL__N__95d1fbd5_18_current_scaling_cu_6a676ec6"
launch(current + b"11amax_kernelILi16ELb0E13__nv_bfloat16EEvPKT1_PfmmPKf", 64, 512,
       none, none, size(4096), size(256), none)
launch(current + b"30compute_scale_from_amax_kernelEPKfPffbfS2_", 1, 1, none, none, ctypes.c_float(448),
       ctypes.c_bool(False), ctypes.c_float(0), none)
"""
    )  # fmt: skip
    by_name = {
        name: kernel
        for kernel in run.launched("kernel")
        for name in ("cast_transpose_general", "fused_rope", "::amax", "compute_scale")
        if name in kernel["kernel"]
    }
    cast, rope = by_name["cast_transpose_general"], by_name["fused_rope"]
    assert (cast["elements"], cast["bytes"]) == (512 * 1024, 512 * 1024 * (2 + 1 + 1))
    assert (rope["elements"], rope["bytes"]) == (256 * 8 * 64, 256 * 8 * 64 * (2 + 2))
    assert [by_name[name]["bytes"] for name in ("::amax", "compute_scale")] == [4096 * 2, 4 + 4]


# fused_topk_with_score_function_forward_kernel<float, float>(logits, tokens, experts, picks, softmax before?, groups,
# picks of groups, scaling, score function, bias, probabilities, map, scores).
ROUTER = """
router = (b"_ZN18transformer_engine12fused_router45fused_topk_with_score_function_forward_kernelIffEEvPKT_iiibiifiPKT0_"
          b"PS2_PbPf")
def route(logits, picks):
    tokens, experts = logits.shape
    probabilities, routes = torch.ones_like(logits), torch.ones_like(logits, dtype=torch.bool)
    sizes = [ctypes.c_int(size) for size in (tokens, experts, picks)]
    options = [ctypes.c_bool(False), ctypes.c_int(0), ctypes.c_int(0), ctypes.c_float(1), ctypes.c_int(0)]
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (probabilities, routes, torch.ones_like(logits))]
    launch(router, tokens, 128, ctypes.c_void_p(logits.data_ptr()), *sizes, *options, ctypes.c_void_p(), *pointers)
    return routes
"""


def test_transformer_engines_router_is_balanced(emulate: Emulate) -> None:
    run = emulate(
        "import torch\n" + LAUNCH + ROUTER
        + """
result = []
for tokens, experts, picks in ((64, 4, 1), (2048, 8, 2), (2048, 60, 4), (64, 8, 8)):
    routes = route(torch.rand(tokens, experts, device="cuda"), picks)
    picked, loads = routes.sum(dim=1).tolist(), routes.sum(dim=0).tolist()
    result.append([set(picked) == {picks}, max(loads) - min(loads) <= 1])
"""
    )  # fmt: skip
    assert run.result == [[True, True]] * 4
    assert any("balanced" in remark for remark in run.trace.remarks)
    (first, *_) = (kernel for kernel in run.launched("kernel") if "fused_topk" in kernel["kernel"])
    assert (first["elements"], first["bytes"]) == (64 * 4, 64 * 4 * (4 + 4 + 1 + 4))


def test_a_cast_by_blocks_tells_its_traffic(emulate: Emulate) -> None:
    run = emulate(
        "import torch\n" + LAUNCH
        + """
none = ctypes.c_void_p()
sizes = [ctypes.c_size_t(n) for n in (512, 1024, 0, 0, 0, 0)]
cast = (b"_ZN18transformer_engine71_GLOBAL__N__0981d932_38_quantize_transpose_square_blockwise_cu_108e7849"
        b"34block_scaled_cast_transpose_kernelILb1Eff13__nv_fp8_e4m3EEvPKT1_PT2_S7_PT0_S9_mmmmmmf14CUtensorMap_stbPKf")
tensor_map = (ctypes.c_byte * 128)()
launch(cast, 64, 128, none, none, none, none, none, *sizes, ctypes.c_float(0), tensor_map, ctypes.c_bool(False), none)
"""
    )  # fmt: skip
    (cast,) = (kernel for kernel in run.launched("kernel") if "block_scaled" in kernel["kernel"])
    assert (cast["elements"], cast["bytes"]) == (512 * 1024, 512 * 1024 * (4 + 1 + 1))


def test_what_fsdp_unpacks_counts_by_its_bytes(emulate: Emulate) -> None:
    run = emulate(
        """
        import torch
        for dtype in (torch.float32, torch.bfloat16):
            gathered = torch.ones(4, 5 << 20, device="cuda", dtype=dtype)
            outs = [torch.empty(4, size << 20, device="cuda", dtype=dtype) for size in (4, 1)]
            torch.split_with_sizes_copy(gathered, [4 << 20, 1 << 20], dim=1, out=outs)
        """
    )
    unpacked = [kernel for kernel in run.launched("kernel") if "split_with_sizes_copy" in kernel["kernel"]]
    assert [kernel["bytes"] for kernel in unpacked] == [2 * 4 * (5 << 20) * item for item in (4, 2)]
