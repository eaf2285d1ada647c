# Thin: CMake builds, this file names the everyday commands.
BUILD := build/release
.PHONY: all test
all:
	cmake -S . -B $(BUILD) -G Ninja > /dev/null
	cmake --build $(BUILD)
test: all
	ctest --test-dir $(BUILD) --output-on-failure
