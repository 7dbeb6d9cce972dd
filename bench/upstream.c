/* A model server that replays scripts: one thread, epoll, HTTP/1.1 with keep-alive, loopback only.
 *
 * It prints the port it listens on. `POST /control?path=P&pace_us=N` makes its body the answer to
 * every later request for P: records of "LENGTH\n" and LENGTH bytes, sent as they stand, N
 * microseconds apart (0: all at once). The first record goes out when a request has arrived whole.
 * A path without a script gets a 404. Requests need a Content-Length; chunked ones are cut off.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SCRIPTS = 32, MOST_FDS = 1024, PATH_BYTES = 128 };
static const size_t MOST_REQUEST = 16u << 20;

/* `ends[i]` is where record i ends in `data`. Freed when its last holder lets go. */
typedef struct {
    char path[PATH_BYTES];
    char *data;
    size_t *ends;
    int count, holders;
    long pace_us;
} Script;

/* `allowed` records may be sent by now; the next one is due at `due`. */
typedef struct {
    int fd, allowed, writing;
    char *in;
    size_t length, capacity, sent;
    Script *script;
    int64_t due;
} Conn;

static Script *scripts[MOST_SCRIPTS];
static Conn *conns[MOST_FDS];
static Script *done, *missing;
static int poller;

static void *must(void *memory) {
    if (!memory) {
        perror("memory");
        exit(1);
    }
    return memory;
}

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void let_go(Script *script) {
    if (--script->holders)
        return;
    free(script->data);
    free(script->ends);
    free(script);
}

static void drop(Conn *c) {
    if (c->script)
        let_go(c->script);
    conns[c->fd] = NULL;
    close(c->fd);
    free(c->in);
    free(c);
}

/* NULL where the records are malformed. */
static Script *read_script(const char *path, long pace_us, const char *body, size_t length) {
    Script *s = must(calloc(1, sizeof *s));
    size_t at = 0, total = 0;
    snprintf(s->path, sizeof s->path, "%s", path);
    s->pace_us = pace_us;
    s->holders = 1;
    s->data = must(malloc(length + 1));
    while (at < length) {
        const char *line = memchr(body + at, '\n', length - at);
        size_t size = line ? strtoul(body + at, NULL, 10) : 0;
        at = line ? (size_t)(line - body) + 1 : length;
        if (!size || size > length - at) {
            let_go(s);
            return NULL;
        }
        memcpy(s->data + total, body + at, size);
        at += size;
        total += size;
        s->ends = must(realloc(s->ends, (size_t)(s->count + 1) * sizeof *s->ends));
        s->ends[s->count++] = total;
    }
    if (!s->count) {
        let_go(s);
        return NULL;
    }
    return s;
}

static Script *fixed(const char *response) {
    char records[256];
    int n = snprintf(records, sizeof records, "%zu\n%s", strlen(response), response);
    return must(read_script("", 0, records, (size_t)n));
}

static Script *find(const char *path) {
    for (int i = 0; i < MOST_SCRIPTS && scripts[i]; i++)
        if (!strcmp(scripts[i]->path, path))
            return scripts[i];
    return missing;
}

static Script *control(const char *target, const char *body, size_t length) {
    char path[PATH_BYTES];
    long pace_us;
    if (sscanf(target, "/control?path=%127[^& ]&pace_us=%ld", path, &pace_us) != 2 || pace_us < 0)
        return missing;
    Script *fresh = read_script(path, pace_us, body, length);
    if (!fresh)
        return missing;
    for (int i = 0; i < MOST_SCRIPTS; i++) {
        if (scripts[i] && strcmp(scripts[i]->path, path))
            continue;
        if (scripts[i])
            let_go(scripts[i]);
        scripts[i] = fresh;
        return done;
    }
    let_go(fresh);
    return missing;
}

static void play(Conn *c, Script *script) {
    script->holders++;
    c->script = script;
    c->sent = 0;
    c->allowed = script->pace_us ? 1 : script->count;
    c->due = now_us() + script->pace_us;
}

