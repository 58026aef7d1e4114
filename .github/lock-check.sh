#!/usr/bin/env bash
# lock-check.sh BASE: what changed since the git revision BASE is resolved again: the specs, for what they ask for may not
# exist, and the lock of each spec or lock that changed, byte for byte, for a lock can be changed by hand, its checksums
# with it. Then every committed lock is held against its spec. Prints Markdown; the programs' own words go to stderr too.
# CHANNEL_REPODATA: words CHANNEL=DIR, for locks that were made from a part of a channel.
# Exit: that of the first refusal; without a network nothing is verified, and that is a refusal as well.
set -euo pipefail
base=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0

# What some specs build runs confined.
[ ! -f .github/with-bubblewrap.sh ] || bash .github/with-bubblewrap.sh true >&2

# tell TITLE: with what was said, as a block of code that no run of backticks in it ends.
tell() {
  local text fence='```'
  text=$(cat "$scratch/said")
  while [[ $text == *"$fence"* ]]; do fence+='`'; done
  printf '%s\n' "$text" >&2
  printf '### %s\n\n%stext\n%s\n%s\n\n' "$1" "$fence" "$text" "$fence"
}

refuse() {
  tell "$1 (exit $2)"
  [ "$status" != 0 ] || status=$2
}

# rows_for LOCK: fills `rows` with options, which only a lock that was made from a part of a channel takes.
rows_for() {
  rows=()
  if grep -q '^partial_channels = \[' "$1/envspec.lock" 2>/dev/null; then
    for word in ${CHANNEL_REPODATA-}; do rows+=(--channel-repodata "$word"); done
  fi
}

specs=() locks=()
while IFS= read -r -d '' path; do
  case $path in
    specs/*/*) ;;
    specs/*.toml) if [ -e "$path" ]; then specs+=("$path"); fi ;;
    locks/*/*)
      lock=${path#locks/}
      lock=locks/${lock%%/*}
      if [ -e "$lock" ] && [[ " ${locks[*]-} " != *" $lock "* ]]; then locks+=("$lock"); fi
      ;;
  esac
done < <(git diff -z --name-only "$base...HEAD" -- specs locks)

refused=()
for spec in "${specs[@]}"; do
  rows_for "locks/$(basename "$spec" .toml)"
  envspec lock "$spec" --output "$scratch/$spec" "${rows[@]}" >/dev/null 2>"$scratch/said" && continue || code=$?
  refuse "\`$spec\` can't be locked" "$code"
  refused+=("$spec")
done

verified=()
# verify SPEC LOCK
verify() {
  rows_for "$2"
  envspec lock --verify "$1" --output "$2" "${rows[@]}" >"$scratch/said" 2>&1 && code=0 || code=$?
  if [ "$code" != 0 ]; then
    refuse "\`$2\` was not verified to be what \`$1\` resolves to" "$code"
    return
  fi
  verified+=("$2")
  if grep '^not verified: ' "$scratch/said" >"$scratch/open"; then
    mv "$scratch/open" "$scratch/said"
    tell "\`$2\` is the same but for what nothing decides"
  fi
}

for lock in "${locks[@]}"; do
  spec=specs/${lock#locks/}.toml
  if [ ! -e "$spec" ]; then
    spec=$(grep -lE "^ *name *= *[\"']${lock#locks/}[\"'] *(#.*)?$" specs/*.toml | head -n 1) || true
  fi
  if [ -z "$spec" ]; then
    echo "$lock: no spec in specs/ has this name" >"$scratch/said"
    refuse "\`$lock\` belongs to no spec" 3
  elif [[ " ${refused[*]-} " != *" $spec "* ]]; then
    verify "$spec" "$lock"
  fi
done
# A lock whose spec has changed since is reported below.
for spec in "${specs[@]}"; do
  lock=locks/$(basename "$spec" .toml)
  [[ " ${locks[*]-} ${refused[*]-} " != *" $lock "* && " ${refused[*]-} " != *" $spec "* && -e $lock ]] || continue
  if envspec lock --check "$spec" >/dev/null 2>&1; then verify "$spec" "$lock"; fi
done
if [ "${#verified[@]}" != 0 ]; then
  printf 'Resolved again, and the same byte for byte: %s.\n\n' "${verified[*]}"
fi

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
    refuse "Locks do not belong to their specs" "$code"
  fi
fi
exit "$status"
