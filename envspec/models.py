"""The values that stages pass to each other: frozen, typed, without side effects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Struct

from envspec import names
from envspec.reasons import Reason, Why
from envspec.structs import replace

#: The index that uv and pip use when nothing else is said. Its address is never written to a lock.
DEFAULT_INDEX: Final = "default"
#: The "index" of a wheel that the spec names by URL.
DIRECT_URL: Final = "url"
#: The "index" of a wheel that was built of a commit of a git repository, or of a folder.
GIT: Final = "git"
LOCAL: Final = "local"
#: The dependent that is no package.
SPEC: Final = "spec"

# The forms that a lock's reader checks: names, hashes and URLs become parts of paths, of commands and of other files.
Name: TypeAlias = Annotated[str, names.NAME]
NamePattern: TypeAlias = Annotated[str, names.NAME_PATTERN]
Version: TypeAlias = Annotated[str, names.VERSION]
Build: TypeAlias = Annotated[str, names.BUILD]
Line: TypeAlias = Annotated[str, names.LINE]
Url: TypeAlias = Annotated[str, names.URL]
Sha256: TypeAlias = Annotated[str, names.SHA256]
Md5: TypeAlias = Annotated[str, names.MD5]
Digest: TypeAlias = Annotated[str, names.DIGEST]
AptPackage: TypeAlias = Annotated[str, names.APT]
WheelName: TypeAlias = Annotated[str, names.WHEEL]
ReleaseFile: TypeAlias = Annotated[str, names.RELEASE_FILE]
CondaArchive: TypeAlias = Annotated[str, names.CONDA_ARCHIVE]
InnerPath: TypeAlias = Annotated[str, names.INNER_PATH]
ImagePath: TypeAlias = Annotated[str, names.IMAGE_PATH]


class Platform(Enum):
    """A platform, by conda's name."""

    LINUX_64 = "linux-64"
    LINUX_AARCH64 = "linux-aarch64"
    OSX_ARM64 = "osx-arm64"
    WIN_64 = "win-64"

    @property
    def is_linux(self) -> bool:
        return self.value.startswith("linux-")


#: How CPython on a platform describes itself, in PEP 508's words.
MACHINES: Final = {
    platform: {"os_name": os, "sys_platform": sys, "platform_system": system, "platform_machine": machine}
    for platform, os, sys, system, machine in (
        (Platform.LINUX_64, "posix", "linux", "Linux", "x86_64"),
        (Platform.LINUX_AARCH64, "posix", "linux", "Linux", "aarch64"),
        (Platform.OSX_ARM64, "posix", "darwin", "Darwin", "arm64"),
        (Platform.WIN_64, "nt", "win32", "Windows", "AMD64"),
    )
}


def marker_values(platform: Platform, python: str) -> dict[str, str]:
    """What PEP 508 markers see; kernel release and version, which differ between machines, are empty.

    python: an exact version.
    """
    return {
        **MACHINES[platform],
        "implementation_name": "cpython",
        "implementation_version": python,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_version": "",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
    }


@dataclass(frozen=True, slots=True, order=True)
class CudaVersion:
    """A CUDA minor version such as 12.8."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> CudaVersion:
        """Read `12.8`, `12.8.1` (the patch is dropped) or `cu128`; ValueError for anything else."""
        found = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)*|cu(\d+)(\d)", text)
        if not found:
            raise ValueError(f"not a CUDA version: {text!r}")
        major, minor = (found[1], found[2]) if found[1] else (found[3], found[4])
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def variant(self) -> str:
        """PyTorch's name for the build: `cu128`."""
        return f"cu{self.major}{self.minor}"


class Python(Struct, frozen=True):
    """The exact Python of a target, and where it comes from.

    source: `standalone` (url and sha256 given), `system` (Debian/Ubuntu's own package), `conda`,
    `base` (the base image says it has it) or `spec` (the spec names the patch itself).
    """

    version: Version
    source: str
    url: Url | None = None
    sha256: Sha256 | None = None

    @property
    def series(self) -> str:
        return ".".join(self.version.split(".")[:2])


