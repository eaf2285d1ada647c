/* command.c - argv -> command -> exit code.
 *
 * The first word names the command; without one, flags alone mean train.  Results go to standard output, warnings and
 * the one line of a failure to standard error.
 *
 * To add a command: write bool cmd_X(const config *, failure *) in src/cli/cmd_X.c, declare it in command.h, and add
 * its line to the table below.  A command that is not written yet has no line. */
#include "cli/command.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "cli/ranks_start.h"

#include <omp.h>
#include <string.h>

static const command commands[] = {
    {"train", "Fine-tunes a model; what flags without a command mean.", cmd_train, true},
    {"plan", "Prints the memory of a run, by role, for each recompute level.", cmd_plan},
    {"graph", "Prints the program of a run, and what fusing changes.", cmd_graph},
    {"data", "Shows the rows that training would see; --dump N prints them as JSON lines.", cmd_data},
    {"eval", "Loss and perplexity of a file, and with --exact_match how many rows are answered word for word.",
     cmd_eval},
    {"generate", "Answers a prompt.", cmd_generate},
    {"bench", "Times training steps on random weights and tokens, fused beside unfused.", cmd_bench, true},
    {"merge", "Folds an adapter into its base model: a new model folder.", cmd_merge},
    {NULL, NULL, NULL},
};

static const command *find_command(const char *name) {
    for (const command *c = commands; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static int unknown_command(const char *name) {
    const char *names[sizeof commands / sizeof *commands] = {NULL};
    int n = 0;
    for (const command *c = commands; c->name; c++) names[n++] = c->name;
    const char *near = text_nearest(name, names, n);
    size_t length = strlen(name);
    if (length > 5 && strcmp(name + length - 5, ".json") == 0)
        log_error("unknown command \"%.200s\"; a config file is given as --config %.200s", name, name);
    else if (near) log_error("unknown command \"%.200s\"; the nearest is %s", name, near);
    else log_error("unknown command \"%.200s\"; liger-sft --help lists them", name);
    return FAIL_USAGE;
}

static void print_usage(FILE *out) {
    fputs("usage: liger-sft --config FILE.json [--key value ...]            train\n"
          "       liger-sft COMMAND --config FILE.json [--key value ...]\n"
          "       liger-sft [COMMAND] --help | --version\n",
          out);
}

static void print_help(const command *one) {
    if (one)
        printf("liger-sft %s - %s\n\nusage: liger-sft %s --config FILE.json [--key value ...]\n", one->name,
               one->sentence, one->name);
    else {
        printf("liger-sft " LIGER_VERSION " - fine-tunes LLaMA-family models\n\n");
        print_usage(stdout);
        printf("\nCommands\n");
        for (const command *c = commands; c->name; c++) printf("  %-10s %s\n", c->name, c->sentence);
    }
    printf("\n  --config  a path\n      JSON file of the settings below; flags win over it.\n");
    config_print_help(stdout);
    printf("\nExit codes: 0 done, 1 the input is wrong, 2 the command line is wrong, 3 the machine (device, disk, "
           "memory),\n"
           "130 interrupted by SIGINT or SIGTERM; a training run saves a checkpoint first.\n");
}

static bool has_flag(int argc, char **argv, const char *flag) {
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], flag) == 0) return true;
    return false;
}

static int run_command(const command *run, int argc, char **argv) {
    arena strings = {0};
    failure f = {0};
    config c;
    int code = 0;           /* of ranks that were started for this run */
    bool elsewhere = false; /* ... which then is theirs */
    bool ok = config_read(&c, argc, argv, &strings, &f);
    if (ok && c.threads > 0) omp_set_num_threads((int)c.threads);
    ok = ok && threads_check(omp_get_max_threads(), &f);
    ok = ok && (run->ranks ? ranks_start(&c, run->name, argv, &elsewhere, &code, &f) : ranks_refuse(run->name, &f));
    ok = ok && (elsewhere || run->run(&c, &f));
    if (!ok) log_error("%s", f.text);
    arena_free(&strings);
    return ok ? code : (int)f.kind;
}

static int dispatch(int argc, char **argv) {
    if (argc == 0) return print_usage(stderr), FAIL_USAGE;
    const char *name = strncmp(argv[0], "-", 1) == 0 ? NULL : argv[0];
    const command *run = find_command(name ? name : "train");
    if (name && !run) return unknown_command(name);
    if (name) argc--, argv++;
    bool help = has_flag(argc, argv, "--help") || (argc > 0 && strcmp(argv[0], "-h") == 0);
    if (help) return print_help(name ? run : NULL), 0;
    if (has_flag(argc, argv, "--version")) return printf("liger-sft " LIGER_VERSION "\n"), 0;
    if (!run) return unknown_command("train");
    return run_command(run, argc, argv);
}

int command_run(int argc, char **argv) {
    json_check_memory();
    int code = dispatch(argc - 1, argv + 1);
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    log_error("standard output: cannot write");
    return code ? code : FAIL_MACHINE;
}
