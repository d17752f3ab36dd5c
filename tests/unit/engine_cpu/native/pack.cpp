// pack.h is C already.
#include "pack.h"
