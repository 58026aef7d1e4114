"""The packages of the test channels: small, and each there for a case that solvers and installers meet."""

from __future__ import annotations

import hashlib
import platform as machine
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from envspec.structs import replace
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
    numpy = (("2.2.6", "2025-06-20"),)
    return (
        _pure("filelock", "3.99.0", "2025-02-01"),
        _pure("corp-models", "1.0", "2025-02-01", "numpy >=1.26", requires=("numpy",)),
        *(one for python in pythons or (running(),) for one in _numpy(python, versions=numpy, mark="corp")),
    )


def _plain() -> Iterator[CondaArchive]:
    yield archive("tzdata", "2024a", {"share/zoneinfo/UTC": b"TZif2"}, build="h0c530f3_0", built="2024-02-02")
    yield archive("undated", "1.0", {"share/undated.txt": b"when?\n"}, built=None)
    yield archive("undated", "0.9", {"share/undated.txt": b"then\n"}, built="2024-03-01")
    newer_glibc = "__glibc >=2.41,<3.0.a0"
    for subdir in NATIVE:
        for version, built in (("7.0.2", "2024-09-01"), ("7.1.1", "2025-03-01"), ("8.0.1", "2026-01-15")):
            files: dict[str, Content] = {"bin/ffmpeg": Program(f"#!/bin/sh\necho ffmpeg version {version}\n".encode())}
            yield _native("ffmpeg", version, subdir, files, built, "libx264 >=164", _GLIBC)
        yield _native("libx264", "164.3095", subdir, {"lib/libx264.so.164": b"\x7fELF"}, "2024-01-10")
        yield _native("libpathwise", "1.0", subdir, {"lib/libpathwise.so": _BINARY}, "2024-05-01", _GLIBC)
        yield _native("pathwise", "1.0", subdir, _TEXT, "2024-05-02", "libpathwise 1.0.*")
        yield _native("modernlib", "1.0", subdir, {"lib/libmodern.so": b"1"}, "2024-02-01", _GLIBC)
        yield _native("modernlib", "2.0", subdir, {"lib/libmodern.so": b"2"}, "2025-02-01", newer_glibc)
    old = {"share/oldstyle.txt": b"bz2\n"}
    yield _native("oldstyle", "1.0", "linux-64", old, "2024-01-05", form=Form.TAR_BZ2)
    yield _native("simd", "1.0", "linux-64", {"share/simd.txt": b"generic\n"}, "2024-06-01")
    v3 = _native("simd", "1.0", "linux-64", {"share/simd.txt": b"v3\n"}, "2024-06-01", "__archspec 1 x86_64_v3")
    yield replace(v3, index={**v3.index, "build": "h3333333_400", "build_number": 400})


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
    day = "2024-02-06"
    cpython, abi = (f"python {series}.* *_cpython",), (f"python_abi {series}.* *_{tag}",)
    yield archive("python_abi", series, build=f"8_{tag}", constrains=cpython, built=day, more={"build_number": 8})
    build, needs = "h1234567_0_cpython", (_GLIBC, "tzdata")
    for subdir in NATIVE:
        yield archive("python", exact, files, subdir=subdir, build=build, depends=needs, constrains=abi, built=day)


def _noarch_python() -> Iterator[CondaArchive]:
    locks = (("3.13.1", "2024-01-05"), ("3.16.1", "2024-09-17"), ("3.18.0", "2025-03-14"), ("3.20.0", "2026-02-10"))
    for version, built in locks:
        yield _pure("filelock", version, built)
    for version, built in (("4.12.2", "2024-06-07"), ("4.14.0", "2025-06-02"), ("4.15.0", "2025-08-25")):
        yield _pure("typing_extensions", version, built, module="typing_extensions.py")
    for version, built in (("4.46.0", "2024-10-25"), ("4.57.1", "2025-10-15")):
        yield _pure(
            *("transformers", version, built, "filelock", "numpy >=1.17", "pytorch"),
            requires=("filelock", "numpy>=1.17", "torch"),
            entry_points=("transformers-cli = transformers:main",),
        )
    yield _pure("greet", "1.0", "2024-04-01", entry_points=("greet = greet:main",))
    yield _pure("corp-toolkit", "3.1", "2024-07-01", project="corp_tools_py")
    files: dict[str, Content] = {"site-packages/opaque.py": b"answer = 42\n"}
    opaque = _pure("opaque", "0.1", "2024-07-01")
    yield replace(opaque, files=files)


_NUMPY: Final = (("1.26.4", "2024-02-06"), ("2.1.3", "2024-11-03"), ("2.2.6", "2025-05-18"), ("2.3.4", "2025-10-16"))


def _numpy(exact: str, versions: Sequence[tuple[str, str]] = _NUMPY, mark: str = "") -> Iterator[CondaArchive]:
    for subdir in NATIVE:
        for version, built in versions:
            yield _for_python("numpy", version, subdir, exact, built, _GLIBC, mark=mark)


def _cuda() -> Iterator[CondaArchive]:
    """`cuda-version` and what constrains it, in conda-forge's words."""
    for release, cudart, built in (
        ("12.6", "12.6.77", "2024-08-01"),
        ("12.9", "12.9.79", "2025-05-06"),
        ("13.0", "13.0.48", "2025-08-05"),
    ):
        major, minor = release.split(".")
        constrains = (f"cudatoolkit {release}|{release}.*", f"__cuda >={major}")
        yield archive("cuda-version", release, build="h4f385c5_3", constrains=constrains, built=built)
        needs = (_GLIBC, f"cuda-version >={release},<{major}.{int(minor) + 1}.0a0")
        files: dict[str, Content] = {f"lib/libcudart.so.{major}": f"cudart {cudart}".encode()}
        for subdir in NATIVE:
            yield _native("cuda-cudart", cudart, subdir, files, built, *needs)


