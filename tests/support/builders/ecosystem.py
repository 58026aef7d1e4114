"""Small sets of projects with the difficulties of the real ones. Each function gives files to hand to `IndexServer`.

The torch family has the versions and the missing requirements of the real one, in wheels of a few hundred bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.support.builders.projects import File, day
from tests.support.builders.wheels import padding, sdist, wheel, wheels

LINUX_TAGS: Final = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64")
DESKTOP_TAGS: Final = ("macosx_11_0_arm64", "win_amd64")
PYTHON_TAGS: Final = ("cp310-cp310", "cp311-cp311", "cp312-cp312", "cp313-cp313")


def release(name: str, version: str, uploaded: str = "2024-01-01", requires: Sequence[str] = ()) -> File:
    """The usual case: one pure wheel. uploaded: a day."""
    return File(wheel(name, version, requires=requires), day(uploaded))


def compiled(
    name: str,
    version: str,
    uploaded: str = "2024-01-01",
    requires: Sequence[str] = (),
    *,
    pythons: Iterable[str] = PYTHON_TAGS,
    platforms: Iterable[str] = (*LINUX_TAGS, *DESKTOP_TAGS),
) -> list[File]:
    """A wheel for each Python and platform."""
    tags = [f"{python}-{platform}" for platform in platforms for python in pythons]
    return [File(artifact, day(uploaded)) for artifact in wheels(name, version, tags, requires=requires)]


def releases(text: str) -> list[File]:
    """A release a line: name, version, a day if it matters, and after a colon what it requires."""
    found = []
    for line in text.strip().splitlines():
        words, _, after = line.partition(":")
        name, version, *uploaded = words.split()
        requires = [each.strip() for each in after.split(",") if each]
        found.append(release(name, version, uploaded[0] if uploaded else "2024-01-01", requires))
    return found


def diamond() -> list[File]:
    """`app` needs `left` and `right`, which share `base`: 1.5.0 is the newest that both take, of 2.0.0."""
    return releases("""
        app 1.0.0: left, right
        left 1.0.0: base<2
        right 1.0.0: base>=1.1
        base 1.0.0 2023-01-01
        base 1.5.0 2024-01-01
        base 2.0.0 2025-01-01
    """)


def conflict() -> list[File]:
    """`one` and `other` exclude each other through `shared`: no solution."""
    return releases("""
        one 1.0.0: shared<2
        other 1.0.0: shared>=2
        shared 1.0.0
        shared 2.0.0
    """)


def backtracking(depth: int = 12) -> list[File]:
    """`climber`'s newer versions each want a `rope` that `anchor` excludes: only climber 1.0.0 fits with anchor."""
    climbers = [f"climber {n}.0.0 20{9 + n:02d}-06-01: rope=={n}.*" for n in range(1, depth + 1)]
    ropes = [f"rope {n}.0.0 20{9 + n:02d}-05-01" for n in range(1, depth + 1)]
    return releases("\n".join([*climbers, *ropes, "anchor 1.0.0: rope<2, climber"]))


def extras() -> list[File]:
    """`kit[fast,web]`: extras with requirements, one of which is the other extra of the project itself."""
    web = ["web-lib", 'web-compat; python_version < "3.11"']
    wanted = {"fast": ["speedups>=1"], "web": web, "all": ["kit[fast,web]"]}
    names = ("core-lib", "speedups", "web-lib", "web-compat")
    kit = wheel("kit", "2.0.0", requires=["core-lib>=1"], extras=wanted)
    return [File(kit), *(release(name, "1.0.0") for name in names)]


def markers() -> list[File]:
    """`portable` needs other packages on each platform and Python."""
    requires = {
        "posix-lib": 'sys_platform != "win32"',
        "windows-lib": 'sys_platform == "win32"',
        "mac-lib": 'platform_system == "Darwin" and platform_machine == "arm64"',
        "arm-lib": 'platform_machine == "aarch64"',
        "backport": 'python_version < "3.11"',
        "patch-lib": 'python_full_version >= "3.11.4"',
    }
    portable = release("portable", "1.0.0", requires=[f"{name}; {marker}" for name, marker in requires.items()])
    return [portable, *(release(name, "1.0.0") for name in requires)]