class Target(Struct, frozen=True):
    """One environment to resolve for: everything that markers and wheel tags depend on.

    glibc: newest glibc that a wheel may need (the base image's), None off Linux.
    macos: the oldest macOS that the environment runs on, None elsewhere.
    """

    platform: Platform
    python: Python
    glibc: tuple[int, int] | None = None
    macos: tuple[int, int] | None = None


#: The decision that the packages are those of another tool's lock.
PACKAGES: Final = "packages"


class Decision(Struct, frozen=True):
    """A choice that was made, why, and where the fact behind it comes from.

    what: a dotted key such as `python`, `cuda.release`, `image.flavor`, `driver.minimum`.
    """

    what: str
    value: str
    why: Why
    source: str = ""
    platform: Platform | None = None


class Override(Struct, frozen=True, order=True):
    """Versions of the spec that replace what packages require of one.

    requirement: the versions, and the markers of the platforms on which they count.
    reason: in the spec's words.
    removed: whether nothing requires the package any more.
    """

    name: Name
    requirement: str
    reason: str
    removed: bool = False

    def __str__(self) -> str:
        return f"removed: {self.requirement}" if self.removed else self.requirement


class Commit(Struct, frozen=True, order=True):
    """The commit that is locked of a git repository.

    requirement: of the spec.
    ref: the branch, tag or commit that it names; empty for the default branch.
    address: `git+https://host/project.git@<commit>`, without credentials.
    """

    name: Name
    requirement: str
    address: str
    ref: str = ""


class WheelFile(Struct, frozen=True):
    """One row: the one file that is locked for a package on a platform.

    index: `default`, a `[[pip.index]]` name, `pytorch-cu126` and the like, `url`, `git` or `local`.
    url: only for named indexes and direct URLs, never with credentials; None for the default index. For `git` and
    `local`, what the wheel was built of: `git+https://host/project.git@<commit>`, or the folder as the spec names it,
    with `#sha256=` of its files (`envspec.io.files`).
    size_bytes: None if neither index nor server gives it. hash: `measured` if the index gives none: then it is that of
    the bytes that the server sent when it was locked.
    """

    index: Name
    filename: ReleaseFile
    sha256: Sha256
    size_bytes: int | None
    url: Line | None = None
    hash: Line = ""


class Dependent(Struct, frozen=True, order=True):
    """What requires a package, and with which requirement. name: a package, or SPEC.

    replaces: what the package's metadata has instead, if an override of the spec replaces it.
    """

    name: Name
    requirement: str
    replaces: str = ""


def dependents_of(
    name: str, required_by: Mapping[str, Iterable[Dependent]], follows: Callable[[str], bool] = lambda _: True
) -> set[str]:
    """The packages that require a package, directly or through others, without the spec.

    required_by: of each package. follows: whether a package's own dependents are looked for; by default, of all.
    """
    found, waiting = set[str](), [name]
    while waiting:
        for each in required_by.get(waiting.pop(), ()):
            if each.name == SPEC or each.name in found:
                continue
            found.add(each.name)
            if follows(each.name):
                waiting.append(each.name)
    return found


class Rejected(Struct, frozen=True):
    """A candidate that was rejected, and why."""

    version: str
    why: Why


class BuiltWheel(Struct, frozen=True):
    """The wheel that a build of the locked sdist or commit gave, the same wherever it is built."""

    filename: WheelName
    sha256: Sha256
    size_bytes: int


#: The version of a project that is not built yet, if its build computes it.
UNKNOWN_VERSION: Final = "0"


class Unbuilt(Enum):
    """How the requirements of an sdist are known that could not be built where it was locked.

    STATIC: its PKG-INFO has those of every wheel (PEP 643). STATED: its PKG-INFO, or setuptools' requires.txt, states
    them; its wheel is compared with them once it is built. LOCKED: the lock of another tool is taken as it is, with
    that tool's overrides.
    """

    STATIC = "static"
    STATED = "stated"
    LOCKED = "locked"

    @property
    def described(self) -> str:
        """What it means for the package's requirements."""
        if self is Unbuilt.STATIC:
            return "static metadata, the same for every wheel"
        if self is Unbuilt.LOCKED:
            return "built for the first image or installation; its requirements are those of the lock that has it"
        return "requirements as stated in the sdist, compared at the first build"


