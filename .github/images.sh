#!/usr/bin/env bash
# images.sh REPOSITORY NAME...: pushes the image of each lock to REPOSITORY and prints a matrix for jobs as JSON:
# {"include": [{"spec": NAME, "image": REPOSITORY@sha256:...}, ...]}. A tag can be moved between two jobs; a digest can't.
set -euo pipefail
repository=$1
shift
said=$(mktemp)
trap 'rm -f "$said"' EXIT
rows=()

for name in "$@"; do
  # The names go into JSON and, in another job, into paths.
  if ! [[ $name =~ ^[a-z0-9][a-z0-9._-]*$ && -e specs/$name.toml ]]; then
    echo "::error::no spec is called '${name//[^a-zA-Z0-9._-]/?}'" >&2
    exit 2
  fi
  envspec lock --check "specs/$name.toml" >&2
  envspec image build "$name" --platform linux-64 --push "$repository:$name" >/dev/null 2>"$said" || {
    code=$?
    cat "$said" >&2
    exit "$code"
  }
  cat "$said" >&2
  digest=$(sed -n 's/^pushed: .*@\(sha256:[0-9a-f]\{64\}\)$/\1/p' "$said")
  [ -n "$digest" ] || { echo "::error::$name: envspec told no digest" >&2; exit 1; }
  rows+=("{\"spec\": \"$name\", \"image\": \"$repository@$digest\"}")
done

(IFS=,; printf '{"include": [%s]}\n' "${rows[*]}")
