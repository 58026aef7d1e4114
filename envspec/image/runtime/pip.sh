#!/bin/sh
# The environment has no pip. The base's would install where the environment's Python does not look.
python=$(readlink -f /opt/env/bin/python)
if "$python" -I -m pip --python /opt/env/bin/python --version >/dev/null 2>&1; then
    exec "$python" -I -m pip --python /opt/env/bin/python "$@"
fi
cat >&2 <<'END'
pip: this environment has no pip. Add the package to its spec, and build the image again.
For a trial in this container: uv pip install --python /opt/env/bin/python NAME
END
exit 1
