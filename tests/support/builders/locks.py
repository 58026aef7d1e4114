"""Locks made in memory: small builders, a realistic example, and locks as an attacker leaves them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from envspec.lockfile.document import load
from envspec.lockfile.header import FORMAT, LOCK_FILE, add_checksum
from envspec.models import (
    DEFAULT_INDEX,
    DIRECT_URL,
    BaseImage,
    ChannelPart,
    CondaChannel,
    CondaPackage,
    Decision,
    Dependent,
    Driver,
    GpuCode,
    Lock,
    Package,
    PinnedDigest,
    Platform,
    Provided,
    Python,
    Rejected,
    Resolution,
    Target,
    WheelFile,
)
from envspec.operations.lock.complete import lock_files
from envspec.reasons import reason

X86, ARM = Platform.LINUX_64, Platform.LINUX_AARCH64
TAGS = {X86: "manylinux_2_28_x86_64", ARM: "manylinux_2_28_aarch64"}


def sha256(text: str) -> str:
    """A hash that is stable and looks like one; of `text`, not of a real file."""
    return hashlib.sha256(text.encode()).hexdigest()


def wheel(
    name: str, version: str, *, tag: str = "py3-none-any", size_bytes: int | None = 1000, index: str = DEFAULT_INDEX
) -> WheelFile:
    filename = f"{name.replace('-', '_')}-{version}-{tag}.whl"
    url = None if index == DEFAULT_INDEX else f"https://{index}.example.org/files/{filename}"
    return WheelFile(index, filename, sha256(filename), size_bytes, url)


def package(name: str, version: str, *askers: tuple[str, str], file: WheelFile | None = None) -> Package:
    """A pure Python package of the default index. askers: (who, requirement); the spec, when none is given."""
    asked = askers or (("spec", name),)
    return Package(name, version, file or wheel(name, version), tuple(sorted(Dependent(*asker) for asker in asked)))


def resolution(platform: Platform, *packages: Package, python: str = "3.11.14") -> Resolution:
    target = Target(platform, Python(python, "spec"), glibc=(2, 39) if platform.is_linux else None)
    return Resolution(target, tuple(sorted(packages, key=lambda item: item.name)))


CONDA_FORGE = CondaChannel("conda-forge", "https://conda.anaconda.org/conda-forge")


def conda(name: str, version: str, *askers: tuple[str, str], build: str = "h0_0", **others: object) -> CondaPackage:
    """A row of conda-forge for linux-64. askers: (who, requirement); the spec, when none is given. others: fields."""
    subdir = str(others.pop("subdir", "noarch" if "noarch" in others else "linux-64"))
    channel = str(others.pop("channel", "conda-forge"))
    filename = f"{name}-{version}-{build}.conda"
    fields: dict[str, object] = {
        "build_number": 0,
        "url": f"https://conda.anaconda.org/{channel}/{subdir}/{filename}",
        "sha256": sha256(f"{channel}/{subdir}/{filename}"),
        "md5": hashlib.md5(filename.encode()).hexdigest(),
        "size_bytes": 100_000,
        "timestamp_ms": 1_750_000_000_000,
        "required_by": tuple(sorted(Dependent(*asker) for asker in askers or (("spec", name),))),
        **others,
    }
    return CondaPackage(name, version, build, channel=channel, subdir=subdir, filename=filename, **fields)  # type: ignore[arg-type]


def conda_resolution(
    platform: Platform, rows: Sequence[CondaPackage], *packages: Package, python: str = "3.12.11"
) -> Resolution:
    """Rows of conda, their Python among them, and wheels on top."""
    target = Target(platform, Python(python, "conda"), glibc=(2, 39) if platform.is_linux else None)
    by_name = {item.name: item for item in rows}
    assert len(by_name) == len(rows)
    return Resolution(
        target,
        tuple(sorted(packages, key=lambda item: item.name)),
        conda=tuple(by_name[name] for name in sorted(by_name)),
    )


def lock(*resolutions: Resolution, name: str = "small", **others: object) -> Lock:
    """A lock without CUDA. others: fields of Lock to set."""
    fields: dict[str, object] = {
        "format": FORMAT,
        "name": name,
        "input_sha256": sha256(name),
        "as_of": datetime(2026, 11, 15, tzinfo=timezone.utc),
        "decisions": (),
        "base_image": None,
        "driver": None,
        "gpu_code": (),
        "facts": "2026-11-01",
    }
    return Lock(resolutions=resolutions, **{**fields, **others})  # type: ignore[arg-type]


def example() -> Lock:
    """Two platforms, CUDA, a package of a private index, a wheel named by URL, one from PyTorch's own index."""
    digest = f"sha256:{sha256('12.8.1-base-ubuntu24.04')}"
    return Lock(
        format=FORMAT,
        name="pytorch-2.9",
        input_sha256=sha256("pytorch-2.9 spec"),
        as_of=datetime(2026, 11, 15, tzinfo=timezone.utc),
        resolutions=(_linux(X86), _linux(ARM)),
        decisions=(
            Decision(
                "python",
                "3.11.14",
                (reason("newest 3.11 that a standalone build existed of on 2026-11-15"),),
                "data/pythons.toml, python-build-standalone 20261020",
            ),
            Decision(
                "cuda.release",
                "12.8.1",
                (reason("nvidia-cuda-runtime-cu12 12.8.90 is CUDA 12.8.1"),),
                "data/cuda_images.toml",
                X86,
            ),
            Decision(
                "image.flavor",
                "base",
                (
                    reason("the wheels bring cuDNN, NCCL and cuBLAS"),
                    reason("nothing in the spec wants a compiler of CUDA's"),
                ),
                "the pins",
            ),
            Decision(
                "driver.minimum",
                "525.60.13",
                (reason("minor-version compatibility within CUDA 12"),),
                'NVIDIA, "CUDA Compatibility", table 1',
            ),
            Decision(
                "image.compiler", "apt", (reason("torch.compile builds Triton's launcher with a C compiler"),), ""
            ),
        ),
        base_image=BaseImage(
            "docker.io/nvidia/cuda",
            "12.8.1-base-ubuntu24.04",
            "12.8.1",
            "base",
            "ubuntu24.04",
            (
                PinnedDigest(X86, digest, "recorded", "index", "read 2026-11-01"),
                PinnedDigest(ARM, digest, "recorded", "index", "read 2026-11-01"),
            ),
        ),
        driver=Driver(
            "525.60.13",
            "570.124.06",
            (reason("minor-version compatibility within CUDA 12"), reason("PTX needs the bundled one")),
            'NVIDIA, "CUDA Compatibility", table 1',
        ),
        gpu_code=tuple(
            GpuCode(
                platform,
                "torch",
                "2.9.1",
                "cu128",
                ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
                if platform is X86
                else ("sm_90", "sm_100"),
                ("compute_120",),
                "torch.cuda.get_arch_list() of the wheel",
            )
            for platform in (X86, ARM)
        ),
        gpus=("T4", "A100", "H100"),
        facts="2026-11-01",
    )


