/* Programs that ring by themselves and are interrupted: by handlers that ring, by cancellation, by threads that libc
 * makes. Run on software devices by tests/external/interrupted.rs: "interrupted CASE".
 */
#include "bell.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

enum { SECONDS = 4 };

static struct pair pair;
static struct bell bell, inner;
/* Of numbers alone. */
static struct bell numbers = { .random = 88172645463325252ull };

static void every(int us)
{
	struct itimerval timer = { { 0, us }, { 0, us } };
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void ring_inner(int signal)
{
	(void)signal;
	if (*inner.to == inner.value)
		ring(&inner, WORD);
}

/* A handler rings that comes wherever the program is, also where it has just run into its own doorbell. */
static void alarms(void)
{
	struct sigaction before, action = { .sa_handler = ring_inner };
	open_patient(&pair);
	take_bell(&bell, &pair, 0);
	take_bell(&inner, &pair, 1);
	until_closed(&bell);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	every(300);
	for (double end = now() + SECONDS; now() < end;) {
		ring(&bell, WORD);
		await(&bell);
	}
	every(0);
	await(&inner);
	CHECK(sigaction(SIGALRM, NULL, &before) == 0 && before.sa_handler == ring_inner);
	close_pair(&pair);
}

/* The signals from 1 on that this thread blocks, as the system has them. */
static unsigned long long blocked_signals(void)
{
	char line[256];
	unsigned long long mask = ~0ull;
	FILE *status = fopen("/proc/thread-self/status", "r");
	CHECK(status);
	while (fgets(line, sizeof line, status))
		sscanf(line, "SigBlk: %llx", &mask);
	CHECK(fclose(status) == 0);
	return mask;
}

static void *ends_all(void *arg)
{
	(void)arg;
	sleep(2 * SECONDS + 20);
	fprintf(stderr, "the program stands still\n");
	_exit(1);
}

/* Ends the program if it stands still: in a thread that does not get its alarms. */
static void watch(void)
{
	pthread_t thread;
	sigset_t alarms, before;
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	CHECK(pthread_sigmask(SIG_BLOCK, &alarms, &before) == 0);
	CHECK(pthread_create(&thread, NULL, ends_all, NULL) == 0 && pthread_detach(thread) == 0);
	CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
}

static void *all[512];

static void allocate_for(double seconds)
{
	for (double end = now() + seconds; now() < end;) {
		for (int i = 0; i < 512; i++) {
			free(all[i]);
			CHECK((all[i] = malloc(16 + dice(&numbers) % 3000)));
			memset(all[i], 1, 16);
		}
	}
}

/* A handler that does not even block its own signal rings, and what it has interrupted is malloc. */
static void allocates(void)
{
	watch();
	struct sigaction before, action = { .sa_handler = ring_inner, .sa_flags = SA_NODEFER | SA_RESTART };
	open_patient(&pair);
	take_bell(&inner, &pair, 0);
	until_closed(&inner);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && sigaction(SIGALRM, NULL, &before) == 0);
	/* It sees what it has set. */
	for (int signal = 1; signal < NSIG; signal++)
		CHECK(sigismember(&before.sa_mask, signal) <= 0);
	CHECK(before.sa_flags & SA_NODEFER);
	every(500);
	allocate_for(2 * SECONDS);
	every(0);
	await(&inner);
	close_pair(&pair);
}

/* A handler lets all signals through by itself, and rings after that. */
static void ring_unblocked(int signal)
{
	static volatile int is_in;
	static unsigned count;
	sigset_t none, all, mask;
	(void)signal;
	sigemptyset(&none);
	sigfillset(&all);
	switch (count++ % 4) {
	case 0:
		CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
		break;
	case 1:
		CHECK(pthread_sigmask(SIG_UNBLOCK, &all, NULL) == 0);
		break;
	case 2:
		CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0 && sigprocmask(SIG_UNBLOCK, &all, NULL) == 0);
		break;
	default:
		CHECK(sigprocmask(SIG_SETMASK, &none, &mask) == 0 && !sigismember(&mask, SIGSTKFLT));
	}
	/* It sees what it has asked for. */
	CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && !sigismember(&mask, SIGSTKFLT));
	if (is_in)
		return;
	is_in = 1;
	ring_inner(signal);
	is_in = 0;
}

/* What the handler that lets signals through has interrupted is malloc, however it was set. */
static void unblocks(void)
{
	watch();
	open_patient(&pair);
	take_bell(&inner, &pair, 0);
	until_closed(&inner);
	for (int way = 0; way < 3; way++) {
		struct sigaction action = { .sa_handler = ring_unblocked, .sa_flags = SA_RESTART };
		if (way == 1)
			action.sa_flags |= SA_NODEFER;
		if (way == 2)
			CHECK(signal(SIGALRM, ring_unblocked) != SIG_ERR);
		else
			CHECK(sigaction(SIGALRM, &action, NULL) == 0);
		every(500);
		allocate_for(SECONDS / 2.0);
		every(0);
		await(&inner);
	}
	close_pair(&pair);
}

static uint8_t *guarded_page;
static volatile int faults, blocked_in_handler;

static void on_fault(int signal)
{
	sigset_t mask;
	(void)signal;
	CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0);
	blocked_in_handler = sigismember(&mask, SIGSEGV) << 2 | sigismember(&mask, SIGUSR1) << 1 |
			     sigismember(&mask, SIGUSR2);
	faults++;
	CHECK(mprotect(guarded_page, PAGE, PROT_READ | PROT_WRITE) == 0);
}

