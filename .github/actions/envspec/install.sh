#!/usr/bin/env bash
# install.sh PYTHON DIR: installs envspec from the repository of this file into a virtual environment DIR, with its
# dependencies and its build backend from the committed lock, hashes required. Adds the commands of DIR to the PATH of the
# job's later steps.
set -euo pipefail
python=$1 prefix=$2
source=$(cd "$(dirname "$0")/../../.." && pwd)

series=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $(uname -sm) in
  "Linux x86_64") platform=linux-64 ;;
  "Linux aarch64") platform=linux-aarch64 ;;
  "Darwin arm64") platform=osx-arm64 ;;
  *) platform=$(uname -sm) ;;
esac
lock=$source/locks/dev-$series/requirements.$platform.txt
if [ ! -e "$lock" ]; then
  echo "::error::envspec has no lock of its own for Python $series on $platform"
  exit 2
fi

# pip may use the mirror in the machine's configuration: every file has its hash in the lock.
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$python" -m venv "$prefix"
"$prefix/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$lock"
# The build backend is in the lock as well: an isolated build would fetch an unlocked one.
"$prefix/bin/python" -m pip install --quiet --no-deps --no-build-isolation "$source"
"$prefix/bin/envspec" --version
echo "$prefix/bin" >> "$GITHUB_PATH"
