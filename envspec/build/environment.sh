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
echo "envspec: build"
exec "$uv" build $options --wheel --force-pep517 --no-create-gitignore --no-sources --no-build-isolation \
  --python "$work/env/bin/python" --out-dir "$out" "$source"
