"""`maya predict` on real scripts, with the real CUDA build of PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from maya.clusters import load
from maya.estimate import Estimator
from maya.simulate import build_network, simulate
from maya.trace import read_job
from maya.trace.split import unfold
from maya.trace.types import Gemm, Kernel

EXAMPLES = Path(__file__).parents[2] / "examples"

GPT = [
    "--layers", "4", "--hidden", "512", "--heads", "8", "--seq", "512", "--micro-batch-size", "2",
    "--accumulation-steps", "2", "--iterations", "500000",
]  # fmt: skip

MEGATRON = [
    "--num-layers", "4", "--hidden-size", "512", "--num-attention-heads", "8", "--seq-length", "512",
    "--max-position-embeddings", "512", "--vocab-size", "8192", "--micro-batch-size", "1",
    "--global-batch-size", "16", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2",
    "--bf16", "--train-iters", "500000", "--mock-data",
]  # fmt: skip


def breakdown_sums(prediction) -> None:
    breakdown = prediction["breakdown_s"]
    assert set(breakdown) == {"exposed_compute", "exposed_communication", "overlapped", "idle"}
    assert sum(breakdown.values()) == pytest.approx(prediction["iteration_time_s"], rel=1e-6)


def sent_bytes(prediction, collective: str) -> float:
    return sum(each["bytes"] for each in prediction["communication"] if each["collective"] == collective)


def computing_s(prediction) -> float:
    """Of the device, whatever the host took when it was recorded."""
    return prediction["breakdown_s"]["exposed_compute"] + prediction["breakdown_s"]["overlapped"]


def test_data_parallel_ranks_are_one_class_and_the_script_ends_by_itself(predict):
    prediction = predict(["--gpus", "4"], EXAMPLES / "gpt/train.py", *GPT)
    assert prediction["verdict"] == "FITS", prediction["message"]
    assert prediction["ranks"] == {"world": 4, "launched": 4, "checked": 0, "unique": 1}
    breakdown_sums(prediction)
    assert prediction["breakdown_s"]["exposed_communication"] > 0
    assert 0.02 < prediction["recording_host_speed"] < 20  # of the order of the reference
    assert sum(prediction["provenance"].values()) == pytest.approx(1.0)
    assert 0 < prediction["likely_error"]["median"] < prediction["likely_error"]["p90"]


ADDS_UP_EVERY_SECOND = """
import torch
net = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
halves = [net[:4], net[4:]]
optimizers = [torch.optim.SGD(half.parameters(), lr=0.1) for half in halves]
for iteration in range(500_000):
    net(torch.randn(8192, 2048, device="cuda")).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if iteration % 2 == 0:
        norm = sum(parameter.norm() for parameter in net.parameters())
"""


def test_an_iteration_is_one_where_every_second_one_does_more(maya, tmp_path):
    predictions = []
    for number, does in enumerate(("iteration % 2 == 0", "False")):
        script = tmp_path / f"train{number}.py"
        script.write_text(ADDS_UP_EVERY_SECOND.replace("iteration % 2 == 0", does))
        assert maya("trace", "--gpus", 1, "--out", f"{number}", "--", script).returncode == 0
        done = maya("simulate", tmp_path / f"{number}", "--json", f"{number}.json")
        assert done.returncode == 0, done.stderr
        predictions.append(json.loads((tmp_path / f"{number}.json").read_text()))
    second, never = predictions
    assert [read_job(tmp_path / name).iterations_per_cycle for name in "01"] == [2, 1]
    breakdown_sums(second)
    assert second["breakdown_s"]["exposed_compute"] == pytest.approx(
        never["breakdown_s"]["exposed_compute"], rel=0.1
    )
    assert sum(second["critical_path_s"].values()) == pytest.approx(second["iteration_time_s"], rel=1e-6)
    assert any("only every second iteration is alike" in note for note in second["notes"])
    assert not any("second iteration is alike" in note for note in never["notes"])


STEPS_PARTS = """
import torch
net = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
parts = [list(part.parameters()) for part in (net[:4], net[4:6], net[6:])]
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
optimizers = [torch.optim.SGD(part, lr=0.1) for part in parts]
for iteration in range(500_000):
    net(torch.randn(8192, 2048, device="cuda")).sum().backward()
    STEP
    net.zero_grad()
