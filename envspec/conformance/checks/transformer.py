"""A transformer: an encoder forward and backward, its attention's kernels, `torch.compile`, and tokens a second."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any

from envspec.conformance import imports
from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import Trial
from envspec.conformance.numerics import (
    NO_BF16,
    best_time,
    compiled,
    generator,
    has_bf16,
    joined,
    kernels,
    relative_error,
)

_HOUR_S = 3600
_HEADS = 4


@dataclass(frozen=True)
class _Work:
    """An encoder and its batch. tokens: (batch, length, width). towards: the gradient of its output."""

    torch: Any
    device: str
    encoder: Any
    tokens: Any
    towards: Any

    def results(self, dtype: Any) -> tuple[Any, Any]:
        """The output and the joined gradient, under autocast to `dtype`."""
        output = self.run(dtype)
        return output.detach(), joined(self.torch, (each.grad for each in self.encoder.parameters()))

    def run(self, dtype: Any) -> Any:
        """Forward and backward. dtype: autocast's, which fp32 and fp64 are run without."""
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


def check(trial: Trial) -> None:
    """What there is of types; each against fp64."""
    torch = imports.torch(trial)
    importlib.import_module("torch.nn.attention")
    dtypes = {"fp32": torch.float32, "fp16": torch.float16}
    if has_bf16(torch, trial.device):
        dtypes["bf16"] = torch.bfloat16
    else:
        trial.not_run("bf16", NO_BF16)
    with trial.phase("attention"):
        kernels(torch, trial, dtypes)
    with trial.phase("the encoder"):
        work = _work(torch, trial)
        right = work.doubled().results(torch.float64)
        for name, dtype in dtypes.items():
            for part, found, exact in zip(("output", "gradient"), work.results(dtype), right):
                error = relative_error(found, exact)
                trial.within(f"the encoder's {part} in {name}", error, limit(f"transformer.{part}.{name}"))
    with trial.phase("speed"):
        _speed(torch, trial, work, dtypes)
    with trial.phase("torch.compile"):
        compiled(torch, trial)


def _work(torch: Any, trial: Trial) -> _Work:
    """Two layers, without dropout: the same numbers in every type."""
    torch.manual_seed(trial.order.seed)
    device, width = trial.device, SIZES[f"transformer.width.{trial.device}"]
    # ReLU's corner would make the gradient's error go with the root of u.
    layer = torch.nn.TransformerEncoderLayer(width, _HEADS, 2 * width, dropout=0.0, activation="gelu", batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, SIZES["transformer.layers"], enable_nested_tensor=False).to(device)
    numbers = generator(torch, "cpu", trial.order.seed)
    shape = (SIZES[f"transformer.batch.{device}"], SIZES[f"transformer.length.{device}"], width)
    tokens, towards = (torch.randn(shape, generator=numbers).to(device) for _ in range(2))
    return _Work(torch, device, encoder, tokens, towards)


def _speed(torch: Any, trial: Trial, work: _Work, dtypes: dict[str, Any]) -> None:
    batch, length, width = work.tokens.shape
    told = f"forward and backward, {batch} x {length} tokens, width {width}"
    fastest = 0.0
    for name, dtype in dtypes.items():
        tokens_s = batch * length / best_time(torch, trial.device, partial(work.run, dtype))
        trial.inform(f"tokens a second in {name}", tokens_s, "1/s", told)
        fastest = max(fastest, tokens_s)
    price, currency = trial.order.price_per_hour, trial.order.currency
    if price:
        unit, told = f"1/{currency or 'currency unit'}", " ".join(filter(None, [f"{price:g}", currency, "an hour"]))
        trial.inform("tokens for the price", fastest * _HOUR_S / price, unit, told)
    else:
        trial.not_run("tokens for the price", "no price is given")
