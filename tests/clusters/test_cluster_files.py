"""Cluster files: the shipped ones are complete, a user's own works alike, errors are one line."""

from pathlib import Path

import pytest
import yaml

from maya.clusters import Cluster, ClusterError, load, names


@pytest.mark.parametrize("name", names())
def test_shipped_cluster_names_a_source_for_every_device_and_node_figure(name: str) -> None:
    cluster = load(name)
    device = {f"device.{field}" for field in type(cluster.device).model_fields} - {
        "device.key",
        "device.power_cap_w",
    }
    node = {"node.link", "node.nics", "node.nic"}
    assert (device | node | {"host_speed"}) - set(cluster.sources) == set()


def test_the_promised_clusters_ship() -> None:
    assert {"dgx-h100", "dgx-h200", "dgx-a100", "dgx-v100", "a40-8", "dgx-b200"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_the_name_of_a_shipped_cluster_is_its_file_name(name: str) -> None:
    assert load(name).name == name


def test_h100_reports_what_a_real_machine_reports() -> None:
    device = load("dgx-h100").device
    assert device.name == "NVIDIA H100 80GB HBM3"
    assert device.memory_bytes == 85_520_809_984
    assert device.compute_capability == (9, 0)


def test_nccls_buffers_for_a_peer_are_those_of_its_channels() -> None:
    assert load("dgx-h100").node.peer_bytes == 32 * 14 * 2**20
    assert load("dgx-v100").node.peer_bytes == load("a40-8").node.peer_bytes == 2 * 14 * 2**20


def test_64_devices_of_dgx_h100_are_8_nodes() -> None:
    cluster = load("dgx-h100")
    assert cluster.nodes(64) == 8
    assert [cluster.node_of(rank) for rank in (0, 7, 8, 63)] == [0, 0, 1, 7]


def test_a_users_own_file_works_like_a_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(yaml.safe_dump(load("dgx-a100").model_dump(mode="json") | {"name": "mine"}))
    assert load(own) == load("dgx-a100").model_copy(update={"name": "mine"})


def test_a_file_can_extend_a_shipped_cluster(tmp_path: Path) -> None:
    own = tmp_path / "slow.yaml"
    own.write_text("extends: dgx-a100\nname: slow\nnode: {nics: 4, nic: {bandwidth: 25e9}}\n")
    cluster = load(own)
    assert (cluster.node.nics, cluster.node.nic.bandwidth) == (4, 25e9)
    assert cluster.node.nic.kind == "infiniband"
    assert cluster.device == load("dgx-a100").device


def test_a_file_may_say_what_collectives_took_on_its_nodes(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "extends: dgx-a100\nname: own\nnode: {collectives: {all_reduce: {8: [[1048576, 92e-6], [4194304, 94e-6]]}}}\n"
    )
    assert load(own).node.collectives == {"all_reduce": {8: ((1048576, 92e-6), (4194304, 94e-6))}}


@pytest.mark.parametrize(
    ("timings", "wrong"),
    [
        ("all_reduce: {8: [[4e6, 94e-6], [1e6, 92e-6]]}", "ascending order of bytes"),
        ("all_reduce: {8: []}", "ascending order of bytes"),
        ("all_reduce: {8: [[1e6, 0]]}", "greater than 0"),
        ("all_reduced: {8: [[1e6, 1e-6]]}", "'all_reduce'"),
    ],
)
def test_timings_of_collectives_that_cannot_be(tmp_path: Path, timings: str, wrong: str) -> None:
    error = _error(tmp_path, f"extends: dgx-a100\nname: own\nnode: {{collectives: {{{timings}}}}}\n")
    assert wrong in error


def _error(tmp_path: Path, text: str) -> str:
    own = tmp_path / "own.yaml"
    own.write_text(text)
    with pytest.raises(ClusterError) as caught:
        load(own)
    message = str(caught.value)
    assert "\n" not in message
    assert str(own) in message
    return message


def test_unknown_key_is_named_with_what_is_allowed(tmp_path: Path) -> None:
    message = _error(tmp_path, "extends: dgx-h100\nnode: {nic: {bandwith: 1}}\n")
    assert "node.nic.bandwith: unknown key; allowed: kind, bandwidth, latency_s" in message


def test_missing_key_is_named(tmp_path: Path) -> None:
    content = load("dgx-h100").model_dump(mode="json")
    del content["device"]["clock_hz"]
    assert "device.clock_hz: is needed" in _error(tmp_path, yaml.safe_dump(content))


def test_wrong_value_is_shown(tmp_path: Path) -> None:
    assert "node.gpus" in _error(tmp_path, "extends: dgx-h100\nnode: {gpus: -3}\n")
    assert "got -3" in _error(tmp_path, "extends: dgx-h100\nnode: {gpus: -3}\n")


def test_figures_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert "price_per_gpu_hour" in _error(tmp_path, "extends: dgx-h100\nprice_per_gpu_hour: -2\n")
    assert "peak_flops: bf61 is none of fp64" in _error(
        tmp_path, "extends: dgx-h100\ndevice: {peak_flops: {bf61: 1.0e+12}}\n"
    )
    assert "device.peak_flops.bf16" in _error(
        tmp_path, "extends: dgx-h100\ndevice: {peak_flops: {bf16: 0}}\n"
    )


def test_a_kind_of_link_that_is_not_known_is_refused_with_those_that_are(tmp_path: Path) -> None:
    message = _error(tmp_path, "extends: dgx-h100\nnode: {nic: {kind: infinband}}\n")
    assert message.endswith("node.nic: kind infinband is none of infiniband, roce, ethernet, efa, omni-path")
    message = _error(tmp_path, "extends: dgx-h100\nnode: {link: {kind: infiniband}}\n")
    assert message.endswith("node.link: kind infiniband is none of nvlink, nvswitch, pcie")
    assert "node.pair_link: kind" in _error(tmp_path, "extends: a40-8\nnode: {pair_link: {kind: nvlnk}}\n")


def test_broken_yaml_is_one_line(tmp_path: Path) -> None:
    assert "own.yaml:2:1: is not YAML" in _error(tmp_path, "name: [1,\n")
    assert "a mapping" in _error(tmp_path, "just text\n")


def test_a_cluster_cannot_extend_itself(tmp_path: Path) -> None:
    assert "cannot extend itself" in _error(tmp_path, "extends: own.yaml\n")


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ClusterError, match="dgx-h100"):
        load("dgx-h1000")


def test_a_cluster_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load("dgx-h100").name = "other"  # type: ignore[misc]
    assert isinstance(load("dgx-h100"), Cluster)
