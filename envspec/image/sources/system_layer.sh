#!/bin/sh
# Installs packages in a container of the base image, and leaves in /.envspec-build/out what that has changed:
#   layer.tar        every path that is new or changed, with the folders that it is in
#   changed, gone    paths that are new or changed, and that are there no more, each ended by NUL
#   packages.before, packages.after    name=version of what is installed
#   undated          the sources that have no snapshots, one a line
set -eu
work=/.envspec-build
. "$work/environment"
umask 022
cd /
mkdir -p "$work/out" "$work/lists/partial" "$work/cache/archives/partial" "$work/log"

say() {
    echo "envspec: $*" >&2
}

# One record for each path: kind, mode, owners, size, time. A folder's time changes with what is in it. A file that was
# merely opened for writing is a copy of the base's on some engines, and has its time.
listing() {
    find / -xdev -path "$work" -prune -o \
        -type d -printf '%y %m %U %G 0 0 %p\0' -o -printf '%y %m %U %G %s %T@ %p\0' | LC_ALL=C sort -z >"$1"
}

paths() {
    cut -z -d ' ' -f 7- "$1" | LC_ALL=C sort -z
}

packages() {
    dpkg-query -W -f='${db:Status-Abbrev}${binary:Package}=${Version}\n' | sed -n 's/^ii *//p' | LC_ALL=C sort >"$1"
}

apt() {
    apt-get -q -c "$work/apt.conf" "$@"
}

# Who the image runs as. Ubuntu's own user of that id becomes it, and is no administrator any more.
make_user() {
    old=$(getent passwd "$USER_ID" | cut -d : -f 1)
    group=$(getent group "$GROUP_ID" | cut -d : -f 1)
    if [ -z "$group" ]; then
        groupadd --gid "$GROUP_ID" "$USER_NAME"
    elif [ "$group" != "$USER_NAME" ]; then
        groupmod --new-name "$USER_NAME" "$group"
    fi
    # An unusable password, but no locked account: sshd lets none of those in.
    if [ -z "$old" ]; then
        useradd --uid "$USER_ID" --gid "$GROUP_ID" --home-dir "$USER_HOME" --no-create-home --shell /bin/bash \
            --password '*' "$USER_NAME"
    else
        usermod --login "$USER_NAME" --home "$USER_HOME" --gid "$GROUP_ID" --groups '' --shell /bin/bash \
            --password '*' "$old"
    fi
}

# Bytecode that goes by times would be stale: all files of an image have the same one.
compile() {
    [ -n "$(find /usr/lib /usr/share -xdev -name '*.pyc' -newer "$work/started" -print -quit)" ] || return 0
    find /usr/lib /usr/share -xdev -name '*.pyc' -newer "$work/started" -delete
    for python in /usr/bin/python3.[0-9] /usr/bin/python3.[0-9][0-9]; do
        [ -x "$python" ] || continue
        # It ends with 1 where a file is none that can be compiled, as some of Python's own tests.
        "$python" -S -s -m compileall -q -q --invalidation-mode unchecked-hash \
            "/usr/lib/$(basename "$python")" /usr/lib/python3 || :
    done
}

command -v apt-get >/dev/null || exit 64
listing "$work/before"
packages "$work/out/packages.before"
: >"$work/out/undated"
if [ -n "$SNAPSHOT" ]; then
    sh "$work/apt-sources.sh" "$work" "$SNAPSHOT" "$MIRROR"
    cp "$work/undated" "$work/out/undated"
fi
touch "$work/started"
# No service starts in here.
policy=/usr/sbin/policy-rc.d
if [ -e "$policy" ]; then
    policy=
else
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt update || exit 66
# Names of packages hold no blanks.
# shellcheck disable=SC2046
apt install $(cat "$work/wanted")
[ -z "$policy" ] || rm "$policy"
make_user
compile

packages "$work/out/packages.after"
listing "$work/after"
LC_ALL=C comm -z -13 "$work/before" "$work/after" >"$work/changed"
paths "$work/before" >"$work/paths.before"
paths "$work/after" >"$work/paths.after"
LC_ALL=C comm -z -23 "$work/paths.before" "$work/paths.after" >"$work/out/gone"
# With every path the folders above it: an engine makes those that a layer lacks with a mode of its own.
paths "$work/changed" >"$work/out/changed"
cat "$work/out/changed" "$work/out/gone" | tr '\0' '\n' |
    awk -F / '{ path = ""; for (i = 2; i < NF; i++) { path = path "/" $i; if (!seen[path]++) print path } }' |
    tr '\n' '\0' >"$work/above"
LC_ALL=C sort -z -u "$work/above" "$work/out/changed" | LC_ALL=C comm -z -12 - "$work/paths.after" >"$work/packed"
tar --create --file "$work/out/layer.tar" --format=pax --null --verbatim-files-from --no-recursion --absolute-names \
    --numeric-owner --xattrs --xattrs-include=security.capability --files-from "$work/packed"
say "$(wc -c <"$work/out/layer.tar") bytes have changed"