class WrongRow(Struct, frozen=True):
    """A file that the RECORD of its wheel lists with another size, without a hash, or not at all.

    path: as in SharedFiles. sha256: of the file in the wheel; None if RECORD lists it and the wheel
    does not contain it.
    """

    path: InnerPath
    sha256: Sha256 | None = None


class Package(Struct, frozen=True):
    """A pinned package on one platform. built: the wheel of a source, once it has been built: then `file` is an sdist,
    or for `git` and `local` the same wheel. unbuilt: of an sdist that is built without compilers, if nothing could
    confine its build where it was locked; None also for one that must be compiled, which `lock --image` builds.
    record_sha256: over the files that the wheel installs (`envspec.verifier.record`), None if it is not known.
    wrong_record: files of the wheel that its RECORD does not list as they are. removed: requirements of its metadata
    that overrides of the spec remove. rejected: the newest candidate. preferred: the version that the spec prefers, if
    it is another one.
    """

    name: Name
    version: Version
    file: WheelFile
    required_by: tuple[Dependent, ...]
    uploaded: datetime | None = None
    rejected: Rejected | None = None
    extras: tuple[Name, ...] = ()
    built: BuiltWheel | None = None
    record_sha256: Sha256 | None = None
    removed: tuple[Line, ...] = ()
    preferred: Rejected | None = None
    unbuilt: Unbuilt | None = None
    wrong_record: tuple[WrongRow, ...] = ()

    @property
    def wheel(self) -> BuiltWheel | WheelFile:
        """What is installed; of a source that is not built yet, the sdist."""
        return self.built or self.file


class Provided(Struct, frozen=True, order=True):
    """A Python package that a conda package installs. name: in PEP 503's form. version: PEP 440's."""

    name: Name
    version: Version


#: Fields of a CondaPackage that change nothing that is installed.
CONDA_REASONS: Final = ("provides", "required_by", "rejected", "preferred")


class CondaPackage(Struct, frozen=True):
    """A pinned conda package on one platform: its channel's row, whole, and why it is here.

    channel: what the spec calls its channel. url: where its archive is, without credentials. subdir: the platform's or
    `noarch`. timestamp_ms: when it was built, milliseconds since 1970. noarch: `python`, `generic` or empty.
    python_site_packages_path: of a Python with another layout than its series' (free-threaded), None elsewhere.
    provides: the Python packages in it, as far as they are known. rejected: the newest candidate that was rejected.
    preferred: the version and build that the spec prefers, if it is another one.
    """

    name: Name
    version: Version
    build: Build
    build_number: int
    channel: Line
    subdir: Name
    filename: CondaArchive
    url: Url
    sha256: Sha256
    md5: Md5 | None = None
    size_bytes: int | None = None
    timestamp_ms: int | None = None
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    noarch: str = ""
    license: str | None = None
    license_family: str | None = None
    features: str | None = None
    track_features: tuple[str, ...] = ()
    python_site_packages_path: InnerPath | None = None
    provides: tuple[Provided, ...] = ()
    required_by: tuple[Dependent, ...] = ()
    rejected: Rejected | None = None
    preferred: Rejected | None = None

    @property
    def file_stem(self) -> str:
        """conda's and rattler's name of its files."""
        return f"{self.name}-{self.version}-{self.build}"


class ChannelPart(Struct, frozen=True):
    """The part of a channel's repodata that a lock was made from.

    records: their number. sha256: over the files of repodata, see `envspec.resolve.conda.channels.part_sha256`.
    """

    records: int
    sha256: Sha256


class CondaChannel(Struct, frozen=True):
    """A channel that was solved from. name: as in the spec. url: its address without credentials, no `/` at the end."""

    name: Line
    url: Url
    part: ChannelPart | None = None


