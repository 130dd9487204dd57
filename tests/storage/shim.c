/* Between a program and its files: counts file operations below a folder, and fails one of them or ends the program.

   Loaded with LD_PRELOAD; armed at run time, through ctypes. Some operations change files: writes, truncations,
   allocations, flushes, and names that are made, changed or removed. The others look at them: reads, opening what is
   there, closing, maps, locks, and questions for names and sizes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static char wanted[256];
static long at, times, seen;
static int answer, second, has_second, fault;

/* What happened is written down here, and to what; -1: it is not. */
static int journal = -1;
static char subject[PATH_MAX];
static long detail;

#define NEXT(name) static __typeof__(name) *next; if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* An "errno" of its own: the write writes half of what it should, and says so. */
#define SHORT 10000

/* wanted: names of operations, each between commas, "dsync" for writes that wait for the disk, or "*" for those that change files, "?" for those that only look,
   "**" for all. when: which of them, from 1 on; 0 only counts them. how_often: so many from there on, -1 all.
   error: 0 ends the program with SIGKILL, a positive errno fails the operation undone, a negative one fails it after
   it was done, SHORT is for writes. */
void shim_arm(const char *path, const char *operations, long when, long how_often, int error)
{
    strncpy(folder, path, sizeof folder - 1);
    strncpy(wanted, operations, sizeof wanted - 1);
    seen = 0;
    at = when;
    times = how_often;
    answer = error;
    has_second = 0;
}

/* After shim_arm: the first write after the operation meets with this answer. */
void shim_then(int error)
{
    has_second = 1;
    second = error;
}

