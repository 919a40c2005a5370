"""The launcher's end of the socket to the fork server."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Any

from maya.launch.environment import LaunchError


class Connection:
    """JSON lines to and from the fork server; knows which of its children live."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = b""
        self._pending: list[dict[str, Any]] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(end, selectors.EVENT_READ)
        self.living: dict[str, int] = {}  # name -> pid

    def close(self) -> None:
        self._selector.close()
        self._socket.close()

    def send(self, request: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(request).encode() + b"\n")

    def answers(self, timeout: float) -> Iterator[dict[str, Any]]:
        """What has arrived, waiting up to `timeout` seconds for the first. Raises LaunchError at the socket's end."""
        if self._selector.select(timeout):
            data = self._socket.recv(1 << 16)
            if not data:
                raise LaunchError("the fork server ended unexpectedly")
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            self._pending += [json.loads(line) for line in lines]
        while self._pending:
            answer = self._pending.pop(0)
            if "started" in answer:
                self.living[answer["started"]] = answer["pid"]
            elif "ended" in answer:
                self.living.pop(answer["ended"], None)
            yield answer

    def kill(self, names: list[str]) -> None:
        self.send({"do": "kill", "names": names})

    def kill_all(self) -> None:
        """Kills every child and waits until they are gone."""
        self.kill(list(self.living))
        deadline = time.monotonic() + 30
        while self.living and time.monotonic() < deadline:
            for _ in self.answers(0.05):
                pass
