"""The packages of the test channels: small, and each there for a case that solvers and installers meet."""

from __future__ import annotations

import hashlib
import platform as machine
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.builders.conda_archive import (
    PREFIX,
    CondaArchive,
    Content,
    Form,
    Link,
    Program,
    archive,
    distribution,
)

NATIVE: Final = ("linux-64", "linux-aarch64")
#: A Python that no machine runs from here: its archives have the same bytes on every machine, for golden locks.
GOLDEN_PYTHON: Final = "3.12.11"


def running() -> str:
    """The Python that runs the tests: the one that the channel's environments can run."""
    return machine.python_version()


def forge(*pythons: str) -> tuple[CondaArchive, ...]:
    """The first channel, for these Pythons: for the running one where none is named.

    numpy, filelock, typing_extensions: several versions over time. pytorch: CUDA 12.6, 12.9 and 13.0 beside CPU builds
    on linux-64, CPU alone on aarch64. transformers: asks for bare pytorch. greet: noarch, an entry point. pathwise and
    libpathwise: the prefix in text and in binary. corp-toolkit: a name that nobody knows, with a distribution in it.
    opaque: of Python, without a distribution. undated: no timestamp. oldstyle: `.tar.bz2`. simd: by __archspec.
    modernlib: its newest needs glibc 2.41. ffmpeg: no Python.
    """
    exact = pythons or (running(),)
    return (
        *_plain(),
        *(one for python in exact for one in _python(python)),
        *_noarch_python(),
        *(one for python in exact for one in _numpy(python)),
        *_cuda(),
        *_torch(exact),
    )


def corp(*pythons: str) -> tuple[CondaArchive, ...]:
    """A second channel: a package of its own, and others that the first has as well, in other versions."""
    return (
        _pure("filelock", "3.99.0", built="2025-02-01"),
        _pure("corp-models", "1.0", requires=("numpy",), depends=("numpy >=1.26",), built="2025-02-01"),
        *(
            one
            for python in pythons or (running(),)
            for one in _numpy(python, versions=(("2.2.6", "2025-06-20"),), mark="corp")
        ),
    )


def _plain() -> Iterator[CondaArchive]:
    yield archive("tzdata", "2024a", {"share/zoneinfo/UTC": b"TZif2"}, build="h0c530f3_0", built="2024-02-02")
    yield archive("undated", "1.0", {"share/undated.txt": b"when?\n"}, built=None)
    yield archive("undated", "0.9", {"share/undated.txt": b"then\n"}, built="2024-03-01")
    for subdir in NATIVE:
        for version, built in (("7.0.2", "2024-09-01"), ("7.1.1", "2025-03-01"), ("8.0.1", "2026-01-15")):
            files: dict[str, Content] = {"bin/ffmpeg": Program(f"#!/bin/sh\necho ffmpeg version {version}\n".encode())}
            yield _native("ffmpeg", version, subdir, files, depends=("libx264 >=164", _GLIBC), built=built)
        yield _native("libx264", "164.3095", subdir, {"lib/libx264.so.164": b"\x7fELF"}, built="2024-01-10")
        yield _native(
            "libpathwise",
            "1.0",
            subdir,
            {"lib/libpathwise.so": _BINARY},
            depends=(_GLIBC,),
            built="2024-05-01",
        )
        yield _native("pathwise", "1.0", subdir, _TEXT, depends=("libpathwise 1.0.*",), built="2024-05-02")
        yield _native("modernlib", "1.0", subdir, {"lib/libmodern.so": b"1"}, depends=(_GLIBC,), built="2024-02-01")
        yield _native(
            "modernlib",
            "2.0",
            subdir,
            {"lib/libmodern.so": b"2"},
            depends=("__glibc >=2.41,<3.0.a0",),
            built="2025-02-01",
        )
    yield _native(
        "oldstyle", "1.0", "linux-64", {"share/oldstyle.txt": b"bz2\n"}, built="2024-01-05", form=Form.TAR_BZ2
    )
    yield _native("simd", "1.0", "linux-64", {"share/simd.txt": b"generic\n"}, built="2024-06-01")
    yield archive(
        "simd",
        "1.0",
        {"share/simd.txt": b"v3\n"},
        subdir="linux-64",
        build="h3333333_400",
        depends=("__archspec 1 x86_64_v3",),
        built="2024-06-01",
    )


