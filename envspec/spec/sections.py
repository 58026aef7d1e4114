"""The sections of spec.toml, as pydantic models."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from envspec.adopt.rows import Selection
from envspec.conformance.checks import CHECKS
from envspec.models import Platform
from envspec.spec import values as f
from envspec.spec.conda import VIRTUAL_PACKAGE_PLATFORMS


class Section(BaseModel):
    """Unknown keys are refused, nothing is converted silently, nothing changes later."""

    # Only the whole `Spec` is validated: validators of its sections alone would take 20 ms of every start.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, defer_build=True)


class NoFacts(Section):
    """A spec without [facts]. With it, the table is in `envspec.spec.fact_rows`, whose models take 40 ms to build."""

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The rows as `envspec.facts.load_facts` takes them."""
        tables = {}
        for table in type(self).model_fields:
            if rows := getattr(self, table):
                tables[table] = [row.model_dump(exclude_unset=True) for row in rows]
        return tables


class PythonSource(Enum):
    """Where Python comes from.

    AUTO: conda if the spec has [conda], the base if it says that it has one, else a standalone build.
    """

    AUTO = "auto"
    STANDALONE = "standalone"
    SYSTEM = "system"
    BASE = "base"
    CONDA = "conda"


class Flavor(Enum):
    """CUDA libraries in the base image, by NVIDIA's names; AUTO: the smallest that completes the lock."""

    AUTO = "auto"
    BASE = "base"
    RUNTIME = "runtime"
    CUDNN_RUNTIME = "cudnn-runtime"
    DEVEL = "devel"
    CUDNN_DEVEL = "cudnn-devel"


class Os(Enum):
    """Operating system of the base image, as in NVIDIA's tags."""

    UBUNTU_20_04 = "ubuntu20.04"
    UBUNTU_22_04 = "ubuntu22.04"
    UBUNTU_24_04 = "ubuntu24.04"
    UBUNTU_26_04 = "ubuntu26.04"


class UndatedFiles(Enum):
    """What to do with files without an upload time."""

    REFUSE = "refuse"
    ACCEPT = "accept"


class IndexFormat(Enum):
    """What the address of an index leads to."""

    SIMPLE = "simple"
    LINKS = "links"


class Compiler(Enum):
    """The C compiler that Triton's launcher needs; AUTO: if the lock has Triton."""

    AUTO = "auto"
    APT = "apt"
    NONE = "none"


class Env(Section):
    """The environment itself."""

    name: f.EnvName = Field(
        description="The environment's name. Its lock is `locks/<name>`; another spec of that name can't replace it.",
        examples=["pytorch-2.9"],
    )
    python: f.PythonVersion = Field(
        description="A Python series, or an exact patch. Of a series, `python_source` determines the patch.",
        examples=["3.11", "3.11.7"],
    )
    platforms: f.ListOf[f.PlatformName] = Field(
        default=(Platform.LINUX_64,),
        min_length=1,
        description="The platforms to lock for, by conda's names.",
        examples=[["linux-64", "linux-aarch64"]],
    )
    as_of: f.AsOf | None = Field(
        default=None,
        description="Files uploaded later are ignored, and apt installs from the archives of the day before. A date, "
        "with or without quotes, means 00:00 UTC: today's date excludes today's uploads. An age is counted back from "
        "the time of locking; the lock records both.",
        examples=["2026-11-15", "7 days ago"],
    )
    package_as_of: dict[f.DatedName, f.AsOf] = Field(
        default_factory=dict,
        description="Later dates or ages for single packages; `envspec lock --upgrade-package` writes dates.",
        examples=[{"torch": "2026-11-20"}, {"vllm": "2 days ago"}],
    )
    python_source: Annotated[PythonSource, f.OneOf()] = Field(
        default=PythonSource.AUTO,
        description="Source of Python. auto: conda with `[conda]`; the base with `[image] python` or "
        '`packages = "keep"`; else a standalone build. None of 3.8 is known, so that series has no image.',
        examples=["standalone"],
    )

    @property
    def is_dated(self) -> bool:
        """Whether `as_of` is a date: versions then do not follow from the lock before."""
        return isinstance(self.as_of, datetime)

    @property
    def python_series(self) -> str:
        """`3.11` for `3.11` and for `3.11.7`."""
        return ".".join(self.python.split(".")[:2])

    @property
    def exact_python(self) -> str | None:
        """`3.11.7` where the spec names the patch, None where it names a series."""
        return self.python if self.python.count(".") == 2 else None


