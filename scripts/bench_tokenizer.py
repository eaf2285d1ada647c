#!/usr/bin/env python3
"""Speed of our tokenizer beside Hugging Face's `tokenizers`, one thread each, same texts, same run.

usage: bench_tokenizer.py SHARED_DIR [BUILD_DIR] [ROUNDS]     prints a markdown table

Texts: every string of SHARED_DIR/data/*.json, English and Chinese apart; tokenizers: SHARED_DIR/tokenizers/*.tar.xz.
Figures are MB (10^6 bytes of UTF-8) per second of CPU time, so that other work on the machine does not count: best of
ROUNDS over all texts, and the first round (cold caches) of ours.  Both encode text by text, ids must be equal.
Ours is test/bench/bench_tokenizer.c, built here against BUILD_DIR/libliger.a.
"""
import glob
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers
from tokenizers import Tokenizer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def build(build_dir, folder):
    program = os.path.join(folder, "bench_tokenizer")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libcjson", "libpcre2-8", "libutf8proc", "openblas"],
                           capture_output=True, text=True, check=True).stdout
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-I" + os.path.join(ROOT, "src"), "-isystem",
                    "/usr/include/stb", os.path.join(ROOT, "test/bench/bench_tokenizer.c"),
                    os.path.join(build_dir, "libliger.a"), *shlex.split(flags), "-fopenmp", "-lm", "-o", program],
                   check=True)
    return program


def strings(value):
    if isinstance(value, str):
        yield value
    for v in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from strings(v)


def read_texts(shared):
    texts = {"English": [], "Chinese": []}
    for path in sorted(glob.glob(os.path.join(shared, "data", "*.json"))):
        with open(path, encoding="utf-8") as f:
            texts["Chinese" if "_zh_" in path else "English"] += strings(json.load(f))
    return texts


def theirs(tokenizer, texts, size, rounds):
    best, ids = 0.0, None
    for _ in range(rounds):
        start = time.process_time()
        ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
        best = max(best, size / (time.process_time() - start) / 1e6)
    return best, ids


def main():
    shared = sys.argv[1]
    build_dir = sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "build/release")
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    cpu = re.search(r"model name\s*:\s*(.*)", open("/proc/cpuinfo").read())
    print(f"tokenizers {tokenizers.__version__}, Python {platform.python_version()}, {cpu.group(1) if cpu else '?'}, "
          f"best of {rounds}\n")
    print("| tokenizer | text | MB | ours MB/s | ours, first round | theirs MB/s | ratio | ours: load s | theirs: load s |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        program = build(build_dir, folder)
        texts = read_texts(shared)
        for archive in sorted(glob.glob(os.path.join(shared, "tokenizers", "*.tar.xz"))):
            tarfile.open(archive).extractall(folder, filter="data")
            name = os.path.basename(archive)[:-7]
            start = time.process_time()
            tokenizer = Tokenizer.from_file(os.path.join(folder, name, "tokenizer.json"))
            load = time.process_time() - start
            for kind, list_ in texts.items():
                file = os.path.join(folder, "texts")
                with open(file, "wb") as f:
                    f.write(b"".join(t.encode() + b"\0" for t in list_))
                size = os.path.getsize(file)
                run = lambda *a: subprocess.run([program, os.path.join(folder, name), file, *a], capture_output=True,
                                                text=True, check=True).stdout
                ours = dict(p.split("=") for p in run(str(rounds)).split())
                speed, ids = theirs(tokenizer, list_, size, rounds)
                same = [[int(i) for i in line.split()] for line in run("ids").split("\n")[:-1]] == ids
                assert same, f"{name}: other ids"
                print(f"| {name} | {kind} | {size / 1e6:.2f} | {float(ours['best']):.1f} | {float(ours['first']):.1f} | "
                      f"{speed:.2f} | {float(ours['best']) / speed:.0f} x | {ours['load']} | {load:.3f} |", flush=True)


main()
