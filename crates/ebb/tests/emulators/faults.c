/* Faults of one process, preloaded: its wall clock is wrong, its disk hangs, it does not reach some of its peers.
 *
 * What is wrong now stands in the file $EBB_FAULTS/NAME (struct control), which the tests change while it is mapped
 * here. NAME is the subcommand, and what --id or --address say: server-3, gateway. Clocks that only count keep
 * counting. Each process calls others from a loopback address of its own, so that the one called knows who it is.
 *
 * cc -shared -fPIC -o faults.so faults.c
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CALL = 1, SEND = 2, HEAR = 4, MUTE = 8, PEERS = 32, DESCRIPTORS = 1 << 16 };

struct control {
    int64_t ahead;           /* seconds, of the time of day */
    uint32_t hangs;          /* calls that need the disk do not return */
    uint32_t own;            /* calls come from 127.0.1.own */
    uint16_t dark, mute;     /* ports: one that answers no call, and one that takes it and says nothing more */
    uint32_t cut;            /* peers that are used */
    struct {
        uint16_t port;       /* where it listens */
        uint8_t own, what;   /* what does not work: CALL, SEND, HEAR; MUTE: calls go to `mute` */
    } peers[PEERS];
};

static struct control nothing;
static volatile struct control *control = &nothing;
/* Connections on which something was held back: they break when the cut is over, as nothing was lost of them until
 * then. */
static volatile char held[DESCRIPTORS];

static void pause_briefly(void)
{
    struct timespec time = {0, 5000000};
    syscall(SYS_nanosleep, &time, NULL);
}

static void *watch(void *unused)
{
    for (;;) {
        pause_briefly();
        if (control->cut)
            continue;
        for (int fd = 0; fd < DESCRIPTORS; fd++)
            if (held[fd]) {
                held[fd] = 0;
                shutdown(fd, SHUT_RDWR);
            }
    }
    return unused;
}

__attribute__((constructor)) static void begin(void)
{
    const char *directory = getenv("EBB_FAULTS");
    char command[4096] = "", path[4096];
    int file = open("/proc/self/cmdline", O_RDONLY);
    long length = file < 0 ? 0 : read(file, command, sizeof command - 2);
    close(file);
    if (!directory || length <= 0)
        return;
    const char *word = command, *end = command + length, *name = NULL, *which = NULL;
    for (int n = 0; word < end; n++, word += strlen(word) + 1) {
        if (n == 1)
            name = word;
        if (!strcmp(word, "--id") || !strcmp(word, "--address"))
            which = word + strlen(word) + 1;
    }
    if (!name)
        return;
    snprintf(path, sizeof path, which ? "%s/%s-%s" : "%s/%s", directory, name, which);
    file = open(path, O_RDONLY);
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found == MAP_FAILED)
        return;
    control = found;
    pthread_t thread;
    pthread_create(&thread, NULL, watch, NULL);
}

/* The time of day. */

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME)
        time->tv_sec += control->ahead;
    return result;
}

/* The disk. */

static void disk(void)
{
    while (control->hangs)
        pause_briefly();
}

int fsync(int fd)
{
    disk();
    return syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    disk();
    return syscall(SYS_fdatasync, fd);
}

ssize_t pwrite64(int fd, const void *from, size_t length, off64_t at)
{
    disk();
    return syscall(SYS_pwrite64, fd, from, length, at);
}

ssize_t pread64(int fd, void *to, size_t length, off64_t at)
{
    disk();
    return syscall(SYS_pread64, fd, to, length, at);
}

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    /* What the page cache has needs no disk. */
    if (!(flags & RWF_NOWAIT))
        disk();
    return syscall(SYS_preadv2, fd, parts, count, at, 0L, flags);
}

/* The network. */

static int fault_of(const struct sockaddr_in *peer)
{
    if (peer->sin_family != AF_INET)
        return 0;
    uint32_t address = ntohl(peer->sin_addr.s_addr);
    for (uint32_t n = 0; n < control->cut && n < PEERS; n++)
        if (control->peers[n].port == ntohs(peer->sin_port) || (address >> 8 == 0x7f0001 && control->peers[n].own == (address & 0xff)))
            return control->peers[n].what;
    return 0;
}

/* Whether this direction of a connection does not work now. */
static int holds(int fd, int direction)
{
    struct sockaddr_in peer = {0};
    socklen_t length = sizeof peer;
    int before = errno;
    if (!control->cut || fd < 0 || fd >= DESCRIPTORS)
        return 0;
    if (syscall(SYS_getpeername, fd, &peer, &length) || !(fault_of(&peer) & direction)) {
        errno = before;
        return 0;
    }
    held[fd] = 1;
    errno = EAGAIN;
    return 1;
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    struct sockaddr_in own = {.sin_family = AF_INET}, to;
    if (address->sa_family != AF_INET || !control->own)
        return syscall(SYS_connect, fd, address, length);
    memcpy(&to, address, sizeof to);
    if (ntohl(to.sin_addr.s_addr) >> 24 == 127) {
        int yes = 1, what = fault_of(&to);
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
        own.sin_addr.s_addr = htonl(0x7f000100 + control->own);
        bind(fd, (struct sockaddr *)&own, sizeof own);
        if (what & (CALL | MUTE))
            to.sin_port = htons(what & CALL ? control->dark : control->mute);
    }
    return syscall(SYS_connect, fd, &to, sizeof to);
}

int close(int fd)
{
    if (fd >= 0 && fd < DESCRIPTORS)
        held[fd] = 0;
    return syscall(SYS_close, fd);
}

ssize_t send(int fd, const void *from, size_t length, int flags)
{
    return holds(fd, SEND) ? -1 : syscall(SYS_sendto, fd, from, length, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return holds(fd, SEND) ? -1 : syscall(SYS_sendmsg, fd, message, flags);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    return holds(fd, SEND) ? -1 : syscall(SYS_writev, fd, parts, count);
}

ssize_t recv(int fd, void *to, size_t length, int flags)
{
    return holds(fd, HEAR) ? -1 : syscall(SYS_recvfrom, fd, to, length, flags, NULL, NULL);
}

ssize_t readv(int fd, const struct iovec *parts, int count)
{
    return holds(fd, HEAR) ? -1 : syscall(SYS_readv, fd, parts, count);
}
