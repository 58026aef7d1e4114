#!/usr/bin/env bash
# Prints, as Markdown, how the committed locks differ from those of a git revision: `lock-diff.sh REVISION`.
set -euo pipefail
base=$1
is_any=no

for file in locks/*/envspec.lock; do
  lock=$(dirname "$file")
  if ! git cat-file -e "$base:$file" 2>/dev/null; then
    printf '## %s\n\nNew.\n\n' "$lock"
    is_any=yes
    continue
  fi
  # 10: there are differences. Any other code except 0 is a failure.
  text=$(envspec diff "$base:$lock" "$lock" --format markdown) && code=0 || code=$?
  case $code in
    0) ;;
    10) printf '## %s\n\n%s\n\n' "$lock" "$text"; is_any=yes ;;
    *) exit "$code" ;;
  esac
done

while read -r lock; do
  [ -e "$lock/envspec.lock" ] && continue
  printf '## %s\n\nRemoved.\n\n' "$lock"
  is_any=yes
done < <(git ls-tree -d --name-only "$base" locks/)

[ "$is_any" = yes ] || echo "No lock changes."
