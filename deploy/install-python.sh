#!/bin/sh
# install-python.sh cpu|cuda TARGET: an environment in TARGET with the service in it, from the
# project that this script lies in. Every package is pinned and hashed, those that build the
# project's wheel too. `cuda` adds the packages of the neural models
# and has onnxruntime for GPUs.
set -eu

case "$1" in
    # Former builds name `semantic`; what it added is in every one.
    cpu | semantic) lock=core.txt ;;
    cuda) lock=models.txt ;;
    *) echo "usage: install-python.sh cpu|cuda TARGET" >&2; exit 2 ;;
esac
target=$2
project=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pinned="$project/requirements/$lock"
if [ "$lock $(uname -m)" = "models.txt x86_64" ]; then
    # onnxruntime for GPUs is another package with the same module: it takes the other's place.
    sed '/^onnxruntime==/,/[^\\]$/d' "$pinned" | cat - "$project/requirements/cuda.txt" > "$work/lock.txt"
    pinned="$work/lock.txt"
fi

python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
    -r "$project/requirements/build.txt"
uv() { "$work/tools/bin/uv" --quiet "$@"; }

uv venv --allow-existing --python python3 "$target"
# What is in the image, for whoever must know which of it has a hole.
"$work/tools/bin/cyclonedx-py" requirements --output-reproducible --output-format JSON \
    --pyproject "$project/pyproject.toml" --output-file "$target/sbom.cdx.json" "$pinned"
uv pip sync --compile-bytecode --python "$target" --require-hashes "$pinned"

# Built from a copy: the project's folder may be read-only.
mkdir "$work/project"
(cd "$project" && cp -r pyproject.toml README.md LICENSE serve_app pipelines models storage "$work/project")
(cd "$work/project" && "$work/tools/bin/python" -m hatchling build -t wheel -d "$work" > /dev/null)
uv pip install --compile-bytecode --python "$target" --no-deps --reinstall "$work"/*.whl
