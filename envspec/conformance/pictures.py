"""A made data set: items that cost what decoding costs, and of which each is known to the bit."""

from __future__ import annotations

import importlib
import random
import zlib
from typing import Any

#: A picture's shape: channels, rows, columns; bytes.
SHAPE = (3, 64, 64)
_DIFFERENT = 32
_BYTES = SHAPE[0] * SHAPE[1] * SHAPE[2]


class Pictures:
    """`count` pictures; an item is (uint8 of SHAPE, its index). Packed so that unpacking one takes about 0.1 ms."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        made = random.Random(seed)  # noqa: S311 (the same on every machine)
        # Of sixteen values: bytes without a pattern would be stored, and unpacking would be a copy.
        self._packed = [zlib.compress(bytes(made.choices(range(0, 256, 16), k=_BYTES))) for _ in range(_DIFFERENT)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        torch: Any = importlib.import_module("torch")
        flat = torch.frombuffer(bytearray(zlib.decompress(self._packed[index % _DIFFERENT])), dtype=torch.uint8)
        return flat.roll(index).view(SHAPE), index


class Large:
    """`count` blank pictures as a network of ImageNet's takes them, fp32; what they hold is their index."""

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        self._count = count
        self._shape = shape

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        torch: Any = importlib.import_module("torch")
        return torch.full(self._shape, float(index))