"""


@pytest.mark.parametrize(
    "step",
    (
        "[optimizer.param_groups[0].update(params=part) or optimizer.step() for part in parts]",
        "[one.step() for one in optimizers]",
    ),
    ids=("an optimizer steps part by part", "an optimizer for each part"),
)
def test_an_iteration_ends_once_all_parts_have_had_their_step(predict, tmp_path, step):
    for name, does in (("parts", step), ("whole", "optimizer.step()")):
        (tmp_path / f"{name}.py").write_text(STEPS_PARTS.replace("STEP", does))
    by_part, at_once = (predict(["--gpus", "1"], tmp_path / f"{name}.py") for name in ("parts", "whole"))
    assert by_part["breakdown_s"]["exposed_compute"] == pytest.approx(
        at_once["breakdown_s"]["exposed_compute"], rel=0.1
    )
    assert not any("iteration is alike" in note for note in by_part["notes"])


def test_variables_of_nccl_that_are_not_heeded_are_said(predict, monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    prediction = predict(["--gpus", "4"], EXAMPLES / "gpt/train.py", *GPT)
    (note,) = (note for note in prediction["notes"] if "NCCL_" in note)
    assert "NCCL_ALGO=Tree" in note and "NCCL_DEBUG" not in note


def test_fused_cross_entropy_saves_fsdp_the_logits_in_fp32(predict):
    fsdp = ["--layers", "2", "--hidden", "256", "--heads", "4", "--seq", "1024", "--vocab", "32768"]
    peaks = []
    for own in ([], ["--fused-cross-entropy"]):
        prediction = predict(
            ["--gpus", "4"], EXAMPLES / "fsdp/train.py", *fsdp, "--iterations", "500000", *own
        )
        assert prediction["verdict"] == "FITS", prediction["message"]
        assert prediction["ranks"]["unique"] == 1
        peaks.append(prediction["peak_memory_bytes"]["max"])
    tokens, classes = 2 * 1024, 32768
    assert peaks[0] - peaks[1] >= 4 * tokens * classes


def test_fsdp_with_tensor_parallelism_sends_8_bits_where_torchao_casts_before(predict):
    llama = [
        "--llama", "--layers", "2", "--hidden", "512", "--heads", "4", "--kv-heads", "2", "--seq", "1024",
        "--vocab", "4096", "--tensor-parallel", "2", "--iterations", "500000",
    ]  # fmt: skip
    gathered = []
    for own in ([], ["--float8", "tensorwise"]):
        prediction = predict(["--gpus", "4"], EXAMPLES / "fsdp/train.py", *llama, *own)
        assert prediction["verdict"] == "FITS", prediction["message"]
        assert prediction["ranks"]["world"] == 4
        breakdown_sums(prediction)
        gathered.append(sent_bytes(prediction, "all_gather"))
    assert (
        0.4 < gathered[1] / gathered[0] < 0.75
    )  # all but gradients, norms' inputs and what FSDP keeps whole


def test_stages_of_fsdp_interleave_where_nothing_waits_behind_a_receive(predict):
    """PyTorch launches receives long before they are met, and they hold up what is sent behind them
    (pytorch/pytorch#188833): two stages a rank idle as long as one does. Exchanged step by step they idle less."""
    stages, micro_batches = 4, 4
    llama = [
        "--llama", "--layers", "8", "--hidden", "4096", "--heads", "32", "--seq", "4096", "--vocab", "4096",
        "--micro-batch-size", "1", "--accumulation-steps", str(micro_batches), "--pipeline-parallel", str(stages),
        "--iterations", "500000",
    ]  # fmt: skip
    one, two, step_by_step = (
        predict(["--gpus", "4"], EXAMPLES / "fsdp/train.py", *llama, *own)
        for own in ([], ["--stages-a-rank", "2"], ["--stages-a-rank", "2", "--step-by-step"])
    )
    for prediction in (one, two, step_by_step):
        assert prediction["verdict"] == "FITS", prediction["message"]
        breakdown_sums(prediction)
    bubble = (stages - 1) / (micro_batches + stages - 1)  # of 1F1B
    assert one["pipeline_bubble"] == pytest.approx(bubble, abs=0.04)
    assert two["pipeline_bubble"] == pytest.approx(bubble, abs=0.04)
    assert step_by_step["pipeline_bubble"] < bubble - 0.06


def test_fsdp_with_asynchronous_tensor_parallelism_copies_instead_of_gathering(predict):
    llama = [
        "--llama", "--layers", "2", "--hidden", "512", "--heads", "4", "--kv-heads", "4", "--seq", "1024",
        "--vocab", "4096", "--tensor-parallel", "4", "--iterations", "500000", "--compile",
    ]  # fmt: skip
    gathered = []
    for own in ([], ["--async-tensor-parallel"]):
        prediction = predict(["--gpus", "4"], EXAMPLES / "fsdp/train.py", *llama, *own)
        assert prediction["verdict"] == "FITS", prediction["message"]
        breakdown_sums(prediction)
        assert bool(own) == any("symmetric memory" in note for note in prediction["notes"])
        gathered.append(sent_bytes(prediction, "all_gather"))
    assert gathered[1] < gathered[0] / 2  # what only the loss gathers, and what no product follows


@pytest.mark.parametrize("own", [[], ["--compile", "--tensor-parallel", "2"]], ids=["alone", "compiled"])
def test_fsdp_with_context_parallelism_passes_keys_and_values_around(predict, own):
    llama = [
        "--llama",
        "--layers",
        "2",
        "--hidden",
        "512",
        "--heads",
        "4",
        "--kv-heads",
        "2",
        "--seq",
        "2048",
    ]
    llama += ["--vocab", "4096", "--iterations", "500000", "--recompute", "full"]
    whole, shared = (
        predict(["--gpus", "4"], EXAMPLES / "fsdp/train.py", *llama, *own, "--context-parallel", str(ranks))
        for ranks in (1, 2)
    )
    for prediction in (whole, shared):
        assert prediction["verdict"] == "FITS", prediction["message"]
        breakdown_sums(prediction)
    cluster = load("dgx-h100")  # NCCL takes memory for the communicator of the ring and its one peer
    ring = cluster.device.communicator_bytes + cluster.node.peer_bytes
    taken = [prediction["peak_memory_bytes"]["max"] for prediction in (whole, shared)]
    assert taken[1] - ring < taken[0]  # half of the activations
    sent = {each["collective"]: each["bytes"] for each in shared["communication"]}
    assert sent["send"] == sent["recv"] > 0  # gradients of keys and values ring


def test_a_norm_in_parts_moves_its_activations_more_often(predict):
    llama = ["--llama", "--layers", "2", "--hidden", "1024", "--seq", "4096", "--vocab", "4096"]
    computing = [
        computing_s(
            predict(["--gpus", "2"], EXAMPLES / "fsdp/train.py", *llama, "--iterations", "500000", *own)
        )
        for own in ([], ["--unfused-norm"])
    ]
    activations = 2 * 4096 * 1024  # elements
    moved = 5 * activations * 10 * 4  # of five norms, at least ten times forward and backward in fp32
    assert computing[1] - computing[0] > moved / 3.35e12


def test_embedding_tables_take_less_where_a_batch_looks_rows_up_again(maya, tmp_path):
    options = ["--rows", "4000000", "500000", "--tables-of-each", "2", "--batch-size", "512"]
    script = EXAMPLES / "dlrm/train.py"
    indices = tmp_path / "indices"
    recorded = maya(
        "trace", "--gpus", "2", "--out", "trace", "--", script, *options, "--write-indices", indices
    )
    assert recorded.returncode == 0, recorded.stderr
    (tmp_path / "lookups.yaml").write_text(
        "- {table: [4000000, 128], indices: indices/table-0.npy}\n"
        "- {table: [500000, 128], indices: indices/table-2.npy}\n"
    )

    def simulated(*more):
        completed = maya("simulate", "trace", "--scale", "host=0.01", *more, "--json", "told.json")
        assert completed.returncode == 0, completed.stderr
        return json.loads((tmp_path / "told.json").read_text())

    told, untold = simulated("--lookups", "lookups.yaml"), simulated()
    assert untold["verdict"] == "FITS", untold["message"]
    assert {"send", "all_reduce"} <= {entry["collective"] for entry in untold["communication"]}
    assert told["iteration_time_s"] < untold["iteration_time_s"]
    assert not any("lookups file" in note for note in told["notes"])


def test_megatron_with_tensor_and_pipeline_parallelism(predict):
    prediction = predict(["--gpus", "8"], EXAMPLES / "megatron/pretrain_gpt.py", *MEGATRON)
    assert prediction["verdict"] == "FITS", prediction["message"]
    assert prediction["ranks"]["world"] == 8
    assert prediction["ranks"]["unique"] <= 4
    breakdown_sums(prediction)


def test_megatron_that_predicts_further_tokens(predict):
    script = EXAMPLES / "megatron/pretrain_gpt.py"
    one, two = (
        predict(["--gpus", "8"], script, *MEGATRON, *more)
        for more in ([], ["--mtp-num-layers", "1", "--log-interval", "1"])
    )
    assert two["verdict"] == "FITS", two["message"]
    assert computing_s(two) > computing_s(one)


def test_megatron_with_embedding_and_loss_for_a_layer_each(predict):
    megatron = [*MEGATRON, "--num-layers", "6", "--pipeline-model-parallel-size", "4"]
    split = [f"--account-for-{end}-in-pipeline-split" for end in ("embedding", "loss")]
    prediction = predict(["--gpus", "8"], EXAMPLES / "megatron/pretrain_gpt.py", *megatron, *split)
    assert prediction["verdict"] == "FITS", prediction["message"]
    whole, first = (prediction["breakdown_by_rank_s"][rank]["exposed_compute"] for rank in ("2", "0"))
    assert whole > first  # two layers against one and the embedding


def test_megatron_as_it_was_before_2022(predict):
    script, options = EXAMPLES / "megatron/pretrain_gpt.py", ["--gpus", "8"]
    today = predict(options, script, *MEGATRON)
    earlier = predict(
        options, script, *MEGATRON, "--no-async-tensor-model-parallel-allreduce", "--timing-log-level", "2",
        "--no-barrier-with-level-1-timing", "--scatter-gather-tensors-in-pipeline", "--log-interval", "1",
    )  # fmt: skip
    assert earlier["verdict"] == "FITS", earlier["message"]
    sent, whole = (
        {each["bytes"] for each in prediction["communication"] if each["collective"] == "send"}
        for prediction in (earlier, today)
    )
    assert sent == {bytes / 2 for bytes in whole}  # of each rank: one of two shares


@pytest.mark.parametrize(("gradients", "share"), [("parts", 1 / 2), ("whole-gradients", 3 / 4)])
def test_megatron_whose_stages_exchange_as_deepspeeds_engine_has_them(predict, gradients, share):
    script, options = EXAMPLES / "megatron/pretrain_gpt.py", ["--gpus", "8"]
    whole, engines = (
        predict(options, script, *MEGATRON, *more) for more in ([], ["--deepspeed-pipeline", gradients])
    )
    assert engines["verdict"] == "FITS", engines["message"]
    sent, before = (sent_bytes(prediction, "send") for prediction in (engines, whole))
    assert sent == pytest.approx(share * before, rel=0.01)  # of two tensor ranks each; and shapes


def test_megatron_whose_ranks_get_all_gradients_for_an_optimizer_that_is_sharded(predict):
    script, sharded = EXAMPLES / "megatron/pretrain_gpt.py", [*MEGATRON, "--use-distributed-optimizer"]
    shares, whole = (
        predict(["--gpus", "8"], script, *sharded, *more) for more in ([], ["--all-reduce-gradients"])
    )
    assert whole["verdict"] == "FITS", whole["message"]
    assert sent_bytes(shares, "reduce_scatter") > 0 == sent_bytes(whole, "reduce_scatter")
    assert sent_bytes(whole, "all_gather") == sent_bytes(shares, "all_gather")
    added = sent_bytes(whole, "all_reduce") - sent_bytes(shares, "all_reduce")
    assert added == sent_bytes(shares, "reduce_scatter")  # of the whole gradients, either way


def test_megatron_that_compares_its_norms_between_ranks(predict):
    script, megatron = EXAMPLES / "megatron/pretrain_gpt.py", [*MEGATRON, "--qk-layernorm"]
    trusting, comparing = (
        predict(["--gpus", "8"], script, *megatron, *more) for more in ([], ["--test-mode"])
    )
    assert comparing["verdict"] == "FITS", comparing["message"]
    gathered, before = (
        sum(each["calls"] for each in prediction["communication"] if each["collective"] == "all_gather")
        for prediction in (comparing, trusting)
    )
    assert gathered > before


def test_megatron_that_reports_each_iteration(predict):
    script, options = EXAMPLES / "megatron/pretrain_gpt.py", ["--gpus", "8"]
    silent = predict(options, script, *MEGATRON)
    reporting = predict(
        options, script, *MEGATRON, "--log-interval", "1", "--log-params-norm", "--log-num-zeros-in-grad",
        "--deterministic-mode",
    )  # fmt: skip
    assert reporting["verdict"] == "FITS", reporting["message"]
    assert reporting["ranks"]["launched"] == 8 and reporting["ranks"]["unique"] <= 5
    assert not any("the script failed" in note for note in reporting["notes"])
    assert computing_s(reporting) > computing_s(silent)


@pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is None, reason="scripts/transformer-engine builds it"
)
def test_megatron_in_fp8_with_transformer_engine(maya, tmp_path):
    model = ["--num-layers", "2", "--hidden-size", "1024", "--num-attention-heads", "8", "--seq-length", "1024",
             "--vocab-size", "4096", "--micro-batch-size", "2", "--bf16", "--train-iters", "500000", "--mock-data",
             "--tensor-model-parallel-size", "2", "--sequence-parallel", "--transformer-impl", "transformer_engine",
             "--fp8-format", "hybrid"]  # fmt: skip
    script = EXAMPLES / "megatron/pretrain_gpt.py"
    completed = maya("trace", "--gpus", 2, "--out", "trace", "--", script, *model)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    trace = read_job(tmp_path / "trace")
    types = {each.dtype for each in trace.operations if isinstance(each, Gemm)}
    assert any(dtype.startswith("fp8") for dtype in types)
    casts = [each for each in trace.operations if isinstance(each, Kernel) and "cast_transpose" in each.name]
    assert casts and all(each.bytes for each in casts)


@pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is None, reason="scripts/transformer-engine builds it"
)
def test_megatrons_own_fsdp_gathers_what_it_sharded(predict):
    layers, hidden, script = 4, 512, EXAMPLES / "megatron/pretrain_gpt.py"
    model = ["--num-layers", str(layers), "--hidden-size", str(hidden), "--num-attention-heads", "8",
             "--seq-length", "512", "--vocab-size", "4096", "--micro-batch-size", "1", "--global-batch-size", "2",
             "--bf16", "--train-iters", "500000", "--mock-data", "--transformer-impl", "transformer_engine",
             "--use-distributed-optimizer", "--no-gradient-accumulation-fusion"]  # fmt: skip
    gathered, reduced = [], []
    for own in ([], ["--use-megatron-fsdp"]):
        prediction = predict(["--gpus", "2"], script, *model, *own)
        assert prediction["verdict"] == "FITS", prediction["message"]
        moved = Counter()
        for each in prediction["communication"]:
            moved[each["collective"]] += each["bytes"]
        gathered.append(moved["all_gather"])
        reduced.append(moved["reduce_scatter"])
    weights = 2 * layers * 12 * hidden**2  # bytes, of the layers
    assert (
        gathered[1] - gathered[0] > 0.9 * weights
    )  # for the forward pass and once more for the backward pass
    assert reduced[0] > 0 < reduced[1]


