"""A row's script runs once: its trace is kept under all that the trace depends on."""

import dataclasses

import pytest

from maya.clusters import load
from maya.trace.build import JobBuilder
from maya.validate import validate
from maya.validate.mapping import Mapped
from maya.validate.traces import TraceStore, Unjudged, job_key


@pytest.fixture
def examples(tmp_path):
    (tmp_path / "examples/a").mkdir(parents=True)
    (tmp_path / "examples/a/train.py").write_text("pass\n")
    return tmp_path / "examples"


@pytest.fixture
def job():
    return Mapped("a/train.py", ("--layers", "2"), load("dgx-a100"), 2, ())


def test_a_trace_comes_back_as_it_was_kept(tmp_path, examples, job):
    builder = JobBuilder(1)
    builder.ranks[0].kernel(1000)
    store = TraceStore(tmp_path / "traces")
    assert store.read(job, examples) is None
    store.keep(job, examples, builder.build())
    kept = store.read(job, examples)
    assert kept.operations == builder.build().operations


def test_a_job_that_ran_out_of_memory_is_not_run_again(tmp_path, examples, job):
    store = TraceStore(tmp_path / "traces")
    store.keep(job, examples, Unjudged("OOM", "2 GiB short"))
    assert store.read(job, examples) == Unjudged("OOM", "2 GiB short")


def test_a_job_that_failed_is_run_again(tmp_path, examples, job):
    store = TraceStore(tmp_path / "traces")
    store.keep(job, examples, Unjudged("FAILED", "AssertionError: Emerging Optimizers is not installed."))
    assert store.read(job, examples) is None


def test_a_job_is_run_again_when_its_script_arguments_or_device_change(examples, job):
    before = job_key(job, examples)
    assert job_key(dataclasses.replace(job, argv=("--layers", "3")), examples) != before
    assert job_key(dataclasses.replace(job, world=4), examples) != before
    assert job_key(dataclasses.replace(job, cluster=load("dgx-h100")), examples) != before
    (examples / "a/train.py").write_text("print()\n")
    assert job_key(job, examples) != before


def test_another_network_is_judged_on_the_same_trace(examples, job):
    node = job.cluster.node
    slower = node.model_copy(update={"nic": node.nic.model_copy(update={"bandwidth": 1e9})})
    cluster = job.cluster.model_copy(update={"node": slower})
    assert job_key(dataclasses.replace(job, cluster=cluster), examples) == job_key(job, examples)


def test_rows_that_were_not_recorded_stay_without_a_verdict(tmp_path, examples):
    (examples / "megatron").mkdir()
    (examples / "megatron/pretrain_gpt.py").write_text("pass\n")
    columns = "id,gpu,gpus,framework,model,layers,hidden,heads,seq,mbs,gbs,precision,iter_time_s"
    table = tmp_path / "rows.csv"
    table.write_text(f"{columns}\na-1,A100,8,Megatron-LM,GPT,2,64,4,64,1,8,fp16,1.0\n")
    judged = validate(table, examples, tmp_path / "out.csv", workers=1, recorded=True)
    assert list(judged["verdict"]) == ["NOT RUN"]