class CudaTarget(Section):
    """CUDA on one platform; keys that are left out are those of `[cuda]`."""

    version: f.CudaMinor | None = Field(
        default=None,
        description="CUDA's minor version (default: that of torch's wheels).",
        examples=["12.8"],
    )
    driver: f.DriverVersion | None = Field(
        default=None,
        description="The oldest Linux driver that must run the environment, or its branch. Without `version`, the "
        "newest torch with a build for this driver is locked. The lock states the oldest driver that runs it: "
        "often an older one.",
        examples=["535"],
    )
    flavor: Annotated[Flavor, f.OneOf()] = Field(
        default=Flavor.AUTO,
        description="CUDA libraries in the base image. auto: the smallest flavor that contains what the wheels lack.",
        examples=["cudnn-runtime"],
    )
    os: Annotated[Os, f.OneOf(unsupported=f.UNSUPPORTED_SYSTEMS)] = Field(
        default=Os.UBUNTU_24_04,
        description="The base image's system. Wheels that need a newer glibc than it has are not locked.",
        examples=["ubuntu22.04"],
    )
    gpus: f.ListOf[f.Word] = Field(
        default=(),
        description="The GPUs that must run the environment, by name or compute capability. The newest torch whose "
        "build has code for all of them is locked.",
        examples=[["T4", "A100", "9.0"]],
    )


class Cuda(CudaTarget):
    """CUDA; leave it out for an environment that runs on the CPU only."""

    platform: dict[f.PlatformKey, CudaTarget] = Field(
        default_factory=dict,
        description="Keys that differ on one platform: a table for each platform.",
        examples=[{"linux-aarch64": {"version": "13.0", "gpus": ["GB10"]}}],
    )

    def on(self, platform: Platform) -> CudaTarget:
        """The keys of a platform: its own before those of [cuda]."""
        own = self.platform.get(platform)
        if own is None:
            return self
        return self.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


class IndexSection(Section):
    """A private or an extra index: its packages come from there and from nowhere else."""

    name: f.IndexName = Field(description="Name of this index in the lock.", examples=["corp"])
    url: f.IndexUrl = Field(
        description="URL of the simple index. Credentials are never written to the lock; write them as ${VARIABLE}.",
        examples=["https://wheels.example.com/simple"],
    )
    format: Annotated[IndexFormat, f.OneOf()] = Field(
        default=IndexFormat.SIMPLE,
        description="simple: a page for each name below `url` (PEP 503, 691). links: `url` is one page with links to "
        "files, as for pip's `-f`. Such pages have no upload times, so `as_of` does not exclude their files.",
        examples=["links"],
    )
    packages: f.ListOf[f.NamePattern] = Field(
        min_length=1,
        description="Names of packages, or patterns, that come only from this index.",
        examples=[["corp-*"]],
    )
    files: f.ListOf[f.Origin] = Field(
        default=(),
        description="Other servers on which its pages and files may be, or to which they may redirect (default: none).",
        examples=[["https://files.example.com"]],
    )
    undated: Annotated[UndatedFiles, f.OneOf()] = Field(
        default=UndatedFiles.REFUSE,
        description="Whether to allow files without an upload time, which `as_of` can't exclude.",
        examples=["accept"],
    )


