/* array.c - the one place where the code of stb_ds is compiled. */
#define STB_DS_IMPLEMENTATION
#include "base/array.h"
