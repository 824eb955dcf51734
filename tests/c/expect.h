// What the test programs in C share: checks that end the job, with the place and the library's message.
#ifndef EXPECT_H
#define EXPECT_H

#include <gradientflow.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char* file, int line, const char* what, const char* detail) {
  fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, detail);
  fflush(stderr);
  abort();
}

static void expect(gf_status status, gf_status wanted, const char* call, const char* file, int line) {
  if (status != wanted) {
    char detail[6000];
    snprintf(detail, sizeof detail, "%s instead of %s (%s)", gf_status_name(status), gf_status_name(wanted),
             gf_last_error_message());
    fail(file, line, call, detail);
  }
}

// That a call ends with this status.
#define EXPECT(call, wanted) expect((call), (wanted), #call, __FILE__, __LINE__)
#define OK(call) EXPECT(call, GF_SUCCESS)

#define REQUIRE(condition)                                            \
  do {                                                                \
    if (!(condition)) fail(__FILE__, __LINE__, "not so", #condition); \
  } while (0)

// That a call fails with this status, and with a message that contains `text`.
#define REFUSED(call, wanted, text)                                                                              \
  do {                                                                                                           \
    EXPECT(call, wanted);                                                                                        \
    if (strstr(gf_last_error_message(), text) == NULL) fail(__FILE__, __LINE__, #call, gf_last_error_message()); \
  } while (0)

// An array of its own for every number of elements, so that a sanitizer sees what lies beyond it.
static inline void* array_of(size_t count, size_t element) {
  void* const data = malloc(count * element > 0 ? count * element : 1);
  REQUIRE(data != NULL);
  return data;
}

#endif
