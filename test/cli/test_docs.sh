# test_docs.sh - the generated pages in docs/ are those that the program's tables give.
set -u
: "${PRINT_DOCS:?the page printer}" "${TEST_DIR:?}"
for page in config ops; do
    if ! "$PRINT_DOCS" $page | diff "$TEST_DIR/../docs/$page.md" -; then
        echo "docs/$page.md is not what the tables give; run: make docs"
        exit 1
    fi
done

# A path in backquotes in a page is a file of the tree (X stands for a name).
root=$TEST_DIR/..
missing=$(cd "$root" && grep -ohE '`(src|cuda|test|scripts|configs)/[A-Za-z0-9_./-]*`' ./*.md docs/*.md docs/adr/*.md | tr -d '`' |
    grep -vE '(^|[/_.])X([/_.]|$)|/X\.' | sort -u | while read -r path; do [ -e "$path" ] || echo "$path"; done)
if [ -n "$missing" ]; then
    echo "pages name files that are not there: $missing"
    exit 1
fi
# So is the target of a link.
(cd "$root" && for page in ./*.md docs/*.md docs/adr/*.md; do
    grep -oE '\]\([A-Za-z0-9_./-]+\)' "$page" | tr -d '])(' | while read -r target; do
        [ -e "$(dirname "$page")/$target" ] || { echo "$page: no $target"; exit 1; }
    done || exit 1
done)
# Every test that docs/cases.md names is there (a unit test: defined and run; of a script or of ranks: the words stand in it), and no
# case is without a row.
(cd "$root" || exit 1
bad=0
while IFS='|' read -r _ id _ tests _; do
    id=${id// /}
    [[ $id =~ ^[A-Z][0-9][0-9]$ ]] || continue
    echo "$id" >>/dev/fd/3
    while IFS= read -r part; do
        [[ $part =~ ^\ *\`(test/[a-z_/.]+)\`:\ (.*[^ ])\ *$ ]] || { echo "docs/cases.md: $id: cannot read \"$part\""; bad=1; continue; }
        file=${BASH_REMATCH[1]} names=${BASH_REMATCH[2]}
        if [[ $file = *.sh || $file = test/mpi/* ]]; then
            grep -qF -- "$names" "$file" || { echo "docs/cases.md: $id: \"$names\" is not in $file"; bad=1; }
            continue
        fi
        for name in ${names//,/ }; do
            grep -q "^static void $name(void \*\*state)" "$file" && [ "$(grep -cw "$name" "$file")" -ge 2 ] ||
                { echo "docs/cases.md: $id: $name is no test of $file"; bad=1; }
        done
    done <<<"${tests//;/$'\n'}"
done <docs/cases.md 3>"${seen:=$(mktemp)}"
for id in T0{1..9} D0{1..9} D10 M0{1..9} L0{1,2,3} X0{1..3} A0{1,2,3,5,6} O0{1..4} R0{1..4} Z0{1,2}; do
    [ "$(grep -cx "$id" "$seen")" = 1 ] || { echo "docs/cases.md: $(grep -cx "$id" "$seen") rows of $id, expected 1"; bad=1; }
done
rm -f "$seen"
exit $bad) || exit 1
