"""One request for all tools: envspec's spec, and what follows from it for py-rattler and for conda-lock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from bench.conda_stack import WANTED
from envspec.facts import load_facts
from envspec.models import Platform
from envspec.resolve.conda.request import channels_of, conda_request
from envspec.resolve.types import CondaRequest, Cutoffs
from envspec.spec import parse_spec

AS_OF: Final = datetime(2026, 11, 15, tzinfo=timezone.utc)
PYTHON: Final = "3.13"
CUDA: Final = "12.9"
#: With its digest in the spec no registry is asked for it: nothing here needs a network but the channel.
_BASE: Final = f"registry.example.com/cuda@sha256:{'0' * 64}"
#: conda-lock's words for the platforms on which a line of environment.yml counts.
_SELECTORS: Final = {
    "linux-64": "linux64",
    "linux-aarch64": "aarch64",
    "osx-arm64": "arm64",
    "win-64": "win",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: of which channel, for which platforms, for which packages; the first of them has CUDA builds."""

    channel: str
    platforms: tuple[str, ...]
    wanted: tuple[str, ...] = WANTED

    @property
    def spec(self) -> str:
        """For envspec."""
        return "\n".join(
            [
                f'[env]\nname = "bench-conda"\npython = "{PYTHON}"\nas_of = {AS_OF.strftime("%Y-%m-%dT%H:%M:%SZ")}',
                f"platforms = {json.dumps(self.platforms)}",
                f'[cuda]\nversion = "{CUDA}"',
                f'[conda]\nchannels = ["{self.channel}"]\ndependencies = {json.dumps(self.wanted)}',
                f'[image]\nbase = "{_BASE}"\nglibc = "2.39"\n',
            ]
        )

    def document(self) -> dict[str, Any]:
        """For py-rattler and the stage: JSON. complete: the requirements with the CUDA builds named."""
        return {
            "channel": self.channel,
            "as_of": AS_OF.isoformat(),
            "platforms": [
                {
                    "subdir": request.platform.value,
                    "requirements": request.requirements,
                    "complete": [self._complete(text, request) for text in request.requirements],
                    "constraints": request.constraints,
                    "virtual_packages": [(each.name, each.version, each.build) for each in request.virtual_packages],
                    "cuda": str(request.cuda) if request.cuda else None,
                }
                for request in self.requests()
            ],
        }

    def environment(self) -> str:
        """For conda-lock: environment.yml. It knows no constraints: `cuda-version` is asked for where there is CUDA."""
        lines = [f"channels: [{json.dumps(self.channel)}]", f"platforms: {json.dumps(self.platforms)}", "dependencies:"]
        for request in self.requests():
            selector = _SELECTORS[request.platform.value]
            asked = [self._complete(text, request) for text in request.requirements]
            asked += [text for text in request.constraints if text.startswith("cuda-version")]
            lines += [f"  - {text}  # [{selector}]" for text in asked]
        return "\n".join(lines) + "\n"

    def virtual_packages(self) -> str:
        """For conda-lock: virtual-packages.yml."""
        subdirs = {
            request.platform.value: {
                "packages": {
                    each.name: each.version if each.build == "0" else f"{each.version} {each.build}"
                    for each in request.virtual_packages
                }
            }
            for request in self.requests()
        }
        return json.dumps({"subdirs": subdirs}, indent=1) + "\n"

    def requests(self) -> Sequence[CondaRequest]:
        """As envspec composes them."""
        spec, facts = parse_spec(self.spec, "bench-conda.toml", AS_OF), load_facts()
        channels = channels_of(spec, {}, {})
        moments = Cutoffs(AS_OF, {})
        return [conda_request(spec, Platform(name), facts, moments, (), channels) for name in self.platforms]

    def _complete(self, text: str, request: CondaRequest) -> str:
        return f"{text} * cuda*" if request.cuda and text == self.wanted[0] else text
