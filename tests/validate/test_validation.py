"""Rows become runs, and errors become statistics."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from maya.clusters import load
from maya.errors import MayaError
from maya.launch import Job, OutOfMemory, Run
from maya.predict import unsimulated
from maya.trace.build import JobBuilder
from maya.trace.types import Kernel, Work
from maya.validate import Mapped, RowError, Unmapped, map_row, read_rows, summarise_errors
from maya.validate.mapping import SLOWER
from maya.validate.recorder import require
from maya.validate.run import reason_of, validate
from maya.validate.statistics import CONFIGURATION

HEADER = (
    "id,gpu,gpus,gpus_per_node,framework,model,layers,hidden,ffn,heads,kv_heads,seq,vocab,precision,tp,pp,dp,cp,ep,"
    "vp,mbs,gbs,recompute,seq_parallel,dist_opt,sharding,comm_overlap,attention,iter_time_s,notes,source_path"
)
MEGATRON = (
    "paper-1,A100-80GB-SXM,280,8,Megatron-LM,turing-530B,105,20480,81920,128,128,2048,,float16,8,35,1,1,,3,1,280,"
    "full,False,False,,none,,49.05,"
)
FSDP = (
    "foundry-2,h100_80gb,64,8,llm-foundry FSDP,MPT-7b,32,4096,16384,32,32,2048,50368,amp_bf16,1,1,64,1,,,8,1024,"
    "none,,,SHARD_GRAD_OP,,flash,1.5,"
)


EXPERTS = (
    "golden-3,H100-80GB-SXM,8,8,Megatron-LM functional test,gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4,12,512,,8,8,"
    "1024,,bf16,2,1,4,1,4,1,4,32,none,True,False,,,unfused,0.3,"
    '"flags: num-experts=8, expert-model-parallel-size=4, expert-tensor-parallel-size=1"'
)


@pytest.fixture
def rows(tmp_path):
    def read(*lines):
        path = tmp_path / "rows.csv"
        path.write_text("\n".join([HEADER, *lines]) + "\n")
        return read_rows(path)

    return read


def flags(mapped):
    return " ".join(mapped.argv)


def test_a_megatron_row_becomes_the_megatron_example(rows):
    mapped = map_row(rows(MEGATRON)[0])
    assert isinstance(mapped, Mapped)
    assert (mapped.script, mapped.world, mapped.cluster.device.key) == (
        "megatron/pretrain_gpt.py",
        280,
        "a100_sxm",
    )
    for words in (
        "--tensor-model-parallel-size 8", "--pipeline-model-parallel-size 35", "--vocab-size 51200",
        "--num-layers-per-virtual-pipeline-stage 1", "--recompute-granularity full", "--fp16",
    ):  # fmt: skip
        assert words in flags(mapped)
    assert "--sequence-parallel" not in flags(mapped)


def test_a_row_has_what_its_megatron_of_that_year_waits_for(rows):
    earlier, later, newest = (
        flags(map_row(rows(MEGATRON.replace(",Megatron-LM,", f",{name},"))[0]))
        for name in ("Megatron-LM 2021-04", "Megatron-LM (Korthikanti et al. 2022)", "NeMo/Megatron-Core")
    )
    assert [("--timing-log-level 2" in each) for each in (earlier, later, newest)] == [True, True, False]
    exposed = "--no-async-tensor-model-parallel-allreduce"
    assert [(exposed in each) for each in (earlier, later, newest)] == [True, False, False]


def test_an_fsdp_row_becomes_the_fsdp_example_with_its_accumulation(rows):
    mapped = map_row(rows(FSDP)[0])
    assert isinstance(mapped, Mapped)
    assert mapped.script == "fsdp/train.py"
    assert "--accumulation-steps 2" in flags(mapped)  # 1024 / 64 / 8
    assert "--no-reshard-after-forward" in flags(mapped)


def test_a_torchtitan_row_has_its_tensor_parallelism_and_torchaos_fp8(rows):
    row = FSDP.replace("llm-foundry FSDP,MPT-7b", "torchtitan FSDP2 + torch.compile,Llama-3.1-8B").replace(
        "amp_bf16,1,1,64,1,,,8,1024", "float8 rowwise,8,1,8,1,,,16,256"
    )
    mapped = map_row(rows(row)[0])
    for words in (
        "--llama",
        "--compile",
        "--tensor-parallel 8",
        "--float8 rowwise",
        "--accumulation-steps 2",
    ):
        assert words in flags(mapped)  # 256 / (64 / 8) / 16
    assert "--unfused-norm" not in flags(mapped)  # the compiler makes one kernel of it
    assert "--unfused-norm" in flags(map_row(rows(row.replace(" + torch.compile", ""))[0]))
    shared = map_row(rows(row.replace("rowwise,8,1,8,1", "rowwise,8,1,4,2"))[0])
    for words in ("--context-parallel 2", "--accumulation-steps 4"):  # 256 / (64 / 8 / 2) / 16
        assert words in flags(shared)
    assert "--async-tensor-parallel" in flags(map_row(rows(row.replace("SHARD_GRAD_OP,", "FSDP,asyncTP"))[0]))
    assert "--async-tensor-parallel" not in flags(mapped)


def test_a_torchtitan_row_has_its_pipeline_whose_ranks_cut_the_batch(rows):
    row = FSDP.replace("llm-foundry FSDP,MPT-7b", "torchtitan FSDP2 + torch.compile,Llama-3.1-405B").replace(
        "amp_bf16,1,1,64,1,,,8,1024", "bf16,2,4,8,1,,,8,64"
    )
    mapped = map_row(rows(row)[0])
    for words in ("--pipeline-parallel 4", "--micro-batch-size 2", "--accumulation-steps 4"):
        assert words in flags(mapped)
    assert "--stages-a-rank" not in flags(mapped)
    assert "--stages-a-rank 2" in flags(map_row(rows(row + "Interleaved 1F1B")[0]))
    several = map_row(rows(row.replace("8,64", "8,128"))[0])  # given one after the other
    assert "--micro-batch-size 8 --accumulation-steps 2" in flags(several)
    assert "a batch of 6 sequences" in map_row(rows(row.replace("8,64", "6,48"))[0]).reason


def test_an_fsdp_row_has_what_its_software_of_that_year_took(rows):
    row = FSDP.replace("foundry-2,h100_80gb", "llm_foundry_fsdp_h100_a100-0001,{}")
    hopper, smaller = (map_row(rows(row.format(gpu))[0]) for gpu in ("h100_80gb", "a100_40gb"))
    assert "--fused-cross-entropy" in flags(hopper)
    assert hopper.software.scale.keys() == {"attention", "gemm"}
    assert smaller.software.scale.keys() == {"attention"}
    assert map_row(rows(FSDP)[0]).software.scale == {}


def test_an_internevo_row_has_its_flash_attention(rows):
    row = MEGATRON.replace("paper-1", "internevo_7b_a100-0001").replace("Megatron-LM", "InternEvo")
    assert map_row(rows(row)[0]).software.scale == SLOWER["llm_foundry_fsdp_h100_a100", "a100_sxm"]


def test_a_framework_with_zero_1_shards_its_optimizer(rows):
    named = MEGATRON.replace("Megatron-LM", "Megatron-LM + DeepSpeed 3D ZeRO-1")
    two = named.replace(",280,8,", ",560,8,", 1).replace("8,35,1,1", "8,35,2,1")
    sharded = [
        "--use-distributed-optimizer" in flags(map_row(rows(row)[0])) for row in (MEGATRON, named, two)
    ]
    assert sharded == [False, False, True]


def test_vtrains_rows_on_one_node_recompute_nothing_and_pad_no_vocabulary(rows):
    other, node, nodes = (
        flags(map_row(rows(MEGATRON.replace("paper-1", name))[0]))
        for name in ("paper-1", "vtrain_single_node_a100-0001", "vtrain_multi_node_a100-0001")
    )
    unpadded = "--make-vocab-size-divisible-by 1"
    assert [(unpadded in each) for each in (other, node, nodes)] == [False, True, False]
    assert [("--recompute-granularity full" in each) for each in (other, node, nodes)] == [True, False, True]


@pytest.mark.parametrize(("layers", "first", "last"), [(103, 2, 2), (102, 2, 1)])  # of 35 stages
def test_deepspeed_fills_stages_in_turn_with_embedding_and_loss_for_a_layer(rows, layers, first, last):
    bloom = MEGATRON.replace("Megatron-LM", "Megatron-DeepSpeed (BigScience BLOOM)")
    mapped = map_row(rows(bloom.replace(",105,20480", f",{layers},20480"))[0])
    assert layers == first + 33 * 3 + last
    stages = f"--decoder-first-pipeline-num-layers {first} --decoder-last-pipeline-num-layers {last}"
    assert stages in flags(mapped)


def test_kernels_of_software_before_pytorchs_compiler_take_what_their_bytes_do(rows):
    compiled = Kernel("triton_red_fused_sum_0", (12288, 1, 1), (512, 1, 1), bytes=8, work=Work(1, 0, 0, 1, 0))
    job = JobBuilder(1)
    job.number(compiled, 1)
    trace = job.build()
    of_2021 = map_row(rows(MEGATRON)[0])
    assert of_2021.as_measured(trace).operations == (replace(compiled, work=None),)
    newer = [FSDP, EXPERTS, MEGATRON.replace(",Megatron-LM,", ",NeMo/Megatron-Core,")]
    assert [map_row(row).as_measured(trace) for row in rows(*newer)] == [trace] * 3


def test_bloom_waits_for_each_kernel_as_its_scripts_did(rows):
    bloom = MEGATRON.replace("Megatron-LM", "Megatron-DeepSpeed (BigScience BLOOM)")
    other, blocking = (dict(map_row(rows(row)[0]).environment) for row in (MEGATRON, bloom))
    assert "CUDA_LAUNCH_BLOCKING" not in other and blocking["CUDA_LAUNCH_BLOCKING"] == "1"


def test_torchtitan_has_the_segments_of_its_launcher(rows):
    titan = FSDP.replace("llm-foundry FSDP", "torchtitan FSDP2")
    other, expandable = (dict(map_row(rows(row)[0]).environment) for row in (FSDP, titan))
    assert "PYTORCH_CUDA_ALLOC_CONF" not in other
    assert expandable == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def test_stages_of_unequal_layers_are_not_guessed(rows):
    bloom = MEGATRON.replace("Megatron-LM", "Megatron-DeepSpeed (BigScience BLOOM)")
    unknown, none_left = (
        map_row(rows(row.replace(",105,20480", f",{layers},20480"))[0]).reason
        for row, layers in ((MEGATRON, 103), (bloom, 101))
    )
    assert "does not state" in unknown and "none is left for the last" in none_left


def test_a_network_reaches_what_was_fitted_for_the_days_of_the_row(rows):
    bloom = MEGATRON.replace("paper-1", "bigscience_bloom_a100-1")
    notes = ("line 7", *(f"line 7, date {day}; checked" for day in ("02-20", "02-24", "02-25", "03-01")))
    undated, first, before, since, later = (
        map_row(rows(f'{bloom}"{note}"')[0]).cluster.node.nic.efficiency for note in notes
    )
    assert undated < first == before < since == later < 1


def test_a_row_with_deepspeeds_engine_exchanges_as_it_did_when_measured(rows):
    row = MEGATRON.replace("280,8,Megatron-LM,turing-530B,105", "288,8,Megatron-LM,GPT,108")
    row = row.replace(",8,35,1,1,,3,1,", ",8,36,1,1,,1,1,")
    june_2021, february_2022 = (
        flags(map_row(rows(row.replace(",Megatron-LM,", f",{framework},"))[0]))
        for framework in ("Megatron-LM + DeepSpeed 3D", "Megatron-DeepSpeed (BigScience BLOOM)")
    )
    assert "--deepspeed-pipeline whole-gradients" in june_2021
    assert "--deepspeed-pipeline parts" in february_2022
    assert not any("--timing-log-level" in each for each in (june_2021, february_2022))


def test_the_zero_stage_1_of_2021_and_2022_sums_gradients_whole_in_fp16(rows):
    row = MEGATRON.replace(",8,35,1,", ",8,17,2,").replace(",280,8,", ",272,8,").replace(",105,", ",102,")
    row = row.replace(",,3,1,", ",,1,1,").replace(",False,False,", ",False,ZeRO-1,")
    bloom = row.replace(",Megatron-LM,", ",Megatron-DeepSpeed (BigScience BLOOM),")
    bf16, alone = bloom.replace(",float16,", ",bf16,"), bloom.replace(",8,17,2,", ",8,34,1,")
    for each, whole in (
        (bloom.replace("float16", "fp16"), True),
        (bf16, False),
        (alone, False),
        (row, False),
    ):
        assert ("--all-reduce-gradients" in flags(map_row(rows(each)[0]))) is whole


def test_activations_are_partitioned_where_the_table_says_so(rows):
    for line, partitioned in (("213", True), ("228", False), ("2131", False)):
        row = rows(MEGATRON)[0]
        row.values["source_path"] = f"experiments/gpt2.md#L{line}"
        assert ("--distribute-saved-activations" in flags(map_row(row))) is partitioned


def test_a_functional_test_runs_with_what_its_configuration_states(rows):
    mapped = map_row(rows(EXPERTS)[0])
    for words in (
        "--num-experts 8", "--expert-model-parallel-size 4", "--expert-tensor-parallel-size 1", "--moe-router-topk 2",
        "--moe-router-load-balancing-type aux_loss", "--disable-bias-linear", "--moe-grouped-gemm",
        "--no-bias-gelu-fusion", "--deterministic-mode", "--log-params-norm", "--attention-backend unfused",
    ):  # fmt: skip
        assert words in flags(mapped)
    assert ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0") in mapped.environment
    unknown = map_row(rows(EXPERTS.replace("8experts", "many_experts"))[0])
    assert isinstance(unknown, Unmapped) and "not known: gpt3" in unknown.reason

    def named(test):
        return map_row(rows(EXPERTS.replace("gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4", test))[0])

    sharded = named("gpt3_mcore_te_tp2_zp_z3_resume_torch_dist_te_8experts2parallel_top2router")
    for words in ("--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params"):
        assert words in flags(sharded)
    further = named("gpt3_moe_mcore_te_tp4_ep2_etp2_pp2_scoped_cudagraph")
    for words in (
        "--mtp-num-layers 1", "--pipeline-model-parallel-layout Et|(tt|)*6mL", "--recompute-modules moe_act",
        "--cuda-graph-modules attn mlp moe_router moe_preprocess", "--moe-layer-freq ([0]*4+[1]*9)",
    ):  # fmt: skip
        assert words in flags(further)
    overlapped = named("gpt3_weekly_mcore_tp2_pp2_current_scaling_native_fp8_tp_pp_sp_tp_overlap")
    methods = json.loads(overlapped.argv[overlapped.argv.index("--tp-comm-overlap-cfg") + 1])
    assert methods["proj_fprop"] == {"method": "pipeline", "num_sm": 4, "num_splits": 4, "set_sm_margin": 0}
    assert ("UB_SKIPMC", "1") in overlapped.environment  # virtual devices have no multicast
    sharded_beside = named("deepseek_proxy_fsdp_ep2_fsdp2_ep_overlap")
    assert isinstance(sharded_beside, Unmapped) and "experts' communication" in sharded_beside.reason
    beside = named("gpt3_moe_mcore_te_tp2_pp2_ep4_etp1_fine_grained_offloading")
    for words in ("--overlap-moe-expert-parallel-comm", "--offload-modules expert_fc1 moe_act"):
        assert words in flags(beside)
    shared = named("gpt3_moe_mcore_te_ep8_resume_torch_dist_dist_muon")
    assert "--optimizer dist_muon" in flags(shared) and "--use-distributed-optimizer" not in flags(shared)


def test_a_functional_test_runs_with_what_was_stated_when_its_times_came(rows):
    folder = "tests/functional_tests/test_cases/moe/gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4"
    older, newer = rows(*(f"{EXPERTS},{folder}/golden_values_{of}_dgx_a100.json" for of in ("dev", "lts")))
    assert "--timing-log-level 2" in flags(map_row(older)) and "--timing-log-level 0" in flags(map_row(newer))
    instances = "--num-distributed-optimizer-instances 2"
    test = "gpt3_mcore_te_tp2_pp1_resume_torch_dist_te_8experts2parallel_multi_dist_optimizer_instances"
    path = f"tests/functional_tests/test_cases/moe/{test}/golden_values"
    row = EXPERTS.replace("gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4", test)
    without, with_them = rows(f"{row},{path}_lts_dgx_a100.json", f"{row},{path}_dev_dgx_a100.json")
    assert instances not in flags(map_row(without)) and instances in flags(map_row(with_them))


def test_experts_elsewhere_need_a_router(rows):
    unstated = map_row(rows(MEGATRON.replace("turing-530B", "mixture of 8 experts"))[0])
    assert isinstance(unstated, Unmapped) and "no router" in unstated.reason


def test_fp8_is_transformer_engines(rows, tmp_path, monkeypatch):
    (row,) = rows(MEGATRON.replace(",float16,", ",FP8,"))
    mapped = map_row(row)
    for words in ("--transformer-impl transformer_engine", "--fp8-format hybrid", "--bf16"):
        assert words in flags(mapped)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MayaError, match="scripts/transformer-engine builds"):
        require(mapped)
    (row,) = rows(FSDP.replace("llm-foundry FSDP", "torchtitan FSDP2").replace("amp_bf16", "float8"))
    with pytest.raises(MayaError, match="pip install torchao"):
        require(map_row(row))


@pytest.mark.parametrize(
    ("version", "model", "precision", "has", "lacks"),
    [
        ("v24.11.1", "Nemotron4 15b", "BF16", ["--no-check-for-nan-in-loss-and-grad", "--grad-reduce-in-bf16"], []),
        ("v25.02.02", "Nemotron4 15b", "FP8", ["--fp8-param-gather"], ["--grad-reduce-in-bf16"]),
        ("v25.02.02", "Llama3.1 8b", "BF16", ["--grad-reduce-in-bf16"], ["--fp8-param-gather"]),
        ("v25.04.02", "Llama3.1 8b", "BF16", ["--grad-reduce-in-bf16"], ["--no-check-for-nan", "-fusion-impl te"]),
        ("v25.05.05", "Nemotron4 15b", "BF16", ["-fusion-impl te", "--use-precision-aware"], []),
        ("v25.05.05", "Nemotron4 15b", "FP8", ["-fusion-impl te"], ["--use-precision-aware"]),
    ],
)  # fmt: skip
def test_nemo_runs_as_its_recipe_of_that_version_has_it(rows, version, model, precision, has, lacks):
    framework = f"NeMo/Megatron-Core (DGX Cloud recipe {version})"
    row = MEGATRON.replace(",Megatron-LM,", f",{framework},").replace("turing-530B", model)
    words = flags(map_row(rows(row.replace(",float16,", f",{precision},"))[0]))
    for flag in (*has, "--transformer-impl transformer_engine", "--ddp-average-in-collective", "--bf16"):
        assert flag in words
    for flag in lacks:
        assert flag not in words


def test_muon_is_nvidias(rows, monkeypatch):
    row = EXPERTS.replace(
        "gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4", "gpt3_moe_mcore_te_ep8_resume_torch_dist_muon"
    )
    mapped = map_row(rows(row)[0])
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "emerging_optimizers" else name
    )
    with pytest.raises(
        MayaError, match=r"pip install git\+https://github.com/NVIDIA-NeMo/Emerging-Optimizers"
    ):
        require(mapped)


def test_llm_foundrys_fp8_is_transformer_engines(rows, monkeypatch):
    mapped = map_row(rows(FSDP.replace("amp_bf16", "amp_fp8 / DEFAULT"))[0])
    assert "--float8 delayed" in flags(mapped)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MayaError, match="scripts/transformer-engine builds"):
        require(mapped)


@pytest.mark.skipif(importlib.util.find_spec("transformer_engine") is not None, reason="it is installed")
def test_a_row_whose_library_is_missing_is_run_when_the_table_is_taken_up_again(tmp_path):
    table, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    table.write_text(f"{HEADER}\n{MEGATRON.replace(',float16,', ',FP8,')}\n")
    examples = Path(__file__).parents[2] / "examples"
    for again in (1, 2):
        (line,) = validate(table, examples, out, workers=1).to_dict("records")
        assert (line["verdict"], "Transformer Engine is not installed" in line["reason"]) == ("NOT RUN", True)
        assert len(out.read_text().splitlines()) == 1 + again


def test_transformer_engine_needs_flash_attn_where_it_may_choose(rows, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "flash_attn" else name)
    unfused = rows(EXPERTS)[0]
    require(map_row(unfused))
    chooses = "gpt3_mcore_te_tp2_pp2_resume_torch_dist"
    (row,) = rows(EXPERTS.replace("gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4", chooses))
    with pytest.raises(MayaError, match="flash-attn is not installed"):
        require(map_row(row))


def test_a_gpu_has_the_memory_that_its_name_states(rows):
    names = ("h100_80gb", "a100_40gb", "H100 96GB HBM2e 2.4TB/s")
    full, smaller, larger = (
        map_row(rows(FSDP.replace("h100_80gb", name))[0]).cluster.device for name in names
    )
    assert (full.memory_bytes, full.memory_bandwidth) == pytest.approx((85.9e9, 3.35e12), rel=0.02)
    assert (smaller.memory_bytes, smaller.memory_bandwidth) == pytest.approx((42.5e9, 1.555e12), rel=0.02)
    assert (larger.memory_bytes, larger.memory_bandwidth) == pytest.approx((102e9, 2.4e12), rel=0.02)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((",A100-80GB-SXM,", ",TPU v4,"), "TPU v4"),
        ((",Megatron-LM,", ",JAX,"), "JAX"),
        ((",8,35,1,1,,", ",8,35,1,2,,"), "context parallelism"),
    ],
)
def test_a_row_that_cannot_be_mapped_says_why(rows, change, says):
    unmapped = map_row(rows(MEGATRON.replace(*change))[0])
    assert isinstance(unmapped, Unmapped)
    assert says in unmapped.reason


def test_a_table_without_the_needed_columns_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,gpu\n1,A100\n")
    with pytest.raises(RowError, match="columns are missing: gpus"):
        read_rows(path)


def test_a_measured_time_that_is_none_is_refused(rows):
    with pytest.raises(RowError, match=r"rows\.csv:2: iter_time_s"):
        rows(MEGATRON.replace("49.05", "fast"))


def measurements(*lines):
    """A table of (predicted, measured, tensor-parallel size), of equal work."""
    group = {"source": "s", "gpu": "g", "model": "m", "layers": 1, "hidden": 1, "seq": 1, "gpus": 8, "gbs": 8}
    return pd.DataFrame(
        [
            {
                **group,
                **dict.fromkeys(CONFIGURATION),
                "tp": tp,
                "predicted_iteration_time_s": predicted,
                "measured_iteration_time_s": measured,
            }
            for predicted, measured, tp in lines
        ]
    )


def test_errors_by_source_with_the_quality_of_the_choice():
    table = measurements((1.1, 1.0, 1), (0.9, 1.2, 2), (2.0, 2.0, 4), (None, 9.0, 8))
    (source, everything) = summarise_errors(table)
    assert (source.source, everything.source) == ("s", "all")
    assert (source.rows, source.predicted, source.groups) == (4, 3, 1)
    assert source.mape == pytest.approx((0.1 + 0.25 + 0.0) / 3)
    assert source.bias == pytest.approx((0.1 - 0.25) / 3)
    assert source.selection == pytest.approx(1.2)  # it ranks the second configuration first
    assert source.rank_correlation == pytest.approx(0.5)


def test_a_configuration_that_was_measured_again_is_one():
    (source, _) = summarise_errors(measurements((1.0, 1.0, 1), (1.0, 1.4, 1), (1.0, 1.2, 1), (2.0, 2.0, 2)))
    assert (source.rows, source.groups) == (4, 0)
    (source, _) = summarise_errors(measurements((1.0, 1.0, 1), (1.0, 1.4, 1), (1.1, 1.3, 2), (1.2, 1.1, 4)))
    assert source.groups == 1
    assert source.selection == pytest.approx(1.2 / 1.1)  # the mean of both measurements, over the best


def test_of_configurations_that_are_predicted_alike_any_may_be_chosen():
    (source, _) = summarise_errors(measurements((1.0, 1.0, 1), (1.0, 1.5, 2), (1.2, 1.1, 4)))
    assert source.selection == pytest.approx(1.25)


def test_reason_is_the_error_of_a_traceback_or_the_first_line() -> None:
    traceback = (
        "rank 3: Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\nKeyError: 'a'\n\n"
        "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        "torch._inductor.exc.InductorError: AssertionError: expected size 8==8\nSet TORCHDYNAMO_VERBOSE=1"
    )
    assert reason_of(traceback) == "torch._inductor.exc.InductorError: AssertionError: expected size 8==8"
    killed = (
        "rank 0: the process was killed (0.5 GiB are free now)\nRuntimeError: caught: and gone on\na warning"
    )
    assert reason_of(killed) == "rank 0: the process was killed (0.5 GiB are free now)"
    nccl = (
        "rank 1: Traceback (most recent call last):\ntorch.distributed.DistBackendError: NCCL error in: NCCLUtils:77\n"
        "ncclSystemError: System call (e.g. socket, malloc) failed.\nLast error:\nthe store is full"
    )
    assert reason_of(nccl) == "the store is full"
    assert reason_of("") == ""
    short = "rank 0: an allocation of 3.91 GiB found 2.21 GiB free of 79.65 GiB: 1.70 GiB short"
    assert reason_of(f"{short}. OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB.") == short


def test_what_memory_ran_out_says_by_how_much_whoever_asked_for_it(tmp_path: Path) -> None:
    nccl = "DistBackendError: NCCL error in: NCCLUtils:77\nLast error:\nCuda failure 2 'out of memory'"
    oom = OutOfMemory(3, 3 << 30, 1 << 30, 80 << 30, nccl)
    run = Run("oom", tmp_path, 8, 2, (0,) * 8, out_of_memory=oom, traceback="", failed_rank=3)
    message = unsimulated(run, Job("train.py", world=8), load("dgx-h100")).prediction.message
    assert "an allocation of 3.00 GiB found 1.00 GiB free of 80.00 GiB: 2.00 GiB short" in message
    assert reason_of(message).endswith("2.00 GiB short")  # what the script made of it is in the message


def test_of_pytorchs_words_stays_what_the_arithmetic_does_not_have(tmp_path: Path) -> None:
    pytorch = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 80.00 GiB of "
        "which 1.00 GiB is free. Including non-PyTorch memory, this process has 79.00 GiB memory in use. Of the "
        "allocated memory {} is allocated by PyTorch, and {} is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html)"
    )
    told = []
    for allocated, idle in (("78.00 GiB", "512.00 MiB"), ("74.50 GiB", "4.00 GiB")):
        oom = OutOfMemory(0, 3 << 30, 1 << 30, 80 << 30, pytorch.format(allocated, idle))
        run = Run("oom", tmp_path, 1, 1, (0,), out_of_memory=oom, traceback="", failed_rank=0)
        message = unsimulated(run, Job("train.py"), load("dgx-h100")).prediction.message
        arithmetic, said = message.split(" short. ")
        assert arithmetic.endswith("an allocation of 3.00 GiB found 1.00 GiB free of 80.00 GiB: 2.00 GiB")
        told.append(said)
    assert told == [
        "OutOfMemoryError: 78.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated",
        "OutOfMemoryError: 74.50 GiB is allocated by PyTorch, and 4.00 GiB is reserved by PyTorch but unallocated, "
        "which PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may make use of",
    ]


def test_hosts_of_an_image_have_a_speed_of_their_own(rows):
    test = "gpt3_mcore_te_tp2_pp2_resume_torch_dist"
    row = EXPERTS.replace("golden-3,H100", "megatron_lm_golden_h100_a100-0001,A100").replace(
        "gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4", test
    )
    path = f"tests/functional_tests/test_cases/gpt/{test}/golden_values"
    older, newer = map(map_row, rows(f"{row},{path}_dev_dgx_a100.json", f"{row},{path}_lts_dgx_a100.json"))
    assert older.cluster.host_speed < newer.cluster.host_speed


def test_a_file_that_holds_no_predictions_is_not_added_to(rows, tmp_path):
    rows(MEGATRON)
    table = tmp_path / "rows.csv"
    before = table.read_text()
    (tmp_path / "megatron").mkdir()
    with pytest.raises(MayaError, match=r"holds no predictions.*--out"):
        validate(table, tmp_path, out=table, recorded=True)
    assert table.read_text() == before