def _python(exact: str) -> Iterator[CondaArchive]:
    """Python as a link to the interpreter that runs the tests, with a `pyvenv.cfg`: `sys.prefix` is the environment.

    Another Python than the running one links to where no machine of ours has one: it is there to be solved with.
    """
    series = ".".join(exact.split(".")[:2])
    home = Path(sys.base_prefix) / "bin" if exact == running() else Path("/nonexistent/bin")
    interpreter = Link(str(home / f"python{series}"))
    config = f"home = {home}\ninclude-system-site-packages = false\nversion = {exact}\n"
    files: dict[str, Content] = {
        f"bin/python{series}": interpreter,
        "bin/python": Link(f"python{series}"),
        "bin/python3": Link(f"python{series}"),
        f"lib/python{series}/site-packages/README.txt": b"distributions go here\n",
        "pyvenv.cfg": config.encode(),
    }
    tag = f"cp{series.replace('.', '')}"
    yield archive(
        "python_abi",
        series,
        build=f"8_{tag}",
        constrains=(f"python {series}.* *_cpython",),
        built="2024-02-06",
        more={"build_number": 8},
    )
    for subdir in NATIVE:
        yield archive(
            "python",
            exact,
            files,
            subdir=subdir,
            build="h1234567_0_cpython",
            depends=(_GLIBC, "tzdata"),
            constrains=(f"python_abi {series}.* *_{tag}",),
            built="2024-02-06",
        )


def _noarch_python() -> Iterator[CondaArchive]:
    for version, built in (
        ("3.13.1", "2024-01-05"),
        ("3.16.1", "2024-09-17"),
        ("3.18.0", "2025-03-14"),
        ("3.20.0", "2026-02-10"),
    ):
        yield _pure("filelock", version, built=built)
    for version, built in (("4.12.2", "2024-06-07"), ("4.14.0", "2025-06-02"), ("4.15.0", "2025-08-25")):
        yield _pure("typing_extensions", version, built=built, module="typing_extensions.py")
    for version, built in (("4.46.0", "2024-10-25"), ("4.57.1", "2025-10-15")):
        yield _pure(
            "transformers",
            version,
            requires=("filelock", "numpy>=1.17", "torch"),
            depends=("filelock", "numpy >=1.17", "pytorch"),
            built=built,
            entry_points=("transformers-cli = transformers:main",),
        )
    yield _pure("greet", "1.0", built="2024-04-01", entry_points=("greet = greet:main",))
    yield _pure("corp-toolkit", "3.1", project="corp_tools_py", built="2024-07-01")
    yield archive(
        "opaque",
        "0.1",
        {"site-packages/opaque.py": b"answer = 42\n"},
        build="pyhd8ed1ab_0",
        depends=(_ANY_PYTHON,),
        built="2024-07-01",
        python="noarch",
    )


_NUMPY: Final = (("1.26.4", "2024-02-06"), ("2.1.3", "2024-11-03"), ("2.2.6", "2025-05-18"), ("2.3.4", "2025-10-16"))


def _numpy(exact: str, versions: Sequence[tuple[str, str]] = _NUMPY, mark: str = "") -> Iterator[CondaArchive]:
    for subdir in NATIVE:
        for version, built in versions:
            yield _for_python("numpy", version, subdir, exact, mark=mark, depends=(_GLIBC,), built=built)


def _cuda() -> Iterator[CondaArchive]:
    """`cuda-version` and what constrains it, in conda-forge's words."""
    for release, cudart, built in (
        ("12.6", "12.6.77", "2024-08-01"),
        ("12.9", "12.9.79", "2025-05-06"),
        ("13.0", "13.0.48", "2025-08-05"),
    ):
        major, minor = release.split(".")
        yield archive(
            "cuda-version",
            release,
            build="h4f385c5_3",
            constrains=(f"cudatoolkit {release}|{release}.*", f"__cuda >={major}"),
            built=built,
        )
        for subdir in NATIVE:
            yield _native(
                "cuda-cudart",
                cudart,
                subdir,
                {f"lib/libcudart.so.{major}": f"cudart {cudart}".encode()},
                depends=(_GLIBC, f"cuda-version >={release},<{major}.{int(minor) + 1}.0a0"),
                built=built,
            )


@dataclass(frozen=True, slots=True)
class _Torch:
    """A release of pytorch and its builds. cuda: `12.9`, or empty for the CPU."""

    version: str
    built: str
    cuda: str = ""


_TORCH: Final = (
    _Torch("2.7.1", "2025-07-05"),
    _Torch("2.7.1", "2025-07-05", "12.6"),
    _Torch("2.8.0", "2025-08-20"),
    _Torch("2.8.0", "2025-08-20", "12.9"),
    _Torch("2.9.1", "2026-01-10"),
    _Torch("2.9.1", "2026-01-10", "13.0"),
)


def _torch(pythons: Sequence[str]) -> Iterator[CondaArchive]:
    for subdir in NATIVE:
        for release in _TORCH:
            if not release.cuda or subdir == "linux-64":
                yield from _torch_build(release, subdir, pythons)


