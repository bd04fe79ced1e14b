/* Programs that poll, and that stop polling: who drives the engine, and what a program notices of that.
 * Run on software devices by tests/external/polling.rs: "polling CASE".
 */
#include "preloaded.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/time.h>

/* What the preloaded object takes libibverbs' structures to be (shim/src/abi/libibverbs.rs). */
#ifdef __x86_64__
_Static_assert(offsetof(struct ibv_context, ops.poll_cq) == 96, "");
_Static_assert(offsetof(struct ibv_context, ops.req_notify_cq) == 104, "");
_Static_assert(offsetof(struct ibv_context, ops.post_send) == 208, "");
_Static_assert(offsetof(struct ibv_context, cmd_fd) == 264, "");
_Static_assert(offsetof(struct ibv_context, abi_compat) == 320, "");
_Static_assert(offsetof(struct ibv_cq_ex, start_poll) == 144, "");
_Static_assert(offsetof(struct ibv_qp_ex, wr_complete) == 328, "");
#endif
_Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, create_cq_ex) ==
	       15 * sizeof(void *), "");
_Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, query_rt_values) ==
	       16 * sizeof(void *), "");

/* On one core, with both ends in this process: the operations are carried out by who polls. */
static void alone(void)
{
	enum { N = 5000 };
	struct pair p;
	struct ibv_wc wc;
	stay_on_one_core();
	open_pair(&p);
	uint64_t at = (uintptr_t)p.mem;
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(p.ctx, &attr);
	CHECK(cq);
	CHECK(ibv_destroy_qp(p.qp[0]) == 0);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = p.pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	CHECK((p.qp[0] = ibv_create_qp_ex(p.ctx, &init)));
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(p.qp[0]);
	CHECK(qp);
	CHECK(ibv_modify_qp(p.qp[1], &(struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE) == 0);
	for (int i = 0; i < 2; i++) {
		to_state(&p, i, IBV_QPS_INIT);
		to_state(&p, i, IBV_QPS_RTR);
		to_state(&p, i, IBV_QPS_RTS);
	}
	long before = naps();
	for (int i = 0; i < N; i++) {
		write_8(&p, 1, at, at + 64);
		while (ibv_poll_cq(p.cq[1], 1, &wc) == 0)
			;
		CHECK(wc.status == IBV_WC_SUCCESS);
		ibv_wr_start(qp);
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qp, p.mr->rkey, at + 128);
		ibv_wr_set_sge(qp, p.mr->lkey, at, 8);
		CHECK(ibv_wr_complete(qp) == 0);
		while (ibv_start_poll(cq, &(struct ibv_poll_cq_attr){ 0 }) == ENOENT)
			;
		CHECK(cq->status == IBV_WC_SUCCESS);
		ibv_end_poll(cq);
	}
	long slept = naps() - before;
	if (slept > N / 2) {
		fprintf(stderr, "the engine's thread slept %ld times in %d operations\n", slept, 2 * N);
		exit(1);
	}
	CHECK(ibv_destroy_qp(p.qp[0]) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	struct ibv_qp_init_attr again = { .send_cq = p.cq[0], .recv_cq = p.cq[0], .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	CHECK((p.qp[0] = ibv_create_qp(p.pd, &again)));
	close_pair(&p);
}

/* A program that looks libibverbs up by itself, as NCCL does, drives the engine as well; it finds what else there is as
 * it would. */
static void looked_up(void)
{
	enum { N = 5000 };
	struct pair p;
	struct ibv_wc wc;
	cpu_set_t one;
	int n;
	void *libc = dlopen("libc.so.6", RTLD_NOW), *verbs = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(libc && verbs);
#ifdef __x86_64__
	const char *version = "GLIBC_2.2.5";
	CHECK(dlvsym(RTLD_NEXT, "malloc", version) == dlvsym(libc, "malloc", version));
	CHECK(dlvsym(RTLD_DEFAULT, "malloc", version) == dlvsym(libc, "malloc", version));
#endif
	CHECK(!dlvsym(verbs, "ibv_open_device", "IBVERBS_9.9") && !dlvsym(libc, "ibv_open_device", "IBVERBS_1.1"));
	CHECK(!dlvsym(verbs, "ibv_nothing", "IBVERBS_1.1") && dlvsym(verbs, "ibv_close_device", "IBVERBS_1.1"));
	struct ibv_context *(*open_it)(struct ibv_device *) = dlvsym(verbs, "ibv_open_device", "IBVERBS_1.1");
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(open_it && list && n > 0);
	/* Where libibverbs calls its own functions past the loader, as Ubuntu's does, nothing else comes by. */
	CHECK((void *)open_it == dlsym(RTLD_DEFAULT, "ibv_open_device"));
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
	struct ibv_context *ctx = open_it(list[0]);
	CHECK(ctx);
	ibv_free_device_list(list);
	open_pair_on(&p, ctx);
	uint64_t at = (uintptr_t)p.mem;
	long before = naps();
	for (int i = 0; i < N; i++) {
		write_8(&p, 1, at, at + 64);
		while (ibv_poll_cq(p.cq[1], 1, &wc) == 0)
			;
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
	long slept = naps() - before;
	if (slept > N / 2) {
		fprintf(stderr, "the engine's thread slept %ld times in %d operations\n", slept, N);
		exit(1);
	}
	close_pair(&p);
}

static void poll_in_vain(struct pair *p, int times)
{
	struct ibv_wc wc;
	for (int i = 0; i < times; i++)
		CHECK(ibv_poll_cq(p->cq[1], 1, &wc) == 0);
}

/* A program that polled and then looks at its memory alone, or sleeps until a CQ's event, is not forgotten. */
static void stops(void)
{
	struct pair p;
	open_pair(&p);
	volatile uint64_t *words = (uint64_t *)p.mem;
	void *context;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	for (uint64_t i = 1; i <= 50; i++) {
		words[0] = i;
		poll_in_vain(&p, 200);
		write_8(&p, 0, (uintptr_t)p.mem, (uintptr_t)p.mem + 800);
		for (double until = now() + 2; words[100] != i;)
			CHECK(now() < until);
		poll_in_vain(&p, 200);
		CHECK(ibv_req_notify_cq(p.cq[0], 0) == 0);
		/* What came before may have no event; what comes now has one, and it is taken before the next arming. */
		int came = ibv_poll_cq(p.cq[0], 1, &wc);
		struct pollfd fd = { .fd = p.channel->fd, .events = POLLIN };
		if (poll(&fd, 1, came ? 5 : 2000) == 1) {
			CHECK(ibv_get_cq_event(p.channel, &cq, &context) == 0);
			ibv_ack_cq_events(cq, 1);
		} else {
			CHECK(came);
		}
		CHECK(came || ibv_poll_cq(p.cq[0], 1, &wc) == 1);
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
	close_pair(&p);
}

/* What two processes, a device each, tell each other. */
struct end {
	_Atomic int stage;
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t at;
};

/* Goes on when the other has come as far. */
static void reach(struct end *ends, int me, int stage)
{
	ends[me].stage = stage;
	for (double until = now() + 10; ends[!me].stage < stage; usleep(1000))
		CHECK(now() < until);
}

/* Connects one queue pair of a process's to one of the other process's. */
static void meet(struct pair *p, struct end *ends, int me)
{
	struct end *other = &ends[!me];
	open_pair(p);
	CHECK(ibv_modify_qp(p->qp[me], &(struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE) == 0);
	ends[me].gid = p->gid, ends[me].qpn = p->qp[me]->qp_num;
	ends[me].rkey = p->mr->rkey, ends[me].at = (uintptr_t)p->mem;
	reach(ends, me, 1);
	struct ibv_qp there = { .qp_num = other->qpn }, *here = p->qp[!me];
	p->gid = other->gid, p->qp[!me] = &there;
	to_state(p, me, IBV_QPS_INIT);
	to_state(p, me, IBV_QPS_RTR);
	to_state(p, me, IBV_QPS_RTS);
	p->qp[!me] = here;
	reach(ends, me, 2);
}

/* One end of a ping-pong of WRITEs: polls for its own completion, then looks at its memory alone. */
static void ping_pong(struct pair *p, struct end *other, int me, uint64_t from, uint64_t to)
{
	volatile uint64_t *came = (uint64_t *)(p->mem + 64);
	struct ibv_wc wc;
	for (uint64_t i = from; i < to; i++) {
		double until = now() + 5;
		while (me == 1 && *came != i)
			CHECK(now() < until);
		*(uint64_t *)p->mem = i;
		post(p, me, IBV_WR_RDMA_WRITE, (uintptr_t)p->mem, p->mr->lkey, other->at + 64, other->rkey);
		while (ibv_poll_cq(p->cq[me], 1, &wc) == 0)
			CHECK(now() < until);
		CHECK(wc.status == IBV_WC_SUCCESS);
		while (me == 0 && *came != i)
			CHECK(now() < until);
	}
}

/* Who polls for an acknowledgement, and then looks at its memory for what its peer answers, finds it there without the
 * engine's thread: where answers come soon, its poll looks on for them. Another program may be in the way of a round. */
static void answers(void)
{
	enum { N = 1000, ROUNDS = 30 };
	struct pair p;
	struct end *ends = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cpu_set_t all, one;
	CHECK(ends != MAP_FAILED && sched_getaffinity(0, sizeof all, &all) == 0);
	if (CPU_COUNT(&all) < 2)
		return;
	patience = 14;
	pid_t child = fork();
	CHECK(child >= 0);
	int me = child == 0, core = 0, status;
	for (int skip = me; !CPU_ISSET(core, &all) || skip-- > 0;)
		core++;
	CPU_ZERO(&one);
	CPU_SET(core, &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
	meet(&p, ends, me);
	long least = N;
	for (int round = 0; round < ROUNDS; round++) {
		long before = naps();
		ping_pong(&p, &ends[!me], me, 1 + round * N, 1 + (round + 1) * N);
		long slept = naps() - before;
		least = slept < least ? slept : least;
	}
	/* Its queue pair may still owe the other an acknowledgement. */
	reach(ends, me, 3);
	usleep(10000);
	close_pair(&p);
	if (me == 1)
		exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	if (least > N / 4) {
		fprintf(stderr, "the engine's thread slept %ld times or more in %d round trips\n", least, N);
		exit(1);
	}
}

static struct pair shared;
static volatile int outlived;

static void *cancelled(void *unused)
{
	struct ibv_wc wc;
	(void)unused;
	CHECK(pthread_cancel(pthread_self()) == 0);
	for (int i = 0; i < 200; i++) {
		write_8(&shared, 0, (uintptr_t)shared.mem, (uintptr_t)shared.mem + 64);
		while (ibv_poll_cq(shared.cq[0], 1, &wc) == 0)
			;
	}
	outlived = 1;
	pthread_testcancel();
	outlived = 2;
	return NULL;
}

/* Polling changes no errno, and is no point at which a thread is cancelled. */
static void undisturbed(void)
{
	struct ibv_wc wc;
	void *result;
	pthread_t thread;
	open_pair(&shared);
	for (int i = 0; i < 2000; i++) {
		errno = 77;
		CHECK(ibv_poll_cq(shared.cq[0], 1, &wc) == 0 && errno == 77);
	}
	CHECK(pthread_create(&thread, NULL, cancelled, NULL) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED && outlived == 1);
	close_pair(&shared);
}

static struct ibv_cq *handlers_own;
static volatile int handled;

static void on_alarm(int signal)
{
	struct ibv_wc wc;
	(void)signal;
	for (int i = 0; i < 3; i++)
		ibv_poll_cq(handlers_own, 1, &wc);
	handled++;
}

/* Ends a program that waits for itself. */
static void *watchdog(void *unused)
{
	static const char line[] = "the handler waits for what it has interrupted\n";
	(void)unused;
	sleep(30);
	if (write(STDERR_FILENO, line, sizeof line - 1) < 0)
		_exit(2);
	_exit(1);
}

/* A signal handler that polls waits for nothing that the thread below it holds. */
static void handler(void)
{
	struct ibv_wc wc;
	open_pair(&shared);
	CHECK((handlers_own = ibv_create_cq(shared.ctx, 4, NULL, NULL, 0)));
	pthread_t thread;
	sigset_t alarms;
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	CHECK(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0); /* the thread inherits it */
	CHECK(pthread_create(&thread, NULL, watchdog, NULL) == 0);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &alarms, NULL) == 0);
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval often = { { 0, 60 }, { 0, 60 } }, never = { 0 };
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (double until = now() + 2; now() < until;) {
		struct ibv_mr *mr = ibv_reg_mr(shared.pd, shared.mem, PAGE, IBV_ACCESS_LOCAL_WRITE);
		CHECK(mr);
		write_8(&shared, 0, (uintptr_t)shared.mem, (uintptr_t)shared.mem + 64);
		while (ibv_poll_cq(shared.cq[0], 1, &wc) == 0)
			;
		CHECK(wc.status == IBV_WC_SUCCESS && ibv_dereg_mr(mr) == 0);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	CHECK(handled > 100 && ibv_destroy_cq(handlers_own) == 0);
	close_pair(&shared);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "alone", alone }, { "stops", stops }, { "undisturbed", undisturbed }, { "handler", handler },
		{ "looked_up", looked_up }, { "answers", answers },
	};
	return run_case(cases, sizeof cases / sizeof cases[0], argc, argv);
}
