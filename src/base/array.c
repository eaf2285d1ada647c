#define STB_DS_IMPLEMENTATION
#include "base/array.h"
