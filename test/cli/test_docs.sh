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