class Override(Section):
    """A requirement that replaces those that packages have on the same name, or removes them."""

    requirement: f.OverrideText = Field(
        description="A name and its versions; without versions, any. Extras and markers of the replaced requirements "
        "stay.",
        examples=["numpy<2"],
    )
    remove: bool = Field(
        default=False,
        description="Remove the requirements instead of replacing them: a package that nothing else requires is then "
        "not locked. `requirement` is a name without versions.",
        examples=[True],
    )
    reason: f.Word = Field(
        description="The reason, which is written into the lock.",
        examples=["audiocraft runs with numpy 1.26, its metadata is too narrow"],
    )


class PipBuild(Section):
    """Which releases without a wheel may be built from their sdists."""

    pure: bool = Field(
        default=True,
        description="Whether to build sdists that need no compiler. A build runs the sdist's code, confined. The "
        "hashes of sdist and wheel are locked; that of the sdist alone where bubblewrap does not work.",
        examples=[False],
    )
    packages: f.ListOf[f.SdistName] = Field(
        default=(),
        description='Names whose sdists may be built, also by compilers and without `pure`; `"*"`: every name.',
        examples=[["deepspeed"]],
    )
    sandbox: bool = Field(
        default=True,
        description="Whether a build must be confined, by bubblewrap or a container. With false, `envspec lock` builds "
        "with the rights of its user where neither works.",
        examples=[False],
    )

    def may_compile(self, name: str) -> bool:
        """Whether an sdist of a normalised name may be built by compilers."""
        return not {name, "*"}.isdisjoint(self.packages)

    def may_build(self, name: str) -> bool:
        """Whether an sdist of a normalised name may be built, by compilers or without."""
        return self.pure or self.may_compile(name)


class Pip(Section):
    """Packages from Python package indexes."""

    source: f.ListFile | None = Field(
        default=None,
        alias="from",
        description="A lock of another tool next to the spec, whose packages are locked as they are: `uv.lock`, "
        "`pylock.toml`, `poetry.lock`, `pixi.lock`, `conda-lock.yml`, or a requirements file with hashes. Nothing is "
        "resolved. Keys that choose versions can't stand beside it.",
        examples=["uv.lock"],
    )
    extras: f.ListOf[f.SelectedName] = Field(
        default=(),
        description='Extras of the project in the lock that `from` names; `"*"`: all.',
        examples=[["cuda"]],
    )
    groups: f.ListOf[f.SelectedName] = Field(
        default=(),
        description='Dependency groups in the lock that `from` names; `"*"`: all.',
        examples=[["train"]],
    )
    without_groups: f.ListOf[f.PackageName] = Field(
        default=(),
        description="Groups to leave out of `groups` or of the default groups.",
        examples=[["dev"]],
    )
    default_groups: bool = Field(
        default=False,
        description="Whether to include the project's default groups, as `uv sync` does.",
        examples=[True],
    )
    members: f.ListOf[f.SelectedName] = Field(
        default=(),
        description='Packages of the workspace in the lock that `from` names (default: the project beside it); `"*"`: '
        "all.",
        examples=[["server"]],
    )
    dependencies: f.ListOf[f.RequirementText] = Field(
        default=(),
        description="Requirements (PEP 508); wheels, sdists and git repositories by URL; local projects by path. "
        "Several lines for one name all apply.",
        examples=[["torch==2.9.*", "transformers[torch]>=4.57"]],
    )
    constraints: f.ListOf[f.ConstraintText] = Field(
        default=(),
        description="Limits on the versions of packages that other packages require; they add no package.",
        examples=[["numpy<2.4"]],
    )
    prefer: f.ListOf[f.PreferenceText] = Field(
        default=(),
        description="Versions to lock if everything else allows them, for example those that were installed before. "
        "Without a date in the spec, versions that are locked already have priority. The lock has the reason for each "
        "preferred version that it does not contain. `envspec lock --upgrade` removes all entries, `--upgrade-package` "
        "those of its packages.",
        examples=[["numpy==1.26.4"]],
    )
    overrides: f.ListOf[Override] = Field(
        default=(),
        description="Requirements that replace those of packages; the spec's own requirements stay.",
        examples=[
            [{"requirement": "numpy<2", "reason": "its bound on numpy is too narrow"}],
            [{"requirement": "opencv-python", "remove": True, "reason": "opencv-python-headless is installed"}],
        ],
    )
    build: PipBuild = Field(default_factory=PipBuild, description="Which releases without a wheel may be built.")
    file_owner: dict[f.SharedPath, f.PackageName] = Field(
        default_factory=dict,
        description="The package whose files are installed if several have different files at one path. A key is a "
        "path in site-packages, a folder, or one of the packages, with `*` for any text. An exact path goes before "
        "patterns, a longer pattern before a shorter one. Files that no program needs have an owner without it.",
        examples=[{"cv2/*": "opencv-contrib-python"}],
    )
    on_top_of: f.ListFile | None = Field(
        default=None,
        description="A file next to the spec with the output of `pip inspect`, `pip list --format json` or `pip "
        "freeze`: packages that the target system already has.",
        examples=["colab.json"],
    )
    index: f.ListOf[IndexSection] = Field(
        default=(),
        description="Private or extra indexes, each with the names of its packages.",
        examples=[[{"name": "corp", "url": "https://wheels.example.com/simple", "packages": ["corp-*"]}]],
    )

    @property
    def selection(self) -> Selection:
        """What is meant of the lock that `from` names."""
        return Selection(self.extras, self.groups, self.without_groups, self.default_groups, self.members)

    def index_for(self, name: str) -> IndexSection | None:
        """The index that serves a normalised name, None for the default one. A name goes before a pattern."""
        for index in self.index:
            if name in index.packages:
                return index
        for index in self.index:
            if any(fnmatchcase(name, pattern) for pattern in index.packages):
                return index
        return None


