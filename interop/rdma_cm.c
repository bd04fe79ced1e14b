// Commands of librdmacm's device, worded by hand: what is wrong with one is said by the kernel's errno, and what
// waits for an event can be interrupted, cancelled and closed. Run on a software device; each case by its name.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

#define PATH "/dev/infiniband/rdma_cm"

// Where nothing is.
static void *volatile nowhere = (void *)8;

static int channel(void) {
    int fd = open(PATH, O_RDWR | O_CLOEXEC);
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode));
    return fd;
}

// Writes a command; 0, or the errno.
static int command(int fd, uint32_t cmd, const void *body, uint16_t in, uint16_t out) {
    char buf[1024];
    struct rdma_ucm_cmd_hdr hdr = {.cmd = cmd, .in = in, .out = out};
    memcpy(buf, &hdr, sizeof hdr);
    memcpy(buf + sizeof hdr, body, in);
    ssize_t all = sizeof hdr + in, n = write(fd, buf, all);
    return n == all ? 0 : n < 0 ? errno : -1;
}

#define SAY(fd, name, body, out) command(fd, RDMA_USER_CM_CMD_##name, &(body), sizeof(body), out)

static uint32_t create(int fd, uint16_t ps) {
    struct rdma_ucm_create_id_resp resp = {0};
    struct rdma_ucm_create_id cmd = {.uid = 77, .response = (uintptr_t)&resp, .ps = ps};
    CHECK(SAY(fd, CREATE_ID, cmd, sizeof resp) == 0);
    return resp.id;
}

static struct sockaddr_in at(uint32_t address) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7174), .sin_addr.s_addr = address};
}

// An address of the loopback interface that no other process takes.
static struct sockaddr_in loopback(int last) {
    uint32_t pid = getpid();
    return at(htonl(127u << 24 | (1 + (pid >> 8) % 254) << 16 | (pid & 0xff) << 8 | last));
}

static void resolve_to(int fd, uint32_t id, struct sockaddr_in to) {
    struct rdma_ucm_resolve_ip cmd = {.id = id, .timeout_ms = 1000};
    memcpy(&cmd.dst_addr, &to, sizeof to);
    CHECK(SAY(fd, RESOLVE_IP, cmd, 0) == 0);
}

// Resolves the own address: an event.
static void resolve(int fd, uint32_t id) {
    resolve_to(fd, id, (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7)});
}

static int event(int fd, struct rdma_ucm_event_resp *resp) {
    struct rdma_ucm_get_event cmd = {.response = (uintptr_t)resp};
    return SAY(fd, GET_EVENT, cmd, sizeof *resp);
}

static int readable(int fd) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0);
}

