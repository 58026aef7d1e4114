# Builds one wheel in a container of a base image with compilers. What it is given lies beside it.
# It has no capabilities: files belong to who unpacks them.
set -eu
umask 022
work=/.envspec-build
cd "$work"
. ./environment
mkdir -p src out home tmp
tar -xzf python.tar.gz --no-same-owner
tar -xf source.tar --no-same-owner -C src
chmod +x uv
# One word a line; requirements have spaces.
set -f
IFS='
'
set -- $(cat words)
IFS=' '
exec python/bin/python3 -I -S $(cat init) "$@"
