#!/usr/bin/env bash
# with-bubblewrap.sh COMMAND...: runs it with bubblewrap, which confines builds, as far as this machine allows. As root on
# Debian or Ubuntu it installs bubblewrap if it is missing; on GitHub's runners also by sudo. Where AppArmor restricts user
# namespaces (Ubuntu 24.04) it loads a profile that permits them to bubblewrap. What is not possible is reported, and
# COMMAND runs all the same: its tests report what they miss.
set -euo pipefail
restricted=/proc/sys/kernel/apparmor_restrict_unprivileged_userns

works() { bwrap --unshare-all --ro-bind / / true 2>&1; }

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo -n)
if [ "$(uname -s)" = Linux ] && ! output=$(works); then
  if [ "$(id -u)" != 0 ] && [ "${GITHUB_ACTIONS:-}" != true ]; then
    echo "bubblewrap: not run, what needs it: ${output##*: }" >&2
  else
    if ! command -v bwrap >/dev/null; then
      "${as_root[@]}" apt-get update -qq || true
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y bubblewrap >/dev/null || true
    fi
    if [ "$(cat "$restricted" 2>/dev/null)" = 1 ] && ! works >/dev/null; then
      printf 'abi <abi/4.0>,\nprofile bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}\n' |
        "${as_root[@]}" tee /etc/apparmor.d/bwrap >/dev/null && "${as_root[@]}" apparmor_parser -r /etc/apparmor.d/bwrap || true
    fi
    output=$(works) || echo "bubblewrap: not run, what needs it: ${output##*: }" >&2
  fi
fi
exec "$@"
