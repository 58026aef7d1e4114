#!/usr/bin/env bash
# lock-check.sh BASE: the specs that changed since the git revision BASE are locked anew, for what they ask for may not
# exist, and every committed lock is held against its spec. Prints Markdown; the programs' own words go to stderr as well.
# Exit: that of the first refusal, else that of `envspec lock --check`.
set -euo pipefail
base=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0

tell() {
  cat "$scratch/said" >&2
  printf '### %s\n\n```text\n%s\n```\n\n' "$1" "$(cat "$scratch/said")"
}

refused=()
while read -r spec; do
  envspec lock "$spec" --output "$scratch/$spec" >/dev/null 2>"$scratch/said" && continue || code=$?
  tell "\`$spec\` can't be locked (exit $code)"
  refused+=("$spec")
  [ "$status" != 0 ] || status=$code
done < <(git diff --name-only --diff-filter=d "$base...HEAD" -- 'specs/*.toml')

# What can't be locked has no lock that could belong to it.
sound=()
for spec in specs/*.toml; do
  [[ " ${refused[*]-} " == *" $spec "* ]] || sound+=("$spec")
done
if [ "${#sound[@]}" != 0 ]; then
  envspec lock --check "${sound[@]}" >/dev/null 2>"$scratch/said" && code=0 || code=$?
  if [ "$code" = 0 ]; then
    printf '%s of %s locks belong to their specs.\n\n' "${#sound[@]}" "$((${#sound[@]} + ${#refused[@]}))"
  else
    tell "Locks do not belong to their specs (exit $code)"
    [ "$status" != 0 ] || status=$code
  fi
fi
exit "$status"