def requires_python() -> list[File]:
    """`modern` 3.0.0 wants Python 3.13, 2.0.0 wants 3.11.4 and 1.0.0 takes any: the exact patch release decides."""
    return [
        File(wheel("modern", "1.0.0"), day("2023-01-01")),
        File(wheel("modern", "2.0.0", requires_python=">=3.11.4"), day("2024-01-01")),
        File(wheel("modern", "3.0.0", requires_python=">=3.13"), day("2025-01-01")),
    ]


def yanked() -> list[File]:
    """`pulled` 1.1.0 is yanked with a reason that needs escaping, 1.2.0 without one; 1.0.0 stands."""
    return [
        release("pulled", "1.0.0", "2024-01-01"),
        File(wheel("pulled", "1.1.0"), day("2024-02-01"), yanked='breaks "import" & <more>'),
        File(wheel("pulled", "1.2.0"), day("2024-03-01"), yanked=""),
    ]


def prereleases() -> list[File]:
    """`steady` has a newer release candidate; `nightly` has nothing but prereleases."""
    return releases("""
        steady 1.0.0
        steady 2.0.0rc1 2024-06-01
        nightly 0.1.0a1
        nightly 0.1.0.dev2
    """)


def private() -> list[File]:
    """The private index of a company: `corp-core`, and `corp-app`, which needs it and something public."""
    return releases("corp-core 1.2.0\ncorp-app 3.0.0: corp-core>=1, base")


def public_twin() -> list[File]:
    """A stranger's `corp-core` 99.0.0 on the public index, and `innocent` that requires the name. It must never win."""
    return releases("corp-core 99.0.0 2023-01-01\ninnocent 1.0.0: corp-core\nbase 1.5.0")


def dated() -> list[File]:
    """`weekly` was published each month of 2025: 1.1.0 on 1 January to 1.12.0 on 1 December, and 2.0.0 a year later."""
    months = [release("weekly", f"1.{month}.0", f"2025-{month:02d}-01") for month in range(1, 13)]
    return [*months, release("weekly", "2.0.0", "2026-12-01")]


def sources() -> list[File]:
    """`only-source` has no wheel; `mixed` has an sdist newer than its wheel; `bomb` cannot be built."""
    return [
        File(sdist("only-source", "1.0.0")),
        release("mixed", "1.0.0", "2024-01-01"),
        File(sdist("mixed", "1.1.0"), day("2024-06-01")),
        File(sdist("bomb", "1.0.0", on_build='raise SystemExit("this was built, and it must not be")')),
    ]


def manylinux() -> list[File]:
    """`native`: 3.0.0 needs glibc 2.39, 2.0.0 glibc 2.35, 1.0.0 glibc 2.17: the base image's own decides."""
    levels = (("1.0.0", "2_17", "2023-01-01"), ("2.0.0", "2_35", "2024-01-01"), ("3.0.0", "2_39", "2025-01-01"))
    found: list[File] = []
    for version, level, uploaded in levels:
        platforms = (f"manylinux_{level}_x86_64", f"manylinux_{level}_aarch64")
        found += compiled("native", version, uploaded, platforms=platforms)
    return found


def old_when_asked() -> list[File]:
    """`server` 0.2.5 of 2023 has no upper bound on `engine`; each newer one pins an engine that `model` excludes."""
    newer = [f"server 0.{n}.0 20{20 + n}-01-01: engine=={n}.0.0" for n in range(4, 7)]
    engines = [f"engine {n}.0.0 20{19 + n}-12-01" for n in range(4, 8)]
    ends = ["server 0.2.5 2023-11-01: engine", "model 1.0.0 2026-12-15: engine>=7"]
    return releases("\n".join([ends[0], *newer, *engines, ends[1]]))


def build_numbers() -> list[File]:
    """`rebuilt` 1.0.0 has three wheels of one tag: without a build number, and builds 1 and 2."""
    return [File(wheel("rebuilt", "1.0.0", build=build)) for build in (None, "1", "2")]


def big(size_bytes: int = 2_000_000) -> list[File]:
    """`heavy`: a wheel that does not compress, so that reading it whole shows in the bytes sent."""
    return [File(wheel("heavy", "1.0.0", requires=["base"], files={"heavy/blob.bin": padding(size_bytes)}))]


