"""Dockerfiles, dev containers, cog.yaml and the shell scripts in them. Folders: see golden/docker/README.md."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envspec.importers import importer_of, new_import
from envspec.importers.base_images import BASE_IMAGES
from envspec.importers.shell import LOSSES, program_words
from envspec.importers.shell_state import split_options
from envspec.importers.shell_syntax import commands, expand
from envspec.importers.types import Import, LedgerEntry, Outcome, Unreadable
from tests.importers.test_conda_golden import outcome
from tests.support.golden import assert_golden

CASES = sorted(path for path in (Path(__file__).parent / "golden" / "docker").iterdir() if path.is_dir())
SOURCES = ("cog.yaml", ".devcontainer/devcontainer.json", "Dockerfile", "docker/Dockerfile")


def imported(path: Path, root: Path) -> Import:
    found, importer = new_import(root), importer_of(path)
    assert importer is not None
    found.run(importer, path)
    return found


def dockerfile(folder: Path, text: str) -> Import:
    path = folder / "Dockerfile"
    path.write_text(text, encoding="utf-8")
    return imported(path, folder)


def run_lines(folder: Path, *lines: str) -> list[LedgerEntry]:
    """The entries of the commands of a RUN, each line one of a here-document."""
    script = "".join(f"{line}\n" for line in lines)
    return dockerfile(folder, f"FROM ubuntu:24.04\nRUN <<END\n{script}END\n").ledger[1:]


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_a_source_becomes_what_is_expected(folder: Path) -> None:
    path = next(path for name in SOURCES if (path := folder / name).is_file())
    text = outcome(imported(path, folder), folder)
    assert_golden(text, folder / "expected.txt")


WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8), min_size=1, max_size=6)


@settings(max_examples=50)
@given(st.lists(WORDS, min_size=1, max_size=4))
@example([["\\\n", "'\\\n", "a\\\\\n"]])
def test_commands_have_the_words_and_lines_that_a_shell_gives_them(script: list[list[str]]) -> None:
    # A command's first word is no word of the shell's grammar.
    script = [["run", *words] for words in script]
    parts, starts, line = [], [], 1
    for words in script:
        starts.append(line)
        for piece in shlex.join(words).split("\n"):
            parts.append((line, f"{piece}\n"))
            line += 1
    found = [*commands(parts)]
    assert [expand(each.text, {}).words for each in found] == [tuple(words) for words in script]
    assert [each.line for each in found] == starts


PIECES = """if a; then|fi|else|for x in 1 2; do|done|case a in|esac|(|)|{|}|&&|pip install a|"|'|$(|`|<<E|E|\\|f()|!
[ a = b ]|$X|${X:-y}|a) b;;|done > x"""
SCRIPT = st.lists(st.sampled_from([*re.split(r"[|\n]", PIECES), "||", "|"]), max_size=14)


@given(SCRIPT, st.sampled_from([" ", "\n", "; "]))
def test_every_text_is_read(pieces: list[str], separator: str) -> None:
    for command in commands([(1, separator.join(pieces))]):
        assert command.text or command.body
        assert command.line == 1
        expand(command.text, {})


@given(
    st.lists(
        st.sampled_from(["FROM x", "RUN pip install a \\", "  && true", "", "# c", "ENV A=$A", "word", "RUN <<E", "E"])
    )
)
def test_every_dockerfile_has_an_entry_for_each_of_its_instructions(lines: list[str]) -> None:
    from envspec.importers.dockerfile_syntax import read_instructions

    class Text(Import):
        def read(self, path: Path) -> str:
            del path
            return "\n".join(lines)

    source = Text(Path(), lambda path: None)
    try:
        found = read_instructions(Path("Dockerfile"), source)
    except Unreadable as error:
        assert "the here-document E has no end" in str(error)
        return
    covered = {number for each in found for number, _ in each.parts}
    covered |= {number for each in found for number, _ in each.documents}
    covered |= {entry.source.line for entry in source.ledger}
    for number, line in enumerate(lines, start=1):
        assert number in covered or not line or line[0] == "#"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a && b", "a b"),
        ("a | b; c &", "a b c"),
        ("a || b", "a condition:b"),
        ("a || b && c; d", "a condition:b condition:c d"),
        ("a || true && b", "a condition:true b"),
        ("[ x ] || { a; exit 1; } && b", "[ condition:a condition:exit b"),
        ("[ x ] && { a; true; } && b; c", "[ condition:a condition:true condition:b c"),
        ("([ x ] && a || b) && c", "( [ condition:a condition:b ) c"),
        ("test -f x && a || true", "test condition:a condition:true"),
        ("! a && b", "a condition:b"),
        ("if [ x ]; then a; elif b; then c; else d; fi; e", "branch:[ branch:a branch:b branch:c branch:d e"),
        ("while a; do b; done; c", "loop:a loop:b c"),
        ("for x in 1 2; do a; done; b", "loop:for loop:a b"),
        ("case x in a|b) c;; *) d ;; esac; e", "branch:case branch:c branch:d e"),
        ("f() { a; }; b", "function:a b"),
        ("function f {\n a\n}\nb", "function:a b"),
        ("{ a; b; } && c", "a b c"),
        ("a # b; 'c\nd", "a d"),
        ("a <<E && b\nc 'd\nE\ne", "a b e"),
    ],
)
def test_why_a_command_may_not_run(script: str, expected: str) -> None:
    found = [f"{each.doubt.rpartition(' ')[2]}:{each.text.split()[0]}".lstrip(":") for each in commands([(1, script)])]
    assert " ".join(found) == expected


@pytest.mark.parametrize(
    ("word", "variables", "words", "unknown"),
    [
        ("a$X", {"X": "b c"}, ("ab", "c"), ()),
        ('"a$X"', {"X": "b c"}, ("ab c",), ()),
        ("'$X'", {"X": "b"}, ("$X",), ()),
        ("$X", {"X": ""}, (), ()),
        ('"$X"', {"X": ""}, ("",), ()),
        ("$X", {"X": 'a"b'}, ('a"b',), ()),
        ('"$(a "b c")d"', {}, ('$(a "b c")d',), ('$(a "b c")',)),
        ("a >b 2>&1 </c", {}, ("a",), ()),
        ("${X:-d}", {"X": ""}, ("d",), ()),
        ("${X-d}", {"X": ""}, (), ()),
        ("${X:+d}", {"X": "1"}, ("d",), ()),
        ("${Y}z", {}, ("${Y}z",), ("${Y}",)),
        ("$Y", {"Y": None}, ("$Y",), ("$Y",)),
        ("${X%%.*}", {"X": "1.2"}, ("${X%%.*}",), ("${X%%.*}",)),
        ("${Y:+${Y}}", {}, ("${Y:+${Y}}",), ("${Y:+${Y}}",)),
        ("$(nproc)", {}, ("$(nproc)",), ("$(nproc)",)),
        (r"a\ b\$c", {}, ("a b$c",), ()),
        (r'"\a\""', {}, (r"\a" + '"',), ()),
        ("5$", {}, ("5$",), ()),
    ],
)
def test_a_word_with_its_variables(
    word: str, variables: dict[str, str | None], words: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    assert expand(word, variables)[:2] == (words, unknown)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sudo -E -u root env A=1 python3.11 -m pip install x", "pip install x"),
        ("/opt/conda/bin/pip3 install x", "pip install x"),
        ("conda run --no-capture-output -n base python -u -m pip install x", "pip install x"),
        ("micromamba run -n base pip install x", "pip install x"),
        ("uv run --no-sync python train.py", "python train.py"),
        ("python -m torch.distributed.run x", "python -m torch.distributed.run x"),
        ("sudo", "sudo"),
    ],
)
def test_what_is_in_front_of_a_program_is_left_out(command: str, expected: str) -> None:
    assert program_words(command.split()) == tuple(expected.split())


def test_options_with_their_values() -> None:
    words = ["-qy", "-rfile", "--index-url=u", "-c", "c", "a", "--pre", "--", "-b"]
    given, others = split_options(words, {"-r", "-c", "--index-url"})
    assert given == [("-q", ""), ("-y", ""), ("-r", "file"), ("--index-url", "u"), ("-c", "c"), ("--pre", "")]
    assert others == ["a", "-b"]


@pytest.mark.parametrize(
    ("reference", "outcome", "reason"),
    [
        ("nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04", Outcome.TRANSLATED, "[cuda] flavor cudnn-runtime"),
        ("nvcr.io/nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04", Outcome.TRANSLATED, "[cuda] flavor cudnn-devel"),
        ("nvidia/cuda:12.4.1-base-ubi8", Outcome.REFUSED, "not ubi8"),
        ("nvidia/cuda:latest", Outcome.NOT_UNDERSTOOD, "the tag 'latest' names no version"),
        ("pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel", Outcome.TRANSLATED, "torchvision 0.21.0"),
        ("ghcr.io/pytorch/pytorch:2.12.0-cuda13.2-cudnn9-devel", Outcome.TRANSLATED, "[env] python 3.12"),
        ("pytorch/pytorch:2.9.0-cuda12.1-cudnn8-runtime", Outcome.REFUSED, "has builds for CUDA 12.6, 12.8, 13.0"),
        ("pytorch/pytorch:2.3.1-cuda12.1-cudnn9-runtime", Outcome.REFUSED, "the images of torch 2.3.1 have cuDNN 8"),
        ("vllm/vllm-openai:v0.27.1", Outcome.TRANSLATED, "vllm==0.27.1 is required; [env] python 3.12"),
        ("lmsysorg/sglang:v0.4.8.post1-cu126", Outcome.TRANSLATED, "sglang[all]==0.4.8.post1 is required; [cuda]"),
        ("runpod/pytorch:2.1.0-py3.10-cuda11.8.0-devel-ubuntu22.04", Outcome.TRANSLATED, "torch 2.1.0, torchvision"),
        ("runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404", Outcome.TRANSLATED, "torch 2.8.0"),
        ("nvcr.io/nvidia/jax:24.04-py3", Outcome.TRANSLATED, "[env] python 3.10"),
        ("python:3.11.9-slim", Outcome.TRANSLATED, "[env] python 3.11.9"),
        ("python:3.12-alpine", Outcome.REFUSED, "musl"),
        ("ubuntu:jammy", Outcome.TRANSLATED, "ubuntu22.04"),
        ("ubuntu:18.04", Outcome.REFUSED, "not ubuntu18.04"),
        ("ghcr.io/astral-sh/uv:0.9-python3.13-bookworm-slim", Outcome.TRANSLATED, "[env] python 3.13"),
        ("mambaorg/micromamba:2.0-jammy-cuda-12.4.1", Outcome.TRANSLATED, "[cuda] version 12.4"),
        ("rocm/pytorch:latest", Outcome.REFUSED, "AMD"),
        ("tensorflow/tensorflow:2.17.0-gpu", Outcome.TRANSLATED, "tensorflow==2.17.0 is required"),
        ("registry.example.com/team/base@sha256:" + "0" * 64, Outcome.NOT_UNDERSTOOD, "[image] base"),
        ("Not/An:Image:", Outcome.NOT_UNDERSTOOD, "is not the name of an image"),
    ],
)
def test_base_images(reference: str, outcome: Outcome, reason: str, tmp_path: Path) -> None:
    (entry,) = dockerfile(tmp_path, f"FROM {reference}\n").ledger
    assert entry.outcome is outcome
    assert reason in entry.reason


def test_tables_have_no_row_that_another_hides() -> None:
    for table in ([(row.repository, row.tag) for row in BASE_IMAGES], [pattern for pattern, _ in LOSSES]):
        assert len(set(table)) == len(table)


def test_lines_of_a_builder_count_by_what_is_copied_from_it(tmp_path: Path) -> None:
    builder = "FROM python:3.12 AS b\nENV TORCH_CUDA_ARCH_LIST=8.0\nRUN apt-get install -y gcc && pip install numpy\n"
    copied = dockerfile(tmp_path, f"{builder}FROM ubuntu:24.04\nCOPY --from=b /opt/venv /opt/venv\n").draft
    other = dockerfile(tmp_path, f"{builder}FROM ubuntu:24.04\nCOPY --from=b /etc/x /etc/x\n").draft
    assert [each.text for each in copied.dependencies] == ["numpy"]
    assert [each.value for each in copied.pythons] == ["3.12"]
    assert [each.value for each in copied.gpus] == ["8.0"]
    assert copied.apt == []
    assert (other.dependencies, other.pythons, other.gpus, other.apt) == ([], [], [], [])


def test_the_torch_of_a_base_image_is_preferred(tmp_path: Path) -> None:
    text = "FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime\nRUN pip install 'torch>=2.5'\n"
    found = dockerfile(tmp_path, text).draft
    assert (found.versions["torch"], found.versions["torchvision"]) == ("2.6.0", "0.21.0")
    assert [each.value for each in found.cudas] == ["12.4"]


def test_the_torch_of_a_base_image_is_left_out_if_a_line_replaces_it(tmp_path: Path) -> None:
    text = "FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime\nRUN pip install torch==2.7.1\n"
    found = dockerfile(tmp_path, text)
    assert (found.draft.versions, found.draft.cudas) == ({}, [])
    assert [each.text for each in found.draft.dependencies] == ["torch==2.7.1"]
    assert "torch==2.7.1 (Dockerfile:2) replaces its torch 2.6.0" in found.ledger[0].reason


def test_files_outside_of_the_project_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("private==1\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "link.txt").symlink_to(tmp_path / "secret.txt")
    text = "COPY ../secret.txt link.txt /w/\nRUN pip install -r /w/secret.txt -r /w/link.txt -r ../secret.txt\n"
    found = dockerfile(project, f"FROM ubuntu:24.04\n{text}")
    assert found.draft.dependencies == []
    assert [entry.outcome for entry in found.ledger[1:]] == [Outcome.OUTSIDE, *[Outcome.REFUSED] * 3]


def test_values_that_change_in_a_script(tmp_path: Path) -> None:
    entries = run_lines(
        tmp_path, "V=1.0", "pip install a==$V", "V=$(cat v)", "pip install a==$V", "export V=2", "pip install b==$V"
    )
    assert [entry.text for entry in entries if entry.outcome is Outcome.KEPT] == ["a==1.0", "b==2"]
    assert [entry.reason for entry in entries if entry.outcome is Outcome.NOT_UNDERSTOOD] == [
        "the value of $V is not in this file"
    ]


def test_the_folder_of_copied_files_is_the_one_that_has_them(tmp_path: Path) -> None:
    (tmp_path / "app" / "docker").mkdir(parents=True)
    (tmp_path / "app" / "setup.py").write_text("")
    (tmp_path / "app" / "requirements.txt").write_text("einops\n")
    path = tmp_path / "app" / "docker" / "Dockerfile"
    path.write_text("FROM ubuntu:24.04\nWORKDIR /x\nCOPY . .\nRUN pip install -r requirements.txt\n")
    assert [each.text for each in imported(path, tmp_path).draft.dependencies] == ["einops"]


def test_files_of_a_cloned_repository_are_not_read(tmp_path: Path) -> None:
    clone = "git clone -b v2 https://git.example.com/ui.git /ui"
    entries = run_lines(tmp_path, clone, "cd /ui && pip install -r requirements.txt ./ops")
    assert "requirements.txt is a file of https://git.example.com/ui.git" in entries[-2].reason
    assert '"NAME @ git+https://git.example.com/ui.git@v2#subdirectory=ops"' in entries[-1].reason


def test_the_line_of_a_command_behind_a_word_of_the_grammar(tmp_path: Path) -> None:
    found = dockerfile(tmp_path, "FROM x\nRUN if a; then \\\n  pip install b; \\\nelse \\\n\\\n  uv sync; fi\n")
    assert [entry.source.line for entry in found.ledger if entry.outcome is Outcome.NOT_DECIDED] == [3, 6]


def test_a_file_that_a_script_writes_is_not_read(tmp_path: Path) -> None:
    entries = run_lines(tmp_path, "echo a==1 > r.txt", "pip install -r r.txt")
    assert [entry.outcome for entry in entries] == [Outcome.OUTSIDE, Outcome.REFUSED]


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("case $X in 1) conda install -y einops;; esac", "in a branch"),
        ("f() { uv sync; }; f", "in a function"),
        ("[ -f /x ] && apt-get install -y git", "after a condition"),
        ("command -v uv || python3 -m pip install uv", "after a condition"),
        ("[ -f /x ] || yum install -y git", "after a condition"),
        ("[ -f /x ] && $PIP install einops", "after a condition"),
        ("[ -f /x ] && bash /s/install.sh", "after a condition"),
        ("python3 - <<E\nos.system('uv add einops')\nE", "in a here-document"),
        ("cat r.txt | xargs pip install", "installer in this form"),
        ("su user -c 'pip install einops'", "installer in this form"),
    ],
)
def test_an_install_command_that_may_not_run_is_not_decided(line: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "install.sh").write_text("pip install einops\n")
    found = dockerfile(tmp_path, f"FROM ubuntu:24.04\nCOPY install.sh /s/\nRUN <<END\n{line}\npip install numpy\nEND\n")
    lost = [entry for entry in found.ledger if entry.outcome.is_lost]
    assert [entry.outcome for entry in lost] == [Outcome.NOT_DECIDED]
    assert lost[0].source.line == (5 if "\n" in line else 4)
    assert where in lost[0].reason
    assert [each.text for each in found.draft.dependencies] == ["numpy"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("FROM x\nRUN <<END\necho\n", "Dockerfile:2: the here-document END has no end"),
        ("FROM x\n" + "RUN a\n" * 20_000, "more than 5000 instructions"),
        ("#" * (1 << 20), "more than 512 kB"),
    ],
)
def test_what_is_beyond_the_bounds_is_refused_with_its_line(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=error):
        dockerfile(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "RUN <<E\n" + "true\n" * 5_000 + "E\n",
        "RUN a" + " && \\\n b" * 20_000,
        "RUN " + "'\"" * 50_000,
        "RUN a " + "$(b" * 20_000,
        "RUN pip 'install a'; apt 'a install b'; conda 'create x'",
        "RUN echo " + '$("' * 20_000,
        "RUN " + "bash -c \"sh -c '" * 500,
        "RUN " + "if a; then " * 3_000,
        "ENV A=aaaaaaaaaa\n" + "ENV A=$A$A\n" * 60,
        "ENV " + " ".join(f"A{i}=$A{i - 1}" for i in range(3_000)),
        "COPY . /app\n" * 500 + "RUN pip install -r /app/x/y/z.txt\n" * 500,
        "RUN cd " + "a/" * 20_000,
        "CMD " + "[" * 50_000,
        "ENV TORCH_CUDA_ARCH_LIST=" + "8.0;" * 10_000,
    ],
    ids=lambda text: text[:20].replace("\n", " "),
)
def test_hostile_files_are_read_in_time(text: str, tmp_path: Path) -> None:
    start = time.process_time()
    found = dockerfile(tmp_path, f"FROM ubuntu:24.04\n{text}\n")
    assert time.process_time() - start < 5
    assert len(found.ledger) > 1


def test_scripts_in_scripts_have_a_bound(tmp_path: Path) -> None:
    script = "pip install deep"
    for _ in range(10):
        script = f"bash -c {shlex.quote(script)}"
    found = dockerfile(tmp_path, f"FROM ubuntu:24.04\nRUN {script}\n")
    assert found.draft.dependencies == []
    assert found.ledger[-1].outcome.is_lost


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a": [' * 40, "more than 32 lists"),
        ('{"image": "x"', "not valid JSON"),
        ("// " + "x" * (1 << 19), "more than 256 kB"),
    ],
)
def test_a_devcontainer_that_is_none(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "devcontainer.json"
    path.write_text(text)
    with pytest.raises(Unreadable, match=error):
        imported(path, tmp_path)


def test_a_devcontainer_keeps_slashes_and_escapes_of_its_strings(tmp_path: Path) -> None:
    path = tmp_path / "devcontainer.json"
    path.write_text('{"containerEnv": {"A": "http:\\/\\/x /* no comment */ \\u00e9,}", /* b */ "B": "1",},}')
    assert imported(path, tmp_path).draft.env == {"A": "http://x /* no comment */ \u00e9,}", "B": "1"}


@pytest.mark.parametrize(
    ("build", "cudas", "reason"),
    [
        ("gpu: true", [], "cog uses the CUDA in its own table for the pinned torch"),
        ('gpu: true\n  cuda: "11.8.0"', ["11.8"], "[cuda]"),
        ("gpu: false", ["cpu"], "gpu is false"),
    ],
)
def test_the_cuda_of_cog(build: str, cudas: list[str], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "cog.yaml"
    path.write_text(f"build:\n  {build}\n  python_packages: [torch==2.4.1]\n")
    found = imported(path, tmp_path)
    assert [each.value for each in found.draft.cudas] == cudas
    assert reason in found.ledger[0].reason


VENV = "FROM ubuntu:22.04 AS b\nENV HOME=/h\nARG HERE=/h/app\nWORKDIR /h/app\n"


@pytest.mark.parametrize(
    ("builds", "copies"),
    [
        ("ENV VIRTUAL_ENV=/deps\nRUN python3.11 -m venv $VIRTUAL_ENV && pip install einops", "$VIRTUAL_ENV /x"),
        ("ENV VIRTUAL_ENV=/deps\nRUN python3.11 -m venv $VIRTUAL_ENV && pip install einops", "${NOT_HERE} /x"),
        ("RUN python3.11 -m venv tools && tools/bin/pip install einops", "/h/app /h/app"),
        ("RUN python3.11 -m venv /tools && /tools/bin/pip install einops", "tools/lib /x/"),
        ("RUN uv venv --python 3.11 && uv pip install einops", "--chown=a:b /h/app/.venv /x"),
        ("RUN virtualenv -p python3.11 /a/b && . /a/b/bin/activate && pip install einops", "/a /a"),
        ("RUN python3.11 -m pip install --target=/libs einops", "/libs /app/libs"),
        ("RUN python3.11 -m pip install --user einops", "$HOME/.local /root/.local"),
        ("RUN micromamba create -p /e python=3.11 && pip install einops", "/e /e"),
        ("ENV MAMBA_ROOT_PREFIX=/m\nRUN micromamba create -n e python=3.11 && pip install einops", "/m/envs/e /e"),
        ("RUN micromamba create -n e python=3.11 && pip install einops", "$HOME/micromamba /e"),
    ],
)
def test_an_environment_is_copied_by_every_spelling(builds: str, copies: str, tmp_path: Path) -> None:
    found = dockerfile(
        tmp_path, f"{VENV}{builds}\nFROM ubuntu:24.04\nENV HOME=/h VIRTUAL_ENV=/deps\nCOPY --from=b {copies}\n"
    )
    assert [each.text for each in found.draft.dependencies] == ["einops"]
    assert found.draft.pythons[0].value == "3.11"
    assert [entry for entry in found.ledger if entry.outcome.is_lost] == []


def test_what_a_stage_has_beside_its_environment_is_not_the_environment(tmp_path: Path) -> None:
    stage = f"{VENV}RUN python3 -m venv /deps && /deps/bin/pip install einops && make dist\nFROM ubuntu:24.04\n"
    found = dockerfile(tmp_path, f"{stage}COPY --from=b /h/app/dist /app/dist\n")
    assert found.draft.dependencies == []
    assert found.ledger[-1].outcome is Outcome.REFUSED


def test_of_several_environments_the_one_in_path_counts(tmp_path: Path) -> None:
    portal = "RUN python3.10 -m venv /portal && . /portal/bin/activate && pip install flask && deactivate"
    main = "RUN uv venv -p 3.12 /main && VIRTUAL_ENV=/main uv pip install einops\nENV PATH=/main/bin:$PATH"
    for lines in (f"{portal}\n{main}", f"{main}\n{portal}"):
        found = dockerfile(tmp_path, f"FROM ubuntu:22.04\n{lines}\nRUN pip install numpy\n")
        assert [each.text for each in found.draft.dependencies] == ["einops", "numpy"]
        assert [each.value for each in found.draft.pythons] == ["3.12"]
        (lost,) = (entry for entry in found.ledger if entry.outcome.is_lost)
        assert "/portal is not /main" in lost.reason


PROJECT = """
[project]
name = "painter"
version = "1.0"
dependencies = ["pillow"]
[project.optional-dependencies]
cuda = ["torch==2.9.1"]
web = ["flask"]
[dependency-groups]
dev = ["pytest"]
docs = ["furo"]
"""
POETRY = """
[tool.poetry]
name = "painter"
[tool.poetry.dependencies]
pillow = "*"
torch = { version = "2.9.1", optional = true }
flask = { version = "*", optional = true }
[tool.poetry.extras]
cuda = ["torch"]
web = ["flask"]
[tool.poetry.group.dev.dependencies]
pytest = "*"
[tool.poetry.group.docs]
optional = true
[tool.poetry.group.docs.dependencies]
furo = "*"
"""


@pytest.mark.parametrize(
    ("project", "command", "expected"),
    [
        (PROJECT, "uv sync --no-dev", "pillow"),
        (PROJECT, "uv sync", "pillow pytest"),
        (PROJECT, "uv sync --frozen --no-install-project --extra=cuda --no-dev", "pillow torch"),
        (PROJECT, "uv sync --extra cuda --extra web --group docs --no-dev", "pillow torch flask furo"),
        (PROJECT, "uv sync --all-extras --all-groups", "pillow torch flask pytest furo"),
        (PROJECT, "uv sync --all-groups --no-group dev", "pillow furo"),
        (PROJECT, "uv sync --all-groups --no-dev", "pillow furo"),
        (f'{PROJECT}[tool.uv]\ndefault-groups = "all"\n', "uv sync --no-dev", "pillow furo"),
        (f'{PROJECT}[tool.uv]\ndefault-groups = "all"\n', "uv sync --no-default-groups", "pillow"),
        (POETRY, "poetry install --only main --no-root", "pillow"),
        (POETRY, "poetry install --extras 'cuda web' --without dev", "pillow torch flask"),
        (POETRY, "poetry install -E cuda --with docs,dev", "pillow torch pytest furo"),
        (POETRY, "poetry install --no-dev", "pillow"),
        (POETRY, "poetry install --all-extras", "pillow torch flask pytest"),
    ],
)
def test_the_extras_and_groups_that_a_command_names(project: str, command: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(project)
    found = dockerfile(tmp_path, f"FROM ubuntu:24.04\nWORKDIR /a\nCOPY pyproject.toml .\nRUN {command}\n")
    names = [re.split(r"[=<>~ ;]", each.text)[0] for each in found.draft.dependencies]
    assert sorted(names) == sorted(expected.split())
    assert [entry for entry in found.ledger if entry.outcome.is_lost] == []


def test_the_extras_of_all_commands_of_the_image_are_taken(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    base = "FROM ubuntu:24.04 AS base\nWORKDIR /a\nCOPY . .\nRUN uv sync --no-dev --no-install-project\n"
    text = f"{base}FROM base AS docs\nRUN uv sync --group docs\nFROM base\nRUN uv sync --no-dev --extra cuda\n"
    assert [each.text for each in dockerfile(tmp_path, text).draft.dependencies] == ["pillow", "torch==2.9.1"]


def test_the_python_of_an_image_is_used_unless_something_else_says_which(tmp_path: Path) -> None:
    base = "FROM pytorch/pytorch:2.1.2-cuda12.1-cudnn8-runtime\n"
    (tmp_path / "environment.yml").write_text("dependencies: [python=3.9]\n")
    found = {
        line: dockerfile(tmp_path, f"{base}{line}\n").draft.pythons[0].value
        for line in (
            "RUN apt-get install -y python3.8",
            "COPY environment.yml .\nRUN conda env create",
            "COPY environment.yml .\nRUN conda env create && uv venv -p 3.12",
            "RUN update-alternatives --install /usr/bin/python3 python3 /usr/bin/python3.8 1 "
            "&& update-alternatives --install /usr/bin/python3 python3 /usr/bin/python3.11 2",
        )
    }
    assert [*found.values()] == ["3.10", "3.9", "3.12", "3.11"]


def test_only_packages_indexes_and_settings_are_losses(tmp_path: Path) -> None:
    lines = """LABEL a=b