@pytest.mark.skipif(
    importlib.util.find_spec("emerging_optimizers") is None,
    reason="NVIDIA's Emerging-Optimizers is not on PyPI",
)
def test_muon_orthogonalises_each_layer_once_where_ranks_share_them(predict):
    script = EXAMPLES / "megatron/pretrain_gpt.py"
    adam, everywhere, shared = (
        predict(["--gpus", "4"], script, *MEGATRON, "--tensor-model-parallel-size", "1", "--optimizer", name)
        for name in ("adam", "muon", "dist_muon")
    )
    assert shared["verdict"] == "FITS", shared["message"]
    assert shared["ranks"]["unique"] == 4 > everywhere["ranks"]["unique"]  # each has other layers
    assert computing_s(adam) < computing_s(shared) < computing_s(everywhere)


def test_megatrons_tokens_travel_beside_another_micro_batch(maya, tmp_path):
    model = ["--num-layers", "2", "--hidden-size", "2048", "--num-attention-heads", "16", "--seq-length", "2048",
             "--vocab-size", "4096", "--micro-batch-size", "4", "--global-batch-size", "16", "--bf16", "--mock-data",
             "--train-iters", "500000", "--disable-bias-linear", "--no-bias-gelu-fusion", "--num-experts", "4",
             "--expert-model-parallel-size", "2", "--moe-token-dispatcher-type", "alltoall"]  # fmt: skip

    def breakdown(name, *more):
        traced = maya(
            "trace", "--gpus", 2, "--out", name, "--", EXAMPLES / "megatron/pretrain_gpt.py", *model, *more
        )
        assert traced.returncode == 0, traced.stdout + traced.stderr
        simulated = maya("simulate", name, "--scale", "host=0.01", "--json", "told.json")
        assert simulated.returncode == 0, simulated.stderr
        return json.loads((tmp_path / "told.json").read_text())["breakdown_s"]

    alone, beside = breakdown("alone"), breakdown("beside", "--overlap-moe-expert-parallel-comm")
    assert alone["overlapped"] == 0 < beside["overlapped"]
    assert beside["exposed_communication"] < 0.7 * alone["exposed_communication"]


