# Thin: CMake builds, this file names the everyday commands.
.PHONY: all release asan setup test check fuzz docs demo dist clean
CONFIGURE := cmake -G Ninja -S .

all: release

setup:
	scripts/setup.sh

# The release build; with the CUDA backend where nvcc is.
release:
	@scripts/setup.sh --check || { echo "run: make setup"; exit 1; }
	@$(CONFIGURE) -B build/release > /dev/null
	cmake --build build/release

# The same with AddressSanitizer and UndefinedBehaviorSanitizer.
asan:
	@$(CONFIGURE) -B build/asan -DSANITIZE=ON -DCUDA=OFF -DCMAKE_BUILD_TYPE=Debug > /dev/null
	cmake --build build/asan

# All tests of both builds; installs what is missing first.
test:
	@scripts/setup.sh --check > /dev/null || scripts/setup.sh
	@$(MAKE) --no-print-directory release asan
	@scripts/test.sh

# Format, include order, banned calls, lengths, names.
check:
	@scripts/check.sh

# Hostile input: each fuzz target for FUZZ_SECONDS under the sanitizers; needs clang (scripts/setup.sh --fuzz).
fuzz:
	@scripts/fuzz.sh

# The pages that are made from tables.
docs: release
	build/release/print_docs config > docs/config.md
	build/release/print_docs ops > docs/ops.md

# Trains the small model that comes with the repository and shows what changed.
demo: release
	@scripts/demo.sh

# A folder that runs on another machine: dist/liger-sft-VERSION/
dist:
	@scripts/setup.sh --check || { echo "run: make setup"; exit 1; }
	@scripts/dist.sh

clean:
	rm -rf build dist