class BuildSection(Section):
    """How a package is built from its sdist, beside the lock's own torch."""

    requires: f.ListOf[f.BuildRequirementText] = Field(
        default=(),
        description="Build requirements in addition to those of its sources. Packages of the lock, such as torch, are "
        "the locked ones, with what they require; others come from the indexes.",
        examples=[["torch", "ninja"]],
    )
    env: dict[f.VariableName, f.EnvVariable] = Field(
        default_factory=dict,
        description="Environment variables of the build.",
        examples=[{"FLASH_ATTENTION_DISABLE_BACKWARD": "TRUE"}],
    )
    jobs: int | None = Field(
        default=None,
        ge=1,
        description="How many compilers run at the same time (default: as many as processors and free memory allow).",
        examples=[4],
    )


class CondaPlatform(Section):
    """Additional conda requirements of one platform."""

    dependencies: f.ListOf[f.MatchSpec] = Field(
        default=(), description="Match specs for this platform only.", examples=[["gcc_linux-64 >=13"]]
    )
    virtual_packages: dict[f.VirtualName, f.VirtualValue] = Field(
        default_factory=dict,
        description="Virtual packages of this platform, instead of those in `[conda.virtual_packages]`.",
        examples=[{"__archspec": "x86_64_v3"}],
    )


