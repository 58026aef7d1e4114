"""The roll of the nodes: who is still there, where a collective has failed or does not end.

A collective that fails names at most an address, and NCCL's watchdog ends a rank by a signal. So every node says each
second in the rendezvous' store that it is there and what it does, and every rank notes whose word no longer changes.
"""

from __future__ import annotations

import datetime
import importlib
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Callable

_BEAT_S = 1.0
#: Without a new word for this long a node counts as lost.
_SILENT_S = 3.5


def connect(timeout_s: float) -> tuple[Any, int, int]:
    """A connection of its own to the store of torchrun's rendezvous, this rank, and the number of all ranks."""
    dist: Any = importlib.import_module("torch.distributed")
    store, rank, world = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=timeout_s)))
    return dist.PrefixStore("envspec", store), rank, world


class Roll:
    """Who is there, as one rank hears it. The store is asked by a thread of its own: over a link that is down an answer
    would be waited for for many minutes.
    """

    def __init__(self, store: Any, node: int, others: Iterable[int]) -> None:
        self._store = store
        self._node = node
        self._answered_s = time.monotonic()
        #: node -> its last word, and when it was heard first.
        self._heard = dict.fromkeys(others, ("", self._answered_s))
        self._ended: dict[int, str] = {}
        self._why = ""

    def keep(self, place: Callable[[], str], note: Callable[[Mapping[int, str]], None]) -> None:
        """From now on say where this node is, and note who is lost whenever that changes, until the process ends."""
        threading.Thread(target=self._say, args=(place,), daemon=True).start()
        threading.Thread(target=self._watch, args=(note,), daemon=True).start()

    def failed(self, why: str) -> dict[int, str]:
        """Let the others read why this rank fails, and tell who is lost: after a wait in which a node that has ended
        falls silent.
        """
        self._why = why
        time.sleep(_SILENT_S + 2 * _BEAT_S)
        return self.lost()

    def lost(self) -> dict[int, str]:
        """The nodes without a sign of life, and what is known of each."""
        now = time.monotonic()
        if self._node and now - self._answered_s > _SILENT_S:
            return {0: "the rendezvous, which it holds, does not answer any more"}
        return {node: self._known(node, word) for node, (word, since) in self._heard.items() if now - since > _SILENT_S}

    def _known(self, node: int, word: str) -> str:
        if node in self._ended:
            return f"it has ended: {self._ended[node]}"
        place = word.partition(" ")[2]
        return (
            f"no word from it for {_SILENT_S:g} s, the last in the phase {place!r}" if word else "never a word from it"
        )

    def _say(self, place: Callable[[], str]) -> None:
        beat = 0
        try:
            while True:
                self._store.set(f"alive/{self._node}", f"{beat} {place()}")
                if self._why:
                    self._store.set(f"ended/{self._node}", self._why)
                for node in self._heard:
                    self._hear(node)
                self._answered_s = time.monotonic()
                beat += 1
                time.sleep(_BEAT_S)
        except Exception as error:
            # A store that is gone answers nobody: that is what `lost` tells.
            print(f"the roll of the nodes: {type(error).__name__}: {error}", flush=True)

    def _hear(self, node: int) -> None:
        alive, ended = f"alive/{node}", f"ended/{node}"
        word = self._store.get(alive).decode() if self._store.check([alive]) else ""
        if word != self._heard[node][0]:
            self._heard[node] = (word, time.monotonic())
        if node not in self._ended and self._store.check([ended]):
            self._ended[node] = self._store.get(ended).decode()

    def _watch(self, note: Callable[[Mapping[int, str]], None]) -> None:
        noted: dict[int, str] = {}
        while True:
            time.sleep(_BEAT_S)
            if (lost := self.lost()) != noted:
                noted = lost
                note(noted)
