#!/usr/bin/env bash
# raise-uv.sh BOUND: allow uv below BOUND in pyproject.toml and in the specs of the development environment.
set -euo pipefail
if [[ ! $1 =~ ^[0-9]{1,3}\.[0-9]{1,3}$ ]]; then
  echo "::error::not a bound of uv"
  exit 1
fi
sed -i -E "s/(\"uv>=[0-9.]+,<)[0-9.]+\"/\1$1\"/" pyproject.toml specs/dev-*.toml