/* From now on every operation below the folder is written down: process, name, result, detail, path. */
void shim_journal(const char *path)
{
    journal = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void note(const char *operation, long result, int concerned)
{
    char line[PATH_MAX + 128];
    int saved = errno;
    if (journal >= 0 && concerned) {
        int size = snprintf(line, sizeof line, "%d %s %ld %ld %s\n", getpid(), operation, result, detail, subject);
        syscall(SYS_write, journal, line, size);
    }
    detail = 0;
    errno = saved;
}

void shim_disarm(void) { folder[0] = 0; }

long shim_count(void) { return seen; }

static int below(const char *path)
{
    size_t size = strlen(folder);
    int found = size && strncmp(path, folder, size) == 0;
    if (found && journal >= 0) strncpy(subject, path, sizeof subject - 1);
    return found;
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

enum fate { GO_ON, FAIL_UNDONE, FAIL_DONE, CUT_SHORT };

static int is_wanted(const char *operation, int changes)
{
    if (!strcmp(wanted, "**")) return 1;
    if (!strcmp(wanted, "*")) return changes;
    if (!strcmp(wanted, "?")) return !changes;
    char name[64] = ",";
    strcat(name, operation);
    strcat(name, ",");
    return strstr(wanted, name) != NULL;
}

static enum fate meets(const char *operation, int changes, int concerned, int synchronous)
{
    if (concerned && has_second && at && seen >= at && strstr(operation, "write")) {
        has_second = 0;
        fault = abs(second);
        if (!second) { kill(getpid(), SIGKILL); for (;;) pause(); }
        return second == SHORT ? CUT_SHORT : second > 0 ? FAIL_UNDONE : FAIL_DONE;
    }
    if (!concerned || !(is_wanted(operation, changes) || (synchronous && is_wanted("dsync", changes)))) return GO_ON;
    seen++;
    if (!at || seen < at || (times >= 0 && seen >= at + times)) return GO_ON;
    if (!answer) { kill(getpid(), SIGKILL); for (;;) pause(); }
    fault = abs(answer);
    if (answer == SHORT) return CUT_SHORT;
    return answer > 0 ? FAIL_UNDONE : FAIL_DONE;
}

/* The operation, or its failure: ``failure`` is what it returns then. */
#define MEET(kind, failure, name, changes, concerned, call) \
    NEXT(name); \
    int saved = errno; \
    int below_folder = concerned; \
    enum fate fate = meets(#name, changes, below_folder, 0); \
    errno = saved; \
    if (fate == FAIL_UNDONE) { note(#name, -1, below_folder); errno = abs(answer); return failure; } \
    kind result = call; \
    note(#name, fate == FAIL_DONE ? -2 : result == failure ? -1 : 0, below_folder); \
    if (fate == FAIL_DONE) { errno = abs(answer); return failure; } \
    return result

#define CHANGE(name, concerned, call) MEET(int, -1, name, 1, concerned, call)
#define LOOK(kind, name, concerned, call) MEET(kind, (kind)-1, name, 0, concerned, call)

#define WRITE(name, fd, offset, whole, half) \
    NEXT(name); \
    int saved = errno; \
    int below_folder = fd_below(fd); \
    int synchronous = below_folder && (syscall(SYS_fcntl, fd, F_GETFL, 0) & O_DSYNC); \
    enum fate fate = meets(#name, 1, below_folder, synchronous); \
    if (journal >= 0 && below_folder) detail = offset; \
    errno = saved; \
    if (fate == FAIL_UNDONE) { note(synchronous ? "dsync" : #name, -1, below_folder); errno = fault; return -1; } \
    ssize_t result = fate == CUT_SHORT ? half : whole; \
    note(synchronous ? "dsync" : #name, fate == FAIL_DONE ? -2 : fate == CUT_SHORT ? -3 : result < 0 ? -1 : 0, \
         below_folder); \
    if (fate == FAIL_DONE) { errno = fault; return -1; } \
    return result

#define POSITION lseek(fd, 0, SEEK_CUR)

/* Of several pieces half are written; of a single one its first half. */
#define PIECES (n > 1 ? n / 2 : 1)
static const struct iovec *halved(const struct iovec *v, int n, struct iovec *piece)
{
    if (n > 1) return v;
    piece->iov_base = v->iov_base;
    piece->iov_len = v->iov_len / 2;
    return piece;
}

ssize_t write(int fd, const void *d, size_t s) { WRITE(write, fd, POSITION, next(fd, d, s), next(fd, d, s / 2)); }
ssize_t pwrite(int fd, const void *d, size_t s, off_t o) { WRITE(pwrite, fd, o, next(fd, d, s, o), next(fd, d, s / 2, o)); }
ssize_t pwrite64(int fd, const void *d, size_t s, off64_t o)
{
    WRITE(pwrite64, fd, o, next(fd, d, s, o), next(fd, d, s / 2, o));
}
ssize_t writev(int fd, const struct iovec *v, int n)
{
    struct iovec piece;
    WRITE(writev, fd, POSITION, next(fd, v, n), next(fd, halved(v, n, &piece), PIECES));
}
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t o)
{
    struct iovec piece;
    WRITE(pwritev, fd, o, next(fd, v, n, o), next(fd, halved(v, n, &piece), PIECES, o));
}
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t o)
{
    struct iovec piece;
    WRITE(pwritev64, fd, o, next(fd, v, n, o), next(fd, halved(v, n, &piece), PIECES, o));
}

int fsync(int fd) { CHANGE(fsync, fd_below(fd), next(fd)); }
int fdatasync(int fd) { CHANGE(fdatasync, fd_below(fd), next(fd)); }
int ftruncate(int fd, off_t size) { CHANGE(ftruncate, fd_below(fd), next(fd, size)); }
int ftruncate64(int fd, off64_t size) { CHANGE(ftruncate64, fd_below(fd), next(fd, size)); }
int truncate(const char *path, off_t size) { CHANGE(truncate, below(path), next(path, size)); }
int truncate64(const char *path, off64_t size) { CHANGE(truncate64, below(path), next(path, size)); }
int rename(const char *from, const char *to) { CHANGE(rename, below(to), next(from, to)); }
int unlink(const char *path) { CHANGE(unlink, below(path), next(path)); }
int unlinkat(int at_fd, const char *path, int flags) { CHANGE(unlinkat, fd_below(at_fd), next(at_fd, path, flags)); }
int rmdir(const char *path) { CHANGE(rmdir, below(path), next(path)); }
int mkdir(const char *path, mode_t mode) { CHANGE(mkdir, below(path), next(path, mode)); }

int posix_fallocate(int fd, off_t start, off_t size)
{
    NEXT(posix_fallocate);
    enum fate fate = meets("posix_fallocate", 1, fd_below(fd), 0);
    if (fate == FAIL_UNDONE) return answer;
    int result = next(fd, start, size);
    return fate == FAIL_DONE ? -answer : result;
}

int posix_fallocate64(int fd, off64_t start, off64_t size)
{
    NEXT(posix_fallocate64);
    enum fate fate = meets("posix_fallocate", 1, fd_below(fd), 0);
    if (fate == FAIL_UNDONE) return answer;
    int result = next(fd, start, size);
    return fate == FAIL_DONE ? -answer : result;
}

#define OPEN(name) \
int name(const char *path, int flags, ...) \
{ \
    mode_t mode = 0; \
    if (flags & O_CREAT) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); } \
    MEET(int, -1, name, (flags & O_CREAT) != 0, below(path), next(path, flags, mode)); \
}

OPEN(open)
OPEN(open64)

ssize_t read(int fd, void *data, size_t size) { LOOK(ssize_t, read, fd_below(fd), next(fd, data, size)); }
ssize_t pread(int fd, void *d, size_t s, off_t o) { LOOK(ssize_t, pread, fd_below(fd), next(fd, d, s, o)); }
ssize_t pread64(int fd, void *d, size_t s, off64_t o) { LOOK(ssize_t, pread64, fd_below(fd), next(fd, d, s, o)); }
int flock(int fd, int how) { detail = how; LOOK(int, flock, fd_below(fd), next(fd, how)); }
int stat(const char *path, struct stat *to) { LOOK(int, stat, below(path), next(path, to)); }
int stat64(const char *path, struct stat64 *to) { LOOK(int, stat64, below(path), next(path, to)); }
int lstat(const char *path, struct stat *to) { LOOK(int, lstat, below(path), next(path, to)); }
int lstat64(const char *path, struct stat64 *to) { LOOK(int, lstat64, below(path), next(path, to)); }
int fstat(int fd, struct stat *to) { LOOK(int, fstat, fd_below(fd), next(fd, to)); }
int fstat64(int fd, struct stat64 *to) { LOOK(int, fstat64, fd_below(fd), next(fd, to)); }
DIR *opendir(const char *path) { MEET(DIR *, NULL, opendir, 0, below(path), next(path)); }

void *mmap(void *where, size_t size, int protection, int flags, int fd, off_t offset)
{
    LOOK(void *, mmap, fd >= 0 && fd_below(fd), next(where, size, protection, flags, fd, offset));
}

void *mmap64(void *where, size_t size, int protection, int flags, int fd, off64_t offset)
{
    LOOK(void *, mmap64, fd >= 0 && fd_below(fd), next(where, size, protection, flags, fd, offset));
}

/* A close that fails has closed all the same. */
int close(int fd)
{
    NEXT(close);
    int saved = errno;
    enum fate fate = meets("close", 0, fd_below(fd), 0);
    errno = saved;
    int result = next(fd);
    if (fate == FAIL_UNDONE || fate == FAIL_DONE) { errno = abs(answer); return -1; }
    return result;
}

#define FCNTL(name) \
int name(int fd, int what, ...) \
{ \
    va_list list; \
    va_start(list, what); \
    void *with = va_arg(list, void *); \
    va_end(list); \
    int locks = what == F_SETLK || what == F_SETLKW; \
    if (locks && journal >= 0) detail = ((struct flock *)with)->l_start ? -1 : ((struct flock *)with)->l_type; \
    MEET(int, -1, name, 0, (what == F_SETLK || what == F_SETLKW) && fd_below(fd), next(fd, what, with)); \
}

FCNTL(fcntl)
FCNTL(fcntl64)
