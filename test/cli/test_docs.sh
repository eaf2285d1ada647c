# test_docs.sh - the generated pages in docs/ are those that the program's tables give.
set -u
: "${PRINT_DOCS:?the page printer}" "${TEST_DIR:?}"
for page in config ops; do
    if ! "$PRINT_DOCS" $page | diff "$TEST_DIR/../docs/$page.md" -; then
        echo "docs/$page.md is not what the tables give; run: make docs"
        exit 1
    fi
done
