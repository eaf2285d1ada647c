/* print_docs.c - prints a generated page of docs/: "config" or "ops".  `make docs` writes them, test_docs.sh compares.
 */
#include "config/config.h"
#include "graph/graph.h"

#include <string.h>

static void print_ops(void) {
    fputs("# Operations\n\n"
          "`make docs` writes this page from `src/graph/ops.def`; edit that file, not this one.\n\n"
          "An operand is `name[shape]`; `?` marks one that may be absent. N token rows of the micro-batch, D model "
          "width,\n"
          "H query heads, G key/value heads, d head width, F feed-forward width, V vocabulary, K / M input / output "
          "width\n"
          "of a linear, R rank of an adapter.\n\n"
          "| op | reads | writes |\n|---|---|---|\n",
          stdout);
    for (int kind = 0; kind < OP_COUNT; kind++)
        printf("| `%s` | `%s` | `%s` |\n", op_name((op_kind)kind), op_inputs((op_kind)kind), op_outputs((op_kind)kind));
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "config") == 0) config_print_markdown(stdout);
    else if (argc == 2 && strcmp(argv[1], "ops") == 0) print_ops();
    else {
        fputs("usage: print_docs config|ops\n", stderr);
        return 2;
    }
    return fflush(stdout) == 0 ? 0 : 3;
}
