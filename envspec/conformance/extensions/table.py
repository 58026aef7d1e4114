"""The extensions that the check knows: a function and a row each."""

from __future__ import annotations

from collections.abc import Mapping

from envspec.conformance.extensions import attention, graphs, linear, sequences
from envspec.conformance.extensions.operation import Extension

#: By the name that people use. A name in a lock is the module's, with hyphens, or one of `packages`.
EXTENSIONS: Mapping[str, Extension] = {
    "flash-attn": Extension("flash_attn", attention.flash_attn),
    "xformers": Extension("xformers.ops", attention.xformers),
    "flashinfer": Extension("flashinfer", attention.flashinfer, ("flashinfer-python",)),
    "natten": Extension("natten", attention.natten),
    "mamba-ssm": Extension("mamba_ssm.ops.selective_scan_interface", sequences.selective_scan),
    "causal-conv1d": Extension("causal_conv1d", sequences.causal_conv1d),
    "torch-scatter": Extension("torch_scatter", graphs.scatter, ("pytorch-scatter",), on_cpu=True),
    "torch-sparse": Extension("torch_sparse", graphs.sparse, ("pytorch-sparse",), on_cpu=True),
    "pyg-lib": Extension("pyg_lib", graphs.grouped, on_cpu=True),
    "transformer-engine": Extension(
        "transformer_engine.pytorch", linear.transformer_engine, ("transformer-engine-torch",)
    ),
    "bitsandbytes": Extension("bitsandbytes", linear.bitsandbytes, on_cpu=True),
    "deepspeed": Extension("deepspeed", linear.deepspeed, on_cpu=True),
}
