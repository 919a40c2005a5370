"""The Megatron example refuses what Megatron would, with the arithmetic."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ARGUMENTS = Path(__file__).parents[2] / "examples/megatron/arguments.py"
MODEL = [
    "--num-layers", "4", "--hidden-size", "512", "--num-attention-heads", "8", "--seq-length", "512",
    "--micro-batch-size", "1", "--train-iters", "1", "--mock-data", "--bf16", "--disable-bias-linear",
]  # fmt: skip


@pytest.fixture
def parse(monkeypatch):
    """`parse(world, *flags)`: the arguments of a rank in a world of that size."""

    def parse(world, *flags):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setattr("sys.argv", ["pretrain_gpt.py", *MODEL, *flags])
        return runpy.run_path(str(ARGUMENTS))["parse_args"]()

    return parse


@pytest.mark.parametrize(
    ("world", "flags", "says"),
    [
        (2, "--expert-model-parallel-size 2", "need --num-experts"),
        (4, "--num-experts 6 --expert-model-parallel-size 4", "num-experts (6) is not divisible by"),
        (
            1,
            "--num-experts 4 --moe-router-topk 5",
            "moe-router-topk (5) is not between 1 and num-experts (4)",
        ),
        (4, "--num-experts 6 --expert-model-parallel-size 3", "(1) * expert-model-parallel-size (3) * "),
        (2, "--num-experts 4 --tensor-model-parallel-size 2", "needs --sequence-parallel"),
        (1, "--num-experts 4 --moe-grouped-gemm", "--moe-grouped-gemm needs --transformer-impl"),
        (1, "--num-experts 4 --moe-router-topk 1", "--moe-router-pre-softmax"),
        (1, "--num-experts 4 --moe-layer-freq ([0]*1+[1]*2)", "tells of 3 layers, num-layers is 4"),
        (1, "--num-experts 4 --moe-router-fusion", "need --transformer-impl transformer_engine"),
        (1, "--cuda-graph-impl transformer_engine", "--cuda-graph-impl needs --transformer-impl"),
        (
            4,
            "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Ett|tt|L",
            "3 stages of pipeline",
        ),
        (1, "--fp8-format hybrid", "--fp8-format needs --transformer-impl transformer_engine"),
        (2, "--use-megatron-fsdp", "--use-megatron-fsdp needs --transformer-impl transformer_engine"),
        (
            4,
            "--pipeline-model-parallel-size 4 --microbatch-group-size-per-virtual-pipeline-stage 2",
            "stage (2) is less than pipeline-model-parallel-size (4)",
        ),
        (
            4,
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2",
            "num-layers (4) - 2 of the first and last stage is not divisible by pipeline-model-parallel-size (4) - 1",
        ),
        (
            2,
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
            "--overlap-param-gather-with-optimizer-step",
            "needs --overlap-param-gather and virtual pipeline stages",
        ),
        (2, "--all-reduce-gradients", "needs --use-distributed-optimizer"),
        (
            2,
            "--all-reduce-gradients --use-distributed-optimizer --overlap-grad-reduce",
            "excludes --overlap-grad-reduce",
        ),
        (2, "--optimizer muon --use-distributed-optimizer", "muon has no --use-distributed-optimizer"),
        (
            2,
            "--num-experts 4 --overlap-moe-expert-parallel-comm --moe-token-dispatcher-type alltoall",
            "needs --expert-model-parallel-size of 2 or more (1)",
        ),
        (
            4,
            "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall "
            "--overlap-moe-expert-parallel-comm --pipeline-model-parallel-size 2",
            "needs virtual stages",
        ),
        (2, "--num-experts 4 --delay-wgrad-compute", "needs --transformer-impl transformer_engine"),
        (2, "--tp-comm-overlap-cfg {}", "--tp-comm-overlap-cfg needs --tp-comm-overlap"),
    ],
)
def test_what_cannot_be_is_refused(parse, world, flags, says):
    with pytest.raises(ValueError) as refused:
        parse(world, *flags.split())
    assert says in str(refused.value)


def test_an_expert_is_as_wide_as_the_layer_and_split_as_far_unless_told(parse):
    plain = parse(4, "--num-experts", "4", "--tensor-model-parallel-size", "2", "--sequence-parallel")
    assert (plain.moe_ffn_hidden_size, plain.expert_tensor_parallel_size) == (2048, 2)
    assert parse(1).expert_tensor_parallel_size == 1


def test_which_layers_have_experts_is_told_as_megatrons_tests_do(parse):
    def frequency(*flags):
        return parse(1, "--num-experts", "4", *flags).moe_layer_freq

    assert (frequency(), frequency("--moe-layer-freq", "2")) == (1, 2)
    assert frequency("--moe-layer-freq", "([0]*1+[1]*3)") == [0, 1, 1, 1]
    with pytest.raises(SystemExit):
        frequency("--moe-layer-freq", "([0]*1+exit()*3)")


def test_methods_of_overlap_are_a_file_or_stand_there(tmp_path, parse, capsys):
    methods = runpy.run_path(str(ARGUMENTS))["overlap_methods"]
    file = tmp_path / "overlap.yaml"
    file.write_text("fc1_dgrad:\n  method: bulk\n  num_sm: 2\n")
    assert methods(str(file)) == methods('{"fc1_dgrad": {"method": "bulk", "num_sm": 2}}')
    for wrong, says in (
        ("nowhere.yaml", "No such file"),
        ("{fc1_dgrad: bulk}", "no products"),
        ("{", "while parsing"),
    ):
        with pytest.raises(SystemExit):
            parse(2, "--tp-comm-overlap-cfg", wrong)
        assert says in capsys.readouterr().err


def test_a_layout_tells_how_many_virtual_stages_there_are(parse):
    def stages(layout):
        pipeline = ["--pipeline-model-parallel-size", "2", "--global-batch-size", "2"]
        args = parse(2, *pipeline, "--pipeline-model-parallel-layout", layout)
        return args.virtual_pipeline_model_parallel_size

    assert (stages("Ett|ttL"), stages("Et|(t|)*2tL")) == (None, 2)


def test_the_first_and_the_last_stage_may_have_other_layers_than_those_between(parse):
    stages = ["--pipeline-model-parallel-size", "4", "--decoder-first-pipeline-num-layers", "1",
              "--decoder-last-pipeline-num-layers", "1"]  # fmt: skip
    args = parse(4, *stages)
    assert (args.decoder_first_pipeline_num_layers, args.decoder_last_pipeline_num_layers) == (1, 1)
