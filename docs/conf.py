"""The site: `nox -s docs`. Pages are Markdown that a forge shows as well, so links are relative paths of files."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# The API's page is about the code beside this file, whichever envspec is installed.
sys.path.insert(0, str(ROOT))

from envspec.version import VERSION  # noqa: E402

DOCS = ROOT / "docs"
ERRORS = ROOT / "envspec" / "data" / "errors"

project = "envspec"
author = "the envspec maintainers"
project_copyright = author
version = release = VERSION
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["measurements/claims/*", "measurements/receipts/*"]
default_role = "code"
nitpicky = True
# Types in signatures are shown, not linked.
nitpick_ignore_regex = [("py:.*", ".*")]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"envspec {VERSION}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

#: Files of the repository that are pages of the site as well.
PAGES = {
    ROOT / "SECURITY.md": DOCS / "explanation" / "security.md",
    ROOT / "CONTRIBUTING.md": DOCS / "contributing" / "overview.md",
    ROOT / "CHANGELOG.md": DOCS / "changelog.md",
    ROOT / "README.md": DOCS / "index.md",
}
_LINK = re.compile(r"\[((?:[^][]|\[[^][]*\])*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def relative_links(text: str, source: Path, page: Path) -> str:
    """The links of `source` as links of `page`: other files of the repository are downloads, its folders plain text.

    Raises:
        ValueError: a link leads nowhere.
    """

    def link(match: re.Match[str]) -> str:
        words, path, anchor = match.groups()
        target = Path(os.path.normpath(source.parent / path))
        if not target.exists():
            raise ValueError(f"{source.relative_to(ROOT)}: {path} does not exist")
        if target.is_relative_to(ERRORS):
            target = DOCS / "errors" / target.name
        target = PAGES.get(target, target)
        if target.is_dir():
            return words
        is_page = target.suffix == ".md" and target.is_relative_to(DOCS) and not is_excluded(target)
        # docs/errors is a link to a folder elsewhere, which MyST follows: nothing may be relative to it or lead to it.
        if is_page and target.parent.name == "errors":
            return f"{{doc}}`{words.replace('`', '')} </errors/{target.stem}>`"
        if is_page:
            return f"[{words}](/{target.relative_to(DOCS).as_posix()}{anchor or ''})"
        scheme = "" if target.parent.name == "pictures" else "path:"
        return f"[{words}]({scheme}{os.path.relpath(target, page.parent)}{anchor or ''})"

    return _LINK.sub(link, text)


_PICTURE = re.compile(r"!\[([^]]*)\]\(([^)\s]+)-light\.(svg|png)\)")


def both_themes(text: str) -> str:
    """Pictures for light and for dark pages, where a forge shows the light one."""
    one = r"![\1](\2-{0}.\3){{.only-{0}}}"
    return _PICTURE.sub(f"{one.format('light')} {one.format('dark')}", text)


_FILE = re.compile(r"^( *)<!-- file: (.*?) -->\n((?: *<!--.*?-->\n)*) *```(\w+)$", re.MULTILINE)


def with_captions(text: str) -> str:
    """Blocks that a page's test writes to a file, with the file's name."""
    return _FILE.sub(r"\1```{code-block} \4\n\1:caption: \2\n", text)


def is_excluded(page: Path) -> bool:
    """Whether a Markdown file below docs/ is no page of the site."""
    return any(page.relative_to(DOCS).match(pattern) for pattern in exclude_patterns)


def read_page(app: Any, name: str, source: list[str]) -> None:
    """A page's text: that of the repository's file if it is one, with links that the site can follow."""
    page = DOCS / f"{name}.md"
    file = next((file for file, target in PAGES.items() if target == page and target.name != "index.md"), None)
    if file is None and page.parent.name == "errors":
        file = ERRORS / page.name
    if file is not None:
        app.env.note_dependency(str(file))
        source[0] = file.read_text(encoding="utf-8")
    source[0] = with_captions(both_themes(relative_links(source[0], file or page, page)))
    if page.parent.name == "errors":
        # Their list is a page of its own: in the navigation of every page it would be 3 MB in all.
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"


#: Private names of types in the signatures of the API.
_TYPES = {
    "_Path": "str | Path",
    "_LockOrPath": "Lock | str | Path",
    "_List": "Literal['dependencies', 'constraints', 'conda']",
    "_Gpus": "Literal['auto', 'all', 'none'] | Sequence[str | int]",
}


def write_signature(
    _app: Any, what: str, name: str, _object: Any, _options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A signature as the API page has it: none of classes whose objects envspec makes."""
    if what == "class" and name != "envspec.Step":
        return "", None
    return re.sub(r"\b_[A-Z]\w+", lambda found: _TYPES[found[0]], signature) if signature else signature, returns


def setup(app: Any) -> None:
    """Sphinx calls it."""
    app.connect("autodoc-process-signature", write_signature)
    app.connect("source-read", read_page)