def _linux(platform: Platform) -> Resolution:
    tag = TAGS[platform]
    python = Python(
        "3.11.14",
        "standalone",
        f"https://builds.example.org/20261020/cpython-3.11.14-{platform.value}.tar.gz",
        sha256(f"python {platform.value}"),
    )
    torch_file = wheel("torch", "2.9.1", tag=f"cp311-cp311-{tag}", size_bytes=899_755_466)
    cudnn = wheel("nvidia-cudnn-cu12", "9.10.2.21", tag=f"py3-none-{tag}", size_bytes=706_758_467)
    runtime = wheel("nvidia-cuda-runtime-cu12", "12.8.90", tag=f"py3-none-{tag}", size_bytes=965_265)
    audio = wheel("torchaudio", "2.9.1", tag=f"cp311-cp311-{tag}", size_bytes=2_060_384, index="pytorch-cu128")
    numpy = Package(
        "numpy",
        "2.2.6",
        wheel("numpy", "2.2.6", tag=f"cp311-cp311-{tag}", size_bytes=16_800_000),
        (
            Dependent("corp-tools", "numpy>=1.24"),
            Dependent("pandas", 'numpy>=1.23.2; python_version == "3.11"'),
            Dependent("spec", "numpy<2.3"),
        ),
        uploaded=datetime(2026, 5, 17, 21, 37, 49, tzinfo=timezone.utc),
        rejected=Rejected("2.4.6", (reason("the spec wants numpy<2.3"),)),
    )
    url_wheel = WheelFile(
        DIRECT_URL,
        "tiny_model-0.3-py3-none-any.whl",
        sha256("tiny_model"),
        None,
        "https://files.example.org/a%20b/tiny_model-0.3-py3-none-any.whl",
    )
    nvidia = 'platform_system == "Linux"'
    packages = (
        package("corp-tools", "1.4.0", ("spec", "corp-tools[plots]"), file=wheel("corp-tools", "1.4.0", index="corp")),
        package("filelock", "3.20.0", ("torch", "filelock")),
        numpy,
        package(
            "nvidia-cuda-runtime-cu12",
            "12.8.90",
            ("torch", f"nvidia-cuda-runtime-cu12==12.8.90; {nvidia}"),
            file=runtime,
        ),
        package("nvidia-cudnn-cu12", "9.10.2.21", ("torch", f"nvidia-cudnn-cu12==9.10.2.21; {nvidia}"), file=cudnn),
        package("pandas", "2.3.3", ("corp-tools", "pandas>=2")),
        package(
            "tiny-model",
            "0.3",
            ("spec", "tiny-model @ https://files.example.org/a%20b/tiny_model-0.3-py3-none-any.whl"),
            file=url_wheel,
        ),
        package("torch", "2.9.1", ("spec", "torch==2.9.*"), ("torchaudio", "torch==2.9.1"), file=torch_file),
        package("torchaudio", "2.9.1", ("spec", "torchaudio"), file=audio),
    )
    with_extras = tuple(
        Package(item.name, item.version, item.file, item.required_by, item.uploaded, item.rejected, ("plots",))
        if item.name == "corp-tools"
        else item
        for item in packages
    )
    warnings = (reason("filelock 3.20.0 is years older than as_of"),) if platform is ARM else ()
    return Resolution(Target(platform, python, glibc=(2, 39)), with_extras, warnings)


