# Builds one wheel in a container of a base image with compilers. What it is given lies beside it.
set -eu
umask 022
work=/.envspec-build
cd "$work"
. ./environment
mkdir -p src out home tmp
tar -xzf python.tar.gz
tar -xf source.tar -C src
chmod +x uv
chown -R 0:0 src
exec ./uv $(cat words)