def matrix_products(maya, tmp_path, gpus, script, *arguments):
    """How often a rank's iteration has a matrix product of each (m, n, k), and the trace's notes."""
    completed = maya("trace", "--gpus", gpus, "--out", "trace", "--", script, *arguments)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    trace = read_job(tmp_path / "trace")
    assert trace.uncovered == ()
    (rank,) = trace.ranks
    launched = (trace.operations[index] for index in rank.records["operation"].tolist() if index >= 0)
    return Counter((each.m, each.n, each.k) for each in launched if isinstance(each, Gemm)), trace.notes


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_each_expert_gets_its_share_of_the_tokens(maya, tmp_path, dispatcher):
    experts = ["--num-experts", "8", "--expert-model-parallel-size", "2", "--moe-router-topk", "2",
               "--moe-ffn-hidden-size", "320", "--moe-token-dispatcher-type", dispatcher]  # fmt: skip
    model = ["--num-layers", "2", "--hidden-size", "256", "--num-attention-heads", "4", "--seq-length", "1024",
             "--vocab-size", "4096", "--micro-batch-size", "16", "--bf16", "--train-iters", "500000", "--mock-data",
             "--disable-bias-linear"]  # fmt: skip
    products, notes = matrix_products(
        maya, tmp_path, 4, EXAMPLES / "megatron/pretrain_gpt.py", *model, *experts
    )
    tokens = 2 * (16 * 1024) * 2 // 8  # two ranks' tokens, each to 2 of 8 experts
    into_experts = {shape: count for shape, count in products.items() if 320 in shape}
    assert set(into_experts) == {
        (320, tokens, 256),
        (256, tokens, 320),
        (256, 320, tokens),
        (320, 256, tokens),
    }
    assert any("taken to be balanced" in note for note in notes)


