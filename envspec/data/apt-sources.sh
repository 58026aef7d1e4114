#!/bin/sh
# Run in a container when system packages are installed there: for an image, or by an exported Dockerfile.
#
# sh apt-sources.sh FOLDER TIME [MIRROR]: apt's sources as they were at TIME (20261101T000000Z), with any version of apt.
# Copies the system's sources into FOLDER, each with the address of its snapshots at TIME, and adds to FOLDER/apt.conf
# that apt reads these copies. A source without snapshots stays as it is, and its address is a line of FOLDER/undated.
# MIRROR: https://mirror.example/{archive}/{time}/, used first for the archives of Debian and Ubuntu.
# Exits with 65 if no source has snapshots.
#
# Sources: apt.conf(5), `Acquire::Snapshots::URI`, and sources.list(5), "Snapshot", of apt 3.0: the names of the keys,
# the marks in addresses, and the field `Snapshots` of Release files; debuerreotype, which makes Debian's images: the
# comments in their sources.
set -eu
work=$1
time=$2
mirror=${3-}

# $1, its first $2 replaced by $3.
replaced() {
    case $1 in
    *"$2"*) printf '%s%s%s' "${1%%"$2"*}" "$3" "${1#*"$2"}" ;;
    *) printf '%s' "$1" ;;
    esac
}

# $1, if it is an address with a mark for the time.
template() {
    case $1 in
    *[[:space:]]*) return 1 ;;
    *@SNAPSHOTID@* | *{time}*) printf '%s' "$1" ;;
    *) return 1 ;;
    esac
}

configured() {
    found=
    eval "$(apt-config shell found "Acquire::Snapshots::URI::$1")"
    printf '%s' "$found"
}

# Debian's images name the snapshot that they were made from: `# http://HOST/archive/debian/20250520T000000Z`.
commented() {
    stamp='[0-9]\{8\}T[0-9]\{6\}Z'
    cat "$work/sources.list" "$work/sources.list.d"/* 2>/dev/null |
        sed -n "s|^#.*\\(https\\{0,1\\}://[^ ]*/$1/\\)$stamp/*\\( .*\\)\\{0,1\\}\$|\\1@SNAPSHOTID@/|p" | head -n 1
}

# The fields of a source's Release files in $work/release: an old suite may lack what its updates state. They need not be
# signed: what is fetched from the address in them is.
read_releases() {
    : >"$work/release"
    grep -F "$1" "$work/releases" | while read -r url; do
        for place in "$url" "${url%InRelease}Release"; do
            rm -f "$work/file"
            /usr/lib/apt/apt-helper -c "$work/apt.conf" download-file "$place" "$work/file" >/dev/null 2>&1 || continue
            sed '/^SHA256:/q' "$work/file" >>"$work/release"
            break
        done
    done
}

field() {
    sed -n "s/^$1: *//p" "$work/release" | head -n 1
}

# What the Release files of a source say of its snapshots. $1: the name of its archive. Others have such names too, of
# packages for Debian, so the origin decides.
released() {
    template "$(field Snapshots)" || template "$(configured "Override::Label::$(field Label)")" ||
        template "$(configured "Origin::$(field Origin)")" || case $(field Origin) in
        Debian | Ubuntu) template "$(commented "$1")" ;;
        *) return 1 ;;
        esac
}

# The addresses of the Release files of all enabled sources.
releases() {
    apt-get -c "$work/apt.conf" update --print-uris | sed -n "s/^'\(.*InRelease\)'.*/\1/p" | sort -u
}

# The address of a source's snapshot; nothing if it has none.
dated() {
    host=${1#*://}
    host=${host%%/*}
    host=${host##*@}
    path=${1#*://*/}
    path=${path%/}
    archive=${path##*/}
    case $path in
    debian | debian-security | debian-ports | ubuntu | ubuntu-ports) ;;
    *) mirror= ;;
    esac
    way=$(
        template "$mirror" || template "$(configured "Host::${host%:*}")" ||
            { read_releases "$1" && released "$archive"; }
    ) || return 0
    for mark in '{time}' @SNAPSHOTID@; do way=$(replaced "$way" "$mark" "$time"); done
    way=$(replaced "$(replaced "$way" @PATH@ "$path")" '{archive}' "$archive")
    # A base without certificates can't check a server's. Packages are signed, and apt checks that.
    if [ -z "${SSL_CERT_FILE-}" ] && [ ! -s /etc/ssl/certs/ca-certificates.crt ]; then
        way=$(replaced "$way" https:// http://)
    fi
    printf '%s/' "${way%/}"
}

mkdir -p "$work/sources.list.d"
touch "$work/apt.conf"
cat /etc/apt/sources.list >"$work/sources.list" 2>/dev/null || :
cp /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources "$work/sources.list.d/" 2>/dev/null || :
releases >"$work/releases"
: >"$work/dated"
cat "$work/sources.list" "$work/sources.list.d"/* 2>/dev/null | sed '/^[ \t]*#/d' | tr -s ' \t' '\n' |
    grep '://' | sed 's#/*$#/#' | sort -u >"$work/addresses" || :
while read -r uri; do
    grep -q -F "$uri" "$work/releases" || continue
    to=$(dated "$uri")
    [ -n "$to" ] || continue
    echo "$to" >>"$work/dated"
    for file in "$work/sources.list" "$work/sources.list.d"/*; do
        [ -f "$file" ] || continue
        from=${uri%/} to=$to awk '
            /^[ \t]*#/ { print; next }
            {
                start = match($0, /[^ \t]/) ? substr($0, 1, RSTART - 1) : ""
                found = 0
                for (i = 1; i <= NF; i++)
                    if ($i == ENVIRON["from"] || $i == ENVIRON["from"] "/") { $i = ENVIRON["to"]; found = 1 }
                print found ? start $0 : $0
            }' "$file" >"$work/file"
        cat "$work/file" >"$file"
    done
done <"$work/addresses"
cat >>"$work/apt.conf" <<END
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/sources.list.d";
Acquire::Check-Valid-Until "false";
END
[ -s "$work/dated" ] || exit 65
# Of the sources as they are now, so that one that was not recognised above is here too.
releases | grep -v -F -f "$work/dated" | sed 's#//[^/@]*@#//#; s#/dists/.*##; s#/InRelease$##' | sort -u >"$work/undated"
sed 's/^/envspec: no snapshots, as it is today: /' "$work/undated" >&2