/* Start the answer to the next whole request, if there is one; -1 where the connection is to go. */
static int next_request(Conn *c) {
    char *end = memmem(c->in, c->length, "\r\n\r\n", 4);
    if (!end)
        return c->length > 65536 ? -1 : 0;
    *end = 0;
    char *sized = strcasestr(c->in, "\r\ncontent-length:");
    char *target = strchr(c->in, ' ');
    if (!target || strcasestr(c->in, "\r\ntransfer-encoding:"))
        return -1;
    target++;
    size_t head = (size_t)(end - c->in) + 4, body = sized ? strtoul(sized + 17, NULL, 10) : 0;
    if (body > MOST_REQUEST)
        return -1;
    if (c->length < head + body) {
        *end = '\r';
        return 0;
    }
    if (!strncmp(target, "/control?", 9)) {
        play(c, control(target, c->in + head, body));
    } else {
        target[strcspn(target, " ?")] = 0;
        play(c, find(target));
    }
    c->length -= head + body;
    memmove(c->in, c->in + head + body, c->length);
    return 0;
}

static void watch(Conn *c, int writing) {
    if (c->writing == writing)
        return;
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.fd = c->fd};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
    c->writing = writing;
}

/* Send what may be sent, then go on to the next request. The connection may be gone afterwards. */
static void pump(Conn *c) {
    for (;;) {
        if (!c->script && c->length && next_request(c) < 0) {
            drop(c);
            return;
        }
        if (!c->script)
            return;
        size_t end = c->script->ends[c->allowed - 1];
        while (c->sent < end) {
            ssize_t n = send(c->fd, c->script->data + c->sent, end - c->sent, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN) {
                watch(c, 1);
                return;
            }
            if (n < 0) {
                drop(c);
                return;
            }
            c->sent += (size_t)n;
        }
        watch(c, 0);
        if (c->allowed < c->script->count)
            return;
        let_go(c->script);
        c->script = NULL;
    }
}

static void receive(Conn *c) {
    for (;;) {
        if (c->capacity - c->length < 65536) {
            c->capacity = c->capacity * 2 + 131072;
            c->in = must(realloc(c->in, c->capacity));
        }
        ssize_t n = recv(c->fd, c->in + c->length, c->capacity - c->length, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN) || c->length > MOST_REQUEST + 65536) {
            drop(c);
            return;
        }
        if (n < 0)
            break;
        c->length += (size_t)n;
    }
    if (!c->script)
        pump(c);
}

static void accept_all(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (fd >= MOST_FDS) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Conn *c = conns[fd] = must(calloc(1, sizeof *c));
        c->fd = fd;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

/* Milliseconds until a record is due, rounded up; -1 where none is. */
static int patience(void) {
    int64_t least = INT64_MAX;
    for (int fd = 0; fd < MOST_FDS; fd++) {
        Conn *c = conns[fd];
        if (c && c->script && c->allowed < c->script->count && c->due < least)
            least = c->due;
    }
    if (least == INT64_MAX)
        return -1;
    int64_t left = least - now_us();
    return left > 0 ? (int)((left + 999) / 1000) : 0;
}

static void release_due(void) {
    int64_t now = now_us();
    for (int fd = 0; fd < MOST_FDS; fd++) {
        Conn *c = conns[fd];
        if (!c || !c->script || c->allowed >= c->script->count || c->due > now)
            continue;
        c->allowed++;
        c->due += c->script->pace_us;
        pump(c);
    }
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) ||
        listen(listener, 512) || getsockname(listener, (struct sockaddr *)&address, &size)) {
        perror("listen");
        return 1;
    }
    done = fixed("HTTP/1.1 204 No Content\r\n\r\n");
    missing = fixed("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[128];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(poller, events, 128, patience());
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                accept_all(listener);
                continue;
            }
            if (conns[fd] && events[i].events & EPOLLOUT)
                pump(conns[fd]);
            if (conns[fd] && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                receive(conns[fd]);
        }
        release_due();
    }
}