static void errors(void) {
    int fd = channel(), other = channel();
    uint32_t id = create(fd, RDMA_PS_TCP);
    char nothing[8] = {0};
    CHECK(write(fd, nothing, 7) < 0 && errno == EINVAL);
    CHECK(write(fd, nowhere, 16) < 0 && errno == EFAULT);
    CHECK(command(fd, 23, nothing, 8, 0) == EINVAL);
    CHECK(command(fd, RDMA_USER_CM_CMD_GET_OPTION, nothing, 8, 0) == ENOSYS);
    struct rdma_ucm_cmd_hdr longer = {.cmd = RDMA_USER_CM_CMD_DISCONNECT, .in = 100};
    CHECK(write(fd, &longer, sizeof longer) < 0 && errno == EINVAL);
    CHECK(command(fd, RDMA_USER_CM_CMD_LISTEN, nothing, 4, 0) == EINVAL); // half a struct

    struct rdma_ucm_create_id create_id = {.response = 8, .ps = RDMA_PS_TCP};
    CHECK(SAY(fd, CREATE_ID, create_id, 0) == ENOSPC);
    CHECK(SAY(fd, CREATE_ID, create_id, 4) == EFAULT);
    uint32_t resp;
    create_id.response = (uintptr_t)&resp;
    create_id.ps = 5;
    CHECK(SAY(fd, CREATE_ID, create_id, 4) == EINVAL);
    CHECK(create(fd, RDMA_PS_TCP) == id + 1); // those that failed left none behind

    struct rdma_ucm_disconnect disconnect = {.id = 999};
    CHECK(SAY(fd, DISCONNECT, disconnect, 0) == ENOENT);
    disconnect.id = id;
    CHECK(SAY(fd, DISCONNECT, disconnect, 0) == EINVAL);
    CHECK(SAY(other, DISCONNECT, disconnect, 0) == EINVAL); // of another channel
    struct rdma_ucm_connect connect = {.id = id};
    CHECK(SAY(fd, CONNECT, connect, 0) == EINVAL); // without parameters
    connect.conn_param.valid = 1;
    CHECK(SAY(fd, CONNECT, connect, 0) == EINVAL); // without an address
    struct rdma_ucm_init_qp_attr attr = {.id = id, .qp_state = 1};
    CHECK(SAY(fd, INIT_QP_ATTR, attr, 200) == EINVAL);

    struct rdma_ucm_bind bind = {.id = id, .addr_size = 28};
    struct sockaddr_in in = loopback(250);
    memcpy(&bind.addr, &in, sizeof in);
    CHECK(SAY(fd, BIND, bind, 0) == EINVAL); // IPv6's length
    bind.addr_size = sizeof in;
    bind.reserved = 1;
    CHECK(SAY(fd, BIND, bind, 0) == EINVAL);
    bind.reserved = 0;
    CHECK(SAY(fd, BIND, bind, 0) == 0); // the first to ask chooses where on the loopback interface
    CHECK(SAY(fd, BIND, bind, 0) == EINVAL);
    bind.id = id + 1;
    CHECK(SAY(fd, BIND, bind, 0) == EADDRINUSE);
    in = loopback(251);
    memcpy(&bind.addr, &in, sizeof in);
    CHECK(SAY(fd, BIND, bind, 0) == ENODEV); // this machine's, but no device's
    in.sin_addr.s_addr = inet_addr("192.0.2.1");
    memcpy(&bind.addr, &in, sizeof in);
    CHECK(SAY(fd, BIND, bind, 0) == EADDRNOTAVAIL); // nobody's
    struct rdma_ucm_resolve_addr from = {.id = id + 1, .src_size = sizeof in, .dst_size = sizeof in};
    memcpy(&from.src_addr, &in, sizeof in);
    memcpy(&from.dst_addr, &in, sizeof in);
    CHECK(SAY(fd, RESOLVE_ADDR, from, 0) == EADDRNOTAVAIL);
    in = loopback(251);
    memcpy(&from.src_addr, &in, sizeof in);
    CHECK(SAY(fd, RESOLVE_ADDR, from, 0) == ENODEV);

    struct rdma_ucm_join_mcast join = {.id = id};
    CHECK(SAY(fd, JOIN_MCAST, join, 4) == EOPNOTSUPP);
    struct rdma_ucm_reject reject = {.id = id, .reason = 3};
    CHECK(SAY(fd, REJECT, reject, 0) == EINVAL);
    uint8_t tos = 8;
    struct rdma_ucm_set_option option = {.optval = (uintptr_t)&tos, .id = id, .optlen = 4};
    CHECK(SAY(fd, SET_OPTION, option, 0) == EINVAL);
    option.optlen = 1;
    CHECK(SAY(fd, SET_OPTION, option, 0) == 0);
    option.optname = 9;
    CHECK(SAY(fd, SET_OPTION, option, 0) == ENOSYS);
    struct rdma_ucm_migrate_resp migrated;
    struct rdma_ucm_migrate_id migrate = {.response = (uintptr_t)&migrated, .id = id, .fd = 0};
    CHECK(SAY(other, MIGRATE_ID, migrate, 4) == EINVAL); // no event channel
    migrate.fd = 9999;
    CHECK(SAY(other, MIGRATE_ID, migrate, 4) == ENOENT);
    migrate.fd = fd;
    CHECK(SAY(other, MIGRATE_ID, migrate, 4) == 0 && migrated.events_reported == 0);
    migrate.fd = other;
    CHECK(SAY(fd, MIGRATE_ID, migrate, 4) == 0); // it is the other's, and comes back
    disconnect.id = id;
    CHECK(SAY(other, DISCONNECT, disconnect, 0) == EINVAL); // of another channel
    CHECK(SAY(fd, DISCONNECT, disconnect, 0) == EINVAL);    // never connected
    struct rdma_ucm_get_event get = {.response = (uintptr_t)&resp};
    CHECK(SAY(fd, GET_EVENT, get, 4) == ENOSPC); // whether there is one or not
    CHECK(close(other) == 0 && close(fd) == 0);
}