class Conda(Section):
    """Packages from conda channels, Python among them."""

    channels: f.ListOf[f.ChannelText] = Field(
        default=("conda-forge",),
        min_length=1,
        description="Channels, by priority. Credentials are never written to the lock; write them as ${VARIABLE}.",
        examples=[["conda-forge", "https://${TEAM_USER}:${TEAM_TOKEN}@conda.example.com/channel"]],
    )
    only: dict[f.ChannelText, f.Subdirs] = Field(
        default_factory=dict,
        description="The platforms to read from a channel, if it does not have all platforms of the spec.",
        examples=[{"https://conda.example.com/channel": ["noarch"]}],
    )
    dependencies: f.ListOf[f.MatchSpec] = Field(
        default=(),
        description="Conda match specs; a bare version is exactly that version.",
        examples=[["ffmpeg >=7"]],
    )
    prefer: f.ListOf[f.PreferredRecord] = Field(
        default=(),
        description="Versions, with or without builds, to lock if everything else allows them, as in `[pip] prefer`.",
        examples=[["numpy ==1.26.4 py311h64a7726_0"]],
    )
    undated: Annotated[UndatedFiles, f.OneOf()] = Field(
        default=UndatedFiles.REFUSE,
        description="Whether to allow packages without a build time, which `as_of` can't exclude.",
        examples=["accept"],
    )
    platform: dict[f.PlatformKey, CondaPlatform] = Field(
        default_factory=dict,
        description="Requirements of one platform only: a table for each platform.",
        examples=[{"linux-64": {"dependencies": ["gcc_linux-64 >=13"]}}],
    )
    names: dict[f.CondaName, f.PyPINames] = Field(
        default_factory=dict,
        description="The Python packages that a conda package contains, by their names on PyPI; an empty list: none.",
        examples=[{"msgpack-python": "msgpack", "ffmpeg": []}],
    )
    virtual_packages: dict[f.VirtualName, f.VirtualValue] = Field(
        default_factory=dict,
        description="Virtual packages of the target machine that differ from envspec's defaults.",
        examples=[{"__linux": "6.8"}],
    )

    def dependencies_on(self, platform: Platform) -> tuple[str, ...]:
        """Match specs of a platform: those of all platforms, then its own."""
        own = self.platform.get(platform, CondaPlatform())
        return self.dependencies + own.dependencies

    def virtual_packages_on(self, platform: Platform) -> dict[str, str]:
        """What the spec says that the platform's machine has: name -> value; without those of other platforms."""
        own = self.platform.get(platform, CondaPlatform())
        values = {**self.virtual_packages, **own.virtual_packages}
        for name in list(values):
            if platform not in VIRTUAL_PACKAGE_PLATFORMS.get(name, (platform,)):
                del values[name]
        return values


class Libraries(Enum):
    """What to do about libraries of the system that packages load, as far as it is known when locking."""

    AUTO = "auto"
    REPORT = "report"
    NONE = "none"


class System(Section):
    """Packages of the base image's system."""

    apt: f.ListOf[f.AptPackage] = Field(
        default=(), description="Debian or Ubuntu packages to install.", examples=[["git", "openssh-server"]]
    )
    snapshot: f.Snapshot | None = Field(
        default=None,
        description="Install from the archive as it was at this time (default: the day before `as_of`, or the day "
        "after the base image was created, if that is later). false: as it is when the layer is built.",
        examples=["2026-11-01T00:00:00Z", False],
    )
    libraries: Annotated[Libraries, f.OneOf()] = Field(
        default=Libraries.REPORT,
        description="System libraries that packages load (libGL for opencv-python, FFmpeg for torchcodec). auto: add "
        "their packages to `apt`; report: warn about missing ones.",
        examples=["auto"],
    )


_PORT = "The port inside the container."


class Jupyter(Section):
    """JupyterLab, which requires a token: never an empty or a fixed one."""

    port: int = Field(default=8888, ge=1, le=65535, description=_PORT, examples=[8889])


class Tensorboard(Section):
    """TensorBoard."""

    port: int = Field(default=6006, ge=1, le=65535, description=_PORT, examples=[6007])
    logdir: f.Word = Field(
        default="runs", description="Folder with the runs, relative to the working directory.", examples=["logs"]
    )


class Ssh(Section):
    """An SSH server: keys only, no passwords, no root password."""

    # Not 22: the container is no root, and not every engine lets others listen below 1024.
    port: int = Field(default=2222, ge=1, le=65535, description=_PORT, examples=[2200])


