#!/usr/bin/env bash
# lock-check.sh BASE: resolves again what changed since the git revision BASE: each changed spec, because what it requires
# may not exist, and the lock of each changed spec or lock, byte for byte, because a lock and its checksums can be edited
# by hand. Then checks every committed lock against its spec. Prints Markdown; output of commands also goes to stderr.
# CHANNEL_REPODATA: words CHANNEL=DIR, for locks that were made from a part of a channel.
# Exit code: that of the first failure. Without a network, nothing is verified, which is a failure.
set -euo pipefail
base=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0

# Builds from source are confined.
[ ! -f .github/with-bubblewrap.sh ] || bash .github/with-bubblewrap.sh true >&2

# report TITLE: with the output, in a block of code that backticks in it cannot end.
report() {
  local text fence='```'
  text=$(cat "$scratch/output")
  while [[ $text == *"$fence"* ]]; do fence+='`'; done
  printf '%s\n' "$text" >&2
  printf '### %s\n\n%stext\n%s\n%s\n\n' "$1" "$fence" "$text" "$fence"
}

fail() {
  report "$1 (exit $2)"
  [ "$status" != 0 ] || status=$2
}

# repodata_for LOCK: fills `repodata` with options, which only a lock that was made from a part of a channel accepts.
repodata_for() {
  repodata=()
  if grep -q '^partial_channels = \[' "$1/envspec.lock" 2>/dev/null; then
    for word in ${CHANNEL_REPODATA-}; do repodata+=(--channel-repodata "$word"); done
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

failed=()
for spec in "${specs[@]}"; do
  repodata_for "locks/$(basename "$spec" .toml)"
  envspec lock "$spec" --output "$scratch/$spec" "${repodata[@]}" >/dev/null 2>"$scratch/output" && continue || code=$?
  fail "\`$spec\` can't be locked" "$code"
  failed+=("$spec")
done

tried=() verified=()
# verify SPEC LOCK: with the locks of the spec's variants, which are next to LOCK. Once for each LOCK.
verify() {
  [[ " ${tried[*]-} " != *" $2 "* ]] || return 0
  tried+=("$2")
  repodata_for "$2"
  envspec lock --verify "$1" --output "$2" "${repodata[@]}" >"$scratch/output" 2>&1 && code=0 || code=$?
  if [ "$code" != 0 ]; then
    fail "\`$2\` is not verified against \`$1\`" "$code"
    return
  fi
  verified+=("$2")
  if grep '^not verified: ' "$scratch/output" >"$scratch/open"; then
    mv "$scratch/open" "$scratch/output"
    report "\`$2\` is verified, except for what cannot be decided"
  fi
}

# has_variant SPEC NAME
has_variant() {
  python3 -I -c '
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    sys.exit(sys.argv[2] not in tomllib.load(file).get("variants", {}))' "$@" 2>/dev/null
}

for lock in "${locks[@]}"; do
  spec=specs/${lock#locks/}.toml
  if [ ! -e "$spec" ]; then
    spec=$(grep -lE "^ *name *= *[\"']${lock#locks/}[\"'] *(#.*)?$" specs/*.toml | head -n 1) || true
  fi
  if [ -z "$spec" ]; then
    for each in specs/*.toml; do
      own=locks/$(basename "$each" .toml)
      if [[ $lock == "$own"-* ]] && has_variant "$each" "${lock#"$own"-}"; then spec=$each lock=$own; fi
    done
  fi
  if [ -z "$spec" ]; then
    echo "$lock: no spec in specs/ has this name" >"$scratch/output"
    fail "\`$lock\` belongs to no spec" 3
  elif [[ " ${failed[*]-} " != *" $spec "* ]]; then
    verify "$spec" "$lock"
  fi
done
# A lock whose spec has changed since is reported below.
for spec in "${specs[@]}"; do
  lock=locks/$(basename "$spec" .toml)
  [[ " ${locks[*]-} ${failed[*]-} " != *" $lock "* && " ${failed[*]-} " != *" $spec "* && -e $lock ]] || continue
  if envspec lock --check "$spec" >/dev/null 2>&1; then verify "$spec" "$lock"; fi
done
if [ "${#verified[@]}" != 0 ]; then
  printf 'Resolved again, with the same bytes: %s.\n\n' "${verified[*]}"
fi

# A spec that can't be locked has no lock to check.
lockable=()
for spec in specs/*.toml; do
  [[ " ${failed[*]-} " == *" $spec "* ]] || lockable+=("$spec")
done
if [ "${#lockable[@]}" != 0 ]; then
  envspec lock --check "${lockable[@]}" >/dev/null 2>"$scratch/output" && code=0 || code=$?
  if [ "$code" = 0 ]; then
    printf '%s of %s locks belong to their specs.\n\n' "${#lockable[@]}" "$((${#lockable[@]} + ${#failed[@]}))"
  else
    fail "Locks do not belong to their specs" "$code"
  fi
fi
exit "$status"
