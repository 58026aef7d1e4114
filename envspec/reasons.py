"""Why something was decided: codes with values, which locks have, and the one table of their words.

Another word in the table changes no lock. A new reason is a row here and a call of `reason`. Values are names, versions
and times; texts of others (the error of a build, `reason` of an override) are values as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct


class Reason(Struct, frozen=True, order=True):
    """One reason.

    code: a key of WORDS; of a lock by a newer envspec, perhaps one that this one does not know.
    values: placeholder of the words -> its text, sorted by placeholder.
    because: the reasons of this one.
    """

    code: str
    values: tuple[tuple[str, str], ...] = ()
    because: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return words([self])


#: All of them count, the most important one first.
Why: TypeAlias = tuple[Reason, ...]


def reason(code: str, because: Why = (), /, **values: object) -> Reason:
    """The reason of that code.

    because: its own reasons.
    values: of the placeholders of its words.
    """
    return Reason(code, tuple(sorted((name, str(value)) for name, value in values.items())), because)


def words(why: Iterable[Reason]) -> str:
    """Reasons as one text. Of an unknown code, or without a value that its words need: the code and all its values."""
    return "; ".join(map(_words, why))


def has_code(why: Iterable[Reason], *codes: str) -> bool:
    """Whether one of the reasons has one of these codes."""
    return any(each.code in codes for each in why)


def _words(one: Reason) -> str:
    values = dict(one.values)
    try:
        text = WORDS[one.code].format_map(values)
    except KeyError:
        text = " ".join([one.code, *(f"{name}={value}" for name, value in one.values)])
    return f"{text}: {words(one.because)}" if one.because else text


#: What excludes a record of a conda channel, as a part of a sentence: that of a reason, or that of an error.
CONDA_PARTS: Final[Mapping[str, str]] = {
    "conda-excluded": "{constraint}",
    "conda-excluded-by-cuda": '[cuda] version = "{cuda}"',
    "conda-excluded-for-cuda": "[cuda], which requires a CUDA build of {package}",
    "conda-undated": "has no build time",
    "conda-too-late": "was built on {built} at the earliest, after as_of {as_of}",
}

WORDS: Final[Mapping[str, str]] = {
    # Whatever is decided.
    "in-spec": "set in the spec",
    # Python and what bounds its wheels.
    "python-of-conda": "the Python of the solved conda packages",
    "python-of-base": "`image.python` states that the base image has it",
    "python-patch-in-spec": "the spec names the patch itself",
    "python-of-place": "the Python of {place}",
    "python-not-stated": "{place} does not state the Python: of {python}",
    "python-of-system": "the Python that {os} itself installs, as `env.python_source` requires",
    "python-unbuilt-series": "no standalone build of Python {series} is known: install it yourself; its newest patch",
    "python-unbuilt": "no standalone build for {platform} is known: install it yourself",
    "python-of-platform": "on {platform}",
    "python-build-of-patch": "the standalone build of the patch that the spec names",
    "python-newest-build": "the newest patch of the series with a standalone build",
    "python-newest-build-by": "the newest patch of the series with a standalone build of {day} (as_of) or earlier",
    "python-oldest-build": "no standalone build of {day} (as_of) or earlier is known: the oldest known, of {built}",
    "packages-of-lock": "the spec takes them as they are there; nothing is resolved",
    "glibc-of-place": "the glibc there bounds the wheels that it can load",
    "glibc-of-base": "the custom base's own glibc bounds the wheels that it can load",
    "glibc-of-system": "the glibc of {os} bounds the wheels that it can load",
    "glibc-of-default-system": (
        "the glibc of {os}, the system where the spec names none, bounds the wheels that it can load"
    ),
    "macos-oldest": (
        "the oldest macOS to run on: every Mac with Apple silicon can have it, and newer wheels need no more"
    ),
    # CUDA.
    "is-cuda": "{package} is CUDA {cuda}",
    "is-build": "{package} is a {build} build",
    "built-for": "{package} is built for CUDA {cuda}",
    "version-allows": "[cuda] version {version} allows it",
    "any-minor": "it runs with the libraries of any CUDA {major}",
    "no-cuda-wheel": "no CUDA library is a wheel",
    "no-cuda-package": "no CUDA library is a wheel or from conda",
    "no-cuda-stated": "no locked package states which CUDA it needs, and the spec names none",
    "smallest-flavor": "the smallest with {libraries}",
    "smallest-flavor-for": "the smallest with {libraries}, for {packages}",
    "not-in-wheels": "no wheel of the lock brings them",
    "not-in-packages": "nothing in the lock brings them",
    "image-brings-wheels": "no wheel of the lock brings CUDA's libraries: the image has to",
    "image-brings-packages": "nothing in the lock brings CUDA's libraries: the image has to",
    "brought": "{sources} bring {libraries}: nothing else is needed to run",
    "brought-by-torch": "{torch} brings what it loads: nothing else is needed to run",
    "for-builds": "wheels are built in it",
    # The base image.
    "image-in-spec": "the spec names its own base image",
    "image-of-cpu": "no [cuda] table: an environment for the CPU",
    "image-only-linux": "NVIDIA's images are for linux",
    "image-newest-patch": "the newest patch of CUDA {cuda} with {flavor} on {os}",
    "image-recorded-patch": "the newest patch of CUDA {cuda} with {flavor} and a recorded digest; {newest} has none",
    "image-nearest-minor": "the nearest newer minor: no image of CUDA {cuda} is known for {os}",
    "image-nearest-minor-cudnn": (
        "the nearest newer minor: no image of CUDA {cuda} with cuDNN {cudnn} is known for {os}"
    ),
    "image-newest-minor": "the newest known minor: no image of CUDA {cuda} is known for {os}",
    "image-newest-minor-cudnn": (
        "the newest known minor: no image of CUDA {cuda} with cuDNN {cudnn} is known for {os}"
    ),
    "image-end-of-life": "past its end of life, so NVIDIA may delete it: `envspec image mirror` keeps a copy",
    "image-superseded": (
        "past its end of life ({newer} follows it), so NVIDIA may delete it: `envspec image mirror` keeps a copy"
    ),
    "image-without-cuda": "the system without CUDA",
    "image-unknown": "no image of CUDA {major} is known for {os}: the system without CUDA",
    # The driver, and code for GPUs.
    "driver-of-minor": "CUDA {major}.x runs from driver {minimum} on (minor-version compatibility)",
    "driver-shipped": "{cuda} ships with {driver}",
    "driver-of-release": "what CUDA {cuda} ships with: before CUDA 11, no older driver runs a release",
    "driver-of-ptx": "{gpus} runs code that the driver compiles from PTX: the toolkit's own driver is needed",
    "gpu-is": "{gpu} is {sm}",
    "gpu-code": "{package} has code for {sm}",
    "gpu-no-code": "{package} has no GPU code (a CPU build)",
    "gpu-ptx": "its driver compiles it from {ptx}, which needs the driver that the toolkit ships with",
    # torch's build.
    "torch-any": "no CUDA version is required: the default build",
    "torch-macos": "macOS has no CUDA: the default index's build",
    "torch-unknown": "no known torch release matches {torch} by the date given",
    "torch-outside": "torch {torch} is outside the facts ({oldest} to {newest})",
    "torch-default-of": "{variant} is torch {torch}'s default build",
    "torch-not-default-of": "{variant} is not torch {torch}'s default build",
    "torch-elsewhere": "torch is from elsewhere",
    "torch-found": "{place} has torch {torch}",
    "torch-newest-default": "torch {torch} is the newest match with {variant}, its default build on {platform}",
    "torch-newest": "torch {torch} is the newest match with {variant}",
    "torch-default": "its default build on {platform} is {variant}",
    "torch-is-default": "its default build on {platform}",
    "torch-for-driver": "the newest build that driver {driver} runs is torch {torch} for CUDA {cuda}",
    "torch-for-machines": (
        "the newest build with code for {gpus} that driver {driver} runs is torch {torch} for CUDA {cuda}"
    ),
    "torch-default-for-gpus": (
        "the newest default build on {platform} with code for {gpus} is torch {torch} for CUDA {cuda}"
    ),
    "torch-left-out": "torch {torch} is left out",
    "torch-cpu": "its default build on {platform} is not known to be for CUDA",
    "torch-driver": "its build for CUDA {cuda} needs driver {driver} or newer",
    "torch-gpu-driver": "{gpu} needs driver {driver} or newer",
    "torch-code-unknown": (
        "the GPU code of its build for CUDA {cuda} is unknown. Add it to the spec: [[facts.gpu_code]] with "
        'torch = "{torch}", variant = "{variant}", platform = "{platform}", and its sm, ptx and source'
    ),
    "torch-no-code": "its build for CUDA {cuda} has no code for {gpus}",
    "torch-only-ptx": (
        "its build for CUDA {cuda} has only PTX for one of the GPUs, which needs driver {driver} or newer"
    ),
    "torch-other-cuda": '[cuda] version = "{cuda}" allows torch {torch}, whose build has that code',
    # What is in the image besides.
    "apt-in-spec": "required by the spec: {packages}",
    "apt-python": "Python itself: {packages}",
    "apt-ssh": "[services] ssh: {packages}",
    "apt-compiler": "the compiler: {packages}",
    "apt-headers": "Python's headers: {packages}",
    "apt-libraries": "{package} loads {libraries}: {packages}",
    "services": "what the container serves",
    "compiler-in-spec": "the spec requires one",
    "compiler-none": "the spec sets none",
    "compiler-missing": "torch.compile and Triton's kernels fail in it: they build a launcher in C",
    "compiler-for-triton": "torch.compile and Triton's first kernel build a launcher in C, and so need a C compiler",
    "compiler-of-conda": "conda brings {package}",
    "compiler-headers": "what it compiles includes Python's headers, which the base has to have beside its Python",
    "apt-undated": "apt installs what the archives have when the layer is built",
    "apt-day-before": "the day before as_of",
    "apt-base-age": "when the base image was created is not known",
    "apt-after-base": "the base image was created at {created}, after the day before as_of",
    "apt-first": "the archive has no older snapshots",
    # What the lock's tables say.
    "commit-of": "the commit that {ref} is at",
    "commit-of-default": "the commit that the default branch is at",
    "base-constraints": "{source} states them for all that is installed there (PIP_CONSTRAINT)",
    "override": "{reason}",
    "digest": "{note}",
    "digest-recorded": "recorded in envspec's data",
    "digest-registry": "read from the registry",
    "digest-spec": "named by the spec",
    "digest-unresolved": "not resolved",
    # Machines of conda packages.
    "conda-machine": "properties of the environment's machine, not of the machine that locks",
    "conda-newer-driver": "packages for a newer CUDA need a newer driver than [cuda] version",
    # Why a release of a package was not taken.
    "spec-requires": "the spec requires {requirement}",
    "spec-overrides": "the spec requires {requirement} (pip.overrides)",
    "spec-prefers": "the spec prefers {requirement}",
    "lock-keeps": "the lock keeps {requirement}",
    "constrained": "constrained to {requirement}",
    "constraint-of": "{line} is a constraint of {place}",
    "required-there": "{place} has {package} {version}, which requires {line}",
    "needed-by": "{package} needs {requirement}",
    "needs-python": "needs Python {python}, the target has {target}",
    "needs-spec": "needs {requirement}, and the spec requires {other}",
    "needs-other": "needs {requirement}, and {other} is {version}",
    "needs-of-conda": "needs {requirement}, and {package} {version} comes from {channel}",
    "needs-there": "needs {requirement}, and {place} has {package} {version}",
    "fits-no-set": "its requirements fit no complete set",
    "kept": "{version} is kept, which fits too",
    "yanked": "it was yanked",
    "yanked-because": "it was yanked ({reason})",
    "lock-before": "the lock that this one follows has another version",
    "not-on-index": "index {index} does not have it",
    "uploaded-later": "it was uploaded after as_of ({day})",
    "no-wheel": "has no wheel for Python {python} on {platform}",
    "no-wheel-glibc": "has no wheel for Python {python} on {platform}, glibc up to {glibc}",
    "other-labels": "its wheels are for {labels}",
    "unreadable": "{problem}",
    # The same of a record of a conda channel.
    "conda-excluded": f"excluded by {CONDA_PARTS['conda-excluded']}",
    "conda-excluded-by-cuda": f"excluded by {CONDA_PARTS['conda-excluded-by-cuda']}",
    "conda-excluded-for-cuda": f"excluded by {CONDA_PARTS['conda-excluded-for-cuda']}",
    "conda-allowed-by": "{package} allows only {requirement}",
    "conda-allows": "it allows only {requirement}, and {package} is {version}",
    "conda-no-machine": "it needs {requirement}, which this environment's machine does not have",
    "conda-machine-has": "it needs {requirement}, and the machine has {package} {version}",
    "conda-needs": "it needs {requirement}, and {package} is {version}",
    "conda-conflict": "its requirements conflict with the rest",
    "conda-not-in-channel": "its channel does not have it",
    "conda-undated": f"it {CONDA_PARTS['conda-undated']}",
    "conda-too-late": f"it {CONDA_PARTS['conda-too-late']}",
    "conda-spec-prefers": "the spec prefers {version}; `--upgrade-package {package}` moves it",
    "conda-lock-keeps": "the lock keeps {version}; `--upgrade-package {package}` moves it",
    # What the user of a lock should know.
    "years-old": "{package} {version} is from {month}; {newer} was not selected",
    "other-python": "newer releases of {count} packages need another Python than {python}: {packages}",
    "left-out": "{package} {version} was left out",
    "compiled-beside-conda": (
        "{package} {version} is compiled and needs torch: its wheel was built against PyPI's, and torch {torch} comes "
        "from {channel}; if it does not load, install {package} from conda as well"
    ),
    "compiled-beside": (
        "{package} {version} is compiled and needs torch: its wheel was built against PyPI's, and {place} has torch "
        "{torch}; if it does not load, build it for that torch"
    ),
    "untagged": "{package} {version}: its wheel's tag {tag} does not state the glibc that the wheel needs",
    "used-yanked": "{package} {version} was yanked by its publisher: used because nothing else is allowed",
    "used-yanked-because": (
        "{package} {version} was yanked by its publisher ({reason}): used because nothing else is allowed"
    ),
    "unmet-there": "{place} has {package} {version}, which requires {requirements}: left as it is",
    "extra-of-package": (
        "{dependent} requires {requirement}, but {package} {version} has no extra {extra}: if something is missing, "
        "add it to [pip] dependencies"
    ),
    "extra-former": (
        "{requirement}: {package} {version} no longer has the extra {extra}: remove it, or bound {package} to releases "
        "that have it"
    ),
    "extra-misspelled": (
        "{requirement}: {package} {version} has no extra {extra}, so nothing is installed for it: did you mean "
        "{package}[{close}]?"
    ),
    "extra-unknown": (
        "{requirement}: {package} {version} has no extra {extra}, so nothing is installed for it: remove it; {package} "
        "has the extras {extras}"
    ),
    "extra-none": (
        "{requirement}: {package} {version} has no extra {extra}, so nothing is installed for it: remove it; {package} "
        "has no extras"
    ),
}