#: Releases of pytorch, their days, and the CUDA of the builds beside those for the CPU.
_TORCH: Final = (("2.7.1", "2025-07-05", "12.6"), ("2.8.0", "2025-08-20", "12.9"), ("2.9.1", "2026-01-10", "13.0"))
_TORCH_NEEDS: Final = ("filelock", "numpy >=1.23,<3", "typing_extensions >=4.10.0")


def _torch(pythons: Sequence[str]) -> Iterator[CondaArchive]:
    for subdir in NATIVE:
        for version, built, cuda in _TORCH:
            yield from _torch_build(version, built, "", subdir, pythons)
            if subdir == "linux-64":
                yield from _torch_build(version, built, cuda, subdir, pythons)


def _torch_build(version: str, built: str, cuda: str, subdir: str, pythons: Sequence[str]) -> Iterator[CondaArchive]:
    """libtorch and pytorch of one build, exact to each other; for CUDA the metapackage pytorch-gpu as well."""
    kind = f"cuda{cuda.replace('.', '')}" if cuda else "cpu"
    number = 300 if cuda else 0
    needs: tuple[str, ...] = (_GLIBC,)
    if cuda:
        needs += (f"cuda-version >={cuda},<{int(cuda.partition('.')[0]) + 1}", "__cuda", "cuda-cudart")
    named = {"mark": f"{kind}_generic", "number": number}
    files: dict[str, Content] = {"lib/libtorch.so": f"libtorch {version} {kind}".encode()}
    exact = (f"pytorch {version} {kind}_*_{number}",)
    library = _native("libtorch", version, subdir, files, built, *needs, constrains=exact, **named)  # type: ignore[arg-type]
    yield library
    source = f'__version__ = "{version}"\nbuild = "{kind.replace("cuda", "cu")}"\n'
    requires = ("filelock", "typing-extensions>=4.10.0")
    for python in pythons:
        site = _site_packages(python)
        torch = distribution("torch", version, {"torch/__init__.py": source}, requires=requires, site_packages=site)
        of_library = f"libtorch {version} {library.build}"
        depends = (*needs, of_library, *_TORCH_NEEDS)
        yield _for_python("pytorch", version, subdir, python, built, *depends, files=torch, **named)  # type: ignore[arg-type]
    if cuda:
        gpu = f"pytorch {version} {kind}*{number}"
        yield _native("pytorch-gpu", version, subdir, {}, built, gpu, mark=kind, number=number)


_GLIBC: Final = "__glibc >=2.17,<3.0.a0"


def _pure(
    name: str,
    version: str,
    built: str,
    *depends: str,
    project: str = "",
    module: str = "",
    requires: Sequence[str] = (),
    entry_points: Sequence[str] = (),
) -> CondaArchive:
    """A noarch Python package with its distribution. project: the distribution's name; module: a file's path."""
    project = project or name
    path = module or f"{project.replace('-', '_')}/__init__.py"
    source = f'__version__ = "{version}"\n\n\ndef main():\n    print("{project} {version}")\n'
    return archive(
        name,
        version,
        distribution(project, version, {path: source}, requires=requires),
        build="pyhd8ed1ab_0",
        depends=("python >=3.10", *depends),
        built=built,
        python="noarch",
        entry_points=entry_points,
    )


def _native(
    name: str,
    version: str,
    subdir: str,
    files: Mapping[str, Content],
    built: str,
    *depends: str,
    mark: str = "",
    number: int = 0,
    constrains: Sequence[str] = (),
    form: Form = Form.CONDA,
) -> CondaArchive:
    """A package of one subdir. mark: how its build string begins (`cuda129_generic`)."""
    # Seven digits, as conda-build makes them of what a build depends on.
    digest = hashlib.sha1("\n".join((name, version, subdir, mark, *depends)).encode()).hexdigest()[:7]
    build = f"{mark}_h{digest}_{number}".lstrip("_")
    named = {"subdir": subdir, "build": build, "depends": depends, "constrains": constrains}
    return archive(name, version, files, built=built, form=form, **named)  # type: ignore[arg-type]


def _for_python(
    name: str,
    version: str,
    subdir: str,
    exact: str,
    built: str,
    *depends: str,
    mark: str = "",
    number: int = 0,
    files: Mapping[str, Content] | None = None,
) -> CondaArchive:
    """A package that is built for one Python, as those with compiled code are."""
    major, minor = exact.split(".")[:2]
    tag = f"{major}{minor}"
    python = (f"python >={major}.{minor},<{major}.{int(minor) + 1}.0a0", f"python_abi {major}.{minor}.* *_cp{tag}")
    files = files or distribution(name, version, site_packages=_site_packages(exact))
    mark = f"{mark}_py{tag}".lstrip("_")
    return _native(name, version, subdir, files, built, *depends, *python, mark=mark, number=number)


def _site_packages(exact: str) -> str:
    return f"lib/python{'.'.join(exact.split('.')[:2])}/site-packages"


_TEXT: Final[Mapping[str, Content]] = {
    "bin/pathwise": Program(f"#!/bin/sh\necho {PREFIX}\n".encode()),
    "etc/pathwise.conf": f"root = {PREFIX}\nshare = {PREFIX}/share\n".encode(),
}
#: A string that ends in NUL, as a library holds the path that it was built for.
_BINARY: Final = b"\x7fELF\0" + f"{PREFIX}/share/pathwise".encode() + b"\0after\0"
