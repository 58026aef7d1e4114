"""Greedy decoding by a small causal transformer: with a cache of keys and values, without one, and in a batch.

Its weights come from a hash and are exact in bf16, so that every type and every machine has the same model: if the
largest logit is further from the next one than rounding can move both, all of them choose the same token.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import best_time, case, float_types, raw, tf32_hint
from envspec.conformance.results import Level

_VOCABULARY = 512
_BLOCKS = 2
_HEAD = 32
#: Tokens of the prompts: shorter and longer than a kernel's block, and no two the same.
_PROMPTS = (1, 7, 33, 70)
#: torch prefers cuDNN's attention on some GPUs, and cuDNN makes a plan for each new length: probably why decoding took
#: 15 s in fp16 on an H200, and 1 s in fp32, which cuDNN does not support (torch 2.11, cuDNN 9.19, 2026-11). It gets
#: every fifth length, odd and even ones.
#: Source: torch, `check_prefer_cudnn_attention` in sdp_utils.cpp, `MHAParams` in cudnn/MHA.cpp.
_CUDNN_LENGTHS = 5
#: Keys and values of each block: (batch, heads, tokens, _HEAD).
_Cache = list[tuple[Any, Any]]
#: Query, key, value and a mask (None: causal) -> the result.
_Attention = Callable[[Any, Any, Any, Any], Any]


@dataclass(frozen=True)
class _Block:
    """Matrices (inputs, outputs)."""

    inputs: Any
    output: Any
    up: Any
    down: Any


@dataclass(frozen=True)
class _Model:
    """embedding: (tokens, width), of the input and of the logits. positions: (positions, width)."""

    torch: Any
    embedding: Any
    positions: Any
    blocks: tuple[_Block, ...]
    attend: _Attention

    def run(self, tokens: Any, places: Any, mask: Any = None, cache: _Cache | None = None) -> tuple[Any, _Cache]:
        """The logits of the last token, (batch, tokens of the vocabulary), and all keys and values.

        tokens, places: (batch, length), of those that are not in the cache. mask: which keys a query uses, (batch, 1,
        length, keys); None: all before it.
        """
        nn = self.torch.nn.functional
        width = (self.embedding.shape[1],)
        # Little of it: the head has the same matrix, and would find the token itself again and again.
        hidden = (self.embedding[tokens] + self.positions[places]) / 8
        kept = []
        for number, block in enumerate(self.blocks):
            mixed = (nn.layer_norm(hidden, width) @ block.inputs).unflatten(-1, (3, -1, _HEAD))
            query, key, value = mixed.permute(2, 0, 3, 1, 4)
            if cache:
                earlier_key, earlier_value = cache[number]
                key = self.torch.cat((earlier_key, key), 2)
                value = self.torch.cat((earlier_value, value), 2)
            kept.append((key, value))
            hidden = hidden + self.attend(query, key, value, mask).transpose(1, 2).flatten(2) @ block.output
            hidden = hidden + nn.gelu(nn.layer_norm(hidden, width) @ block.up) @ block.down
        return nn.layer_norm(hidden[:, -1], width) @ self.embedding.t(), kept


def check(context: CheckContext) -> None:
    """Compare every way and every type of the device with fp64 and attention's formula, without a cache."""
    torch = context.load("torch")
    importlib.import_module("torch.nn.attention")
    dtypes = float_types(torch, context)
    with torch.no_grad():
        with context.phase("decoding in fp64"):
            prompts = [
                _drawn(torch, context, f"prompt {length}", (length,), bits=9).to(context.device) for length in _PROMPTS
            ]
            make = partial(_model, torch, context, SIZES["inference.width"])
            model = make(torch.float64, partial(_formula, torch))
            right = torch.cat([_decode(model, [each], None, is_cached=False) for each in prompts])
        for name, dtype in dtypes.items():
            with context.phase(f"decoding in {name}"):
                _compare(torch, context, name, make(dtype, partial(_in_turn, torch)), prompts, right)
        with context.phase("speed"):
            for name, dtype in dtypes.items():
                _speed(torch, context, name, dtype)


