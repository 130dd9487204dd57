/* Between a program and its files: counts file operations below a folder, and fails one of them or ends the program.

   Loaded with LD_PRELOAD; armed at run time, through ctypes. Operations are what changes files: writes, truncations,
   allocations, flushes, and names that are made, changed or removed. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static char wanted[256];
static long at, times, seen;
static int answer;

#define NEXT(name) static __typeof__(name) *next; if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* wanted: names of operations, each between commas, or "*". when: which of them, from 1 on; 0 only counts them.
   how_often: so many from there on, -1 all. error: 0 ends the program with SIGKILL, a positive errno fails the
   operation undone, a negative one fails it after it was done. */
void shim_arm(const char *path, const char *operations, long when, long how_often, int error)
{
    strncpy(folder, path, sizeof folder - 1);
    strncpy(wanted, operations, sizeof wanted - 1);
    seen = 0;
    at = when;
    times = how_often;
    answer = error;
}

void shim_disarm(void) { folder[0] = 0; }

long shim_count(void) { return seen; }

static int below(const char *path)
{
    size_t size = strlen(folder);
    return size && strncmp(path, folder, size) == 0;
}

static int fd_below(int fd)
{
    char link[64], path[PATH_MAX];
    ssize_t size;
    if (!folder[0]) return 0;
    strcpy(link, "/proc/self/fd/");
    char digits[16], *end = digits + sizeof digits - 1;
    *end = 0;
    do { *--end = '0' + fd % 10; fd /= 10; } while (fd > 0);
    strcat(link, end);
    size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}

/* 0: go on. 1: fail undone. 2: fail when done. */
static int meets(const char *operation, int concerned)
{
    int saved = errno;
    if (!concerned) return 0;
    if (wanted[0] != '*') {
        char name[64] = ",";
        strcat(name, operation);
        strcat(name, ",");
        if (!strstr(wanted, name)) { errno = saved; return 0; }
    }
    seen++;
    errno = saved;
    if (!at || seen < at || (times >= 0 && seen >= at + times)) return 0;
    if (!answer) { kill(getpid(), SIGKILL); for (;;) pause(); }
    return answer > 0 ? 1 : 2;
}

#define PASS(kind, name, concerned, call) \
    NEXT(name); \
    int fate = meets(#name, concerned); \
    if (fate == 1) { errno = answer; return -1; } \
    kind result = call; \
    if (fate == 2) { errno = -answer; return -1; } \
    return result

ssize_t write(int fd, const void *data, size_t size) { PASS(ssize_t, write, fd_below(fd), next(fd, data, size)); }
ssize_t writev(int fd, const struct iovec *v, int n) { PASS(ssize_t, writev, fd_below(fd), next(fd, v, n)); }
ssize_t pwrite(int fd, const void *d, size_t s, off_t o) { PASS(ssize_t, pwrite, fd_below(fd), next(fd, d, s, o)); }
ssize_t pwrite64(int fd, const void *d, size_t s, off64_t o) { PASS(ssize_t, pwrite64, fd_below(fd), next(fd, d, s, o)); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t o) { PASS(ssize_t, pwritev, fd_below(fd), next(fd, v, n, o)); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t o) { PASS(ssize_t, pwritev64, fd_below(fd), next(fd, v, n, o)); }
int fsync(int fd) { PASS(int, fsync, fd_below(fd), next(fd)); }
int fdatasync(int fd) { PASS(int, fdatasync, fd_below(fd), next(fd)); }
int ftruncate(int fd, off_t size) { PASS(int, ftruncate, fd_below(fd), next(fd, size)); }
int ftruncate64(int fd, off64_t size) { PASS(int, ftruncate64, fd_below(fd), next(fd, size)); }
int rename(const char *from, const char *to) { PASS(int, rename, below(to), next(from, to)); }
int unlink(const char *path) { PASS(int, unlink, below(path), next(path)); }
int rmdir(const char *path) { PASS(int, rmdir, below(path), next(path)); }
int mkdir(const char *path, mode_t mode) { PASS(int, mkdir, below(path), next(path, mode)); }

int posix_fallocate(int fd, off_t start, off_t size)
{
    NEXT(posix_fallocate);
    int fate = meets("posix_fallocate", fd_below(fd));
    if (fate == 1) return answer;
    int result = next(fd, start, size);
    return fate == 2 ? -answer : result;
}

int posix_fallocate64(int fd, off64_t start, off64_t size)
{
    NEXT(posix_fallocate64);
    int fate = meets("posix_fallocate", fd_below(fd));
    if (fate == 1) return answer;
    int result = next(fd, start, size);
    return fate == 2 ? -answer : result;
}

#define OPEN(name) \
int name(const char *path, int flags, ...) \
{ \
    mode_t mode = 0; \
    if (flags & O_CREAT) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); } \
    PASS(int, name, (flags & O_CREAT) && below(path), next(path, flags, mode)); \
}

OPEN(open)
OPEN(open64)
