/* main.c - argv -> command -> exit code. */
#include <stdio.h>

int main(void) {
    printf("liger-sft " LIGER_VERSION "\n");
    return 0;
}