def _drawn(torch: Any, context: CheckContext, name: str, shape: Sequence[int], bits: int = 8) -> Any:
    """Integers of int64 on the CPU from a hash, independent of torch's release. bits: 8, or up to 16."""
    count = math.prod(shape)
    digest = bytearray(hashlib.shake_256(f"inference {name} {context.request.seed}".encode()).digest(2 * count))
    pairs = torch.frombuffer(digest, dtype=torch.uint8).view(count, 2).long()
    return ((pairs[:, 0] + 256 * pairs[:, 1]) % 2**bits).view(*shape)


def _model(torch: Any, context: CheckContext, width: int, dtype: Any, attend: _Attention) -> _Model:
    def weight(name: str, *shape: int, scale: float) -> Any:
        # Whole numbers from -128 to 127, times a power of two: exact in every type.
        exponent = math.floor(math.log2(scale))
        numbers = _drawn(torch, context, f"{name} {width}", shape).float() - 128
        return (numbers * 2.0 ** (exponent - 7)).to(context.device, dtype)

    root = 1 / math.sqrt(width)
    blocks = []
    for number in range(_BLOCKS):
        inputs = weight(f"inputs {number}", width, 3 * width, scale=4 * root)
        output = weight(f"output {number}", width, width, scale=4 * root)
        up = weight(f"up {number}", width, 4 * width, scale=2 * root)
        down = weight(f"down {number}", 4 * width, width, scale=2 * root)
        blocks.append(_Block(inputs, output, up, down))
    places = max(max(_PROMPTS) + SIZES["inference.tokens"], SIZES[f"inference.length.{context.device}"] + 1)
    embedding = weight("embedding", _VOCABULARY, width, scale=1)
    return _Model(torch, embedding, weight("positions", places, width, scale=1), tuple(blocks), attend)


def _attention(torch: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
    is_causal = mask is None and query.shape[2] > 1
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)


def _in_turn(torch: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
    """By the kernel that torch prefers for some lengths of keys, without cuDNN's for the others."""
    if key.shape[2] % _CUDNN_LENGTHS == 0:
        return _attention(torch, query, key, value, mask)
    kernels = torch.nn.attention.SDPBackend
    with torch.nn.attention.sdpa_kernel([kernels.FLASH_ATTENTION, kernels.EFFICIENT_ATTENTION, kernels.MATH]):
        return _attention(torch, query, key, value, mask)


def _formula(torch: Any, query: Any, key: Any, value: Any, _: None) -> Any:
    scores = query @ key.transpose(-1, -2) / math.sqrt(_HEAD)
    later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(later, -math.inf), -1) @ value


def _decode(model: _Model, prompts: Sequence[Any], right: Any, *, is_cached: bool) -> Any:
    """The logits of each step, (prompts, steps, vocabulary), of prompts in one batch, padded at their left.

    right: the tokens of each step, (prompts, steps), whatever the logits are, so that a wrong choice costs itself only:
    if no choice is wrong it is what greedy decoding does. None: the choice itself.
    """
    torch, device = model.torch, prompts[0].device
    length = max(map(len, prompts))
    padding = torch.tensor([length - len(each) for each in prompts], device=device)[:, None]
    tokens = torch.stack([torch.nn.functional.pad(each, (length - len(each), 0)) for each in prompts])
    cache: _Cache | None = None
    steps = []
    for step in range(SIZES["inference.tokens"]):
        index = torch.arange(tokens.shape[1], device=device)
        places = (index - padding).clamp(min=0)
        mask = None
        used = 1 if cache else len(index)
        if len(prompts) > 1:
            # Padding uses itself: without any key its result would be no number, and spoil what is masked.
            usable = (index[None, :] <= index[:, None]) & (index >= padding)[:, None]
            mask = (usable | torch.eye(len(index), dtype=torch.bool, device=device))[:, None, -used:]
        logits, kept = model.run(tokens[:, -used:], places[:, -used:], mask, cache)
        cache = kept if is_cached else None
        steps.append(logits)
        chosen = logits.argmax(-1, keepdim=True) if right is None else right[:, step : step + 1]
        tokens = torch.cat([tokens, chosen], 1)
    return torch.stack(steps, 1)


