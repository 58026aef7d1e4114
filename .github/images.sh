#!/usr/bin/env bash
# images.sh REPOSITORY FOLDER NAME...: pushes the OCI layout FOLDER/image-NAME of each name to REPOSITORY:NAME and prints a
# matrix for jobs as JSON: {"include": [{"spec": NAME, "image": REPOSITORY@sha256:...}, ...]}. A tag can be moved between
# two jobs; a digest can't. Another job wrote the layouts: nothing in them is run.
set -euo pipefail
repository=$1 folder=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
pushed=$(mktemp)
trap 'rm -f "$pushed"' EXIT
rows=()

python3 -I "$here/received.py" names "$@" >/dev/null
for name in "$@"; do
  layout=$folder/image-$name
  digest=$(python3 -I "$here/received.py" layout "$layout")
  skopeo --insecure-policy copy --quiet --preserve-digests --digestfile "$pushed" \
    "oci:$layout" "docker://$repository:$name" >&2
  [ "$(cat "$pushed")" = "$digest" ] || { echo "::error::$name: the pushed image is not $digest" >&2; exit 1; }
  rows+=("{\"spec\": \"$name\", \"image\": \"$repository@$digest\"}")
done

(IFS=,; printf '{"include": [%s]}\n' "${rows[*]}")
