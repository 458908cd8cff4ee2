# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
DATA ?= data
OUT ?= out
VIDEO ?= tests/media/demo.mp4
PORT ?= 8000
SECONDS ?= 3600
SEED ?= 8
# On two cores: many tests wait, for a timeout or for another process.
WORKERS ?= 3
CHAOS_SECONDS ?= 600
# Every process of a run imports the project, so what one has compiled is kept for the others.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) \
	--dist loadfile --no-loadscope-reorder

export UV_LINK_MODE ?= hardlink

.DEFAULT_GOAL := help
.PHONY: help run serve test test-all chaos lint format setup setup-dev lock release docs clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: setup  ## Analyse VIDEO (default: the demo) through the public API; results in OUT
	$(BIN)/vas analyze "$(VIDEO)" --out "$(OUT)" $(if $(filter-out data,$(DATA)),--data "$(DATA)")

serve: setup  ## Keep the service running on PORT (default 8000), data in DATA
	$(BIN)/vas serve --port $(PORT) --data "$(DATA)"

test: setup-dev  ## Run the test suite of a pull request, WORKERS files at a time
	$(PYTEST) $(PYTEST_ARGS)

test-all: setup-dev  ## Run every test, those that take long too, then CHAOS_SECONDS of chaos
	$(PYTEST) --long $(PYTEST_ARGS)
	VAS_CHAOS_SECONDS=$(CHAOS_SECONDS) $(PYTEST) -n 0 tests/acceptance/chaos/test_chaos.py

chaos: setup-dev  ## Break a running service for SECONDS (default an hour) by SEED, and judge it
	$(BIN)/python -m tests.acceptance.chaos --seconds $(SECONDS) --seed $(SEED)

lint: setup-dev  ## Style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev  ## Put the code into the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/.core  ## Create .venv with what the embedded default needs

setup-dev: $(VENV)/.dev  ## Create .venv with everything (torch included)

lock:  ## Resolve the dependencies anew into requirements/
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --upgrade -q -o requirements/core.txt
	$(BIN)/uv pip compile pyproject.toml --extra agents --extra models --extra tracing --extra payments --extra test --extra benchmark \
	  --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  -q -o requirements/dev.txt -c requirements/core.txt
	$(BIN)/uv pip compile pyproject.toml --extra models \
	  --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  -q -o requirements/models.txt -c requirements/dev.txt
	echo onnxruntime-gpu | $(BIN)/uv pip compile - --no-deps --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate -q -o requirements/cuda.txt
	(echo uv==$(UV_VERSION); echo 'cyclonedx-bom>=7'; sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml) | \
	  $(BIN)/uv pip compile - --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate -q -o requirements/build.txt -c requirements/dev.txt
	echo 'mkdocs-material>=9.7' | $(BIN)/uv pip compile - --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate -q -o requirements/docs.txt -c requirements/dev.txt

release:  ## Build the wheel, and bills of materials of the images, into out/release
	$(PYTHON) -m venv out/tools
	out/tools/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	mkdir -p out/release
	out/tools/bin/python -m hatchling build -t wheel -d out/release
	for lock in core models; do out/tools/bin/cyclonedx-py requirements --output-reproducible \
	  --output-format JSON --pyproject pyproject.toml --output-file out/release/sbom-$$lock.cdx.json \
	  requirements/$$lock.txt || exit 1; done

docs:  ## Build the documentation as a site into out/site
	$(PYTHON) -m venv out/tools
	out/tools/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 out/tools/bin/mkdocs build --quiet --strict
	@echo "The site is in out/site: open out/site/index.html."

clean:  ## Remove the environment and what runs left behind
	rm -rf $(VENV) out data

$(BIN)/uv:
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), "Python 3.11 to 3.13 is needed"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# The development environment holds all of the core, so it counts as the core too.
$(VENV)/.core: requirements/core.txt pyproject.toml | $(BIN)/uv
	@test -e $(VENV)/.dev || $(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements/core.txt
	@test -e $(VENV)/.dev || $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@ $(VENV)/.core
