# make quickstart: the main job on the shipped tiny experts.  make test: the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONFIG ?= experiments/configs/grade_tiny.py
WORKDIR ?= runs/grade_tiny

.PHONY: install quickstart test lint experts clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; assert v >= (3, 11), f"gradejax needs Python 3.11 or newer, this is {v[0]}.{v[1]}; try make PYTHON=python3.12"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[test]'
	touch $@

install: $(VENV)/installed

quickstart: install
	$(BIN)/python -m experiments.run --config $(CONFIG) --workdir $(WORKDIR)

test: install
	$(BIN)/python -m pytest tests -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: install
	$(BIN)/ruff check .

experts: install
	$(BIN)/python -m experiments.train_tiny_experts --out checkpoints --workdir runs/tiny_experts

clean:
	rm -rf $(VENV) runs