static void old(void) {
    int fd = channel();
    uint32_t id = create(fd, RDMA_PS_TCP);
    resolve(fd, id);
    struct rdma_ucm_event_resp resp = {0};
    CHECK(event(fd, &resp) == 0 && resp.event == 0 && resp.uid == 77 && resp.id == id);
    struct rdma_ucm_resolve_route route = {.id = id};
    CHECK(SAY(fd, RESOLVE_ROUTE, route, 0) == 0);
    CHECK(event(fd, &resp) == 0 && resp.event == 2);
    struct rdma_ucm_query_route_resp found = {0};
    struct rdma_ucm_query query = {.response = (uintptr_t)&found, .id = id};
    CHECK(SAY(fd, QUERY_ROUTE, query, sizeof found) == 0);
    CHECK(found.num_paths == 1 && found.port_num == 1 && found.node_guid != 0);
    CHECK(memcmp(found.ib_route[0].dgid, found.ib_route[0].sgid, 16) == 0); // to itself
    CHECK(found.ib_route[0].dgid[10] == 0xff && found.ib_route[0].dgid[12] == 127);
    struct sockaddr_in *in = (struct sockaddr_in *)&found.src_addr;
    CHECK(in->sin_family == AF_INET && in->sin_port != 0);
    struct rdma_ucm_destroy_id_resp destroyed;
    struct rdma_ucm_destroy_id destroy = {.response = (uintptr_t)&destroyed, .id = id};
    CHECK(SAY(fd, DESTROY_ID, destroy, 4) == 0 && destroyed.events_reported == 2);
    CHECK(close(fd) == 0);
}

static void events(void) {
    int fd = channel();
    uint32_t id = create(fd, RDMA_PS_TCP);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    struct rdma_ucm_event_resp resp = {0};
    CHECK(readable(fd) == 0 && event(fd, &resp) == EAGAIN);
    resolve(fd, id);
    CHECK(readable(fd) == 1);
    CHECK(event(fd, nowhere) == EFAULT && readable(fd) == 1); // it stays
    CHECK(event(fd, &resp) == 0 && resp.id == id && readable(fd) == 0);
    resolve(fd, create(fd, RDMA_PS_TCP));
    struct rdma_ucm_destroy_id_resp destroyed;
    struct rdma_ucm_destroy_id destroy = {.response = (uintptr_t)&destroyed, .id = id + 1};
    CHECK(SAY(fd, DESTROY_ID, destroy, 4) == 0 && destroyed.events_reported == 0);
    CHECK(readable(fd) == 0); // its event went with it
    CHECK(close(fd) == 0);
}

static int waited_on;
static volatile pid_t waiter;

static void *wait_for_event(void *result) {
    struct rdma_ucm_event_resp resp;
    waiter = gettid();
    *(int *)result = event(waited_on, &resp);
    return result;
}

static void nothing(int signal) { (void)signal; }

// Starts a thread that waits for an event, and returns when it sleeps: on a busy machine that takes a while.
static pthread_t start_waiting(int *result) {
    pthread_t thread;
    waiter = 0;
    CHECK(pthread_create(&thread, NULL, wait_for_event, result) == 0);
    for (int looks = 0, asleep = 0; asleep < 5; looks++) {
        CHECK(looks < 1000);
        usleep(10000);
        char path[64], stat[512];
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)waiter);
        int fd = waiter ? open(path, O_RDONLY) : -1;
        ssize_t n = fd < 0 ? 0 : read(fd, stat, sizeof stat - 1);
        if (fd >= 0) {
            close(fd);
        }
        stat[n > 0 ? n : 0] = 0;
        char *name_end = strrchr(stat, ')');
        asleep = name_end && name_end[2] == 'S' ? asleep + 1 : 0;
    }
    return thread;
}

