/* Programs that ring by themselves, past libibverbs, and look for the answer in plain memory: who carries their
 * doorbells out, and what they notice of that. Run on software devices by tests/external/doorbells.rs: "doorbells CASE".
 */
#include "bell.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <ucontext.h>
/* On one core: the program's doorbells are carried out in its own thread, however it writes them, and the engine's
 * thread sleeps less often than the program rings. */
static void alone(void)
{
	enum { N = 3000 };
	struct pair p;
	struct bell b;
	stay_on_one_core();
	open_patient(&p);
	take_bell(&b, &p, 0);
	for (int way = 0; way < STRING; way++) {
		long before = naps();
		for (int i = 0; i < N; i++) {
			ring(&b, way);
			await(&b);
		}
		long slept = naps() - before;
		/* At a register that two queue pairs have, each part of a doorbell in two is one by itself. */
		if (slept > (way == TWICE ? 2 * N : N)) {
			fprintf(stderr, "way %d: the engine's thread slept %ld times in %d operations\n",
				way, slept, N);
			exit(1);
		}
	}
	close_pair(&p);
}

/* Whatever the engine's thread is at, no doorbell is lost, and none comes late. */
static void pauses(void)
{
	struct pair p;
	struct bell b;
	open_patient(&p);
	take_bell(&b, &p, 0);
	int n = 0;
	for (double end = now() + 8; now() < end; n++) {
		ring(&b, dice(&b) % WAYS);
		await(&b);
		uint64_t kind = dice(&b) % 1000;
		if (kind < 2)
			usleep(dice(&b) % 30000);
		else if (kind < 600)
			pause_us(dice(&b) % 90);
	}
	CHECK(n > 1000);
	close_pair(&p);
}

static struct pair shared;
static volatile int others_stop;

static void *other(void *arg)
{
	struct bell *b = arg;
	while (!others_stop) {
		for (int n = dice(b) % 4; n >= 0; n--)
			ring(b, dice(b) % WHOLE);
		await(b);
		pause_us(dice(b) % 200);
	}
	return NULL;
}

/* Threads that ring on one page, or at one register. */
static void threads(void)
{
	struct bell b[2];
	pthread_t thread[2];
	open_patient(&shared);
	for (int i = 0; i < 2; i++) {
		take_bell(&b[i], &shared, i);
		CHECK(pthread_create(&thread[i], NULL, other, &b[i]) == 0);
	}
	sleep(6);
	others_stop = 1;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(thread[i], NULL) == 0 && b[i].value > 500);
	close_pair(&shared);
}

static uint8_t *faults_at;
static volatile int faults;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	if ((uint8_t *)info->si_addr < faults_at || (uint8_t *)info->si_addr >= faults_at + PAGE)
		_exit(3);
	faults++;
	mprotect(faults_at, PAGE, PROT_READ | PROT_WRITE);
}

/* A program's own handler gets its own faults and no other, on whatever stack it wants them. */
static void handler(void)
{
	struct pair p;
	struct bell b;
	faults_at = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(faults_at != MAP_FAILED);
	stack_t stack = { .ss_sp = malloc(32768), .ss_size = 32768 };
	CHECK(sigaltstack(&stack, NULL) == 0);
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	open_patient(&p);
	take_bell(&b, &p, 0);
	for (int i = 0; i < 4000; i++) {
		if (i == 2000) {
			action.sa_flags |= SA_ONSTACK;
			CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
		}
		ring(&b, i % 3);
		await(&b);
		CHECK(mprotect(faults_at, PAGE, PROT_READ) == 0);
		*(volatile uint8_t *)faults_at = 1;
		CHECK(faults == i + 1);
	}
	close_pair(&p);
}

static void *blocked(void *arg)
{
	struct bell *b = arg;
	for (int i = 0; i < 500; i++) {
		ring(b, dice(b) % WAYS);
		await(b);
	}
	return NULL;
}

/* Threads that block all signals ring as well. */
static void blocks(void)
{
	struct pair p;
	struct bell b;
	pthread_t thread;
	sigset_t all, before;
	open_patient(&p);
	take_bell(&b, &p, 0);
	for (int i = 0; i < 5; i++) {
		for (double until = now() + 0.3; now() < until;) {
			ring(&b, WORD);
			await(&b);
		}
		sigfillset(&all);
		CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
		if (i % 2)
			blocked(&b);
		else
			CHECK(pthread_create(&thread, NULL, blocked, &b) == 0);
		CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
		if (i % 2 == 0)
			CHECK(pthread_join(thread, NULL) == 0);
	}
	close_pair(&p);
}