def _torch_build(release: _Torch, subdir: str, pythons: Sequence[str]) -> Iterator[CondaArchive]:
    """libtorch and pytorch of one build, exact to each other; for CUDA the metapackage pytorch-gpu as well."""
    kind = f"cuda{release.cuda.replace('.', '')}" if release.cuda else "cpu"
    number = 300 if release.cuda else 0
    major = int(release.cuda.partition(".")[0] or 0)
    needs = (f"cuda-version >={release.cuda},<{major + 1}", "__cuda", "cuda-cudart") if release.cuda else ()
    library = _native(
        "libtorch",
        release.version,
        subdir,
        {"lib/libtorch.so": f"libtorch {release.version} {kind}".encode()},
        mark=f"{kind}_generic",
        number=number,
        depends=(_GLIBC, *needs),
        constrains=(f"pytorch {release.version} {kind}_*_{number}",),
        built=release.built,
    )
    yield library
    for python in pythons:
        yield _for_python(
            "pytorch",
            release.version,
            subdir,
            python,
            mark=f"{kind}_generic",
            number=number,
            depends=(_GLIBC, *needs, f"libtorch {release.version} {library.build}", *_TORCH_NEEDS),
            distribution=_torch_distribution(release, python),
            built=release.built,
        )
    if release.cuda:
        yield _native(
            "pytorch-gpu",
            release.version,
            subdir,
            {},
            mark=kind,
            number=number,
            depends=(f"pytorch {release.version} {kind}*{number}",),
            built=release.built,
        )


_TORCH_NEEDS: Final = ("filelock", "numpy >=1.23,<3", "typing_extensions >=4.10.0")


def _torch_distribution(release: _Torch, python: str) -> dict[str, Content]:
    kind = f"cu{release.cuda.replace('.', '')}" if release.cuda else "cpu"
    return distribution(
        "torch",
        release.version,
        {"torch/__init__.py": f'__version__ = "{release.version}"\nbuild = "{kind}"\n'},
        requires=("filelock", "typing-extensions>=4.10.0"),
        site_packages=_site_packages(python),
    )


_GLIBC: Final = "__glibc >=2.17,<3.0.a0"
_ANY_PYTHON: Final = "python >=3.10"


def _pure(
    name: str,
    version: str,
    *,
    project: str = "",
    module: str = "",
    requires: Sequence[str] = (),
    depends: Sequence[str] = (),
    built: str,
    entry_points: Sequence[str] = (),
) -> CondaArchive:
    """A noarch Python package with its distribution. project: the distribution's name; module: a file's path."""
    project = project or name
    path = module or f"{project.replace('-', '_')}/__init__.py"
    words = " ".join((project, version))
    source = f'__version__ = "{version}"\n\n\ndef main():\n    print("{words}")\n'
    return archive(
        name,
        version,
        distribution(project, version, {path: source}, requires=requires),
        build="pyhd8ed1ab_0",
        depends=(_ANY_PYTHON, *depends),
        built=built,
        python="noarch",
        entry_points=entry_points,
    )


def _native(
    name: str,
    version: str,
    subdir: str,
    files: Mapping[str, Content],
    *,
    mark: str = "",
    number: int = 0,
    depends: Sequence[str] = (),
    constrains: Sequence[str] = (),
    built: str,
    form: Form = Form.CONDA,
) -> CondaArchive:
    """A package of one subdir. mark: how its build string begins (`cuda129_generic`)."""
    digest = _digest(name, version, subdir, mark, *depends)
    return archive(
        name,
        version,
        files,
        subdir=subdir,
        build=f"{mark}_h{digest}_{number}".lstrip("_"),
        depends=depends,
        constrains=constrains,
        built=built,
        form=form,
    )


def _for_python(
    name: str,
    version: str,
    subdir: str,
    exact: str,
    *,
    mark: str = "",
    number: int = 0,
    depends: Sequence[str] = (),
    built: str,
    distribution: Mapping[str, Content] | None = None,
) -> CondaArchive:
    """A package that is built for one Python, as those with compiled code are."""
    major, minor = exact.split(".")[:2]
    tag = f"{major}{minor}"
    return _native(
        name,
        version,
        subdir,
        distribution or _distribution(name, version, exact),
        mark=f"{mark}_py{tag}".lstrip("_"),
        number=number,
        depends=(
            *depends,
            f"python >={major}.{minor},<{major}.{int(minor) + 1}.0a0",
            f"python_abi {major}.{minor}.* *_cp{tag}",
        ),
        built=built,
    )


def _distribution(name: str, version: str, exact: str) -> dict[str, Content]:
    return distribution(name, version, site_packages=_site_packages(exact))


def _site_packages(exact: str) -> str:
    return f"lib/python{'.'.join(exact.split('.')[:2])}/site-packages"


def _digest(*words: str) -> str:
    """Seven digits, as conda-build makes them of what a build depends on."""
    return hashlib.sha1("\n".join(words).encode()).hexdigest()[:7]


_TEXT: Final[Mapping[str, Content]] = {
    "bin/pathwise": Program(f"#!/bin/sh\necho {PREFIX}\n".encode()),
    "etc/pathwise.conf": f"root = {PREFIX}\nshare = {PREFIX}/share\n".encode(),
}
#: A string that ends in NUL, as a library holds the path that it was built for.
_BINARY: Final = b"\x7fELF\0" + f"{PREFIX}/share/pathwise".encode() + b"\0after\0"
