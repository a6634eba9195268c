# Everything is set up in .venv by the first target that needs it; nothing else is touched.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo quick test test-gpu lint types docs pictures bench attack kills lock rebuild clean

demo: .venv/ready
	$(BIN)/protograph demo

# Lint, types, and the tests that need no training.
quick: .venv/ready lint types
	$(BIN)/python -m pytest -m "not slow" --numprocesses auto --dist loadfile

test: .venv/ready lint types
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

# What is the same to the last bit on a CPU is not on a GPU, so each has tests of its own; kernels are interpreted on the one,
# compiled on the other.
test-gpu: .venv/ready
	$(BIN)/python -m pytest -m gpu

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

# The site is written to site/; dead links fail the build. It needs neither PyTorch nor the package, so it has a small
# environment of its own.
docs: .venv-docs/ready
	.venv-docs/bin/python scripts/build_docs.py

# What README.md and the documentation show of real commands: pictures, outputs, measured numbers, the help texts.
pictures: .venv/ready
	$(BIN)/python scripts/command_line.py
	$(BIN)/python scripts/pages.py
	$(BIN)/python scripts/pictures.py
	$(BIN)/python scripts/serve_pictures.py

bench: .venv/ready
	$(BIN)/python benchmarks/letters.py
	$(BIN)/python benchmarks/classifier.py
	$(BIN)/python benchmarks/encoding.py
	$(BIN)/python benchmarks/speed.py $(if $(shell command -v nvidia-smi),,--quick)
	$(BIN)/python benchmarks/few_shot.py $(if $(shell command -v nvidia-smi),,--quick)

# Hostile inputs: N of them, with those of earlier runs. The report is benchmarks/ATTACK.md.
attack: .venv/ready
	$(BIN)/python benchmarks/hostile_inputs.py $(or $(N),100000)

# Commands that are killed, or run out of disk, at N moments.
kills: .venv/ready
	$(BIN)/python benchmarks/kills.py $(or $(N),100)

# constraints.lock: the versions of constraints.txt with the digests of their files.
lock: .venv/ready
	$(BIN)/python scripts/lock.py

# The wheel and the source distribution, built twice and compared byte by byte.
rebuild: .venv/ready
	$(BIN)/python scripts/rebuild.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

.venv-docs/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		$$($(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	touch $@

clean:
	rm -rf .venv .venv-docs build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
