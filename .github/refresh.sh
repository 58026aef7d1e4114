#!/usr/bin/env bash
# refresh.sh FOLDER: sets `as_of` of every spec that has one to now and locks it again; upgrades the lock of a spec with an
# age ("7 days ago"). Copies the specs and locks that changed into FOLDER (specs/NAME.toml, locks/NAME/), prints the changes
# as Markdown, and writes to $GITHUB_OUTPUT: changed, failed (yes or no). A spec that can't be locked, and a lock in which
# only the date would change, stay as they were committed. Its job may build, so it has no permissions; another job checks
# FOLDER and pushes it.
set -euo pipefail
proposal=$1
output=$(mktemp)
mkdir -p "$proposal/specs" "$proposal/locks"
trap 'rm -f "$output"' EXIT
changed=no failed=no

# Builds from source are confined.
[ ! -f .github/with-bubblewrap.sh ] || bash .github/with-bubblewrap.sh true >&2

# fenced: prints $output in a block of code that backticks in it cannot end.
fenced() {
  local text fence='```'
  text=$(cat "$output")
  while [[ $text == *"$fence"* ]]; do fence+='`'; done
  printf '%stext\n%s\n%s\n\n' "$fence" "$text" "$fence"
}

# Of a diff, as JSON on stdin: `date` if only the date and what depends on it changed; else `news`.
kind_of() {
  python3 -c '
import json, sys
diff = json.load(sys.stdin)
moved = [row["name"] for row in diff["environment"] if row["name"] not in ("spec", "as_of")]
print("news" if diff["packages"] or diff["conda"] or moved else "date")'
}

for spec in specs/*.toml; do
  grep -q '^as_of *=' "$spec" || continue
  name=$(basename "$spec" .toml)
  # Its own lock, and those of its variants.
  mapfile -t locks < <(grep -lsFx "spec = \"../../$spec\"" locks/*/envspec.lock | xargs -r dirname)
  [ ${#locks[@]} -gt 0 ] || locks=("locks/$name")
  echo "$spec" >&2
  move=(--as-of now)
  ! grep -Eq "^as_of *= *[\"'][0-9]+ [a-z]+ ago" "$spec" || move=(--upgrade)
  if ! envspec lock "${move[@]}" "$spec" >/dev/null 2>"$output"; then
    cat "$output" >&2
    printf '## %s: not locked, unchanged\n\n' "$name"
    fenced
    git checkout --quiet -- "$spec" "${locks[@]}"
    failed=yes
    continue
  fi
  kind=date text=
  for lock in "${locks[@]}"; do
    rows=$(envspec diff "HEAD:$lock" "$lock" --format json) || [ $? = 10 ]
    [ "$(kind_of <<< "$rows")" = news ] || continue
    kind=news
    text+=$(printf '## %s\n\n' "${lock#locks/}"; envspec diff "HEAD:$lock" "$lock" --format markdown) || [ $? = 10 ]
    text+=$'\n\n'
  done
  if [ "$kind" = news ]; then
    printf '%s' "$text"
    cp "$spec" "$proposal/specs/"
    cp -r "${locks[@]}" "$proposal/locks/"
    changed=yes
  else
    git checkout --quiet -- "$spec" "${locks[@]}"
  fi
done

[ "$changed$failed" != nono ] || echo "Nothing newer."
printf 'changed=%s\nfailed=%s\n' "$changed" "$failed" >> "$GITHUB_OUTPUT"