class Services(Section):
    """Services of the container, each only if it is listed."""

    jupyter: Jupyter | None = Field(default=None, description="JupyterLab.", examples=[{"port": 8888}])
    tensorboard: Tensorboard | None = Field(
        default=None, description="TensorBoard.", examples=[{"port": 6006, "logdir": "runs"}]
    )
    ssh: Ssh | None = Field(default=None, description="An SSH server, with keys only.", examples=[{"port": 2222}])


class ProjectInImage(Enum):
    """What an image has of the project: WHEEL, its wheel, installed; EDITABLE, its files, which Python imports."""

    WHEEL = "wheel"
    EDITABLE = "editable"
    NONE = "none"


class BasePackages(Enum):
    """What counts of the Python packages that a base of the user's own has."""

    IGNORE = "ignore"
    KEEP = "keep"


class ImageSection(Section):
    """The image."""

    base: f.ImageReference | None = Field(
        default=None,
        description="A custom base image, instead of the one that envspec chooses by `[cuda]`.",
        examples=["registry.example.com/cuda:12.8.1-base-ubuntu24.04"],
    )
    glibc: f.Glibc | None = Field(
        default=None, description="The custom base's glibc, as `ldd --version` prints it.", examples=["2.35"]
    )
    python: f.ExactPython | None = Field(
        default=None, description="The exact version of the custom base's Python.", examples=["3.11.7"]
    )
    os: f.SystemName | None = Field(
        default=None,
        description="The custom base's system, as ID and VERSION_ID of its /etc/os-release (default: `[cuda] os`). "
        "`[system] libraries` needs the names of its packages: those of Ubuntu 22.04, 24.04 and Debian 12 are known.",
        examples=["debian12"],
    )
    packages: Annotated[BasePackages, f.OneOf()] = Field(
        default=BasePackages.IGNORE,
        description="What to do with the custom base's Python packages. keep: install on top of them, with the base's "
        "Python, and install none of them again. Its layers are read for that, once.",
        examples=["keep"],
    )
    compiler: Annotated[Compiler, f.OneOf()] = Field(
        default=Compiler.AUTO,
        description="The C compiler that torch.compile needs. auto: install one if Triton is locked.",
        examples=["apt"],
    )
    env: dict[f.VariableName, f.EnvVariable] = Field(
        default_factory=dict, description="Environment variables of the image.", examples=[{"OMP_NUM_THREADS": "8"}]
    )
    workdir: f.Folder = Field(
        default="/workspace", description="The working directory of the container.", examples=["/app"]
    )
    entrypoint: f.ListOf[f.Argument] = Field(
        default=(),
        min_length=1,
        description="The program that a container starts and its first arguments, like ENTRYPOINT of a Dockerfile in "
        "its exec form: no shell, no variables. It replaces the base's entrypoint and command. An image with "
        "`[services]` has an entrypoint that starts them.",
        examples=[["python", "-m", "my_server"]],
    )
    command: f.ListOf[f.Argument] = Field(
        default=(),
        min_length=1,
        description="The arguments of the entrypoint, or the program to start without one, like CMD of a Dockerfile. "
        "Those of `docker run IMAGE ...` and `envspec run LOCK -- ...` replace them. With `[services]`, it runs next "
        "to them.",
        examples=[["--port", "8000"]],
    )
    project: Annotated[ProjectInImage, f.OneOf()] = Field(
        default=ProjectInImage.NONE,
        description="The project of the spec's pyproject.toml. wheel: build and install it; editable: copy its files "
        "to the working directory, from which Python imports them.",
        examples=["editable"],
    )
    copied: f.ListOf[f.ProjectPath] = Field(
        default=(),
        alias="copy",
        description="Files and folders to copy to the working directory, relative to the spec's folder, as the last "
        "layer. They are not part of the lock: if they change, only the image changes.",
        examples=[["src", "configs"]],
    )


