/* A program that leaves as soon as it has what it waited for: a card has acknowledged that by then.
 *
 * Whoever has sent a message learns that it came, in each of ROUNDS rounds, however the process with the receive has
 * left: `_exit`, as fio's does, `_Exit`, `quick_exit`, `exit`, or at the end of its `main`. A thread that is to be
 * cancelled leaves with its status. Handlers of the end may use a device, and one of a signal may end the process.
 */
#include "preloaded.h"

#include <pthread.h>
#include <signal.h>

enum { ROUNDS = 20, SECONDS = 20 };

struct end {
	union ibv_gid gid;
	uint32_t qpn;
};

/* This process's end, as end 0 of a pair that has no other. */
static void open_end(struct pair *p)
{
	memset(p, 0, sizeof *p);
	p->ctx = open_device();
	CHECK((p->pd = ibv_alloc_pd(p->ctx)));
	CHECK((p->mem = calloc(1, PAGE)));
	CHECK((p->mr = ibv_reg_mr(p->pd, p->mem, PAGE, IBV_ACCESS_LOCAL_WRITE)));
	CHECK((p->cq[0] = ibv_create_cq(p->ctx, 16, NULL, NULL, 0)));
	struct ibv_qp_init_attr attr = {
		.send_cq = p->cq[0], .recv_cq = p->cq[0], .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((p->qp[0] = ibv_create_qp(p->pd, &attr)));
	to_state(p, 0, IBV_QPS_INIT);
}

static void connect_end(struct pair *p, int to, int from)
{
	struct end mine = { .qpn = p->qp[0]->qp_num }, theirs;
	CHECK(ibv_query_gid(p->ctx, 1, 0, &mine.gid) == 0);
	CHECK(write(to, &mine, sizeof mine) == sizeof mine);
	CHECK(read(from, &theirs, sizeof theirs) == sizeof theirs);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs.qpn, .rq_psn = 100,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .grh = { .dgid = theirs.gid, .hop_limit = 1 }, .port_num = 1 },
	};
	CHECK(ibv_modify_qp(p->qp[0], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	/* Eight attempts of 268 ms: more than a busy machine takes. */
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7,
				     .sq_psn = 100, .max_rd_atomic = 1 };
	CHECK(ibv_modify_qp(p->qp[0], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	/* Whoever sends does so to a queue pair that receives. */
	CHECK(write(to, "", 1) == 1 && read(from, &attr, 1) == 1);
}

static void until_completed(struct pair *p)
{
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	int n = 0;
	for (double until = now() + SECONDS; n == 0; n = ibv_poll_cq(p->cq[0], 1, &wc))
		CHECK(now() < until);
	CHECK(n == 1);
	if (wc.status) {
		fprintf(stderr, "completion status %d\n", wc.status);
		_exit(1);
	}
}

static void receive(int to, int from)
{
	struct pair p;
	open_end(&p);
	struct ibv_sge sge = { .addr = (uintptr_t)p.mem, .length = PAGE, .lkey = p.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(p.qp[0], &wr, &bad) == 0);
	connect_end(&p, to, from);
	until_completed(&p);
}

static void send_one(int to, int from)
{
	struct pair p;
	open_end(&p);
	connect_end(&p, to, from);
	struct ibv_sge sge = { .addr = (uintptr_t)p.mem, .length = 64, .lkey = p.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(p.qp[0], &wr, &bad) == 0);
	until_completed(&p);
}

/* The children of a round; whether this is the one that has received, and leaves as the program was asked. */
static int has_received(void)
{
	int down[2], up[2], status;
	CHECK(pipe(down) == 0 && pipe(up) == 0);
	pid_t receiver = fork();
	CHECK(receiver >= 0);
	if (receiver == 0) {
		receive(up[1], down[0]);
		return 1;
	}
	pid_t sender = fork();
	CHECK(sender >= 0);
	if (sender == 0) {
		send_one(down[1], up[0]);
		_exit(0);
	}
	int failed = 0;
	for (int i = 0; i < 2; i++) {
		CHECK(wait(&status) > 0);
		failed |= status;
	}
	CHECK(failed == 0);
	for (int i = 0; i < 2; i++)
		close(down[i]), close(up[i]);
	return 0;
}

static void *leaves_cancelled(void *how)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	if (strcmp(how, "_exit") == 0)
		_exit(7);
	exit(7);
}

static volatile int leaves;

static void *leaves_cancelled_at_once(void *how)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	leaves = 1;
	if (strcmp(how, "_exit") == 0)
		_exit(7);
	exit(7);
}

