# Everything runs in .venv, which is made on demand: `make demo` and `make test` need python3 (3.11 or newer) with venv.
# EXTRAS adds optional dependencies: make test EXTRAS=torch.

SHELL := bash
PYTHON ?= python3
EXTRAS ?=
# BROWSER=1 says that Chromium is installed: then tests of the live page must be run.
BROWSER ?=

comma := ,
empty :=
space := $(empty) $(empty)

# Modules are compiled once. Where the environment forbids that, every process of every test compiles torch anew.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
DEV := .venv/installed/$(subst $(space),$(comma),$(strip dev $(sort $(subst $(comma),$(space),$(EXTRAS)))))
# Tests of an extra that was asked for must not be skipped, all of them, without anybody noticing.
WANTED := $(subst $(comma),$(space),$(EXTRAS))
REQUIRED := --require network $(if $(BROWSER),--require browser) $(addprefix --require$(space),$(filter torch flower,$(WANTED)))
# Flower simulates with Ray, and whatever starts Ray is slow.
REQUIRED_SLOW := --require network $(if $(BROWSER),--require browser) $(if $(filter ray,$(WANTED)),$(addprefix --require$(space),$(filter ray flower,$(WANTED))))
# The demo takes whatever is installed already, and nothing beyond the core if nothing is.
ANY := $(or $(firstword $(wildcard .venv/installed/*)),.venv/installed/core)

# Of what pip says: a line for every package when it comes, with its size, and one when they are installed.  Python
# compiles what is imported when it is imported, which is less than pip would compile.
STEPS := -e '/\.metadata/d' \
  -e 's@^ *(Downloading|Using cached|Processing) ([^/]*/)*([^/ -]+-[^ -]+)-[^ ]*\.whl( \([0-9.]+ [kMG]B\))?.*@  \3\4@p' \
  -e 's/^Installing collected packages:.*,.*/  all are here: installing them/p'

.DEFAULT_GOAL := help
.PHONY: help demo deploy-demo test test-slow test-all coverage lint format attack pages docs docs-serve notebooks \
  known-answers release bench evidence clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
	  printf '%-20s %s\n' "$$name" "$$text"; done

demo: $(ANY)  ## train a model privately over 100 simulated clients, and write a report
	@$(BIN)/dordis run

deploy-demo: $(ANY)  ## the same over a network: a server and 12 clients, processes of their own, over TLS
	@$(BIN)/python examples/deployment/demo.py

test: $(DEV)  ## run the tests, without the slow ones: up to four minutes
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not evidence" $(REQUIRED)

test-slow: $(DEV)  ## run the slow tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not evidence" $(REQUIRED_SLOW)

test-all:  ## run all tests, slow ones too, with every extra installed
	@$(MAKE) --no-print-directory test test-slow EXTRAS=torch,nlp,flower,ray

coverage: $(DEV)  ## run all tests and report which branches they cover, in subprocesses too
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal -m "not evidence" $(REQUIRED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(DEV)  ## check style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV)  ## format the code and sort its imports
	$(BIN)/ruff check --fix --select I
	$(BIN)/ruff format

attack: $(DEV)  ## run every known attack on the protocol, and show which check refuses it
	$(BIN)/python -m tests.adversary

pages: $(DEV)  ## write the parts of docs that are generated from the code
	$(BIN)/python -m tests.adversary.page
	$(BIN)/python -m tools.architecture_pictures
	$(BIN)/python -m tools.reference_pages

docs: .venv/tools/docs/installed  ## build the documentation into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 .venv/tools/docs/bin/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

docs-serve: .venv/tools/docs/installed  ## show the documentation at http://127.0.0.1:8000, and follow changes
	NO_MKDOCS_2_WARNING=1 .venv/tools/docs/bin/python -m mkdocs serve

notebooks: $(ANY) .venv/tools/notebooks/installed  ## execute the notebooks in a clean kernel each
	.venv/tools/notebooks/bin/python -m tools.notebooks

known-answers: $(DEV)  ## compare ciphers, noise, packing, shares and whole runs with known answers: for other platforms
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/crypto tests/kernels tests/privacy/test_noise_vectors.py \
	  tests/privacy/test_oracles.py tests/protocols/secagg tests/test_frozen.py

release: $(ANY) .venv/tools/release/installed  ## build sdist, wheel and SBOM into dist, check them, say what remains
	PIP_BUILD_CONSTRAINT=constraints.txt .venv/tools/release/bin/python -m tools.release

bench: $(DEV)  ## measure the kernels
	$(BIN)/python -m benchmarks kernels

evidence: $(DEV)  ## what takes too long for CI: every benchmark in short, 30 rounds of chaos, 20 minutes of soak
	$(BIN)/python -m pytest -m evidence
	$(BIN)/python -m tests.network.chaos
	$(BIN)/python -m tests.network.soak

clean:  ## remove .venv, caches and builds
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "dordis needs Python 3.11 or newer: install it, or name it with make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "$(PYTHON) has no venv module: install it (on Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "making .venv, in which everything is installed"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

# The stamp's name is the set of extras, so that another set is another installation.
.venv/installed/%: pyproject.toml constraints.txt | $(BIN)/python
	@case '$*' in core) what=. ;; *) what='.[$*]' ;; esac; set -o pipefail; \
	  echo "installing dordis and what it needs into .venv: half a minute, and what the download takes"; \
	  PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off \
	    --no-compile --constraint constraints.txt --editable "$$what" | sed -nE $(STEPS)
	@mkdir -p .venv/installed && touch '$@'

# Documentation, notebooks and releases have environments of their own, which also see what is installed in .venv.
.venv/tools/%/installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what make $* needs into .venv/tools/$*"
	@$(BIN)/python -m venv .venv/tools/$*
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(" + repr(sysconfig.get_path("purelib")) + ")")' \
	  > "$$(.venv/tools/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"], sep="\n")' \
	  > .venv/tools/$*/requirements.txt
	@set -o pipefail; .venv/tools/$*/bin/python -m pip install --disable-pip-version-check --progress-bar off --no-compile \
	  --constraint constraints.txt --requirement .venv/tools/$*/requirements.txt | sed -nE $(STEPS)
	@touch '$@'