class NamedIndex(Struct, frozen=True):
    """An index that the spec names: its names come from there and from nowhere else, in builds too.

    url: of the simple pages, no `/` at the end; in a lock without credentials. packages: normalised names, or patterns
    in which `*` stands for any text. undated: whether files without an upload time are taken. files: origins beside
    the url's that its pages and files may be on. format: `links` if the url is one page of links, else empty.
    """

    name: Name
    url: Url
    packages: tuple[NamePattern, ...]
    undated: bool = False
    files: tuple[Url, ...] = ()
    format: Line = ""


class InstalledPackage(Struct, frozen=True, order=True):
    """A Python package that is there before the lock's: in the base image, or in the system that it is installed over.

    version: PEP 440's, with its label. record_sha256: of the distribution's RECORD, which lists its files by their
    hashes; None if it has none. required_by: what of the lock requires it.
    """

    name: Name
    version: Version
    record_sha256: Sha256 | None = None
    required_by: tuple[Dependent, ...] = ()


#: In folders of packages of an image that has those of its base.
PATH_FILE: Final = "envspec.pth"


class OnTopOf(Struct, frozen=True):
    """What an environment is installed on top of.

    source: the base image's name, or the file of `pip.on_top_of`. home: the folder of its Python in the image; empty
    outside of an image. site: the folder there from which this Python imports packages; empty if they do not count.
    nested: the same of a virtual environment that is the base's Python; empty if that is none. torch_build: `cu128`,
    `cpu`, empty if it is unknown. gpu_code: of its torch, as far as it was read. constraints: lines that hold for
    everything that is installed there (PIP_CONSTRAINT).
    """

    source: Line
    home: ImagePath = ""
    site: ImagePath = ""
    nested: ImagePath = ""
    torch_build: Line = ""
    gpu_code: GpuCodeFound | None = None
    constraints: tuple[str, ...] = ()

    def path_files(self, site: str) -> dict[str, str]:
        """The files by which Pythons of an image find each other's packages: their paths, and texts on one line.

        site: the environment's own folder of packages, absolute. Programs of the base, torchrun for example, start its
        own Python; a virtual environment of another one does not find the packages of the base's by itself. `site` runs
        such a line; `addsitedir` reads the folder's own .pth files too.
        """
        pairs = [(self.nested or self.site, site), *([(site, self.nested)] if self.nested else [])]
        return {
            f"{folder}/{PATH_FILE}": f"import site; site.addsitedir({found!r})" for folder, found in pairs if folder
        }


class BuildSettings(Struct, frozen=True):
    """How a package is built beside the lock's own torch: what the spec's [build.NAME] and the facts say.

    requires: beside what its sources require. env: with the GPU architectures. gpu_code: of the wheel, such as `sm_90`.
    limit: the variable that takes the number of compilers that run at once. jobs: that number, if the spec or the facts
    have one.
    memory_mib, minutes: see `ExtensionRow`. compiler: this machine's, once it has compiled the recorded wheel.
    """

    name: Name
    requires: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    gpu_code: tuple[str, ...] = ()
    limit: str = ""
    jobs: int | None = None
    memory_mib: int | None = None
    minutes: int | None = None
    compiler: str = ""


#: Why a shared file is its owner's: its name (a licence, a build script), it extends a namespace's path, only its owner
#: has code in it, the spec says so. CONFLICT: nothing decides it, and the lock can't be installed.
INCIDENTAL: Final = "incidental"
NAMESPACE: Final = "namespace"
ONLY_CODE: Final = "only-code"
FILE_OWNER: Final = "file-owner"
CONFLICT: Final = "conflict"


class SharedFiles(Struct, frozen=True, order=True):
    """Files that several packages have with different content.

    owner: the package whose files are installed; empty for CONFLICT. others: those whose files are not.
    why: INCIDENTAL, NAMESPACE, ONLY_CODE, FILE_OWNER or CONFLICT.
    paths: relative to site-packages, or to the environment after `<data>/`.
    """

    others: tuple[Name, ...]
    why: Line
    paths: tuple[InnerPath, ...]
    owner: Name = ""

    @property
    def packages(self) -> tuple[str, ...]:
        """All that have them, sorted."""
        return tuple(sorted({*self.others, *filter(None, [self.owner])}))


