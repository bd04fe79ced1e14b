/* What programs do to descriptors: they close those that they do not know, make children that do,
 * and call close in signal handlers. Run by tests/external/closing.rs as interop/preloaded.c is.
 */
#include "preloaded.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>

extern char **environ;

enum { MOST = 64, SPARE = 200 };

static void works(struct pair *p)
{
	struct ibv_port_attr port;
	CHECK(ibv_query_port(p->ctx, 1, &port) == 0);
	write_8(p, 0, (uintptr_t)p->mem, (uintptr_t)p->mem + 64);
	CHECK(completion(p, 0, 5) == IBV_WC_SUCCESS);
}

static void ended_well(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void close_all_and_exec(void)
{
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	dup2(2, 3);
	close_range(3, ~0U, 0);
	execl("/bin/true", "true", NULL);
	_exit(1);
}

/* Children that close all they have, however they were made, leave their parent its device. */
static void children(void)
{
	struct pair p;
	struct ibv_port_attr port;
	struct stat st;
	open_pair(&p);
	works(&p);
	pid_t child = vfork();
	if (child == 0)
		close_all_and_exec();
	ended_well(child);
	works(&p);
	child = fork();
	if (child == 0)
		close_all_and_exec();
	ended_well(child);
	works(&p);
	/* A child that no handler of fork has seen: nothing of the parent's works there, nothing hangs. */
	child = syscall(SYS_fork);
	if (child == 0) {
		alarm(20);
		REFUSED(ibv_query_port(p.ctx, 1, &port), EIO);
		CHECK(fstat(p.ctx->cmd_fd, &st) == 0 && S_ISCHR(st.st_mode));
		REFUSED(open("/dev/infiniband/uverbs0", O_RDWR), EIO);
		close_all_and_exec();
	}
	ended_well(child);
	works(&p);
	child = syscall(SYS_fork);
	if (child == 0)
		exit(0);
	ended_well(child);
	CHECK(ibv_close_device(open_device()) == 0); /* its files are still there */
	CHECK(system("true") == 0);
	works(&p);
	FILE *f = popen("echo here", "r");
	char line[8] = "";
	CHECK(f && fgets(line, sizeof line, f) && strcmp(line, "here\n") == 0 && pclose(f) == 0);
	works(&p);
	posix_spawn_file_actions_t actions;
	char *argv[] = { "true", NULL };
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	for (int fd = 3; fd < 1024; fd++)
		CHECK(posix_spawn_file_actions_addclose(&actions, fd) == 0);
	CHECK(posix_spawnp(&child, "true", &actions, NULL, argv, environ) == 0);
	posix_spawn_file_actions_destroy(&actions);
	ended_well(child);
	works(&p);
	close_pair(&p);
}

/* A child that lives on does not hold what its parent gives back: the device's address. */
static void held(void)
{
	struct pair p;
	union ibv_gid before;
	int ends[2];
	char none;
	open_pair(&p);
	before = p.gid;
	CHECK(pipe(ends) == 0);
	pid_t child = fork();
	if (child == 0) {
		close(ends[1]);
		_exit(read(ends[0], &none, 1) == 0 ? 0 : 1);
	}
	close(ends[0]);
	close_pair(&p);
	open_pair(&p);
	CHECK(memcmp(&before, &p.gid, 16) == 0);
	works(&p);
	close_pair(&p);
	close(ends[1]);
	ended_well(child);
}

/* A program that goes on as its own child has devices when the parent has ended in order. */
static void daemonized(void)
{
	struct pair p;
	pid_t parent = getpid(), child = fork();
	CHECK(child >= 0);
	if (child)
		exit(0);
	for (double until = now() + 20; getppid() == parent && now() < until;)
		usleep(1000);
	open_pair(&p);
	works(&p);
	close_pair(&p);
	printf("works\n");
}

static int is_known(const struct pair *p, int fd)
{
	return fd == p->ctx->cmd_fd || fd == p->ctx->async_fd || fd == p->channel->fd;
}

static void limit_to(rlim_t most)
{
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* Opens all descriptors that can be; closes them again. */
static void fill(void)
{
	limit_to(SPARE + 40);
	for (int fd; (fd = fcntl(1, F_DUPFD, SPARE)) >= 0;)
		;
	while (dup(1) >= 0)
		;
	CHECK(errno == EMFILE);
}

static void empty(const struct pair *p)
{
	for (int fd = 3; fd < SPARE + 40; fd++)
		if (!is_known(p, fd))
			close(fd);
	limit_to(RLIM_INFINITY);
}

/* Descriptors that the program did not make; those of sockets alone, if so asked. */
static int unknown(const struct pair *p, int *found, int sockets)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	CHECK(dir);
	for (struct dirent *entry; (entry = readdir(dir));) {
		char path[300], to[64] = "";
		int fd = atoi(entry->d_name);
		snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
		if (fd < 3 || fd == dirfd(dir) || is_known(p, fd) || n == MOST)
			continue;
		if (readlink(path, to, sizeof to - 1) > 0 &&
		    (!sockets || strncmp(to, "socket:", 7) == 0))
			found[n++] = fd;
	}
	closedir(dir);
	return n;
}

/* Of so many datagrams to a socket of the program's own it gets all. */
static void gets_its_own(int mine)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("127.200.0.1") };
	socklen_t length = sizeof to;
	CHECK(mine >= 0 && bind(mine, (void *)&to, sizeof to) == 0);
	CHECK(getsockname(mine, (void *)&to, &length) == 0);
	int from = socket(AF_INET, SOCK_DGRAM, 0);
	for (int i = 0; i < 100; i++) {
		char got[8];
		CHECK(sendto(from, "hello", 5, 0, (void *)&to, sizeof to) == 5);
		usleep(500);
		CHECK(recv(mine, got, sizeof got, MSG_DONTWAIT) == 5);
	}
	close(from);
}