class RegistrySection(Section):
    """Where images come from."""

    mirrors: dict[f.RegistryHost, f.RegistryHost] = Field(
        default_factory=dict,
        description="Registries to use instead of others; the lock has the original name.",
        examples=[{"docker.io": "registry.example.com:5000"}],
    )


class ConformanceSection(Section):
    """Checks to run inside the image."""

    checks: f.ListOf[Annotated[str, f.OneOf(values=CHECKS)]] = Field(
        default=(),
        min_length=1,
        description="Checks that must run and pass (default: all checks run; those that the machine can't run are "
        "reported as `not run`).",
        examples=[["device", "ddp"]],
    )
    world_size: f.WorldSize = Field(
        default=None,
        description="Number of GPUs for the distributed checks (default: all of the machine's).",
        examples=[2],
    )


class ExportSection(Section):
    """Further files of the lock's folder."""

    dockerfile: bool = Field(
        default=False,
        description="Whether the lock's folder has a Dockerfile, that of `envspec export --format dockerfile`.",
        examples=[True],
    )


class Spec(Section):
    """One environment, as envspec locks it."""

    env: Env = Field(description="The environment itself.")
    cuda: Cuda | None = Field(
        default=None, description="CUDA and GPUs. An environment for the CPU only has no such table."
    )
    pip: Pip = Field(default_factory=Pip, description="Packages from Python package indexes.")
    build: dict[f.PackageName, BuildSection] = Field(
        default_factory=dict,
        description="How to build a package that is compiled for the lock's torch: a table for each package.",
        examples=[{"flash-attn": {"requires": ["torch", "ninja"], "jobs": 4}}],
    )
    conda: Conda | None = Field(default=None, description="Packages from conda channels.")
    system: System | None = Field(default=None, description="Packages of the base image's system.")
    services: Services | None = Field(default=None, description="Services of the container.")
    image: ImageSection = Field(default_factory=ImageSection, description="The image; every key is optional.")
    registry: RegistrySection = Field(default_factory=RegistrySection, description="Where images come from.")
    conformance: ConformanceSection | None = Field(default=None, description="Conformance checks of the environment.")
    export: ExportSection | None = Field(default=None, description="Further files of the lock's folder.")
    facts: NoFacts = Field(default_factory=NoFacts)
    dependencies_from: f.ListOf[f.Word] = Field(
        default=(),
        description="Requirements to include from the pyproject.toml next to the spec, or from another one by its "
        "path: of the project, of a dependency group (PEP 735), of an extra. They count like lines of `[pip] "
        "dependencies`. If they change, the lock is stale.",
        examples=[["project", "group:train", "../pyproject.toml:extra:gpu"]],
    )
    # Read by `envspec.spec.load`, each as a whole spec; its schema is in `envspec.spec.fact_rows`.
    variants: dict[str, Any] = Field(
        default_factory=dict,
        description="Variants of the spec by name, each with its own lock. Tables are merged, dependencies are added.",
        examples=[{"cpu": {"cuda": False, "without": ["flash-attn"]}}],
    )

    def variant(self, name: str) -> Spec:
        """A variant as a whole spec; this one for an empty name."""
        found: Spec = self.variants[name] if name else self
        return found

    def cuda_on(self, platform: Platform) -> CudaTarget | None:
        """[cuda] of a platform; None without [cuda]."""
        return self.cuda.on(platform) if self.cuda else None

    def os_on(self, platform: Platform) -> str:
        """The base image's system; without [cuda], and so without nvidia/cuda's image, Ubuntu 24.04."""
        cuda = self.cuda_on(platform) or CudaTarget()
        return self.image.os or cuda.os.value

    def names_os(self, platform: Platform) -> bool:
        """Whether the spec states the system."""
        cuda = self.cuda_on(platform)
        return self.image.os is not None or (cuda is not None and "os" in cuda.model_fields_set)
