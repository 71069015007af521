/* A file system that fails: preloaded into a process, it makes calls on some paths fail as the text
 * file $FAULT_FS says, which is read again at every call. One rule a line, the first that fits holds:
 *
 *   CALL ERRNO TEXT       CALL: open (for writing or making), write, fsync, rename, mkdir, or *;
 *                         ERRNO: a number; TEXT: the path holds it
 *
 * Each failure is counted as a line "CALL PATH" in $FAULT_FS.log. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static __thread int inside;

static long slurp(const char *path, char *text, long size) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    long n = syscall(SYS_read, fd, text, size - 1);
    syscall(SYS_close, fd);
    if (n >= 0) text[n] = 0;
    return n;
}

static int fails(const char *call, const char *path) {
    const char *control = getenv("FAULT_FS");
    char text[4096], log[4096], said[4096], *at, *line;
    int saved = errno, found = 0;
    if (!control || !path || inside || strcmp(path, control) == 0) return 0;
    inside = 1;
    if (slurp(control, text, sizeof text) > 0)
        for (at = text; !found && (line = strsep(&at, "\n"));) {
            char name[32], part[2048];
            int number;
            if (sscanf(line, "%31s %d %2047s", name, &number, part) != 3) continue;
            if ((!strcmp(name, "*") || !strcmp(name, call)) && strstr(path, part)) found = number;
        }
    if (found) {
        snprintf(log, sizeof log, "%s.log", control);
        int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        int n = snprintf(said, sizeof said, "%s %.2000s\n", call, path);
        if (fd >= 0 && syscall(SYS_write, fd, said, n) >= 0) syscall(SYS_close, fd);
    }
    inside = 0;
    errno = found ? found : saved;
    return found;
}

static int fails_at(const char *call, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (n <= 0 || path[0] != '/') return 0;
    path[n] = 0;
    return fails(call, path);
}

#define WRITES (O_WRONLY | O_RDWR | O_CREAT)
#define OPEN(name, first, given, pass)                                        \
    int name(first const char *path, int flags, ...) {                        \
        va_list list;                                                         \
        va_start(list, flags);                                                \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list);                                                         \
        if (flags & WRITES && fails("open", path)) return -1;                 \
        int (*real)(given const char *, int, ...) = dlsym(RTLD_NEXT, #name);  \
        return real(pass path, flags, mode);                                  \
    }
#define NONE
#define DIRFD int folder,
#define DIRTYPE int,
#define DIRPASS folder,
OPEN(open, NONE, NONE, NONE)
OPEN(open64, NONE, NONE, NONE)
OPEN(openat, DIRFD, DIRTYPE, DIRPASS)
OPEN(openat64, DIRFD, DIRTYPE, DIRPASS)

ssize_t write(int fd, const void *data, size_t size) {
    if (fd > 2 && fails_at("write", fd)) return -1;
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    return real(fd, data, size);
}

int fsync(int fd) {
    if (fails_at("fsync", fd)) return -1;
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return real(fd);
}

int rename(const char *from, const char *to) {
    if (fails("rename", to)) return -1;
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    return real(from, to);
}

int mkdir(const char *path, mode_t mode) {
    if (fails("mkdir", path)) return -1;
    int (*real)(const char *, mode_t) = dlsym(RTLD_NEXT, "mkdir");
    return real(path, mode);
}
