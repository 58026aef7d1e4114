# Makes an environment and builds one wheel in it, without isolation.
# Arguments: uv, the Python, the index, the source, the folder for the wheel, the folder to work in, requirements.
set -eu
exec 2>&1
uv=$1 python=$2 url=$3 source=$4 out=$5 work=$6
shift 6
options="--no-config --color=never --no-progress --no-python-downloads --cache-dir $work/cache"
echo "envspec: requirements"
"$uv" venv $options --quiet --python "$python" "$work/env"
"$uv" pip install $options --quiet --python "$work/env/bin/python" --default-index "$url" --only-binary :all: "$@"
PATH="$work/env/bin:$PATH"
site=$("$work/env/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for home in "$site"/nvidia/cu[0-9]*; do
  [ -e "$home/bin/nvcc" ] || continue
  chmod +x "$home"/bin/* "$home"/nvvm/bin/*
  # Linkers look for a library without its version, and torch's extensions in lib64.
  [ -e "$home/lib64" ] || ln -s lib "$home/lib64"
  for each in "$home"/lib/lib*.so.*; do
    [ -e "${each%%.so.*}.so" ] || ln -s "${each##*/}" "${each%%.so.*}.so"
  done
  export CUDA_HOME="$home" CUDA_PATH="$home"
  PATH="$home/bin:$PATH"
done
export PATH VIRTUAL_ENV="$work/env"
if [ -n "${ENVSPEC_NVCC_ARCHITECTURES:-}" ]; then
  cat >"$work/nvcc" <<'NVCC'
#!/bin/sh
# nvcc, for the architectures of a variable in place of those that it is called for, one after the other: how many
# compilers run at once is not for the sources to decide.
is_compiling= is_value=
for each; do
  shift
  if [ -n "$is_value" ]; then
    is_value=
    continue
  fi
  case "$each" in
    -gencode | --generate-code | -arch | --gpu-architecture | -code | --gpu-code) is_compiling=1 is_value=1 ;;
    --threads | -t) is_value=1 ;;
    --threads=* | -t=* | -t[0-9]*) ;;
    -gencode=* | --generate-code=* | -arch=* | --gpu-architecture=* | -code=* | --gpu-code=*) is_compiling=1 ;;
    *) set -- "$@" "$each" ;;
  esac
done
if [ -n "$is_compiling" ]; then
  IFS=";"
  for each in $ENVSPEC_NVCC_ARCHITECTURES; do
    set -- "$@" "-gencode=arch=compute_$each,code=sm_$each"
  done
fi
exec "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" "$@"
NVCC
  chmod +x "$work/nvcc"
  # Read by torch.utils.cpp_extension.
  export PYTORCH_NVCC="$work/nvcc"
fi
mkdir "$work/site"
cat >"$work/site/sitecustomize.py" <<'PYTHON'
# A Python gives the flags and paths of its own build to what it compiles (Debian's -g -O2, an RPATH of pyenv's): each
# Python of a series would give another wheel.
import sysconfig

sysconfig.get_config_vars().update(
    CC="gcc",
    CXX="g++",
    CFLAGS="-DNDEBUG -fwrapv -O3",
    CCSHARED="-fPIC",
    LDSHARED="gcc -shared",
    LDCXXSHARED="g++ -shared",
    LDFLAGS="",
    AR="ar",
    ARFLAGS="rcs",
    Py_ENABLE_SHARED=0,
)
PYTHON
export PYTHONPATH="$work/site"
echo "envspec: build"
exec "$uv" build $options --wheel --force-pep517 --no-create-gitignore --no-sources --no-build-isolation \
  --python "$work/env/bin/python" --out-dir "$out" "$source"
