/* Programs with memory that goes, and with handlers of their own for faults.
 * Run on software devices by tests/external/faults.rs: "faults CASE".
 */
#include "preloaded.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>

static sigjmp_buf back;
static volatile int caught;
static void *volatile where;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	caught++;
	where = info->si_addr;
	siglongjmp(back, 1);
}

static void on_fault_plain(int signal)
{
	(void)signal;
	caught += 100;
	siglongjmp(back, 1);
}

/* A fault of the program's own reaches its handler. */
static void fault(uint8_t *at)
{
	if (sigsetjmp(back, 1) == 0) {
		*(volatile uint8_t *)at = 1;
		CHECK(!"a fault");
	}
}

/* WRITEs from and to memory that is gone are errors, and no signals; each ends a queue pair. */
static void gone(void)
{
	struct pair p;
	for (int peers = 0; peers < 2; peers++) {
		open_pair(&p);
		uint64_t at = (uintptr_t)p.mem;
		write_8(&p, 0, at, at + PAGE);
		CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
		CHECK(munmap(p.mem + 2 * PAGE, PAGE) == 0);
		CHECK(mprotect(p.mem + 3 * PAGE, PAGE, PROT_READ) == 0);
		write_8(&p, 0, at + (peers ? 0 : 2 * PAGE), at + 3 * PAGE);
		CHECK(completion(&p, 0, 5) == (peers ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR));
		close_pair(&p);
	}
	open_pair(&p);
	uint64_t at = (uintptr_t)p.mem;
	CHECK(munmap(p.mem + 2 * PAGE, PAGE) == 0);
	post(&p, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, at, p.mr->lkey, at + 2 * PAGE, p.mr->rkey);
	CHECK(completion(&p, 0, 5) == IBV_WC_REM_OP_ERR);
	close_pair(&p);
}

static void handled_by_polls(int signal)
{
	(void)signal;
	for (int i = 0; i < 3; i++)
		gone();
	caught++;
	siglongjmp(back, 1);
}

static void set(struct sigaction action)
{
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
}

/* A program's own handler, set before or after the device was opened, has its own faults and no others. */
static void own(void)
{
	struct sigaction first = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, old;
	uint8_t *none = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	set(first);
	struct ibv_context *ctx = open_device();
	fault(none);
	CHECK(caught == 1 && where == none);
	gone();
	CHECK(caught == 1);
	CHECK(sigaction(SIGSEGV, NULL, &old) == 0);
	CHECK(old.sa_sigaction == on_fault && (old.sa_flags & SA_SIGINFO) && !(old.sa_flags & SA_ONSTACK));
	CHECK((void *)signal(SIGSEGV, on_fault_plain) == (void *)on_fault);
	fault(none);
	CHECK(caught == 101);
	gone();
	CHECK(caught == 101);
	/* While a handler runs, the signal is blocked, which is as little the program's end. */
	gone();
	CHECK((void *)signal(SIGSEGV, handled_by_polls) == (void *)on_fault_plain);
	fault(none);
	CHECK(caught == 102);
	caught = 101;
	CHECK((void *)signal(SIGSEGV, on_fault_plain) == (void *)handled_by_polls);
	/* The name of signal under -std=c11. */
	CHECK((void *)__sysv_signal(SIGSEGV, on_fault_plain) == (void *)on_fault_plain);
	gone();
	fault(none);
	CHECK(caught == 201);
	CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
	caught = 101;
	CHECK((void *)signal(SIGSEGV, on_fault_plain) == (void *)SIG_DFL);
	/* What a child of vfork sets is its own. */
	pid_t sharing = vfork();
	if (sharing == 0) {
		signal(SIGSEGV, SIG_DFL);
		_exit(0);
	}
	CHECK(waitpid(sharing, NULL, 0) == sharing);
	fault(none);
	CHECK(caught == 201);
	gone();
	caught = 101;
	set((struct sigaction){ .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESETHAND });
	fault(none);
	CHECK(caught == 102);
	CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
	gone();
	/* Without a handler, or when it is ignored, a fault ends the program as ever; a sent signal is ignored. */
	for (int ignored = 0; ignored < 3; ignored++) {
		pid_t child = fork();
		if (child == 0) {
			struct rlimit no_core = { 0, 0 };
			setrlimit(RLIMIT_CORE, &no_core);
			signal(SIGSEGV, ignored ? SIG_IGN : SIG_DFL);
			if (ignored)
				raise(SIGSEGV);
			if (ignored < 2)
				*(volatile uint8_t *)none = 1;
			_exit(7);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		if (ignored < 2)
			CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
		else
			CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
	CHECK(ibv_close_device(ctx) == 0);
}

/* A thread that blocks the signals of faults, and a program that takes them past libc. */
static void blocked(void)
{
	sigset_t all;
	struct ibv_context *ctx = open_device();
	sigfillset(&all);
	for (int i = 0; i < 2; i++) {
		CHECK(pthread_sigmask(i ? SIG_UNBLOCK : SIG_BLOCK, &all, NULL) == 0);
		gone();
	}
	unsigned long none[4] = { 0 };
	CHECK(syscall(SYS_rt_sigaction, SIGSEGV, none, NULL, 8) == 0);
	usleep(200000);
	gone();
	CHECK(ibv_close_device(ctx) == 0);
}

static volatile int done;

static void *remap(void *at)
{
	for (unsigned i = 0; !done; i++) {
		uint8_t *page = (uint8_t *)at + (1 + i % 4) * PAGE;
		if (i % 3 == 0)
			munmap(page, PAGE);
		else if (i % 3 == 1)
			mprotect(page, PAGE, PROT_READ);
		else
			mmap(page, PAGE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	}
	return NULL;
}

/* Memory that is unmapped and mapped anew all the time: operations succeed or fail, and no more. */
static void meanwhile(void)
{
	struct ibv_context *ctx = open_device();
	int good = 0, bad = 0;
	for (double until = now() + 3; now() < until;) {
		struct pair p;
		pthread_t thread;
		open_pair(&p);
		done = 0;
		CHECK(pthread_create(&thread, NULL, remap, p.mem) == 0);
		for (int i = 0, status = IBV_WC_SUCCESS; i < 200 && status == IBV_WC_SUCCESS; i++) {
			uint64_t from = (uintptr_t)p.mem + i % 5 * PAGE, to = (uintptr_t)p.mem + (i + 2) % 5 * PAGE;
			if (i % 3)
				write_8(&p, 0, from, to);
			else
				post(&p, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)p.mem, p.mr->lkey, to,
				     p.mr->rkey);
			struct ibv_wc wc;
			while (ibv_poll_cq(p.cq[0], 1, &wc) == 0)
				;
			status = wc.status;
			if (status == IBV_WC_SUCCESS)
				good++;
			else
				bad++;
			CHECK(status == IBV_WC_SUCCESS || status == IBV_WC_LOC_PROT_ERR ||
			      status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_OP_ERR);
		}
		done = 1;
		CHECK(pthread_join(thread, NULL) == 0);
		close_pair(&p);
	}
	CHECK(good > 0 && bad > 0);
	CHECK(ibv_close_device(ctx) == 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "gone", gone }, { "own", own }, { "blocked", blocked }, { "meanwhile", meanwhile },
	};
	return run_case(cases, sizeof cases / sizeof cases[0], argc, argv);
}