def sealed(text: str) -> str:
    """A document whose first line was left out, with the first line that its bytes need."""
    head, marker, rest = text.partition("# end of header\n")
    assert marker, "a lock's document has a line that ends its head"
    return add_checksum(head, rest)


def on_conda() -> Lock:
    """Two platforms of conda-forge, known in part, and wheels on top; linux-64 has CUDA builds."""
    of_channels = (reason("[conda] brings it: the newest 3.12 of its channels"),)
    of_machine = reason(
        "what a machine has follows from the spec and its base image, never from the machine that locks"
    )
    return lock(
        conda_resolution(
            X86,
            _rows(X86),
            package("einops", "0.8.1"),
            package("pytest", "9.0.1", ("jupyter-server", 'pytest>=7; extra == "test"')),
            package("timm", "1.0.22", ("spec", "timm")),
        ),
        conda_resolution(ARM, _rows(ARM), package("einops", "0.8.1")),
        name="on-conda",
        channels=(
            CondaChannel(CONDA_FORGE.name, CONDA_FORGE.url, ChannelPart(4775, sha256("rows"))),
            CondaChannel("nvidia", "https://conda.anaconda.org/nvidia"),
        ),
        conda_as_of=(("numpy", datetime(2026, 11, 18, tzinfo=timezone.utc)),),
        decisions=(
            Decision("python", "3.12.11", of_channels, "conda-forge", X86),
            Decision("python", "3.12.11", of_channels, "conda-forge", ARM),
            Decision(
                "conda.virtual_packages",
                "__archspec=1=x86_64 __cuda=12.9 __glibc=2.39 __linux=5.10 __unix=0",
                (of_machine,),
                "",
                X86,
            ),
        ),
    )