def owners_of(shared: Iterable[SharedFiles]) -> dict[str, str]:
    """Path -> owner, of the shared files that have one."""
    return {path: each.owner for each in shared if each.owner for path in each.paths}


def wrong_records_of(resolution: Resolution) -> dict[str, dict[str, str | None]]:
    """Package -> path -> SHA-256, of the files that RECORDs do not list as they are: see WrongRow."""
    found: dict[str, dict[str, str | None]] = {}
    for package in resolution.packages:
        if package.wrong_record:
            found[package.name] = {row.path: row.sha256 for row in package.wrong_record}
    return found


class HeldBack(Struct, frozen=True):
    """A package that went years back to make a set fit, although nothing excludes its newer releases.

    warning: about it. since: the oldest of its releases that is not years old; empty if there is none.
    """

    name: str
    warning: Reason
    since: str = ""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Everything that one target installs, sorted by name.

    packages: the wheels. conda: the conda packages, which they are installed on top of.
    warnings: what the user should know (a package years older than `as_of`, a family that could not be checked).
    builds: of the packages that are built beside others. on_top_of, installed: what is there before them, and its
    packages, of which nothing is installed again. shared: files that several packages have. moved: packages that do not
    have the version of the lock before although the spec allows it, a line each with the reason; no part of the lock.
    held_back: packages that went years back, whose warnings are among `warnings`; no part of the lock.
    """

    target: Target
    packages: tuple[Package, ...]
    warnings: Why = ()
    conda: tuple[CondaPackage, ...] = ()
    builds: tuple[BuildSettings, ...] = ()
    on_top_of: OnTopOf | None = None
    installed: tuple[InstalledPackage, ...] = ()
    shared: tuple[SharedFiles, ...] = ()
    moved: tuple[str, ...] = field(default=(), compare=False)
    held_back: tuple[HeldBack, ...] = field(default=(), compare=False)

    @property
    def names(self) -> set[str]:
        """Everything that is installed, by PyPI's names and by conda's."""
        names = {package.name for package in self.packages}
        for record in self.conda:
            names.add(record.name)
            names.update(each.name for each in record.provides)
        return names

    def build_of(self, name: str) -> BuildSettings | None:
        """How a package is built beside others; None if it is built alone."""
        return next((each for each in self.builds if each.name == name), None)


class GpuCode(Struct, frozen=True):
    """The GPU code that one package's wheel holds on one platform.

    variant: `cu128`, `cpu`. sm: SASS, such as `sm_80`. ptx: such as `compute_120`.
    """

    platform: Platform
    package: str
    version: str
    variant: str
    sm: tuple[str, ...]
    ptx: tuple[str, ...]
    source: str


class CpuBuild(Struct, frozen=True):
    """A package that uses no GPU although the spec has `[cuda]`.

    package: by PyPI's or conda's name. instead: the requirement that brings CUDA, empty if it is another setting or if
    none is known. index: the URL of the index that has it, empty for the default one.
    """

    platform: Platform
    package: Name
    version: Version
    instead: Line = ""
    index: Line = ""
    source: str = ""


class GpuCodeFound(Struct, frozen=True, order=True):
    """What the libraries of a wheel hold, from their `.nv_fatbin`: SASS such as `sm_80`, PTX such as `compute_120`."""

    sm: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


class Library(Struct, frozen=True, order=True):
    """An ELF file of a wheel: a library, an extension module, or a program that is linked dynamically.

    name: of its file, without the folder. soname: empty if it has none. needed: DT_NEEDED. runpath: folders of
    DT_RUNPATH or DT_RPATH.
    """

    name: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


class WheelContent(Struct, frozen=True, order=True):
    """What was read of a wheel's ELF files."""

    gpu_code: GpuCodeFound = GpuCodeFound()
    libraries: tuple[Library, ...] = ()