/* What a program does not know it cannot close, nor put something in its place. */
static void unknowns(void)
{
	struct pair p;
	int found[MOST];
	open_pair(&p);
	works(&p);
	int n = unknown(&p, found, 0);
	CHECK(n >= 5); /* sockets, and two ends of each pipe */
	for (int i = 0; i < n; i++) {
		REFUSED(close(found[i]), EBADF);
		REFUSED(dup2(1, found[i]), EBUSY);
		REFUSED(dup3(1, found[i], O_CLOEXEC), EBUSY);
		CHECK(close_range(found[i], found[i], 0) == 0);
	}
	int spare = fcntl(1, F_DUPFD, 400), last = -1; /* above all of the device's, whatever comes and goes */
	for (int fd = 3; fd < 1 << 16; fd++)
		if (is_known(&p, fd))
			last = fd;
	CHECK(close_range(last + 1, ~0U, 0) == 0);
	REFUSED(close(spare), EBADF); /* its own it can close */
	CHECK(unknown(&p, found, 0) == n);
	int mine = socket(AF_INET, SOCK_DGRAM, 0);
	gets_its_own(mine);
	works(&p);
	CHECK(close(mine) == 0);
	CHECK(dup2(1, 300) == 300 && dup2(300, 300) == 300 && close(300) == 0);
	/* What a call that fails would have replaced stays. */
	int fd = p.ctx->cmd_fd;
	REFUSED(dup2(300, fd), EBADF);
	REFUSED(dup3(1, fd, 1), EINVAL);
	limit_to(fd);
	REFUSED(dup2(1, fd), EBADF);
	limit_to(RLIM_INFINITY);
	works(&p);
	/* So does what has another descriptor, when none is left to look for it by; and the port. */
	int copy = dup(fd);
	fill();
	CHECK(close(copy) == 0 && dup(1) == copy);
	for (double until = now() + 0.1; now() < until;)
		works(&p);
	empty(&p);
	works(&p);
	close_pair(&p);
	/* A device's own descriptors go with it. */
	open_pair(&p);
	CHECK(unknown(&p, found, 0) == n);
	closefrom(3);
	CHECK(unknown(&p, found, 0) == 0);
	open_pair(&p);
	works(&p);
	close_pair(&p);
}

/* A program that has no descriptor left ends its objects, also those with events that it has not read. */
static void full(void)
{
	struct pair p;
	open_pair(&p);
	CHECK(ibv_req_notify_cq(p.cq[0], 0) == 0);
	works(&p);
	fill();
	alarm(20);
	close_pair(&p);
}

