"""YAML with the line of each value, read within bounds.

Built from the parser's events, without recursion: nested lists of a hostile file would overflow the stack of the parser
in C, which PyYAML's own composer calls for each level. Scalars stay text: `3.10` is no number.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, Final

import yaml
from msgspec import Struct, field

from envspec.escaping import cut

#: Lists and mappings within each other.
MAX_DEPTH: Final = 32
#: Values, those counted again that an alias repeats. A conda-lock.yml of 1,000 packages for four platforms has 100,000.
MAX_VALUES: Final = 500_000
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})


class Value(Struct, frozen=True):
    """A scalar, a list or a mapping; the other two are empty. line: of its key, or of the item, from 1.

    text: of a scalar, empty for null. comment: behind a scalar, in its line, without `#`.
    """

    line: int
    text: str = ""
    items: tuple[Value, ...] = ()
    keys: dict[str, Value] = field(default_factory=dict)
    comment: str = ""

    @property
    def is_scalar(self) -> bool:
        return not self.items and not self.keys

    def get(self, *path: str) -> Value:
        """The value of a key, of a key below it, ...; an empty scalar if there is none."""
        value = self
        for key in path:
            value = value.keys.get(key, Value(value.line))
        return value

    def shown(self, limit: int = 200) -> str:
        """The value in one line, as YAML's flow style has it."""
        if self.keys:
            pairs = [f"{key}: {value.shown(limit)}" for key, value in islice(self.keys.items(), 20)]
            text = f"{{{', '.join(pairs)}}}"
        elif self.items:
            text = f"[{', '.join(item.shown(limit) for item in self.items[:20])}]"
        else:
            text = " ".join(self.text.split())
        return cut(text, limit)


class InvalidYaml(ValueError):
    """A text that is not YAML, has a key twice, or is beyond the bounds. The message names the file and the line."""


def parse_yaml(text: str, shown: str, form: str = "YAML") -> Value:
    """The text of a file of one document; an empty scalar for an empty file.

    shown, form: of the file, as errors name it.

    Raises:
        InvalidYaml
    """
    try:
        return _Builder(text).document()
    except _Refused as error:
        raise InvalidYaml(f"{shown}:{error.line}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark else ""
        raise InvalidYaml(f"{shown}{where} is not valid {form}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidYaml(f"{shown} is not valid {form}: {' '.join(str(error).split())}") from None


class _Refused(Exception):
    """A document beyond the bounds. line: where."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


class _Open(Struct):
    """A list or mapping that is being read. size, depth: of what it has so far, aliases included."""

    line: int
    anchor: str | None
    is_mapping: bool
    items: list[Value] = field(default_factory=list)
    keys: dict[str, Value] = field(default_factory=dict)
    key: Value | None = None
    size: int = 1
    depth: int = 1


class _Builder:
    def __init__(self, text: str) -> None:
        # The parser in C is ten times as fast; PyYAML has it unless it was built without libyaml.
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events = yaml.parse(text, Loader=loader)
        self._lines = text.splitlines()
        self._open: list[_Open] = []
        #: Anchor -> value, with its size and depth.
        self._anchors: dict[str, tuple[Value, int, int]] = {}
        self._root: Value | None = None

    def document(self) -> Value:
        for event in self._events:
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.ScalarEvent):
                self._complete(self._scalar(event, line), event.anchor, 1, 0)
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in self._anchors:
                    raise _Refused(line, f"the alias *{event.anchor} has no value before it")
                value, size, depth = self._anchors[event.anchor]
                self._complete(Value(line, value.text, value.items, value.keys), None, size, depth)
            elif isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
                if len(self._open) == MAX_DEPTH:
                    raise _Refused(line, f"more than {MAX_DEPTH} lists and mappings within each other")
                self._open.append(_Open(line, event.anchor, isinstance(event, yaml.MappingStartEvent)))
            elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                done = self._open.pop()
                value = Value(done.line, items=tuple(done.items), keys=done.keys)
                self._complete(value, done.anchor, done.size, done.depth)
        return self._root or Value(1)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Value:
        text = "" if not event.style and event.value in _NULL else event.value
        rest, end = "", event.end_mark
        if end and event.style not in ("|", ">") and end.line < len(self._lines):
            rest = self._lines[end.line][end.column :]
        found = re.fullmatch(r"[\s,\]}]*#\s?(.*)", rest)
        return Value(line, text, comment=found[1].strip() if found else "")

    def _complete(self, value: Value, anchor: str | None, size: int, depth: int) -> None:
        if anchor:
            self._anchors[anchor] = (value, size, depth)
        if not self._open:
            if self._root is not None:
                raise _Refused(value.line, "more than one document")
            self._root = value
            return
        around = self._open[-1]
        around.size += size
        around.depth = max(around.depth, depth + 1)
        if around.size > MAX_VALUES:
            raise _Refused(value.line, f"more than {MAX_VALUES} values")
        if len(self._open) + depth > MAX_DEPTH:
            raise _Refused(value.line, f"more than {MAX_DEPTH} lists and mappings within each other")
        if not around.is_mapping:
            around.items.append(value)
        elif around.key is None:
            if not value.is_scalar:
                raise _Refused(value.line, "a key that is not text")
            around.key = value
        else:
            key = around.key
            if key.text in around.keys:
                raise _Refused(key.line, f"the key `{key.text}` again, after line {around.keys[key.text].line}")
            around.keys[key.text] = Value(key.line, value.text, value.items, value.keys, value.comment)
            around.key = None
