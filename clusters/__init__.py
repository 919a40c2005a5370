"""The cluster room: YAML files come in, a validated `Cluster` of devices, nodes and links goes out.

A file of the user's own is read exactly like the shipped ones, and may start from one of them (`extends`).
It must not know of traces, durations or frameworks.
"""

from maya.clusters.files import ClusterError, keep, kept, load, names
from maya.clusters.types import Cluster, Device, Link, Node

__all__ = ["Cluster", "ClusterError", "Device", "Link", "Node", "keep", "kept", "load", "names"]
