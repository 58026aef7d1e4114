"""A transformer: an encoder forward and backward, attention kernels, `torch.compile`, and tokens per second."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import (
    best_time,
    case,
    compiled,
    float_types,
    joined_gradients,
    kernels,
    relative_error,
    tf32_hint,
)

_HEADS = 4


@dataclass(frozen=True)
class _Work:
    """An encoder and its batch. tokens: (batch, length, width). towards: gradient of its output."""

    torch: Any
    device: str
    encoder: Any
    tokens: Any
    towards: Any

    def results(self, dtype: Any) -> tuple[Any, Any]:
        """The output and the joined gradient, under autocast to `dtype`."""
        output = self.run(dtype)
        return output.detach(), joined_gradients(self.torch, self.encoder.parameters())

    def run(self, dtype: Any) -> Any:
        """Forward and backward. dtype: autocast's; fp32 and fp64 run without it."""
        is_cast = dtype in (self.torch.float16, self.torch.bfloat16)
        self.encoder.zero_grad()
        with self.torch.amp.autocast(self.device, dtype=dtype if is_cast else None, enabled=is_cast):
            output = self.encoder(self.tokens)
        output.backward(self.towards.to(output.dtype))
        return output

    def doubled(self) -> _Work:
        """The same in fp64."""
        tokens, towards = self.tokens.double(), self.towards.double()
        return _Work(self.torch, self.device, copy.deepcopy(self.encoder).double(), tokens, towards)


def check(context: CheckContext) -> None:
    """Compare every type of the device with fp64."""
    torch = context.load("torch")
    importlib.import_module("torch.nn.attention")
    dtypes = float_types(torch, context)
    with context.phase("attention"):
        kernels(torch, context, dtypes)
    with context.phase("the encoder"):
        work = _work(torch, context)
        right = work.doubled().results(torch.float64)
        for name, dtype in dtypes.items():
            with case(torch, context, f"the encoder in {name}"):
                for part, found, exact in zip(("output", "gradient"), work.results(dtype), right):
                    error = relative_error(found, exact)
                    bound = limit(f"transformer.{part}.{name}")
                    context.within(f"the encoder's {part} in {name}", error, bound, hint=tf32_hint(name))
    with context.phase("speed"):
        _speed(torch, context, work, dtypes)
    with context.phase("torch.compile"):
        compiled(torch, context)


def _work(torch: Any, context: CheckContext) -> _Work:
    """Two layers without dropout, so that every type computes the same."""
    torch.manual_seed(context.request.seed)
    device, width = context.device, SIZES[f"transformer.width.{context.device}"]
    # With ReLU, whose derivative jumps, the gradient's error would grow with the root of u.
    layer = torch.nn.TransformerEncoderLayer(width, _HEADS, 2 * width, dropout=0.0, activation="gelu", batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, SIZES["transformer.layers"], enable_nested_tensor=False).to(device)
    numbers = torch.Generator().manual_seed(context.request.seed)
    shape = (SIZES[f"transformer.batch.{device}"], SIZES[f"transformer.length.{device}"], width)
    tokens = torch.randn(shape, generator=numbers).to(device)
    towards = torch.randn(shape, generator=numbers).to(device)
    return _Work(torch, device, encoder, tokens, towards)


def _speed(torch: Any, context: CheckContext, work: _Work, dtypes: dict[str, Any]) -> None:
    batch, length, width = work.tokens.shape
    detail = f"forward and backward, {batch} x {length} tokens, width {width}"
    for name, dtype in dtypes.items():
        part = f"tokens a second in {name}"
        with case(torch, context, part):
            seconds, spread = best_time(torch, context.device, partial(work.run, dtype))
            context.measure(part, batch * length / seconds, "1/s", detail, spread)
