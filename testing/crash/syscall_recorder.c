/* Between a program and its files: writes down every operation that changes files below a folder, in the order in
   which they happen, with the bytes, and lets each of them happen. On demand it ends the program before one of them.

   Loaded with LD_PRELOAD; armed at run time, through ctypes. While it is armed, operations below the folder happen one
   at a time, so that the order in which they are written down is the order in which they were done. What is written
   through a memory map is not seen. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, EXTEND, SYNC, RENAME, UNLINK, MKDIR, RMDIR, MARK };

/* Followed by the path, the second path and the bytes. */
struct header {
    uint32_t kind, synchronous;
    uint64_t inode, offset, size;
    uint32_t path, target;
};

static char folder[PATH_MAX];
static int journal = -1;
static long seen, end_before;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define NEXT(name) static __typeof__(name) *next; if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* kill_before: the process ends with SIGKILL before this operation, counted from 1 on; 0: it does not. */
void observer_start(const char *path, const char *journal_path, long kill_before)
{
    journal = syscall(SYS_openat, AT_FDCWD, journal_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    seen = 0;
    end_before = kill_before;
    strncpy(folder, path, sizeof folder - 1);
}

void observer_stop(void)
{
    pthread_mutex_lock(&lock);
    folder[0] = 0;
    if (journal >= 0) syscall(SYS_close, journal);
    journal = -1;
    pthread_mutex_unlock(&lock);
}

/* Operations since observer_start. */
long observer_count(void) { return seen; }

static void put(const void *data, size_t size)
{
    const char *rest = data;
    while (size) {
        ssize_t done = syscall(SYS_write, journal, rest, size);
        if (done <= 0) abort();
        rest += done;
        size -= done;
    }
}

static void note(int kind, int synchronous, uint64_t inode, uint64_t offset, const void *data, size_t size,
                 const char *path, const char *target)
{
    struct header header = {kind, synchronous, inode, offset, size, strlen(path), strlen(target)};
    int saved = errno;
    put(&header, sizeof header);
    put(path, header.path);
    put(target, header.target);
    /* What comes from a file is copied by the caller. */
    if (data) put(data, size);
    errno = saved;
}

void observer_mark(void)
{
    pthread_mutex_lock(&lock);
    if (folder[0]) note(MARK, 0, 0, 0, 0, 0, "", "");
    pthread_mutex_unlock(&lock);
}

static int below(const char *path)
{
    size_t size = strlen(folder);
    return size && strncmp(path, folder, size) == 0 && (path[size] == '/' || path[size] == 0);
}

static int name_of(int fd, char *path)
{
    char link[64];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    errno = saved;
    if (size < 0) return 0;
    path[size] = 0;
    return 1;
}

/* The absolute name of what is given relative to an open folder; the folder may be AT_FDCWD. */
static int absolute(int at, const char *given, char *path)
{
    char base[PATH_MAX];
    if (!folder[0]) return 0;
    if (given[0] == '/') {
        strncpy(path, given, PATH_MAX - 1);
        path[PATH_MAX - 1] = 0;
        return below(path);
    }
    if (at == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else if (!name_of(at, base)) {
        return 0;
    }
    if (snprintf(path, PATH_MAX, "%s/%s", base, given) >= PATH_MAX) return 0;
    return below(path);
}

static int concerned(int fd, char *path) { return folder[0] && name_of(fd, path) && below(path); }

static void begin(void)
{
    pthread_mutex_lock(&lock);
    if (folder[0] && ++seen == end_before) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
}

static void finish(void) { pthread_mutex_unlock(&lock); }

static uint64_t inode_of(int fd)
{
    struct stat status;
    return fstat(fd, &status) ? 0 : status.st_ino;
}

static int is_synchronous(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags != -1 && (flags & O_DSYNC) != 0;
}

static void note_write(int fd, const char *path, const void *data, size_t size, uint64_t offset)
{
    note(WRITE, is_synchronous(fd), inode_of(fd), offset, data, size, path, "");
}

static void note_vector(int fd, const char *path, const struct iovec *v, int n, size_t size, uint64_t offset)
{
    for (int i = 0; i < n && size; i++) {
        size_t part = v[i].iov_len < size ? v[i].iov_len : size;
        if (part) note_write(fd, path, v[i].iov_base, part, offset);
        offset += part;
        size -= part;
    }
}

/* What came from another file is read back. */
static void note_copied(int fd, const char *path, size_t size, uint64_t offset)
{
    char copy[1 << 16], name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int again = syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
    while (again >= 0 && size) {
        ssize_t got = pread(again, copy, size < sizeof copy ? size : sizeof copy, offset);
        if (got <= 0) break;
        note_write(fd, path, copy, got, offset);
        offset += got;
        size -= got;
    }
    if (again >= 0) syscall(SYS_close, again);
}

/* -- contents ------------------------------------------------------------------------------------------------------ */

#define WATCH(kind, name, call, on_success) \
    NEXT(name); \
    char path[PATH_MAX]; \
    if (!concerned(fd, path)) return call; \
    begin(); \
    kind result = call; \
    if (result >= 0 && folder[0]) { int saved = errno; on_success; errno = saved; } \
    finish(); \
    return result

#define POSITION_BEFORE(done) (lseek(fd, 0, SEEK_CUR) - (done))

ssize_t write(int fd, const void *data, size_t size)
{ WATCH(ssize_t, write, next(fd, data, size), note_write(fd, path, data, result, POSITION_BEFORE(result))); }
ssize_t writev(int fd, const struct iovec *v, int n)
{ WATCH(ssize_t, writev, next(fd, v, n), note_vector(fd, path, v, n, result, POSITION_BEFORE(result))); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{ WATCH(ssize_t, pwrite, next(fd, data, size, at), note_write(fd, path, data, result, at)); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{ WATCH(ssize_t, pwrite64, next(fd, data, size, at), note_write(fd, path, data, result, at)); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{ WATCH(ssize_t, pwritev, next(fd, v, n, at), note_vector(fd, path, v, n, result, at)); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at)
{ WATCH(ssize_t, pwritev64, next(fd, v, n, at), note_vector(fd, path, v, n, result, at)); }
ssize_t sendfile(int fd, int from, off_t *at, size_t size)
{ WATCH(ssize_t, sendfile, next(fd, from, at, size), note_copied(fd, path, result, POSITION_BEFORE(result))); }
ssize_t sendfile64(int fd, int from, off64_t *at, size_t size)
{ WATCH(ssize_t, sendfile64, next(fd, from, at, size), note_copied(fd, path, result, POSITION_BEFORE(result))); }
ssize_t copy_file_range(int from, off64_t *at, int fd, off64_t *to, size_t size, unsigned flags)
{
    WATCH(ssize_t, copy_file_range, next(from, at, fd, to, size, flags),
          note_copied(fd, path, result, to ? *to - result : POSITION_BEFORE(result)));
}

#define NOTE(kind, offset) note(kind, 0, inode_of(fd), offset, 0, 0, path, "")

int fsync(int fd) { WATCH(int, fsync, next(fd), NOTE(SYNC, 0)); }
int fdatasync(int fd) { WATCH(int, fdatasync, next(fd), NOTE(SYNC, 0)); }
int ftruncate(int fd, off_t size) { WATCH(int, ftruncate, next(fd, size), NOTE(TRUNCATE, size)); }
int ftruncate64(int fd, off64_t size) { WATCH(int, ftruncate64, next(fd, size), NOTE(TRUNCATE, size)); }

/* Space that is only kept back changes nothing that could be read. */
#define NOTE_SPACE(kept_back) if (!(kept_back)) NOTE(EXTEND, start + size)

int fallocate(int fd, int mode, off_t start, off_t size)
{ WATCH(int, fallocate, next(fd, mode, start, size), NOTE_SPACE(mode & FALLOC_FL_KEEP_SIZE)); }
int fallocate64(int fd, int mode, off64_t start, off64_t size)
{ WATCH(int, fallocate64, next(fd, mode, start, size), NOTE_SPACE(mode & FALLOC_FL_KEEP_SIZE)); }
int posix_fallocate(int fd, off_t start, off_t size)
{ WATCH(int, posix_fallocate, next(fd, start, size), NOTE_SPACE(result)); }
int posix_fallocate64(int fd, off64_t start, off64_t size)
{ WATCH(int, posix_fallocate64, next(fd, start, size), NOTE_SPACE(result)); }

/* -- names --------------------------------------------------------------------------------------------------------- */

#define WATCH_NAME(name, at, given, call, on_success) \
    NEXT(name); \
    char path[PATH_MAX]; \
    if (!absolute(at, given, path)) return call; \
    begin(); \
    int result = call; \
    if (result >= 0 && folder[0]) { int saved = errno; on_success; errno = saved; } \
    finish(); \
    return result

#define NOTE_NAME(kind) note(kind, 0, 0, 0, 0, 0, path, "")

static void note_rename(const char *path, int at, const char *given)
{
    char target[PATH_MAX];
    if (absolute(at, given, target)) note(RENAME, 0, 0, 0, 0, 0, path, target);
}

int rename(const char *from, const char *to)
{ WATCH_NAME(rename, AT_FDCWD, from, next(from, to), note_rename(path, AT_FDCWD, to)); }
int renameat(int at, const char *from, int there, const char *to)
{ WATCH_NAME(renameat, at, from, next(at, from, there, to), note_rename(path, there, to)); }
int unlink(const char *given) { WATCH_NAME(unlink, AT_FDCWD, given, next(given), NOTE_NAME(UNLINK)); }
int unlinkat(int at, const char *given, int flags)
{ WATCH_NAME(unlinkat, at, given, next(at, given, flags), NOTE_NAME(flags & AT_REMOVEDIR ? RMDIR : UNLINK)); }
int rmdir(const char *given) { WATCH_NAME(rmdir, AT_FDCWD, given, next(given), NOTE_NAME(RMDIR)); }
int mkdir(const char *given, mode_t mode)
{ WATCH_NAME(mkdir, AT_FDCWD, given, next(given, mode), NOTE_NAME(MKDIR)); }
int mkdirat(int at, const char *given, mode_t mode)
{ WATCH_NAME(mkdirat, at, given, next(at, given, mode), NOTE_NAME(MKDIR)); }

static void note_truncated(const char *path, uint64_t size)
{
    struct stat status;
    if (!stat(path, &status)) note(TRUNCATE, 0, status.st_ino, size, 0, 0, path, "");
}

int truncate(const char *given, off_t size)
{ WATCH_NAME(truncate, AT_FDCWD, given, next(given, size), note_truncated(path, size)); }
int truncate64(const char *given, off64_t size)
{ WATCH_NAME(truncate64, AT_FDCWD, given, next(given, size), note_truncated(path, size)); }

static void note_opened(int fd, const char *path, int existed, int flags)
{
    if (!existed) note(CREATE, 0, inode_of(fd), 0, 0, 0, path, "");
    else if (flags & O_TRUNC) note(TRUNCATE, 0, inode_of(fd), 0, 0, 0, path, "");
}

#define OPENED(name, at, call) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); } \
    NEXT(name); \
    char path[PATH_MAX]; \
    if (!(flags & (O_CREAT | O_TRUNC)) || !absolute(at, given, path)) return call; \
    int existed = faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0; \
    if (existed && !(flags & O_TRUNC)) return call; \
    begin(); \
    int result = call; \
    if (result >= 0 && folder[0]) { int saved = errno; note_opened(result, path, existed, flags); errno = saved; } \
    finish(); \
    return result

int open(const char *given, int flags, ...) { OPENED(open, AT_FDCWD, next(given, flags, mode)); }
int open64(const char *given, int flags, ...) { OPENED(open64, AT_FDCWD, next(given, flags, mode)); }
int openat(int at, const char *given, int flags, ...) { OPENED(openat, at, next(at, given, flags, mode)); }
int openat64(int at, const char *given, int flags, ...) { OPENED(openat64, at, next(at, given, flags, mode)); }