def _compare(torch: Any, context: CheckContext, name: str, model: _Model, prompts: Sequence[Any], right: Any) -> None:
    """right: logits in fp64, (prompts, steps, vocabulary)."""
    bound, largest = limit(f"inference.logits.{name}"), float(right.abs().max())
    best, expected = right.topk(2)[0], right.argmax(-1)
    margins = best[..., 0] - best[..., 1]
    is_decided = margins > 2 * bound.value * largest
    decided = int(is_decided.sum())
    ways: dict[str, Callable[[], Any]] = {
        "without a cache": lambda: _each(torch, model, prompts, expected, is_cached=False),
        "with a cache": lambda: _each(torch, model, prompts, expected, is_cached=True),
        "in a batch": lambda: _decode(model, prompts, expected, is_cached=True),
    }
    for way, decode in ways.items():
        with case(torch, context, f"{way} in {name}"):
            found = decode()
            error = float((found.double() - right).abs().max()) / largest
            context.within(f"logits {way} in {name}", error, bound, hint=tf32_hint(name))
            chosen = found.argmax(-1)
            wrong = ((chosen != expected) & is_decided).nonzero().tolist()
            detail = f"{decided} of {is_decided.numel()} choices are beyond rounding"
            if wrong:
                row, step = wrong[0]
                detail += f", {len(wrong)} are wrong; the first: prompt of {_PROMPTS[row]} tokens, step {step + 1}: "
                detail += f"{int(chosen[row, step])} instead of {int(expected[row, step])}"
            # A choice that is not a number is none.
            context.exact(f"tokens {way} in {name}", ok=bool(decided) and not wrong, detail=detail)
            if decided == is_decided.numel():
                context.fingerprint(f"tokens {way} in {name}", [raw(chosen)], Level.UNIVERSAL)
    if name == "fp32":
        context.note("the closest choice", f"{float(margins.min()) / largest:.2g} of the largest logit")


def _each(torch: Any, model: _Model, prompts: Sequence[Any], right: Any, *, is_cached: bool) -> Any:
    """One prompt after the other."""
    rows = zip(prompts, right.split(1))
    return torch.cat([_decode(model, [prompt], row, is_cached=is_cached) for prompt, row in rows])


def _speed(torch: Any, context: CheckContext, name: str, dtype: Any) -> None:
    """Tokens a second of prompts, and of the one step after them."""
    device = context.device
    width = SIZES[f"inference.speed_width.{device}"]
    batch, length = SIZES[f"inference.batch.{device}"], SIZES[f"inference.length.{device}"]
    model = _model(torch, context, width, dtype, partial(_attention, torch))
    tokens = _drawn(torch, context, "speed", (batch, length), bits=9).to(device)
    places = torch.arange(length + 1, device=device).expand(batch, -1)
    detail = f"{batch} x {length} tokens, width {width}, {_BLOCKS} blocks"
    with case(torch, context, f"prefill in {name}"):
        seconds, spread = best_time(torch, device, lambda: model.run(tokens, places[:, :-1]))
        context.measure(f"prefill in {name}", batch * length / seconds, "1/s", detail, spread)
    with case(torch, context, f"decoding in {name}"):
        _, cache = model.run(tokens, places[:, :-1])
        seconds, spread = best_time(torch, device, lambda: model.run(tokens[:, -1:], places[:, -1:], cache=cache))
        context.measure(f"decoding in {name}", batch / seconds, "1/s", f"one step after {detail}", spread)
