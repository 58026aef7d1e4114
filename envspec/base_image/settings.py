"""What the image holds and says beside the packages: compiler, services, system packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from envspec.errors import UsageError
from envspec.facts import Facts
from envspec.models import Decision, ImageSettings, Python, Resolution, Service
from envspec.spec import Compiler, Spec

#: What torch.compile needs to build its C and C++ code: Triton's launcher is C, inductor's code for the CPU is C++.
#: `gcc` alone only recommends libc's headers.
COMPILER: Final = ("g++", "gcc", "libc6-dev")

#: Service -> the Python package that it runs, as PyPI and conda call it.
_RUNS: Final = {"jupyter": "jupyterlab", "tensorboard": "tensorboard"}
_SSHD: Final = "openssh-server"

_TRITON: Final = frozenset({"triton", "pytorch-triton"})
#: conda packages that put a compiler on PATH under a name that Triton looks for. Those of a platform (`gcc_linux-64`)
#: do so only when the environment is activated, which an image is not. Source: triton/runtime/build.py.
_CONDA_COMPILERS: Final = frozenset({"gcc", "clang", "c-compiler", "compilers"})

_NEED: Final = "torch.compile and Triton's first kernel build a launcher in C, and so need a C compiler"
_WITHOUT: Final = "torch.compile and Triton's kernels fail in it: they build a launcher in C"


def decide_settings(
    spec: Spec, resolutions: Sequence[Resolution], facts: Facts
) -> tuple[ImageSettings, tuple[Decision, ...]]:
    """The image's settings from `[image]`, `[system]`, `[services]` and the lock, with reasons; defaults off Linux.

    Raises:
        UsageError: a service whose package is not in the lock.
    """
    linux = [resolution for resolution in resolutions if resolution.target.platform.is_linux]
    if not linux:
        return ImageSettings(), ()
    services = _services(spec, linux)
    compiler, compiler_decisions = _compiler(spec, linux)
    groups = _apt(spec, services, compiler, linux, facts)
    image = ImageSettings(
        workdir=spec.image.workdir,
        env=tuple(sorted(spec.image.env.items())),
        compiler=compiler,
        apt=tuple(sorted({package for packages, _ in groups for package in packages})),
        snapshot=spec.system.snapshot if spec.system else None,
        services=services,
    )
    decisions = [*compiler_decisions]
    if image.apt:
        why = "; ".join(f"{reason}: {' '.join(packages)}" for packages, reason in groups)
        decisions.append(Decision("image.apt", " ".join(image.apt), why, "the spec"))
    if services:
        value = " ".join(f"{service.name}:{service.port}" for service in services)
        decisions.append(Decision("image.services", value, "what the container serves", "the spec: [services]"))
    return image, tuple(decisions)


def _services(spec: Spec, linux: Sequence[Resolution]) -> tuple[Service, ...]:
    groups = spec.services
    if groups is None:
        return ()
    named = [
        Service("jupyter", groups.jupyter.port) if groups.jupyter else None,
        Service("ssh", groups.ssh.port) if groups.ssh else None,
        Service("tensorboard", groups.tensorboard.port, groups.tensorboard.logdir) if groups.tensorboard else None,
    ]
    services = tuple(service for service in named if service)
    for service in services:
        package = _RUNS.get(service.name)
        without = [each for each in linux if package and package not in _names(each)]
        if without:
            where = ", ".join(resolution.target.platform.value for resolution in without)
            section = "conda" if all(resolution.conda for resolution in without) else "pip"
            raise UsageError(
                f"[services] {service.name} runs {package}, which is not in the lock for {where}",
                hint=f'add "{package}" to [{section}] dependencies, or take {service.name} out of [services]',
            )
    return services


def _names(resolution: Resolution) -> set[str]:
    """Everything that is installed, by PyPI's names and by conda's."""
    of_conda = (name for record in resolution.conda for name in (record.name, *(each.name for each in record.provides)))
    return {*(package.name for package in resolution.packages), *of_conda}


def _compiler(spec: Spec, linux: Sequence[Resolution]) -> tuple[str, Iterable[Decision]]:
    """The compiler, with the reason for it if there is one."""
    requested = spec.image.compiler
    needing = [resolution for resolution in linux if _TRITON & _names(resolution)]
    if requested is Compiler.APT:
        why = f"the spec asks for one{_of_base(linux)}"
        return "apt", [Decision("image.compiler", "apt", why, "the spec: image.compiler")]
    if requested is Compiler.NONE:
        why = f"the spec asks for none{f'; {_WITHOUT}' if needing else ''}"
        return "none", [Decision("image.compiler", "none", why, "the spec: image.compiler")]
    if not needing:
        return "none", []
    brought = [sorted(_CONDA_COMPILERS & {record.name for record in resolution.conda}) for resolution in needing]
    if all(brought):
        why = f"{_NEED}; conda brings {brought[0][0]}"
        return "conda", [Decision("image.compiler", "conda", why, "the lock holds triton")]
    return "apt", [Decision("image.compiler", "apt", f"{_NEED}{_of_base(linux)}", "the lock holds triton")]


def _of_base(linux: Sequence[Resolution]) -> str:
    if all(resolution.target.python.source != "base" for resolution in linux):
        return ""
    return "; what it compiles includes Python's headers, which the base has to have beside its Python"


def _apt(
    spec: Spec, services: Sequence[Service], compiler: str, linux: Sequence[Resolution], facts: Facts
) -> list[tuple[Sequence[str], str]]:
    """The system's packages in groups, each with its reason. One that the spec names, with a version or not, is its."""
    own = spec.system.apt if spec.system else ()
    pythons = {python.series: python for resolution in linux if (python := resolution.target.python)}
    with_ssh = any(service.name == "ssh" for service in services)
    groups = [
        ([f"python{series}" for series, one in pythons.items() if one.source == "system"], "Python itself"),
        ([_SSHD] if with_ssh else [], "[services] ssh"),
        (COMPILER if compiler == "apt" else (), "the compiler"),
        (_headers(spec, pythons, facts) if compiler != "none" else (), "Python's headers"),
    ]
    named = {package.partition("=")[0] for package in own}
    added = [([package for package in packages if package not in named], why) for packages, why in groups]
    return [(packages, why) for packages, why in [(own, "the spec asks for"), *added] if packages]


def _headers(spec: Spec, pythons: Mapping[str, Python], facts: Facts) -> Sequence[str]:
    """Of Pythons that the system's package manager has; other sources bring their headers along."""
    system = facts.system(spec.os.value)
    patch = system.python_patch if system else None
    return [
        f"libpython{series}-dev"
        for series, python in pythons.items()
        if python.source == "system" or (python.source == "base" and python.version == patch)
    ]