def test_experts_in_plain_pytorch_get_their_share(maya, tmp_path, script):
    path = script(
        textwrap.dedent("""\
        import torch
        from torch import nn
        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.router = nn.Linear(256, 8)
                self.experts = nn.ModuleList(nn.Linear(256, 320) for _ in range(8))
            def forward(self, x):
                weight, picked = self.router(x).softmax(-1).topk(2)
                out = x.new_zeros(len(x), 320)
                for index, expert in enumerate(self.experts):
                    token, choice = torch.where(picked == index)
                    out.index_add_(0, token, weight[token, choice, None] * expert(x[token]))
                return out
        model = Experts().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        while True:
            model(torch.randn(4096, 256, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """)
    )
    products, notes = matrix_products(maya, tmp_path, 1, path)
    assert {shape: count for shape, count in products.items() if 320 in shape} == {
        (320, 1024, 256): 8, (256, 320, 1024): 8,
    }  # fmt: skip
    assert any("taken to be balanced" in note for note in notes)


def test_all_reports_are_written(maya, tmp_path):
    completed = maya(
        "predict", "--gpus", "2", "--json", "p.json", "--perfetto", "p.trace.json", "--html", "p.html",
        "--", EXAMPLES / "gpt/train.py", *GPT,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    assert json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"]
    assert "<html" in (tmp_path / "p.html").read_text()


def simulated(change, directory):
    cluster = load("dgx-h100")
    trace = change(read_job(directory))
    estimates = Estimator(cluster).estimate(trace.operations)
    network = build_network(trace, estimates.use, cluster)
    return simulate(trace, estimates.seconds, cluster, network=network).iteration_end_ns.tolist()


def test_a_trace_simulated_twice_gives_the_same_bits(maya, tmp_path):
    wide = [
        *GPT,
        "--hidden",
        "2048",
        "--heads",
        "16",
        "--micro-batch-size",
        "8",
    ]  # bound by the device, not the host
    own = tmp_path / "own.yaml"
    own.write_text("extends: dgx-h100\nname: own\nhost_speed: 0.7\n")
    traced = ["--cluster", own, "--gpus", "2", "--out", "trace"]
    completed = maya("trace", *traced, "--", EXAMPLES / "gpt/train.py", *wide)
    assert completed.returncode == 0, completed.stderr
    own.unlink()  # the trace has it
    for name in ("a.json", "b.json"):
        assert maya("simulate", "trace", "--json", name).returncode == 0
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert first["iterations_s"] == second["iterations_s"]
    assert maya("simulate", "trace", "--cluster", "dgx-a100", "--json", "c.json").returncode == 0
    slower = json.loads((tmp_path / "c.json").read_text())
    assert slower["iteration_time_s"] > first["iteration_time_s"]
    merged, apart = (simulated(job, tmp_path / "trace") for job in (lambda trace: trace, unfold))
    assert merged == apart
    questions = ("--scale", "gemm=0.5", "--link", "nvlink=2x", "--slow-rank", "1=2")
    assert maya("simulate", "trace", *questions, "--json", "d.json").returncode == 0
    changed = json.loads((tmp_path / "d.json").read_text())
    assert changed["ranks"]["unique"] == 2
    assert changed["iteration_time_s"] != first["iteration_time_s"]
    small = tmp_path / "small.yaml"
    small.write_text("extends: dgx-h100\ndevice: {memory_bytes: 1.0e+9}\n")
    assert maya("simulate", "trace", "--cluster", small, "--json", "e.json").returncode == 0
    beyond = json.loads((tmp_path / "e.json").read_text())
    assert beyond["verdict"] == "INCOMPLETE" and beyond["peak_memory_bytes"]["capacity"] == 1_000_000_000
    assert "GiB more than the 0.93 GiB of" in beyond["message"]
    (tmp_path / "trace" / "cluster.json").unlink()
    assert "Give --cluster" in maya("simulate", "trace").stderr
    refused = maya("simulate", "trace", "--cluster", "dgx-h100", "--slow-rank", "2=2")
    assert refused.returncode == 2
    assert "--slow-rank 2: the job has ranks 0 to 1" in refused.stderr


def test_out_of_memory_names_rank_allocation_and_shortfall(maya, tmp_path):
    completed = maya(
        "predict", "--json", "p.json", "--", EXAMPLES / "gpt/train.py",
        "--layers", "40", "--hidden", "6144", "--heads", "48", "--seq", "2048",
    )  # fmt: skip
    assert completed.returncode == 3, completed.stdout + completed.stderr
    prediction = json.loads((tmp_path / "p.json").read_text())
    assert prediction["verdict"] == "OOM"
    assert prediction["shortfall_bytes"] > 0
    for word in ("rank 0", "GiB short. OutOfMemoryError: ", "GiB is allocated by PyTorch, and "):
        assert word in prediction["message"]
    assert prediction["message"].count("GiB free of") == 1 and len(prediction["message"]) < 220


def test_a_script_that_raises_shows_its_own_traceback(maya, script):
    path = script("def helper():\n    raise ValueError('seven')\n\nhelper()\n")
    completed = maya("predict", "--", path)
    assert completed.returncode == 4
    assert "ValueError: seven" in completed.stdout
    assert f'File "{path}", line 2, in helper' in completed.stdout
    assert "maya/launch" not in completed.stdout


@pytest.mark.parametrize("text", ["print('usage: train.py --steps N')", "raise SystemExit(0)"])
def test_a_script_that_ends_without_work_for_a_device_has_no_time(maya, script, text):
    completed = maya("predict", "--no-cache", script(text))
    assert completed.returncode == 4 and completed.stdout.startswith("FAILED\n")
    assert "without any work for a device" in completed.stdout


def test_a_trace_without_work_for_a_device_is_none(maya, script, tmp_path):
    completed = maya("trace", "--out", "trace", "--", script("print('usage: train.py --steps N')"))
    assert completed.returncode == 4 and "without any work for a device" in completed.stdout
    assert maya("simulate", "trace").returncode == 2


def test_a_trace_is_not_overwritten(maya, script, tmp_path):
    path = script("import torch\ntorch.ones(8, device='cuda').add_(1)\n")
    assert maya("trace", "--out", "trace", "--", path).returncode == 0
    before = {file: file.read_bytes() for file in (tmp_path / "trace").iterdir()}
    for command in ("trace", "predict"):
        refused = maya(command, "--out", "trace", "--", path)
        assert refused.returncode == 2
        assert refused.stderr == (
            "maya: trace: holds a trace already; give another folder, or remove that one (rm -r trace)\n"
        )
    assert {file: file.read_bytes() for file in (tmp_path / "trace").iterdir()} == before


def test_what_shows_a_simulation_is_told_to_be_missing_where_there_is_none(maya, script, tmp_path):
    (tmp_path / "old.html").write_text("of a prediction before")
    asked = ["--json", "new.json", "--perfetto", "new.pf", "--html", "old.html"]
    completed = maya("predict", *asked, script("raise ValueError"))
    assert (
        completed.returncode == 4 and json.loads((tmp_path / "new.json").read_text())["verdict"] == "FAILED"
    )
    perfetto, html = completed.stderr.splitlines()
    assert perfetto == "maya: new.pf: not written, for nothing was simulated"
    assert html.endswith("what it holds is of an earlier prediction")


def test_a_script_that_exits_with_a_status_has_failed(maya, script):
    completed = maya("predict", "--", script("import sys\nsys.exit(7)\n"))
    assert completed.returncode == 4
    assert "7" in completed.stdout


@pytest.fixture
def cpu_only(tmp_path):
    """An environment whose PyTorch is a CPU-only build."""
    package = tmp_path / "site/torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    (package / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def test_a_cpu_only_torch_is_refused_before_anything_runs(maya, script, cpu_only):
    completed = maya("predict", "--", script("print('ran')"), environment=cpu_only)
    assert completed.returncode == 2
    assert "2.13.0+cpu" in completed.stderr and "CPU-only" in completed.stderr
    assert "ran" not in completed.stdout


def test_a_search_with_a_cpu_only_torch_is_refused_before_anything_is_written(
    maya_search, cpu_only, tmp_path
):
    space = EXAMPLES / "megatron/space.yaml"
    completed = maya_search("--space", space, "--out", "out", EXAMPLES / "gpt/train.py", environment=cpu_only)
    assert completed.returncode == 2
    assert "CPU-only" in completed.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "--", "missing.py"], "missing.py"),
        (["predict", "--cluster", "dgx-z9", "--", __file__], "dgx-z9"),
        (["predict", "--gpus", "0", "--", __file__], "--gpus"),
        (["simulate", "nowhere"], "nowhere"),
        (["predict", "--lookups", "nowhere.yaml", "--", __file__], "nowhere.yaml"),
    ],
)
def test_bad_usage_is_one_clear_error(maya, arguments, says):
    completed = maya(*arguments)
    assert completed.returncode == 2
    assert says in completed.stderr
    assert "Traceback" not in completed.stderr