EXPOSE 80
USER app
VOLUME /data
COPY . /app
RUN wget https://example.com/model.bin && chmod +x /usr/bin/x && useradd app && make install && python train.py
RUN if [ -f /x ]; then mkdir /y; fi
ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH} PYTHONPATH=/venv/lib/python3.11/site-packages
RUN frobnicate --all
CMD ["python", "app.py"]"""
    found = dockerfile(tmp_path, f"FROM ubuntu:24.04\n{lines}\n")
    assert [entry for entry in found.ledger if entry.outcome.is_lost] == []
    assert found.draft.env == {}
    lost = """RUN yum install -y gcc
RUN pip install -r gone.txt
RUN if [ -f /x ]; then pip install einops; fi
RUN comfy --here install
RUN ./setup.sh
RUN pip install --pre numpy
ENV LD_LIBRARY_PATH=$OTHER/lib:/opt/mine
ENV API_KEY=x"""
    found = dockerfile(tmp_path, f"FROM ubuntu:24.04\n{lost}\n")
    assert {entry.source.line for entry in found.ledger if entry.outcome.is_lost} == {2, 3, 4, 5, 6, 7, 9}
    assert found.draft.env == {"LD_LIBRARY_PATH": "/opt/mine"}


@pytest.mark.parametrize(
    ("lines", "started"),
    [
        ('ENTRYPOINT ["python", "-m", "app"]', {"entrypoint": "python -m app"}),
        ('CMD ["old"]\nENTRYPOINT ["tini", "--"]\nCMD ["a b"]', {"entrypoint": "tini --", "command": "'a b'"}),
        ("CMD exec app --port $PORT", {"command": "/bin/sh -c 'exec app --port $PORT'"}),
        ('SHELL ["bash", "-ec"]\nCMD app', {"command": "bash -ec app"}),
        ('CMD ["uv", "run", "--no-sync", "--extra", "x", "app", "-v"]', {"command": "app -v"}),
        ('CMD ["uv", "run", "app.py"]', {"command": "python app.py"}),
        ('CMD ["uv", "run", "-m", "app"]', {"command": "python -m app"}),
        ('CMD ["conda", "run", "--no-capture-output", "-n", "env", "app"]', {"command": "app"}),
        ("CMD poetry run app  --all", {"command": "/bin/sh -c 'app --all'"}),
        ('RUN uv venv /v\nCMD ["/v/bin/app", "/v/bin"]', {"command": "app /v/bin"}),
        ('CMD ["app"]\nFROM b\nENTRYPOINT ["sh"]', {"entrypoint": "sh"}),
        ('ENTRYPOINT ["sh"]\nFROM b\nCMD ["app"]', {"entrypoint": "sh", "command": "app"}),
        ('ENTRYPOINT []\nCMD ["app"]', {"command": "app"}),
        ('CMD ["a\\u0000b"]', {}),
    ],
)
def test_an_image_starts_what_the_dockerfile_says(tmp_path: Path, lines: str, started: dict[str, str]) -> None:
    found = dockerfile(tmp_path, f"FROM ubuntu:24.04 AS b\n{lines}\n").draft.started
    assert {key: shlex.join(each.words) for key, each in found.items()} == started


def test_scripts_of_the_project_are_read(tmp_path: Path) -> None:
    (tmp_path / "install.sh").write_text("#!/bin/bash\nset -e\nV=1.0\npip install a==$V\nbash /s/install.sh\n")
    text = "FROM ubuntu:24.04\nCOPY install.sh /s/\nRUN bash -e /s/install.sh\nRUN /s/install.sh\n"
    found = dockerfile(tmp_path, text)
    assert [(each.text, str(each.source)) for each in found.draft.dependencies] == [("a==1.0", "install.sh:4")]


@pytest.mark.parametrize(
    ("stage", "lines", "expected"),
    [
        (
            "RUN pip wheel -w /out einops",
            "COPY --from=b /out /w\nRUN pip install --no-index --find-links=/w /w/*.whl",
            "einops",
        ),
        (
            "RUN pip wheel -w /out einops",
            "RUN --mount=type=bind,from=b,source=/out,target=/w pip install /w/*",
            "einops",
        ),
        (
            "RUN poetry export --with docs -o /r.txt",
            "COPY --from=b /r.txt /r.txt\nRUN pip install -r /r.txt",
            "pillow furo",
        ),
        (
            "RUN uv export --no-dev --extra cuda > r.txt",
            "COPY --from=b /h/app/r.txt .\nRUN pip install -r r.txt",
            "pillow torch==2.9.1",
        ),
        ("RUN uv venv && uv export --no-dev > r.txt && uv pip install -r r.txt", "COPY --from=b /h/app /a", "pillow"),
        (
            "RUN uv venv && uv pip install einops && make dist",
            "COPY --from=b /h/app/dist /dist\nRUN pip install /dist/*.whl",
            "",
        ),
    ],
)
def test_wheels_and_exports_of_a_stage(stage: str, lines: str, expected: str, tmp_path: Path) -> None:
    project = PROJECT if "uv" in stage else POETRY.replace("optional = true\n", "")
    (tmp_path / "pyproject.toml").write_text(project)
    found = dockerfile(tmp_path, f"{VENV}COPY pyproject.toml .\n{stage}\nFROM ubuntu:24.04\nWORKDIR /a\n{lines}\n")
    assert [each.text for each in found.draft.dependencies] == expected.split()
    assert any(entry.outcome.is_lost for entry in found.ledger) == (not expected)


def test_what_real_files_have_is_no_loss(tmp_path: Path) -> None:
    """Each line is of a public Dockerfile: none of them loses a package, an index or a setting."""
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(name='own', install_requires=['einops'])\n")
    lines = """RUN apt-key del 7fa2af80 && dpkg -i cuda-keyring_1.1-1_all.deb && dpkg --add-architecture i386