/* A child's stores to the pages that it inherits end nobody. */
static void child(void)
{
	struct pair p;
	struct bell b;
	int status;
	open_patient(&p);
	take_bell(&b, &p, 0);
	for (int i = 0; i < 20; i++) {
		for (int n = 0; n < 200; n++) {
			ring(&b, WORD);
			await(&b);
		}
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			struct wqe none = { .rest = { 0 } };
			none.ctrl.qpn_ds = htobe32(0xffffff << 8 | 3);
			for (enum way way = 0; way < WAYS; way++)
				store(way, b.dv.bf.reg, &none);
			_exit(7);
		}
		CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
	close_pair(&p);
}

/* The page goes back to the program as it was. */
static void again(void)
{
	struct pair p;
	struct bell b;
	for (int i = 0; i < 10; i++) {
		open_patient(&p);
		take_bell(&b, &p, i % 2);
		for (int n = 0; n < 300; n++) {
			ring(&b, WORD);
			await(&b);
		}
		/* A stream, which is not waited for one by one. */
		for (int n = 0; n < 3000; n++) {
			ring(&b, WORD);
			if (n % 8 == 7)
				await(&b);
		}
		/* And by libibverbs, on the other end. */
		for (int n = 0; n < 300; n++) {
			struct ibv_wc wc;
			write_8(&p, 1 - i % 2, (uintptr_t)p.mem, (uintptr_t)p.mem + 64);
			while (ibv_poll_cq(p.cq[1 - i % 2], 1, &wc) == 0)
				;
			CHECK(wc.status == IBV_WC_SUCCESS);
		}
		close_pair(&p);
	}
}

static struct bell *small_bell;
static ucontext_t back;

static void ring_small(void)
{
	for (int i = 0; i < 200; i++) {
		ring(small_bell, WORD);
		await(small_bell);
	}
	swapcontext(&(ucontext_t){ 0 }, &back);
}

/* A coroutine's stack is a few KiB, and what lies below it is somebody else's. */
static void coroutine(void)
{
	enum { ROOM = 8 << 10, BELOW = 64 << 10 };
	struct pair p;
	struct bell b;
	ucontext_t coroutine;
	open_patient(&p);
	take_bell(&b, &p, 0);
	until_closed(&b);
	small_bell = &b;
	uint8_t *memory = malloc(BELOW + ROOM);
	CHECK(memory && getcontext(&coroutine) == 0);
	memset(memory, 0x5a, BELOW);
	coroutine.uc_stack.ss_sp = memory + BELOW;
	coroutine.uc_stack.ss_size = ROOM;
	coroutine.uc_link = &back;
	makecontext(&coroutine, ring_small, 0);
	CHECK(swapcontext(&back, &coroutine) == 0);
	for (int i = 0; i < BELOW; i++)
		CHECK(memory[i] == 0x5a);
	free(memory);
	close_pair(&p);
}

static void ring_in_handler(int signal)
{
	(void)signal;
	for (int i = 0; i < 50; i++) {
		ring(small_bell, WORD);
		await(small_bell);
	}
}

/* A handler during which all signals are blocked rings. */
static void masked(void)
{
	struct pair p;
	struct bell b;
	open_patient(&p);
	take_bell(&b, &p, 0);
	small_bell = &b;
	struct sigaction action = { .sa_handler = ring_in_handler };
	sigfillset(&action.sa_mask);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	for (int i = 0; i < 20; i++) {
		until_closed(&b);
		CHECK(raise(SIGUSR1) == 0);
	}
	close_pair(&p);
}

static void hide_source(struct bell *b)
{
	CHECK(mprotect((void *)b->from, PAGE, PROT_NONE) == 0);
}

/* On a thread with an alternate stack, a doorbell whose step itself runs into a fault. */
static void alternate(void)
{
	stack_t stack = { .ss_sp = malloc(64 << 10), .ss_size = 64 << 10 };
	CHECK(stack.ss_sp && sigaltstack(&stack, NULL) == 0);
	for (int i = 0; i < 5; i++) {
		struct pair p;
		struct bell b;
		struct ibv_wc wc = { .status = 0 };
		open_patient(&p);
		take_bell(&b, &p, 0);
		until_closed(&b);
		b.before = hide_source;
		ring(&b, WORD);
		for (double until = now() + 5; ibv_poll_cq(p.cq[0], 1, &wc) == 0;)
			CHECK(now() < until);
		CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
		CHECK(mprotect((void *)b.from, PAGE, PROT_READ | PROT_WRITE) == 0);
		close_pair(&p);
	}
}