/* A program whose own system call closes the device's sockets keeps what it opens in their place,
 * and is told that the device's port is down. */
static void past(void)
{
	struct pair p;
	struct ibv_async_event event;
	struct ibv_port_attr port;
	int found[MOST], mine[MOST];
	open_pair(&p);
	works(&p);
	CHECK(ibv_query_port(p.ctx, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE && port.phys_state == 5);
	int n = unknown(&p, found, 1);
	CHECK(n >= 1);
	for (int i = 0; i < n; i++) {
		/* The object lets go of the rest some time after the first. */
		CHECK(syscall(SYS_close, found[i]) == 0 || errno == EBADF);
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		mine[i] = fcntl(fd, F_DUPFD, found[i]);
		CHECK(mine[i] == found[i] && close(fd) == 0);
	}
	CHECK(async_event(&p, 5, &event) == IBV_EVENT_PORT_ERR);
	CHECK(ibv_query_port(p.ctx, 1, &port) == 0 && port.state == IBV_PORT_DOWN && port.phys_state == 3);
	for (int i = 0; i < n; i++)
		gets_its_own(mine[i]);
	write_8(&p, 0, (uintptr_t)p.mem, (uintptr_t)p.mem + 64);
	CHECK(completion(&p, 0, 5) == IBV_WC_RETRY_EXC_ERR);
	close_pair(&p);
	for (int i = 0; i < n; i++)
		CHECK(fcntl(mine[i], F_GETFD) == 0 && close(mine[i]) == 0);
	open_pair(&p);
	works(&p);
	close_pair(&p);
}

/* Connects the first queue pair of one to the second of another. */
static void connect_to(struct pair *p, struct pair *other)
{
	static const enum ibv_qp_state states[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
						    IBV_QPS_RTS };
	struct pair near = *p, far = *other;
	near.qp[1] = other->qp[1];
	far.qp[0] = p->qp[0];
	for (int i = 0; i < 4; i++) {
		to_state(&near, 0, states[i]);
		to_state(&far, 1, states[i]);
	}
}

/* Nothing is left of what was made through a device whose last descriptor was closed otherwise than
 * by close: a peer does not reach its regions. */
static void regions(void)
{
	struct pair p, left;
	for (int how = 0; how < 4; how++) {
		open_pair(&p);
		open_pair(&left);
		connect_to(&p, &left);
		uint64_t at = (uintptr_t)p.mem, there = (uintptr_t)left.mem;
		post(&p, 0, IBV_WR_RDMA_WRITE, at, p.mr->lkey, there, left.mr->rkey);
		CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
		int fd = left.ctx->cmd_fd;
		if (how == 0) {
			CHECK(dup2(1, fd) == fd && close(fd) == 0);
		} else if (how == 1) {
			CHECK(close_range(fd, fd, 0) == 0);
		} else if (how == 2) {
			fill();
			CHECK(close(fd) == 0);
			limit_to(RLIM_INFINITY);
		} else {
			/* Not seen before a device is opened. */
			CHECK(syscall(SYS_close, fd) == 0);
			CHECK(ibv_close_device(open_device()) == 0);
		}
		post(&p, 0, IBV_WR_RDMA_WRITE, at, p.mr->lkey, there, left.mr->rkey);
		CHECK(completion(&p, 0, 5) == IBV_WC_RETRY_EXC_ERR);
		close_pair(&p);
	}
}

static volatile sig_atomic_t signals;

static void on_alarm(int signal)
{
	(void)signal;
	struct stat st;
	int saved = errno, fd = dup(1);
	if (fd >= 0 && fstat(fd, &st) == 0 && close(fd) == 0)
		signals++;
	errno = saved;
}

static void *busy(void *end)
{
	struct stat st;
	while (!__atomic_load_n((int *)end, __ATOMIC_RELAXED)) {
		int fd = dup(1);
		CHECK(fd >= 0 && fstat(fd, &st) == 0 && close(fd) == 0);
	}
	return NULL;
}

/* Handlers that call close and fstat, whatever they interrupt. */
static void handlers(void)
{
	enum { CHANNELS = 150 }; /* so that there is something to look through */
	struct pair p;
	struct ibv_comp_channel *channels[CHANNELS];
	pthread_t thread;
	int end = 0;
	open_pair(&p);
	for (int i = 0; i < CHANNELS; i++)
		CHECK((channels[i] = ibv_create_comp_channel(p.ctx)));
	CHECK(pthread_create(&thread, NULL, busy, &end) == 0);
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval timer = { { 0, 100 }, { 0, 100 } };
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	for (double until = now() + 30; signals < 1500 && now() < until;) {
		struct stat st;
		int fd = dup(1);
		CHECK(fd >= 0 && fstat(fd, &st) == 0 && close(fd) == 0);
	}
	memset(&timer, 0, sizeof timer);
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	CHECK(signals >= 1500);
	__atomic_store_n(&end, 1, __ATOMIC_RELAXED);
	CHECK(pthread_join(thread, NULL) == 0);
	for (int i = 0; i < CHANNELS; i++)
		CHECK(ibv_destroy_comp_channel(channels[i]) == 0);
	works(&p);
	close_pair(&p);
}

static void on_small_stack(int signal)
{
	(void)signal;
	struct stat st;
	int fd = open("/dev/null", O_RDONLY);
	if (fd < 0 || stat("/dev/null", &st) || access("/dev/null", R_OK) || fstat(fd, &st))
		_exit(3);
	FILE *none = NULL;
	if (close(fd) || readlink("/dev/null", (char *)&none, sizeof none) >= 0)
		_exit(3);
}

/* Says how many bytes of stack a handler took that looks at files. */
static void stack(void)
{
	enum { SIZE = 64 * 1024 };
	on_small_stack(0); /* the dynamic linker has found all it calls */
	uint8_t *mem = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mem != MAP_FAILED);
	memset(mem, 0xa5, SIZE);
	stack_t alternate = { .ss_sp = mem, .ss_size = SIZE };
	CHECK(sigaltstack(&alternate, NULL) == 0);
	struct sigaction action = { .sa_handler = on_small_stack, .sa_flags = SA_ONSTACK };
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
	int left = 0;
	while (left < SIZE && mem[left] == 0xa5)
		left++;
	printf("%d\n", SIZE - left);
}

