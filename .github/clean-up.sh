#!/usr/bin/env bash
# clean-up.sh IMAGE BEFORE: takes away what a job has left on a machine that is kept: containers of envspec's that are of
# IMAGE, and IMAGE itself where BEFORE is not `present`. Nothing of anybody else's: no prune.
set -euo pipefail
image=$1 before=$2

mapfile -t containers < <(docker ps --all --quiet --filter label=envspec.run --filter "ancestor=$image")
for container in "${containers[@]}"; do
  # One that was just ending may be gone by now.
  docker rm --force "$container" || true
done
if [ "$before" != present ] && docker image inspect "$image" >/dev/null 2>&1; then
  # Somebody else's container may run of it by now: what was proved is proved all the same.
  docker image rm "$image" || echo "::warning::the image $image stays: docker does not remove it"
fi