static void waiting(void) {
    waited_on = channel();
    uint32_t id = create(waited_on, RDMA_PS_TCP);
    pthread_t thread;
    int result = -1;
    void *joined;

    // An event ends the wait.
    thread = start_waiting(&result);
    resolve(waited_on, id);
    CHECK(pthread_join(thread, &joined) == 0 && result == 0);

    // So does a signal.
    struct sigaction action = {.sa_handler = nothing};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    thread = start_waiting(&result);
    CHECK(pthread_kill(thread, SIGUSR1) == 0);
    CHECK(pthread_join(thread, &joined) == 0 && result == EINTR);

    // One whose handler has SA_RESTART does not, nor does SIGUSR2, by which the device is asked what it is at.
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(sigaction(SIGUSR2, NULL, &action) == 0 && action.sa_handler != SIG_DFL);
    result = -1;
    thread = start_waiting(&result);
    CHECK(pthread_kill(thread, SIGUSR1) == 0);
    usleep(100000);
    action = (struct sigaction){.sa_handler = nothing};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0); // SIGUSR2 is no other one
    CHECK(pthread_kill(thread, SIGUSR2) == 0);
    usleep(100000);
    CHECK(pthread_tryjoin_np(thread, &joined) == EBUSY && result == -1);
    resolve(waited_on, create(waited_on, RDMA_PS_TCP));
    CHECK(pthread_join(thread, &joined) == 0 && result == 0);

    // The thread can be cancelled.
    thread = start_waiting(&result);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &joined) == 0 && joined == PTHREAD_CANCELED);
    id = create(waited_on, RDMA_PS_TCP); // nothing is held

    // Whoever closes the channel leaves it waiting, and nothing is written into what has the number then.
    thread = start_waiting(&result);
    int ends[2];
    CHECK(pipe(ends) == 0);
    CHECK(dup2(ends[1], waited_on) == waited_on);
    usleep(1500000);
    CHECK(readable(ends[0]) == 0);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &joined) == 0 && joined == PTHREAD_CANCELED);
}

