#!/usr/bin/env bash
# clean-up.sh IMAGE BEFORE: removes what a job left on a machine of its own: envspec's containers of IMAGE, and IMAGE itself
# unless BEFORE is `present`. Removes nothing else: no prune.
set -euo pipefail
image=$1 before=$2

mapfile -t containers < <(docker ps --all --quiet --filter label=envspec.run --filter "ancestor=$image")
for container in "${containers[@]}"; do
  # It may have ended meanwhile.
  docker rm --force "$container" || true
done
if [ "$before" != present ] && docker image inspect "$image" >/dev/null 2>&1; then
  # Another container may use it by now. The suite's result is valid all the same.
  docker image rm "$image" || echo "::warning::the image $image stays: docker could not remove it"
fi
