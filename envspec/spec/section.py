"""What all sections of a spec share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are refused, nothing is converted silently, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class NoFacts(Section):
    """A spec without [facts]. With it, the whole table is in `envspec.spec.rows`, whose models take 40 ms to build."""

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The rows as `envspec.facts.load_facts` takes them."""
        return {}
