"""Write `envspec/data/conda_names.toml` again from what parselmouth found in the archives of a channel.

    python -m bench.conda_names conda-forge=MAPPING.json --source "repository @commit, path" --read 2026-08-19

The mapping is JSON: conda name -> PyPI names, or null where no archive holds a Python package. Other channels and the
`[[contained]]` rows, which were read by hand, stay as they are.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envspec.data import DATA
from envspec.documents import parse_toml
from envspec.names import normalised

TABLE = DATA / "conda_names.toml"
HEAD = """\
# Conda packages and the Python packages in them. [[channel]]: gathered over all archives of a channel. `same`: names
# whose PyPI name is the same (PEP 503); `none`: they contain no Python package; `named`: the others, one a line, the
# conda name and then the PyPI names that its archives had. [[contained]]: what archives contain today, read by hand.
# `python -m bench.conda_names` writes this file; it keeps the [[contained]] rows.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mapping", help="CHANNEL=FILE")
    parser.add_argument("--source", required=True)
    parser.add_argument("--read", required=True, help="the day of the mapping, YYYY-MM-DD")
    options = parser.parse_args()
    channel, _, file = options.mapping.partition("=")
    names = json.loads(Path(file).read_text(encoding="utf-8"))
    old = parse_toml(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    fresh = {"channel": channel, "source": options.source, "read": options.read, "confidence": "medium", **parts(names)}
    rows = [fresh, *(row for row in old.get("channel", ()) if row["channel"] != channel)]
    TABLE.write_text(rendered(sorted(rows, key=lambda row: row["channel"]), old.get("contained", ())), encoding="utf-8")


def parts(names: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
    """The mapping as the three texts of a row."""
    same = [name for name, pypi in names.items() if pypi is not None and list(pypi) == [normalised(name)]]
    none = [name for name, pypi in names.items() if not pypi]
    named = sorted(set(names) - set(same) - set(none))
    return {
        "same": _wrapped(same),
        "none": _wrapped(none),
        "named": "\n".join(" ".join((name, *sorted(names[name] or ()))) for name in named),
    }


def rendered(channels: Sequence[Mapping[str, Any]], contained: Sequence[Mapping[str, Any]]) -> str:
    """The file's text."""
    tables = [_table("channel", row) for row in channels] + [_table("contained", row) for row in contained]
    return HEAD + "".join(tables)


def _table(name: str, row: Mapping[str, Any]) -> str:
    return f"\n[[{name}]]\n" + "".join(f"{key} = {_value(key, value)}\n" for key, value in row.items())


def _value(key: str, value: object) -> str:
    if key == "read":
        return str(value)
    if key in ("same", "none", "named"):
        return f'"""\n{str(value).strip()}\n"""'
    return json.dumps(value, ensure_ascii=False)


def _wrapped(names: Sequence[str]) -> str:
    return textwrap.fill(" ".join(sorted(names)), 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
