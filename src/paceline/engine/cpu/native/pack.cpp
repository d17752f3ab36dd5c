// Packing of matrices; its functions are those of pack.h.
#include "pack.h"
