#!/usr/bin/env bash
# check.sh - the style rules that a machine can check (see CONTRIBUTING.md). Prints each breach, then the number of core
# lines. Exit code 1 when there was a breach.
set -u
cd "$(dirname "$0")/.."
breaches=$(mktemp)
trap 'rm -f "$breaches"' EXIT
say() { echo "$*" | tee -a "$breaches"; }
# Prints each line of the input with a rule's name in front.
report() { sed "s|^|$1: |" | tee -a "$breaches"; }

mapfile -t sources < <(find src cuda test -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
mapfile -t core < <(find src -name '*.[ch]' -o -name '*.def' | sort)

# Format: versions differ in layout, so only 14 (Debian 12's) counts.
formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [ -n "$formatter" ] && "$formatter" --version | grep -q 'version 14\.'; then
    "$formatter" --dry-run -Werror "${sources[@]}" 2>&1 | grep -E '(error|warning):' | report format
else
    echo "skip: format: clang-format 14 is not here"
fi
# Columns are characters: the later bytes of one in UTF-8 do not count.
LC_ALL=C awk '{ line = $0; gsub(/[\200-\277]/, "", line) }
length(line) > 120 { print FILENAME ":" FNR ": " length(line) " columns, at most 120" }' $(printf '%s\n' "${sources[@]}" | grep -v '\.def$') | report width

# A file says first what it is.
for file in "${sources[@]}"; do
    [ "$(head -c 3 "$file")" = '/* ' ] || echo "$file: does not begin with a comment that says what it is"
done | report opening

# Includes go downward: a file includes its own folder and folders of a lower level.
awk '
BEGIN {
    level["base"] = 0
    level["config"] = level["dist"] = level["graph"] = level["text"] = level["weights"] = 1
    level["pass"] = level["exec"] = level["model"] = level["report"] = 2
    level["cpu"] = level["cuda"] = level["data"] = 3
    level["train"] = 5; level["eval"] = 6; level["cli"] = 7; level["main.c"] = 8
}
FNR == 1 { n = split(FILENAME, part, "/"); mine = part[1] == "cuda" ? "cuda" : part[2] }
/^#include "/ {
    split($2, name, /["\/]/)
    if (!(mine in level)) { print FILENAME ": folder " mine " has no level in check.sh"; nextfile }
    if (name[2] !~ /\./ && name[2] != mine && !(name[2] in level && level[name[2]] < level[mine]))
        print FILENAME ":" FNR ": " mine " may not include " name[2]
}' $(find src cuda -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh') | report includes

# Calls that have a safer form, and those that belong to one file.
ban() { # ban PATTERN WHY [ALLOWED FILE]...
    local pattern=$1 why=$2
    shift 2
    grep -nE "(^|[^A-Za-z0-9_.>])($pattern) ?\(" "${core[@]}" "${sources[@]}" | sort -u |
        grep -vE '^[^:]+:[0-9]+: *(/\*|\*)' | grep -vE "^(none$(printf '|%s' "$@")):" | sed "s|\$| <- $why|" | report banned
}
ban 'strcpy|strcat|sprintf|vsprintf|gets' 'no bound on what is written'
ban 'atoi|atol|atoll|atof' 'no error for a wrong number: use base/text.h'
ban 'rand|srand|random|drand48' 'not repeatable: use base/rng.h'
ban 'strtok|system|popen|alloca' 'banned'
ban 'getenv|secure_getenv' 'settings come from config' src/weights/hub_cache.c src/dist/launch.c 'test/nccl/.*'
ban 'exit|_exit|quick_exit' 'only main ends the program' src/base/memory.c src/base/mapped.c src/cpu/blas_load.c src/base/signals.c test/unit/test_folder_lock.c
ban 'malloc|calloc|realloc|strdup' 'unchecked: use base/memory.h' src/base/memory.c 'test/.*'

# A backend or an option is a file that is linked or a value at run time, never #if.
grep -nE '^ *# *(if|ifdef|elif|else)\b' $(find src -name '*.[ch]' -not -path 'src/base/*') | report conditional
grep -nE '^ *# *ifndef\b' $(find src -name '*.[ch]' -not -path 'src/base/*') | grep -vE ':[0-9]+:#ifndef [A-Z0-9_]+_H$' | report conditional

# No variables outside functions but constant tables (exceptions: log.c's switch, what memory.c's last line says, what a signal handler
# reads).
grep -nE '^[a-z][A-Za-z_0-9 ]*[ *][a-z_0-9]+(\[[^]]*\])*( = .*|;)$' $(find src -name '*.c') |
    grep -vE ':[0-9]+:(static )?(const |typedef |struct [a-z_]+;|extern |return |goto )|[ *]const ' |
    grep -vE '^src/base/(log|mapped|memory|signals).c:' | report global

# Lengths. Kernels are read as one piece and may be longer.
wc -l "${sources[@]}" | awk '$2 != "total" && $1 > 800 { print $2 ": " $1 " lines, at most 800" }' | report length
awk '
FNR == 1 { inside = 0 }
!inside && /^[^ \t#}\/].*\{$|^ .*\) \{$/ && /\)[^=]*\{$/ { inside = 1; from = FNR; next }
inside && /^\}/ { if (FNR - from - 1 > 60) print FILENAME ":" from ": " FNR - from - 1 " lines in a function, at most 60"; inside = 0 }
' $(printf '%s\n' "${sources[@]}" | grep -vE '^src/cpu/|^cuda/') | report length

# A name finds its file. Kernels have one name in two folders, X.c and X.cu.
find src cuda test scripts \( -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' \) \
    -printf '%f\n' | sort | uniq -d | sed 's/$/: two files have this name/' | report names
grep -nE '(^|[^A-Za-z0-9_./])/(root|home|work)/' "${core[@]}" "${sources[@]}" scripts/* README.md CONTRIBUTING.md docs/*.md configs/* 2>/dev/null |
    grep -v '^scripts/check.sh:' | report machine-path

echo "core: $(cat "${core[@]}" | wc -l) lines in src/, $(cat $(find test -name '*.[ch]' -o -name '*.sh') | wc -l) in test/"
[ -s "$breaches" ] || { echo "check: no breaches"; exit 0; }
echo "check: $(wc -l <"$breaches") breaches"
exit 1