static void forks(void) {
    int fd = channel();
    create(fd, RDMA_PS_TCP);
    pid_t child = fork();
    if (child == 0) {
        struct rdma_ucm_event_resp resp;
        int inherited = event(fd, &resp);
        int own = channel();
        resolve(own, create(own, RDMA_PS_TCP)); // it may have its own
        _exit(inherited == EIO && event(own, &resp) == 0 ? 0 : 1);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    resolve(fd, create(fd, RDMA_PS_TCP));
    CHECK(readable(fd) == 1);
}

static int listens_at(int fd, struct sockaddr_in where) {
    struct rdma_ucm_bind_ip bind = {.id = create(fd, RDMA_PS_TCP)};
    memcpy(&bind.addr, &where, sizeof where);
    CHECK(SAY(fd, BIND_IP, bind, 0) == 0);
    struct rdma_ucm_listen listen = {.id = bind.id, .backlog = 8};
    return SAY(fd, LISTEN, listen, 0);
}

static void ask(int fd, struct sockaddr_in whom) {
    struct rdma_ucm_event_resp resp;
    uint32_t id = create(fd, RDMA_PS_TCP);
    resolve_to(fd, id, whom);
    CHECK(event(fd, &resp) == 0 && resp.event == 0);
    struct rdma_ucm_resolve_route route = {.id = id};
    CHECK(SAY(fd, RESOLVE_ROUTE, route, 0) == 0 && event(fd, &resp) == 0 && resp.event == 2);
    struct rdma_ucm_connect connect = {.id = id, .conn_param = {.valid = 1, .qp_num = 5 + getpid()}};
    CHECK(SAY(fd, CONNECT, connect, 0) == 0);
}

static void reject_next(int fd) {
    struct rdma_ucm_event_resp resp;
    CHECK(event(fd, &resp) == 0 && resp.event == 4); // CONNECT_REQUEST
    struct rdma_ucm_reject reject = {.id = resp.id};
    CHECK(SAY(fd, REJECT, reject, 0) == 0);
}

static void rejected(int fd) {
    struct rdma_ucm_event_resp resp;
    CHECK(event(fd, &resp) == 0 && resp.event == 8 && resp.status == 28); // by its program
}

// Rejects whoever asks until the word has come through: messages that a device had when it ended are lost, and a request
// that comes again is a new one.
static void reject_until_rejected(int listener, int asker) {
    struct pollfd fds[] = {{.fd = listener, .events = POLLIN}, {.fd = asker, .events = POLLIN}};
    for (;;) {
        CHECK(poll(fds, 2, 30000) > 0);
        if (fds[1].revents) {
            rejected(asker);
            return;
        }
        reject_next(listener);
    }
}

// A child's device is at its parent's address: each is found there by the port that it listens at, and the child stays
// when the parent is gone.
static void family(void) {
    int fd = channel(), ready[2];
    struct sockaddr_in here = loopback(9), childs = here;
    childs.sin_port = htons(7175);
    alarm(60);
    CHECK(listens_at(fd, here) == 0);
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        alarm(60);
        close(ready[1]);
        int own = channel(), other = channel();
        ask(other, here);
        rejected(other);
        CHECK(listens_at(own, here) == EADDRINUSE && listens_at(own, childs) == 0);
        reject_next(own);
        CHECK(read(ready[0], &byte, 1) == 0);
        ask(other, childs);
        reject_until_rejected(own, other);
        _exit(0);
    }
    CHECK(child > 0);
    reject_next(fd);
    int other = channel();
    for (int tries = 0;; tries++) { // until the child listens
        struct rdma_ucm_event_resp resp;
        ask(other, childs);
        CHECK(event(other, &resp) == 0 && resp.event == 8 && tries < 100);
        if (resp.status == 28) {
            break;
        }
        usleep(10000);
    }
    CHECK(close(fd) == 0 && close(other) == 0); // and the device goes
    close(ready[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// Whether a child, at this process's address, may listen there.
static int child_listens_at(struct sockaddr_in where) {
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(listens_at(channel(), where));
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

// A port is one process's as long as it listens there, whoever chose it, and not if it could not.
static void ports(void) {
    struct sockaddr_in here = loopback(8), chosen;
    struct rdma_ucm_event_resp resp;
    int fd = channel();
    alarm(60);
    struct rdma_ucm_bind_ip bind = {.id = create(fd, RDMA_PS_TCP)};
    memcpy(&bind.addr, &here, sizeof here);
    CHECK(SAY(fd, BIND_IP, bind, 0) == 0);
    resolve_to(fd, bind.id, here);
    CHECK(event(fd, &resp) == 0 && resp.event == 0);
    struct rdma_ucm_listen listen = {.id = bind.id, .backlog = 8};
    CHECK(SAY(fd, LISTEN, listen, 0) == EINVAL); // it is about to connect
    CHECK(child_listens_at(here) == 0);

    listen.id = create(fd, RDMA_PS_TCP);
    CHECK(SAY(fd, LISTEN, listen, 0) == 0);
    struct rdma_ucm_query_route_resp route;
    struct rdma_ucm_query query = {.response = (uintptr_t)&route, .id = listen.id};
    CHECK(SAY(fd, QUERY_ROUTE, query, sizeof route) == 0);
    memcpy(&chosen, &route.src_addr, sizeof chosen);
    CHECK(chosen.sin_port != 0);
    here.sin_port = chosen.sin_port;
    CHECK(child_listens_at(here) == EADDRINUSE);
    struct rdma_ucm_destroy_id_resp destroyed;
    struct rdma_ucm_destroy_id destroy = {.response = (uintptr_t)&destroyed, .id = listen.id};
    CHECK(SAY(fd, DESTROY_ID, destroy, sizeof destroyed) == 0);
    for (int tries = 0; child_listens_at(here) != 0; tries++) { // until others know
        CHECK(tries < 100);
        usleep(10000);
    }
    CHECK(close(fd) == 0);
}

// Another user's sockets by the names of a port's are no reason why nobody may listen there.
static void squatted(void) {
    int fd = channel(), ready[2], done[2];
    struct sockaddr_in here = loopback(7);
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    char byte = 0, *name = un.sun_path + 1;
    size_t room = sizeof un.sun_path - 1;
    // Port space and port: a service.
    int length = snprintf(name, room, "bellpush-%u-%s-%016x", geteuid(), inet_ntoa(here.sin_addr), 0x1061c06);
    socklen_t bytes = offsetof(struct sockaddr_un, sun_path) + 1 + length;
    alarm(60);
    CHECK(pipe(ready) == 0 && pipe(done) == 0);
    pid_t child = fork();
    if (child == 0) {
        int kinds[] = {SOCK_DGRAM, SOCK_STREAM, SOCK_SEQPACKET};
        close(done[1]);
        CHECK(geteuid() != 0 || setuid(65534) == 0);
        for (int i = 0; i < 3; i++) {
            int squatter = socket(AF_UNIX, kinds[i], 0);
            CHECK(squatter >= 0 && bind(squatter, (struct sockaddr *)&un, bytes) == 0);
            CHECK(geteuid() != 65534 || i == 0 || listen(squatter, 0) == 0); // the same user's listen nowhere
        }
        CHECK(write(ready[1], &byte, 1) == 1);
        _exit(read(done[0], &byte, 1) != 0);
    }
    CHECK(child > 0);
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(listens_at(fd, here) == 0);
    close(done[0]);
    close(done[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && close(fd) == 0);
}

static int threads(void) {
    DIR *dir = opendir("/proc/self/task");
    int n = 0;
    CHECK(dir);
    while (readdir(dir)) {
        n++;
    }
    closedir(dir);
    return n;
}

// The device goes with the last channel, whatever was left to be said, and is there again at once.
static void again(void) {
    close(channel());
    int before = threads();
    for (int i = 0; i < 200; i++) {
        int fd = channel();
        resolve(fd, create(fd, RDMA_PS_TCP)); // has the device opened
        CHECK(close(fd) == 0);
        if (i % 20 == 0) {
            usleep(1000);
        }
    }
    for (int i = 0; i < 4; i++) {
        int fd = channel();
        uint32_t id = create(fd, RDMA_PS_TCP);
        struct rdma_ucm_event_resp resp;
        resolve_to(fd, id, loopback(252)); // where nobody is
        CHECK(event(fd, &resp) == 0 && resp.event == 0);
        struct rdma_ucm_resolve_route route = {.id = id};
        CHECK(SAY(fd, RESOLVE_ROUTE, route, 0) == 0 && event(fd, &resp) == 0 && resp.event == 2);
        struct rdma_ucm_connect connect = {.id = id, .conn_param = {.valid = 1, .qp_num = 5}};
        CHECK(SAY(fd, CONNECT, connect, 0) == 0);
        CHECK(close(fd) == 0);
        for (int ms = 0; threads() > before; ms += 10) {
            CHECK(ms < 10000);
            usleep(10000);
        }
    }
}

static const char *server;

// Connects to a server, and ends without a word.
static void leaves(void) {
    int fd = channel();
    uint32_t id = create(fd, RDMA_PS_TCP);
    struct rdma_ucm_event_resp resp = {0};
    resolve_to(fd, id, at(inet_addr(server)));
    CHECK(event(fd, &resp) == 0 && resp.event == 0);
    struct rdma_ucm_resolve_route route = {.id = id};
    CHECK(SAY(fd, RESOLVE_ROUTE, route, 0) == 0);
    CHECK(event(fd, &resp) == 0 && resp.event == 2);
    struct rdma_ucm_connect connect = {.id = id, .conn_param = {.valid = 1, .qp_num = 5, .retry_count = 7}};
    CHECK(SAY(fd, CONNECT, connect, 0) == 0);
    CHECK(event(fd, &resp) == 0 && resp.event == 5 && resp.param.conn.qp_num != 0);
    struct rdma_ucm_accept ready = {.id = id};
    CHECK(SAY(fd, ACCEPT, ready, 0) == 0);
}

int main(int argc, char **argv) {
    struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"errors", errors},   {"old", old},     {"events", events},
                 {"waiting", waiting}, {"forks", forks}, {"leaves", leaves},
                 {"again", again},     {"family", family}, {"ports", ports},
                 {"squatted", squatted}};
    server = argc == 3 ? argv[2] : "127.0.0.1";
    for (size_t i = 0; argc >= 2 && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    fprintf(stderr, "usage: rdma_cm CASE [SERVER]\n");
    return 2;
}
