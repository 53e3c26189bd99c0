/* ptrace(2) for user-mode Linux on CPUs with more registers than its kernel knows; see tools/linux-uml. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

enum {
    AREA_BYTES_MAX = 65536,
    /* Of an XSAVE area (Intel SDM volume 1, 13.4): its header, and the legacy area in front of it. */
    HEADER_AT = 512,
    HEADER_BYTES = 64,
    /* Bytes of the largest area without AMX: up to the protection keys. */
    KNOWN_BYTES = 2696,
};
/* Components that lie within the known bytes: x87 to AVX-512, protection keys. */
#define KNOWN_COMPONENTS UINT64_C(0x2ff)

typedef long ptrace_function(enum __ptrace_request, pid_t, void *, void *);

/* The kernel takes whole areas only: appends components in their initial state. */
static long set_area(ptrace_function *next, pid_t pid, void *kind, struct iovec *known)
{
    static unsigned char area[AREA_BYTES_MAX];
    struct iovec whole = { area, sizeof area };
    uint64_t components;

    if (next(PTRACE_GETREGSET, pid, kind, &whole) < 0)
        return -1;
    if (known->iov_len >= whole.iov_len || known->iov_len < HEADER_AT + HEADER_BYTES || known->iov_len > KNOWN_BYTES)
        return next(PTRACE_SETREGSET, pid, kind, known);
    memset(area, 0, whole.iov_len);
    memcpy(area, known->iov_base, known->iov_len);
    memcpy(&components, area + HEADER_AT, sizeof components);
    components &= KNOWN_COMPONENTS;
    memcpy(area + HEADER_AT, &components, sizeof components);
    return next(PTRACE_SETREGSET, pid, kind, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_function *next;
    va_list words;

    if (!next)
        next = (ptrace_function *)dlsym(RTLD_NEXT, "ptrace");
    va_start(words, request);
    pid_t pid = va_arg(words, pid_t);
    void *address = va_arg(words, void *);
    void *data = va_arg(words, void *);
    va_end(words);
    if (request == PTRACE_SETREGSET && (uintptr_t)address == NT_X86_XSTATE)
        return set_area(next, pid, address, data);
    return next(request, pid, address, data);
}