class PinnedDigest(Struct, frozen=True):
    """The manifest digest of the base image for one platform.

    source: `registry`, `recorded`, `spec` or `unresolved` (then digest is None).
    kind: `index` (a manifest list: the same digest for all its platforms), `manifest`, or `` when unresolved.
    created: when the platform's image was made, as its config states it; None if that was not read.
    """

    platform: Platform
    digest: Digest | None
    source: str
    kind: str = ""
    note: str = ""
    created: datetime | None = None


class BaseImage(Struct, frozen=True):
    """The image that the environment sits on.

    repository: `docker.io/nvidia/cuda`. tag: `12.8.1-base-ubuntu24.04`.
    """

    repository: str
    tag: str
    cuda_release: str | None
    flavor: str | None
    os: str
    digests: tuple[PinnedDigest, ...] = ()

    @property
    def name(self) -> str:
        """With its tag, if it has one."""
        return f"{self.repository}:{self.tag}" if self.tag else self.repository


class Driver(Struct, frozen=True):
    """Oldest Linux driver that runs the lock.

    minimum: by minor-version compatibility. bundled: the driver that the toolkit ships with; PTX needs it.
    """

    minimum: str
    bundled: str | None
    why: Why
    source: str


class Service(Struct, frozen=True):
    """What the container serves. name: `jupyter`, `tensorboard` or `ssh`. logdir: TensorBoard's, below the workdir."""

    name: str
    port: int
    logdir: str | None = None


#: How an image has the project of its spec: installed, or as its files, which Python imports from the working folder.
WHEEL: Final = "wheel"
EDITABLE: Final = "editable"