/* The page is the program's, which moves it. */
static void moved(void)
{
	struct pair p;
	struct bell b;
	open_patient(&p);
	take_bell(&b, &p, 0);
	until_closed(&b);
	uint8_t *page = (uint8_t *)((uintptr_t)b.dv.bf.reg & ~(uintptr_t)(PAGE - 1));
	size_t at = (uint8_t *)b.dv.bf.reg - page;
	uint8_t *to = mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
			     mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	CHECK(to != MAP_FAILED);
	/* What comes to be where it was is the program's alone. */
	CHECK(mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
	b.dv.bf.reg = to + at;
	for (int n = 0; n < 500; n++) {
		ring(&b, WORD);
		await(&b);
		page[n] = 1;
		CHECK(is_open(page) && is_open(to));
	}
	/* Back, for libmlx5. */
	CHECK(mremap(to, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, page) == page);
	close_pair(&p);
}

/* A program is called as the object's threads are. */
static void named(void)
{
	CHECK(prctl(PR_SET_NAME, "bellpush-x") == 0);
	blocks();
}

typedef int (*host_register)(void *, size_t, unsigned);
typedef int (*proc_address)(const char *, void **, int, uint64_t, int *);

/* CUDA's driver, which pins pages for writing. */
static int registers(void *at, size_t bytes, unsigned flags)
{
	(void)bytes, (void)flags;
	return is_open(at) ? 0 : 1;
}

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status)
{
	(void)symbol, (void)version, (void)flags, (void)status;
	*found = (void *)registers;
	return 0;
}

/* A page that a program registers with CUDA is open by then, and stays so. */
static void given(void)
{
	struct pair p;
	struct bell b;
	void *found;
	open_patient(&p);
	take_bell(&b, &p, 0);
	until_closed(&b);
	proc_address find = (proc_address)dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
	CHECK(find && find("cuMemHostRegister", &found, 13000, 0, NULL) == 0);
	CHECK(((host_register)found)(b.dv.bf.reg, 8, 4) == 0);
	for (int n = 0; n < 500; n++) {
		CHECK(is_open(b.dv.bf.reg));
		ring(&b, WORD);
		await(&b);
	}
	close_pair(&p);
}

/* Arms a CQ as ibv_req_notify_cq does, past the object. Without an event since, the sequence number is the same. */
static void arm(const struct mlx5dv_cq *cq)
{
	uint32_t command = htobe32(1u << 28), half[2] = { command, htobe32(cq->cqn) };
	uint64_t word;
	memcpy(&word, half, sizeof word);
	((volatile uint32_t *)cq->dbrec)[1] = command;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	*(volatile uint64_t *)((char *)cq->cq_uar + 0x20) = word;
}

/* Two CQs are armed at one register. Who arms its own once more stands over the other's arming with what was seen. */
static void armed(void)
{
	struct pair p;
	struct mlx5dv_cq cq[2];
	open_pair(&p);
	for (int i = 0; i < 2; i++) {
		struct mlx5dv_obj obj = { .cq = { .in = p.cq[i], .out = &cq[i] } };
		CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ) == 0);
	}
	CHECK(cq[0].cq_uar == cq[1].cq_uar);
	write_8(&p, 1, (uintptr_t)p.mem, (uintptr_t)p.mem + 64);
	usleep(50000); /* there is an entry, which nobody takes */
	arm(&cq[0]);
	usleep(50000); /* that was seen */
	arm(&cq[1]);
	arm(&cq[0]);
	struct pollfd fd = { .fd = p.channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 5000) == 1);
	struct ibv_cq *of;
	void *ctx;
	CHECK(ibv_get_cq_event(p.channel, &of, &ctx) == 0 && of == p.cq[1]);
	ibv_ack_cq_events(of, 1);
	close_pair(&p);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "alone", alone }, { "pauses", pauses }, { "threads", threads }, { "handler", handler },
		{ "blocks", blocks }, { "child", child }, { "again", again }, { "given", given },
		{ "coroutine", coroutine }, { "masked", masked }, { "moved", moved }, { "alternate", alternate }, { "named", named },
		{ "armed", armed },
	};
	return run_case(cases, sizeof cases / sizeof cases[0], argc, argv);
}