/* A program's handler of its own faults blocks what the program has asked for, and no more. */
static void masks(void)
{
	struct sigaction before, action = { .sa_handler = on_fault };
	sigset_t usr2;
	open_patient(&pair);
	guarded_page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(guarded_page != MAP_FAILED);
	sigemptyset(&usr2);
	sigaddset(&usr2, SIGUSR2);
	for (int i = 0; i < 8; i++) {
		int usr1 = i & 1, own = i & 2;
		sigemptyset(&action.sa_mask);
		if (usr1)
			sigaddset(&action.sa_mask, SIGUSR1);
		action.sa_flags = own ? 0 : SA_NODEFER;
		CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGSEGV, NULL, &before) == 0);
		CHECK(before.sa_handler == on_fault && !(before.sa_flags & SA_NODEFER) == !!own);
		for (int signal = 1; signal < NSIG; signal++)
			CHECK(sigismember(&before.sa_mask, signal) <= (usr1 && signal == SIGUSR1));
		CHECK(pthread_sigmask(i & 4 ? SIG_BLOCK : SIG_UNBLOCK, &usr2, NULL) == 0);
		CHECK(mprotect(guarded_page, PAGE, PROT_READ) == 0);
		*(volatile uint8_t *)guarded_page = 1;
		CHECK(faults == i + 1 && blocked_in_handler == (own << 1 | usr1 << 1 | i >> 2));
	}
	close_pair(&pair);
}

static jmp_buf back;

static void jump(int signal)
{
	(void)signal;
	longjmp(back, 1);
}

/* A handler of the program's own faults is left by a jump that keeps its mask, with the fault's signal blocked: the
 * doorbells after that are no faults. */
static void jumps(void)
{
	struct sigaction action = { .sa_handler = jump };
	open_patient(&pair);
	take_bell(&bell, &pair, 0);
	guarded_page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(guarded_page != MAP_FAILED && sigaction(SIGSEGV, &action, NULL) == 0);
	until_closed(&bell);
	if (setjmp(back) == 0) {
		*(volatile uint8_t *)guarded_page = 1;
		CHECK(!"a fault");
	}
	CHECK(blocked_signals() >> (SIGSEGV - 1) & 1);
	for (double end = now() + 1; now() < end;) {
		ring(&bell, WORD);
		await(&bell);
		pause_us(1000);
	}
	close_pair(&pair);
}

static void may_be_cancelled(struct bell *b)
{
	(void)b;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
}

static void *cancelled(void *arg)
{
	(void)arg;
	CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
	for (;;) {
		/* The post is not cut in two, but from the doorbell on the thread may end anywhere. */
		CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
		if (*bell.to == bell.value)
			ring(&bell, WORD);
		CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
	}
	return NULL;
}

/* Threads are cancelled at once that ring, and nothing stays behind. */
static void cancels(void)
{
	open_patient(&pair);
	take_bell(&bell, &pair, 0);
	until_closed(&bell);
	bell.before = may_be_cancelled;
	for (double end = now() + SECONDS; now() < end;) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, cancelled, NULL) == 0);
		pause_us(1000 + dice(&numbers) % 2000);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
		/* It may have ended before its doorbell. */
		ring(&bell, WORD);
		await(&bell);
	}
	close_pair(&pair);
}

static volatile int called;

static void on_timer(union sigval value)
{
	(void)value;
	ring(&bell, WORD);
	await(&bell);
	__atomic_add_fetch(&called, 1, __ATOMIC_SEQ_CST);
}

/* Threads ring that libc makes for timers, with all signals blocked. */
static void timers(void)
{
	struct sigevent event = { .sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_timer };
	struct itimerspec soon = { .it_value = { 0, 5000000 } };
	timer_t timer;
	open_patient(&pair);
	take_bell(&bell, &pair, 0);
	until_closed(&bell);
	CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	for (int i = 0; i < 100; i++) {
		CHECK(timer_settime(timer, 0, &soon, NULL) == 0);
		for (double until = now() + 10; called == i; usleep(1000))
			CHECK(now() < until);
		for (int n = 0; n < 20; n++) {
			ring(&bell, WORD);
			await(&bell);
		}
	}
	CHECK(timer_delete(timer) == 0);
	close_pair(&pair);
}

/* Blocks all signals, as who spawns does, and has a child of vfork set its own mask and its own handler. */
static void spawn_with_signals_blocked(void)
{
	struct sigaction before, action = { .sa_handler = SIG_DFL };
	sigset_t all, mask;
	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_BLOCK, &all, &mask) == 0);
	pid_t child = vfork();
	if (child == 0) {
		action.sa_mask = all;
		_exit(sigaction(SIGALRM, &action, NULL) != 0 || pthread_sigmask(SIG_SETMASK, &mask, NULL) != 0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(pthread_sigmask(SIG_SETMASK, &mask, NULL) == 0);
	CHECK(sigaction(SIGALRM, NULL, &before) == 0 && before.sa_handler == ring_inner);
	CHECK(!sigismember(&before.sa_mask, SIGSTKFLT));
}

/* What a child of vfork sets of signals is its own, before a device is opened and after. */
static void spawns(void)
{
	struct sigaction action = { .sa_handler = ring_inner };
	sigset_t mask;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	unsigned long long before = blocked_signals();
	for (int opened = 0; opened < 2; opened++) {
		if (opened)
			open_patient(&pair);
		for (int i = 0; i < 2; i++) {
			spawn_with_signals_blocked();
			CHECK(blocked_signals() == before);
			CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0 && !sigismember(&mask, SIGSTKFLT));
		}
	}
	close_pair(&pair);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "alarms", alarms }, { "allocates", allocates }, { "masks", masks }, { "cancels", cancels },
		{ "timers", timers }, { "unblocks", unblocks }, { "spawns", spawns },
		{ "jumps", jumps },
	};
	return run_case(cases, sizeof cases / sizeof cases[0], argc, argv);
}