/* A program cannot cut the device's file off under the engine. */
static void sealed(void)
{
	struct ibv_context *ctx = open_device();
	REFUSED(ftruncate(ctx->cmd_fd, 0), EPERM);
	REFUSED(ftruncate(ctx->cmd_fd, INT64_MAX / 2), EPERM);
	REFUSED(fcntl(ctx->cmd_fd, F_ADD_SEALS, F_SEAL_WRITE), EPERM);
	CHECK(ibv_close_device(ctx) == 0);
}

/* No signal of the program's is taken by a thread of the device's; its own faults are. */
static void masked(void)
{
	struct ibv_context *ctx = open_device();
	DIR *dir = opendir("/proc/self/task");
	int threads = 0;
	CHECK(dir);
	for (struct dirent *entry; (entry = readdir(dir));) {
		char path[300], line[128];
		unsigned long long blocked = 0;
		if (atoi(entry->d_name) == 0 || atoi(entry->d_name) == getpid())
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
		FILE *f = fopen(path, "r");
		CHECK(f);
		while (fgets(line, sizeof line, f))
			sscanf(line, "SigBlk: %llx", &blocked);
		fclose(f);
		for (int s = 1; s < 32; s++)
			CHECK(s == SIGKILL || s == SIGSTOP || s == SIGSEGV || s == SIGBUS || (blocked >> (s - 1) & 1));
		threads++;
	}
	closedir(dir);
	CHECK(threads >= 1);
	CHECK(ibv_close_device(ctx) == 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "children", children }, { "daemonized", daemonized }, { "held", held },
		{ "unknowns", unknowns }, { "full", full },
		{ "past", past }, { "regions", regions }, { "handlers", handlers },
		{ "stack", stack }, { "sealed", sealed }, { "masked", masked },
	};
	/* What whoever started the program left open is not to be taken for the device's. */
	closefrom(3);
	return run_case(cases, sizeof cases / sizeof cases[0], argc, argv);
}