/* The last thread of the program's own ends: the device's go on, and SIGKILL ends them. */
static void without_threads(void)
{
	struct pair p;
	int status = 0;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		open_end(&p);
		pthread_exit(NULL);
	}
	usleep(500000);
	CHECK(waitpid(child, &status, WNOHANG) == 0);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	exit(7);
}

/* A thread that may be cancelled at once is, wherever it is at. */
static void cancelled_at_once(char *how)
{
	struct pair p;
	pthread_t thread;
	open_end(&p);
	CHECK(pthread_create(&thread, NULL, leaves_cancelled_at_once, how) == 0);
	while (!leaves)
		;
	usleep(300);
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	/* Where it was cancelled before it left, the process goes on. */
	exit(7);
}

static void *polls_at_once(void *cq)
{
	struct ibv_wc wc;
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	leaves = 1;
	for (;;)
		ibv_poll_cq(cq, 1, &wc);
	return NULL;
}

/* What such threads poll is theirs, and the library's lock of it may stay with them; the device goes on for others. */
static void cancelled_while_polling(void)
{
	enum { THREADS = 40 };
	struct pair p;
	pthread_t thread;
	open_pair(&p);
	for (int i = 0; i < THREADS; i++) {
		struct ibv_cq *cq = ibv_create_cq(p.ctx, 16, NULL, NULL, 0);
		CHECK(cq);
		leaves = 0;
		CHECK(pthread_create(&thread, NULL, polls_at_once, cq) == 0);
		while (!leaves)
			;
		usleep(100 + 37 * i);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
		write_8(&p, 0, (uintptr_t)p.mem + 8 * i, (uintptr_t)p.mem + BYTES / 2 + 8 * i);
		CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	}
	exit(7);
}

/* Handlers of the end come behind the destructors of what is the thread's own. */
static void opens_late(void)
{
	DIR *dir = opendir("/sys/bus/pci/devices");
	int n, channels = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = list && n ? ibv_open_device(list[0]) : NULL;
	if (ctx)
		channels = ibv_create_comp_channel(ctx) != NULL;
	_exit(dir && ctx && channels ? 7 : 1);
}

static void ends(int signal)
{
	(void)signal;
	exit(7);
}

/* A handler, as of ^C, comes while a device is opened or closed. `exit` is not for handlers, and is called there. */
static void interrupted(void)
{
	for (int i = 0; i < 24; i++) {
		int status = 0;
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			signal(SIGALRM, ends);
			ualarm(2000 + i * 700, 0);
			for (;;)
				CHECK(ibv_close_device(open_device()) == 0);
		}
		double until = now() + SECONDS;
		while (waitpid(child, &status, WNOHANG) == 0) {
			if (now() > until) {
				kill(child, SIGKILL);
				fail(__LINE__, "a process that is to end does");
			}
			usleep(1000);
		}
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
	exit(7);
}

int main(int argc, char **argv)
{
	if (argc == 3) {
		struct pair p;
		pthread_t thread;
		if (strcmp(argv[1], "at-once") == 0)
			cancelled_at_once(argv[2]);
		open_end(&p);
		CHECK(strcmp(argv[1], "cancelled") == 0);
		CHECK(pthread_create(&thread, NULL, leaves_cancelled, argv[2]) == 0);
		pthread_join(thread, NULL);
		return 1;
	}
	CHECK(argc == 2);
	if (strcmp(argv[1], "late") == 0)
		return atexit(opens_late);
	if (strcmp(argv[1], "interrupted") == 0)
		interrupted();
	if (strcmp(argv[1], "polls-at-once") == 0)
		cancelled_while_polling();
	if (strcmp(argv[1], "pthread_exit") == 0)
		without_threads();
	for (int i = 0; i < ROUNDS; i++) {
		if (!has_received())
			continue;
		if (strcmp(argv[1], "_exit") == 0)
			_exit(0);
		if (strcmp(argv[1], "_Exit") == 0)
			_Exit(0);
		if (strcmp(argv[1], "quick_exit") == 0)
			quick_exit(0);
		if (strcmp(argv[1], "exit") == 0)
			exit(0);
		CHECK(strcmp(argv[1], "main") == 0);
		return 0;
	}
	return 0;
}