def _rows(platform: Platform) -> tuple[CondaPackage, ...]:
    here = {"subdir": platform.value}
    cuda = "cuda129_mkl_py312_h0" if platform is X86 else "cpu_generic_py312_h0"
    python = ("python >=3.12,<3.13.0a0", "python_abi 3.12.* *_cp312")
    return (
        conda("_openmp_mutex", "4.5", ("pytorch", "_openmp_mutex >=4.5"), build="7_kmp_llvm", **here),
        conda("bzip2", "1.0.8", ("python", "bzip2 >=1.0.8,<2.0a0"), depends=("__glibc >=2.17,<3.0.a0",), **here),
        conda(
            "jupyter_server",
            "2.17.0",
            ("spec", "jupyter_server"),
            build="pyhcf101f3_0",
            noarch="python",
            depends=("python >=3.10", "numpy"),
            provides=(Provided("jupyter-server", "2.17.0"),),
            license="BSD-3-Clause",
        ),
        conda(
            "numpy",
            "2.2.6",
            ("jupyter_server", "numpy"),
            ("pytorch", "numpy >=1.23,<3"),
            build="py312_0",
            depends=python,
            constrains=("numpy-base <0a0",),
            provides=(Provided("numpy", "2.2.6"),),
            rejected=Rejected("2.4.6", (reason("pytorch 2.8.0 wants numpy >=1.23,<2.4"),)),
            **here,
        ),
        conda(
            "python",
            "3.12.11",
            ("spec", "python 3.12.*"),
            ("numpy", "python >=3.12,<3.13.0a0"),
            build="h9e4cc4f_0_cpython",
            depends=("bzip2 >=1.0.8,<2.0a0",),
            **here,
        ),
        conda("python_abi", "3.12", ("numpy", "python_abi 3.12.* *_cp312"), build="8_cp312", noarch="generic"),
        conda(
            "pytorch",
            "2.8.0",
            ("spec", "pytorch 2.8.*"),
            build=cuda,
            build_number=3,
            depends=("_openmp_mutex * *_llvm", "_openmp_mutex >=4.5", "numpy >=1.23,<3", *python),
            provides=(Provided("torch", "2.8.0"),),
            track_features=() if platform is X86 else ("pytorch-cpu",),
            size_bytes=24_000_000,
            **here,
        ),
    )


Change = Callable[[str], str]


def tamper(folder: Path, change: Change) -> None:
    """Change every file of a lock's folder, write the hashes of the others into its head, and seal it again."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    changed = {name: change(text) for name, text in texts.items()}
    assert changed[LOCK_FILE] != texts[LOCK_FILE], "the change is to change something"
    write(folder, changed, {name: _sha256(text) for name, text in texts.items()})


def forge(folder: Path, change: Change) -> None:
    """Change the document of a lock's folder and whatever follows from it: the other files, their hashes, the seal."""
    document = (folder / LOCK_FILE).read_text(encoding="utf-8")
    changed = sealed(change(document).partition("\n")[2])
    assert changed != document, "the change is to change something"
    files = lock_files(load(changed, LOCK_FILE))
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write(folder: Path, texts: Mapping[str, str], hashes: Mapping[str, str]) -> None:
    """hashes: those of the other files that the document has until now."""
    document = texts[LOCK_FILE].partition("\n")[2]
    for name, text in texts.items():
        if name != LOCK_FILE:
            document = document.replace(hashes[name], _sha256(text))
            (folder / name).write_bytes(text.encode())
    (folder / LOCK_FILE).write_bytes(sealed(document).encode())


def replacing(*pairs: tuple[str, str]) -> Change:
    """Each of the texts by another, wherever it stands."""

    def change(text: str) -> str:
        for old, new in pairs:
            text = text.replace(old, new)
        return text

    return change


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
