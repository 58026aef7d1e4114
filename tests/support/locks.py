"""Locks made in memory: small builders, and one realistic example that several groups of tests start from."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone

from envspec.lock.head import seal
from envspec.model import (
    DEFAULT_INDEX,
    DIRECT_URL,
    Asker,
    BaseImage,
    Decision,
    Driver,
    GpuCode,
    Lock,
    Package,
    PinnedDigest,
    Platform,
    Python,
    Refusal,
    Resolution,
    Target,
    WheelFile,
)

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
    return Package(name, version, file or wheel(name, version), tuple(sorted(Asker(*asker) for asker in asked)))


def resolution(platform: Platform, *packages: Package, python: str = "3.11.14") -> Resolution:
    target = Target(platform, Python(python, "spec"), glibc=(2, 39) if platform.is_linux else None)
    return Resolution(target, tuple(sorted(packages, key=lambda item: item.name)))


def lock(*resolutions: Resolution, name: str = "small", **others: object) -> Lock:
    """A lock without CUDA. others: fields of Lock to set."""
    fields: dict[str, object] = {
        "format": 1,
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
        format=1,
        name="pytorch-2.9",
        input_sha256=sha256("pytorch-2.9 spec"),
        as_of=datetime(2026, 11, 15, tzinfo=timezone.utc),
        resolutions=(_linux(X86), _linux(ARM)),
        decisions=(
            Decision(
                "python",
                "3.11.14",
                "newest 3.11 that a standalone build existed of on 2026-11-15",
                "data/pythons.toml, python-build-standalone 20261020",
            ),
            Decision(
                "cuda.release",
                "12.8.1",
                "nvidia-cuda-runtime-cu12 12.8.90 is CUDA 12.8.1",
                "data/cuda_images.toml",
                X86,
            ),
            Decision(
                "image.flavor",
                "base",
                "the wheels bring cuDNN, NCCL and cuBLAS themselves; nothing in the spec wants a compiler of CUDA's",
                "the pins",
            ),
            Decision(
                "driver.minimum",
                "525.60.13",
                "minor-version compatibility within CUDA 12",
                'NVIDIA, "CUDA Compatibility", table 1',
            ),
            Decision("image.compiler", "apt", "torch.compile builds Triton's launcher with a C compiler", ""),
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
            "minor-version compatibility within CUDA 12; PTX needs the bundled one",
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
            Asker("corp-tools", "numpy>=1.24"),
            Asker("pandas", 'numpy>=1.23.2; python_version == "3.11"'),
            Asker("spec", "numpy<2.3"),
        ),
        uploaded=datetime(2026, 5, 17, 21, 37, 49, tzinfo=timezone.utc),
        newest=Refusal("2.4.6", "the spec wants numpy<2.3"),
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
        Package(item.name, item.version, item.file, item.askers, item.uploaded, item.newest, ("plots",))
        if item.name == "corp-tools"
        else item
        for item in packages
    )
    warnings = ("filelock 3.20.0 is years older than as_of",) if platform is ARM else ()
    return Resolution(Target(platform, python, glibc=(2, 39)), with_extras, warnings)


def sealed(text: str) -> str:
    """A document whose first line was left out, with the first line that its bytes need."""
    head, marker, rest = text.partition("# end of the head\n")
    assert marker, "a lock's document has a line that ends its head"
    return seal(head, rest)
