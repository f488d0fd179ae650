# make chat: install, fetch the default model, open the chat.   make test: install with test extras, run all tests.
VENV ?= .venv
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin

.PHONY: chat test lint fetch clean

chat: $(VENV)/.installed fetch
	@$(BIN)/dart-chat

test: $(VENV)/.installed-test fetch
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fetch: $(VENV)/.installed
	@$(BIN)/python -m models.download
	@$(BIN)/python -m kernels.native

$(VENV)/.installed: pyproject.toml constraints.txt install.sh
	@PYTHON="$(PYTHON)" ./install.sh "$(VENV)" "."
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@PYTHON="$(PYTHON)" ./install.sh "$(VENV)" ".[test]"
	@touch $@

clean:
	rm -rf $(VENV)
