"""The size and structure of a checkout, as a Markdown table: `python -m bench.structure [CHECKOUT...]`.

With radon (`pip install radon`), it also counts functions by grade of cyclomatic complexity: D is 21 to 30, E to 40.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

PACKAGES: Final = ("envspec", "tests", "bench")
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def main(arguments: Sequence[str]) -> int:
    checkouts = [Path(each) for each in arguments] or [Path()]
    columns = [measure(each) for each in checkouts]
    print(f"| | {' | '.join(each.resolve().name for each in checkouts)} |\n|---|{'---|' * len(columns)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(f'{column[name]:,}' for column in columns)} |")
    return 0


def measure(checkout: Path) -> dict[str, int]:
    """Row of the table -> its number."""
    found: dict[str, int] = {}
    for package in PACKAGES:
        texts = {path: path.read_text(encoding="utf-8") for path in sorted((checkout / package).rglob("*.py"))}
        found[f"{package}/: modules"] = len(texts)
        found[f"{package}/: lines"] = sum(len(text.splitlines()) for text in texts.values())
        if package != "envspec":
            continue
        trees = {_module(path.relative_to(checkout)): ast.parse(text) for path, text in texts.items()}
        kinds = sum((_kinds(ast.parse(text), text) for text in texts.values()), Counter[str]())
        found |= {f"{package}/: lines of {kind}": kinds[kind] for kind in ("code", "imports", "docstrings")}
        classes = Counter(
            node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        )
        found["classes"] = classes.total()
        found["class names used more than once"] = sum(count > 1 for count in classes.values())
        leaves = Counter(name.rpartition(".")[2] for name in trees)
        found["module names used more than once"] = sum(count > 1 for count in leaves.values())
        arrows = {name: set(_imported(tree, trees)) - {name} for name, tree in trees.items()}
        found["imports between modules"] = sum(map(len, arrows.values()))
        found["circles of modules"] = len(circles(arrows))
        found["imports of envspec inside functions"] = sum(_inside(tree) for tree in trees.values())
        found |= _density(trees.values())
        found |= _grades(texts.values())
    found["golden files"] = sum(_is_golden(path) for path in (checkout / "tests").rglob("*"))
    return found


def _density(trees: Iterable[ast.Module]) -> dict[str, int]:
    """Comprehensions and conditional expressions, for each 1,000 statements."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    comprehensions = [node for node in nodes if isinstance(node, _COMPREHENSIONS)]
    nested = sum(_contains_another(node) for node in comprehensions)
    conditional = sum(isinstance(node, ast.IfExp) for node in nodes)
    counts = {
        "comprehensions": len(comprehensions),
        "nested comprehensions": nested,
        "conditional expressions": conditional,
    }
    rates = {f"{name} in 1,000 statements": round(1000 * count / statements) for name, count in counts.items()}
    return {"functions": sum(isinstance(node, _FUNCTIONS) for node in nodes), "statements": statements} | rates


def _contains_another(comprehension: ast.AST) -> bool:
    return any(isinstance(node, _COMPREHENSIONS) for node in ast.walk(comprehension) if node is not comprehension)


def _grades(texts: Iterable[str]) -> dict[str, int]:
    """Functions of radon's grades D, E and F; none without radon."""
    try:
        from radon.complexity import cc_rank, cc_visit  # type: ignore[import-not-found]
    except ImportError:
        return {}
    grades = Counter(cc_rank(block.complexity) for text in texts for block in cc_visit(text))
    return {f"functions of radon's grade {grade}": grades[grade] for grade in "DEF"}


def _is_golden(path: Path) -> bool:
    folders = path.parent.parts
    return path.is_file() and "__pycache__" not in folders and any(name.startswith("golden") for name in folders)


def circles(arrows: Mapping[str, set[str]]) -> list[set[str]]:
    """Strongly connected components with more than one module."""
    reach = {name: _reached(name, arrows) for name in arrows}
    found: list[set[str]] = []
    for name in arrows:
        circle = {other for other in reach[name] if name in reach.get(other, ())}
        if circle and circle not in found:
            found.append(circle)
    return found


def _reached(name: str, arrows: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        for other in arrows.get(todo.pop(), set()) - found:
            found.add(other)
            todo.append(other)
    return found


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, modules: Mapping[str, object]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from (name for name in (inner if inner in modules else node.module,) if name in modules)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def _inside(tree: ast.Module) -> int:
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    imports = {
        node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "envspec"
    }
    return len(imports)


def _kinds(tree: ast.Module, text: str) -> Counter[str]:
    """Lines of code, imports and docstrings; neither blank lines nor comments."""
    kinds = ["code" if line.strip() and not line.lstrip().startswith("#") else "" for line in text.splitlines()]
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            kinds[node.lineno - 1 : node.end_lineno] = ["imports"] * ((node.end_lineno or 0) - node.lineno + 1)
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node, clean=False
        ):
            first = node.body[0]
            kinds[first.lineno - 1 : first.end_lineno] = ["docstrings"] * ((first.end_lineno or 0) - first.lineno + 1)
    return Counter(kinds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
