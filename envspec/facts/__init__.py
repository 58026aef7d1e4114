"""What is known of torch, CUDA, images, drivers and GPUs: rows of data with their sources, read when they are needed.

`load_facts` gives the rows; `facts.torch` chooses a torch build, `facts.family` knows which packages of the torch
family fit together, `facts.gpu` says which GPU runs which code.
"""

from __future__ import annotations

from envspec.data import facts_version
from envspec.facts.tables import BadFact, Facts, load_facts

__all__ = ["BadFact", "Facts", "facts_version", "load_facts"]