RUN ([ amd64 = arm64 ] && echo no || dpkg --add-architecture i386) && apt-get install -y git libnccl2=${NCCL}
RUN echo "PATH=$PATH" >> /etc/environment && python -m ipykernel install --user && zypper update -y
RUN if [ -d /x ]; then cd /x; git clone https://example.com/x; export A=1; fi
RUN sh /uv-installer.sh && ./autogen.sh && /usr/local/bin/_dockerfile_setup_root_prefix.sh
ARG BUILD_DATE
ENV BUILD_DATE=$BUILD_DATE PIP_CONSTRAINT="" CMAKE_VERSION=3.21.0
COPY setup.py /src/setup.py
RUN pip install /src"""
    found = dockerfile(tmp_path, f"FROM ubuntu:24.04\n{lines}\n")
    assert [entry for entry in found.ledger if entry.outcome.is_lost] == []
    assert found.draft.apt == ["git"]
    assert [each.text for each in found.draft.dependencies] == ["own @ {path}"]
    assert found.draft.env == {"CMAKE_VERSION": "3.21.0"}


def test_a_stage_loses_only_packages_of_its_own(tmp_path: Path) -> None:
    base = "FROM ubuntu:24.04 AS base\nRUN pip install einops\nFROM base AS models\nRUN mkdir /m\n"
    other = "FROM ubuntu:24.04 AS tool\nRUN pip install numpy\n"
    lines = "FROM base\nCOPY --from=models /m /m\nCOPY --from=tool /t /t\n"
    found = dockerfile(tmp_path, f"{base}{other}{lines}")
    assert [entry.text for entry in found.ledger if entry.outcome.is_lost] == ["COPY --from=tool /t /t"]


def test_the_folder_above_a_devcontainer_is_in_the_project(tmp_path: Path) -> None:
    path = tmp_path / "p" / ".devcontainer" / "devcontainer.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"build": {"dockerfile": "Dockerfile", "context": ".."}}')
    (path.parent / "Dockerfile").write_text("FROM ubuntu:24.04\nCOPY r.txt .\nRUN pip install -r r.txt\n")
    (tmp_path / "p" / "r.txt").write_text("einops\n")
    found, importer = new_import(path.parent), importer_of(path)
    found.allow(path)
    assert importer is not None
    found.run(importer, path)
    assert [each.text for each in found.draft.dependencies] == ["einops"]


def test_the_service_of_a_compose_file(tmp_path: Path) -> None:
    path = tmp_path / ".devcontainer" / "devcontainer.json"
    path.parent.mkdir()
    path.write_text('{"dockerComposeFile": ["compose.yml"], "service": "dev", "forwardPorts": [8888]}')
    (path.parent / "Dockerfile").write_text(
        "ARG V\nFROM ubuntu:22.04\nARG V=1\nRUN pip install einops==$V jupyterlab\n"
    )
    compose = path.parent / "compose.yml"
    build = "build: {context: .., dockerfile: .devcontainer/Dockerfile, args: {V: '2'}}"
    compose.write_text(f"services:\n  db: {{image: postgres}}\n  dev:\n    image: mine\n    {build}\n")
    found = imported(path, tmp_path)
    assert [each.text for each in found.draft.dependencies] == ["einops==2", "jupyterlab"]
    assert [each.value for each in found.draft.ports] == ["8888"]
    assert [entry for entry in found.ledger if entry.outcome.is_lost] == []
    compose.write_text("services:\n  dev: {image: 'python:3.11'}\n")
    assert [each.value for each in imported(path, tmp_path).draft.pythons] == ["3.11"]
    compose.write_text("services: {}\n")
    assert [entry.outcome.is_lost for entry in imported(path, tmp_path).ledger][:1] == [True]


def test_a_context_outside_of_the_project_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("private==1\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "Dockerfile").write_text("FROM ubuntu:22.04\nCOPY secret.txt .\nRUN pip install -r secret.txt\n")
    (project / "compose.yml").write_text("services: {a: {build: {context: .., dockerfile: project/Dockerfile}}}\n")
    for text in (
        '{"build": {"dockerfile": "Dockerfile", "context": ".."}}',
        '{"dockerComposeFile": "compose.yml", "service": "a"}',
    ):
        path = project / "devcontainer.json"
        path.write_text(text)
        found, importer = new_import(project), importer_of(path)
        found.allow(path)
        assert importer is not None
        found.run(importer, path)
        assert found.draft.dependencies == []
        assert "outside of the project" in "".join(entry.reason for entry in found.ledger if entry.outcome.is_lost)