#: torch -> (torchvision, torchaudio, triton, CUDA runtime, day). Versions as published; 2.11 comes with CUDA 13.
TORCH: Final[Mapping[str, tuple[str, str, str, str, str]]] = {
    "2.3.1": ("0.18.1", "2.3.1", "2.3.1", "12.1.105", "2024-06-05"),
    "2.4.0": ("0.19.0", "2.4.0", "3.0.0", "12.1.105", "2024-07-24"),
    "2.6.0": ("0.21.0", "2.6.0", "3.2.0", "12.4.127", "2025-01-29"),
    "2.7.0": ("0.22.0", "2.7.0", "3.3.0", "12.6.77", "2025-04-23"),
    "2.8.0": ("0.23.0", "2.8.0", "3.4.0", "12.8.90", "2025-08-06"),
    "2.9.1": ("0.24.1", "2.9.1", "3.5.1", "12.8.90", "2025-11-12"),
    "2.11.0": ("0.26.0", "2.11.0", "3.6.0", "13.0.96", "2026-03-23"),
}
#: torchaudio that declares no torch requirement, as on the real index: its import fails beside torch 2.4 to 2.10.
TORCHAUDIO_WITHOUT_REQUIREMENT: Final = frozenset({"2.11.0"})


def torch_family() -> list[File]:
    """torch, torchvision, torchaudio, torchtext, triton and the CUDA runtime, with the real metadata's faults."""
    found: list[File] = []
    for torch, (vision, audio, triton, cuda, uploaded) in TORCH.items():
        runtime = "nvidia-cuda-runtime-cu12" if cuda.startswith("12.") else "nvidia-cuda-runtime"
        linux = 'platform_system == "Linux" and platform_machine == "x86_64"'
        needs = [f"{runtime}=={cuda}; {linux}", f"triton=={triton}; {linux}", "filelock", "typing-extensions>=4.8"]
        found += compiled("torch", torch, uploaded, needs)
        found += compiled("torchvision", vision, uploaded, [f"torch=={torch}", "numpy"])
        audio_needs = [] if audio in TORCHAUDIO_WITHOUT_REQUIREMENT else [f"torch=={torch}"]
        found += compiled("torchaudio", audio, uploaded, audio_needs)
        found += compiled("triton", triton, uploaded, platforms=LINUX_TAGS[:1])
    found += [
        # The last release: says torch>=2.3 and fails to import from 2.4 on.
        File(wheel("torchtext", "0.18.0", requires=["torch>=2.3", "numpy"]), day("2024-04-24")),
        *_cuda_runtimes(),
        release("filelock", "3.13.0"),
        release("typing-extensions", "4.12.0"),
        *compiled("numpy", "1.26.4", "2024-02-05"),
        *compiled("numpy", "2.2.0", "2024-12-08"),
    ]
    return found


def _cuda_runtimes() -> list[File]:
    found: list[File] = []
    versions = sorted({cuda for *_, cuda, _ in TORCH.values()})
    for cuda in versions:
        name = "nvidia-cuda-runtime-cu12" if cuda.startswith("12.") else "nvidia-cuda-runtime"
        platforms = ("manylinux2014_x86_64", "manylinux2014_aarch64", "win_amd64")
        found += [File(wheel(name, cuda, tag=f"py3-none-{platform}"), day("2023-01-01")) for platform in platforms]
    return found


def pytorch_index(variant: str = "cu126") -> list[File]:
    """PyTorch's own index for one CUDA release: local versions `2.7.0+cu126`, for the family only."""
    found: list[File] = []
    for torch, (vision, audio, *_rest, uploaded) in TORCH.items():
        local = f"+{variant}"
        found += compiled("torch", torch + local, uploaded, ["filelock"], platforms=LINUX_TAGS[:1])
        found += compiled("torchvision", vision + local, uploaded, [f"torch=={torch}"], platforms=LINUX_TAGS[:1])
        found += compiled("torchaudio", audio + local, uploaded, [f"torch=={torch}"], platforms=LINUX_TAGS[:1])
    return found


def everything() -> list[File]:
    """All the sets that live on one public index together (not `private`, `pytorch_index` and `big`)."""
    sets = (diamond, conflict, backtracking, extras, markers, requires_python, yanked, prereleases, dated, sources)
    return [file for files in (*sets, manylinux, old_when_asked, build_numbers, torch_family) for file in files()]
