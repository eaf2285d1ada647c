/* blas_load.h - a check that must run before OpenBLAS is loaded. */
#ifndef CPU_BLAS_LOAD_H
#define CPU_BLAS_LOAD_H

/* While it is loaded, OpenBLAS maps a buffer for each processor, and where it cannot (ulimit -v) it tries again for
 * ever. This ends the program with a line and exit code 3 instead. For the executable's .preinit_array, which runs
 * before the start-up code of any library: uses system calls alone. */
void blas_load_check(int argc, char **argv, char **environment);
#endif