def test_clusters_and_doctor_describe_this_installation(maya):
    listed = maya("clusters")
    assert listed.returncode == 0
    for name in ("dgx-h100", "dgx-h200", "dgx-a100", "dgx-v100", "a40-8", "dgx-b200"):
        assert name in listed.stdout
    doctor = maya("doctor")
    assert doctor.returncode == 0, doctor.stdout
    for word in ("implemented", "accepted", "refused", "2."):
        assert word in doctor.stdout


def test_a_failure_names_the_refused_calls_before_it(maya, script, tmp_path):
    path = script("import torch\nx = torch.eye(8).to_sparse_csr().cuda()\nx @ x")
    for _ in range(2):  # run, and as it was recorded
        completed = maya(
            "predict", "--json", "failed.json", path, environment=os.environ | {"MAYA_CACHE": str(tmp_path)}
        )
        failed = json.loads((tmp_path / "failed.json").read_text())
        assert (completed.returncode, failed["verdict"]) == (4, "FAILED")
        assert failed["message"].splitlines()[-1].startswith("RuntimeError: CUDA error")
        (refused,) = failed["unsupported"]
        assert refused.startswith("cusparse.cusparseSpGEMM")
        assert failed["message"].endswith(f"{refused}. That may be why)")
    assert "recorded" in completed.stdout


def test_a_failure_after_values_that_nobody_computed_says_so(maya, script):
    counted = "torch.randint(1, 9, (64,), device='cuda').sum().item()"
    on_zeros = f"import torch\nif not {counted}:\n    raise ValueError('an empty batch')"
    completed = maya("predict", "--no-cache", script(on_zeros))
    assert completed.returncode == 4 and "an empty batch" in completed.stdout
    assert "reads integers or truth values that nobody computes" in completed.stdout