class ImageSettings(Struct, frozen=True):
    """The image's content and configuration beside the packages: `[image]`, `[system]` and `[services]`, decided.

    workdir: an absolute folder. env: (name, value), sorted. compiler: `apt`, `conda` or `none`. apt: every package that
    the system layer installs, sorted: the spec's own, the services' and the compiler's. snapshot: the time of the
    archive that they come from, None for what the archive has when the layer is made. undated: sources of NVIDIA's
    images without snapshots, which are as they are when the layer is made. project: WHEEL, EDITABLE, or empty for none.
    copy: paths of the project's code, from the spec's folder on. The code itself is not of the lock. entrypoint,
    command: as a Dockerfile's in exec form; empty for the base's.
    """

    workdir: str = "/workspace"
    env: tuple[tuple[str, str], ...] = ()
    compiler: str = "none"
    apt: tuple[AptPackage, ...] = ()
    snapshot: datetime | None = None
    undated: tuple[Line, ...] = ()
    services: tuple[Service, ...] = ()
    project: Line = ""
    copy: tuple[Line, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def has_code(self) -> bool:
        """Whether the image contains code that is not of the lock."""
        return bool(self.project or self.copy)


class SystemLayer(Struct, frozen=True):
    """The layer that needs RUN, as it was made once for one platform.

    base: digest of the base's manifest on that platform. apt: the requested packages. packages: `name=version` of all
    that were installed, sorted. diff_id: of its tar; digest, size_bytes: of the blob as it was made first. undated: the
    addresses of the base's sources without snapshots, of which the newest packages were installed.
    """

    platform: Platform
    base: Digest
    apt: tuple[AptPackage, ...]
    packages: tuple[AptPackage, ...]
    diff_id: Digest
    digest: Digest
    size_bytes: int
    undated: tuple[Line, ...] = ()


class ImageId(Struct, frozen=True):
    """The image that a platform's part of the lock gives. id: the config's digest. pyc: whether it holds bytecode."""

    platform: Platform
    id: Digest
    pyc: bool


class Conformance(Struct, frozen=True):
    """What has to be tested inside the image. checks: their names, in the spec's order.

    world_size: how many GPUs the distributed ones use, None for all that the machine has.
    """

    checks: tuple[str, ...]
    world_size: Annotated[int | None, "all"] = None


class ExportedFiles(Struct, frozen=True):
    """Files of the lock's folder that the spec requires. dockerfile: whether there is a Dockerfile."""

    dockerfile: bool = False


class PlatformCuda(Struct, frozen=True):
    """The base image and the driver of a platform whose [cuda] differs from that of the others."""

    platform: Platform
    base_image: BaseImage | None
    driver: Driver | None


class PackageAge(Struct, frozen=True):
    """An age in `[env] package_as_of`, as the spec has it (`7 days ago`), and the time that it meant when locked."""

    name: Name
    age: str
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of `envspec.lock`.

    format: version of the format. input_sha256: of the canonical spec. as_of: files uploaded later were ignored.
    gpus: the GPUs of the spec. facts: version of envspec's data.
    spec: the spec's path, relative to the lock's folder. base_sha256: of a variant: of what the spec's own lock
    installs (`lockfile.header.pins_sha256`).
    as_of_spec: the age in the spec from which as_of follows, such as `7 days ago`. package_as_of: packages with their
    own time, by `--upgrade-package` or the spec; conda_as_of: the same for conda packages. package_ages: the spec's
    ages.
    channels: the conda channels, in the spec's order; empty if the spec has no [conda].
    indexes: the package indexes of the spec, in its order; builds get their requirements from them.
    platform_cuda: what differs from base_image and driver on a platform; see `on`.
    cpu_builds: empty without [cuda].
    overrides: of the spec. commits: of its git repositories.
    image: the settings of the image. system, images: the results of builds. conformance: None if the spec requires no
    checks. These three are not part of `lockfile.document.identity`. export: None if the spec has no [export].
    directory: the folder from which the lock was read; it is not written.
    """

    format: int
    name: Name
    input_sha256: Sha256
    as_of: datetime
    resolutions: tuple[Resolution, ...]
    decisions: tuple[Decision, ...]
    base_image: BaseImage | None
    driver: Driver | None
    gpu_code: tuple[GpuCode, ...]
    gpus: tuple[str, ...] = ()
    facts: str = ""
    package_as_of: tuple[tuple[Name, datetime], ...] = ()
    conda_as_of: tuple[tuple[Name, datetime], ...] = ()
    channels: tuple[CondaChannel, ...] = ()
    indexes: tuple[NamedIndex, ...] = ()
    image: ImageSettings = ImageSettings()  # noqa: RUF009 - a frozen value
    system: tuple[SystemLayer, ...] = ()
    images: tuple[ImageId, ...] = ()
    conformance: Conformance | None = None
    export: ExportedFiles | None = None
    as_of_spec: str = ""
    spec: str = ""
    base_sha256: str = ""
    platform_cuda: tuple[PlatformCuda, ...] = ()
    package_ages: tuple[PackageAge, ...] = ()
    cpu_builds: tuple[CpuBuild, ...] = ()
    overrides: tuple[Override, ...] = ()
    commits: tuple[Commit, ...] = ()
    directory: Path | None = field(default=None, compare=False, repr=False)

    @property
    def platforms(self) -> list[Platform]:
        return [part.target.platform for part in self.resolutions]

    @property
    def linux_platforms(self) -> list[Platform]:
        """Those that have images."""
        return [platform for platform in self.platforms if platform.is_linux]

    def on(self, platform: Platform) -> Lock:
        """Return the lock for one platform, with this platform's base image and driver."""
        own = next((each for each in self.platform_cuda if each.platform is platform), None)
        return replace(self, base_image=own.base_image, driver=own.driver, platform_cuda=()) if own else self

    @property
    def is_for_gpus(self) -> bool:
        """Whether the environment needs GPUs: packages may need a driver, or the spec names GPUs."""
        return self.driver is not None or bool(self.gpus) or any(each.driver for each in self.platform_cuda)

    @property
    def is_adopted(self) -> bool:
        """Whether the packages are those of another tool's lock, which may override what packages require."""
        return any(each.what == PACKAGES for each in self.decisions)

    @property
    def has_folders(self) -> bool:
        """Whether packages are folders that are not built yet."""
        for part in self.resolutions:
            if any(each.file.index == LOCAL and each.built is None for each in part.packages):
                return True
        return False

    @property
    def base_images(self) -> tuple[BaseImage, ...]:
        """Every base image, with the digests of its platforms."""
        found = (self.base_image, *(each.base_image for each in self.platform_cuda))
        return tuple(image for image in found if image)
