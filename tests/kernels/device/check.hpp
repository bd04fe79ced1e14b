// What must be true, or the program fails.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                             \
    }                                                                      \
  } while (0)

#endif
