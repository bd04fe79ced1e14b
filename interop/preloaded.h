/* What programs on software devices share: a pair of connected queue pairs, operations and their
 * completions, and checks that end the program with one line when something is not as it should be.
 */
#ifndef BELLPUSH_PRELOADED_H
#define BELLPUSH_PRELOADED_H

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#define CHECK(is) ((is) ? (void)0 : fail(__LINE__, #is))
/* A call that fails with an errno, as its value or aside. */
#define REFUSED(call, with) do { errno = 0; int r_ = (call); \
	if (r_ == 0 || (r_ > 0 ? r_ : errno) != (with)) \
		fail_errno(__LINE__, #call, r_ > 0 ? r_ : errno, (with)); } while (0)
#define NONE(call, with) do { errno = 0; if ((call) != NULL || errno != (with)) \
		fail_errno(__LINE__, #call, errno, (with)); } while (0)

enum { PAGE = 4096, BYTES = 16 * PAGE };

static inline void fail(int line, const char *what)
{
	fprintf(stderr, "line %d: not so: %s (errno %d)\n", line, what, errno);
	exit(1);
}

static inline void fail_errno(int line, const char *what, int is, int want)
{
	fprintf(stderr, "line %d: %s: errno %d instead of %d\n", line, what, is, want);
	exit(1);
}

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* How often the engine's thread has gone to sleep; -1 as long as it has no name. */
static inline long naps_now(void)
{
	char path[300], line[200];
	struct dirent *entry;
	long n = -1;
	DIR *dir = opendir("/proc/self/task");
	CHECK(dir);
	while ((entry = readdir(dir))) {
		snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
		FILE *file = fopen(path, "r");
		int is_it = 0;
		while (file && fgets(line, sizeof line, file)) {
			is_it |= strcmp(line, "Name:\tbellpush-mlx5_0\n") == 0;
			if (is_it)
				sscanf(line, "voluntary_ctxt_switches: %ld", &n);
		}
		if (file)
			fclose(file);
	}
	closedir(dir);
	return n;
}

static inline long naps(void)
{
	long n;
	for (double until = now() + 5; (n = naps_now()) < 0; usleep(1000))
		CHECK(now() < until);
	return n;
}

static inline void stay_on_one_core(void)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

/* Two queue pairs of one device, connected to each other. */
struct pair {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	struct ibv_mr *mr;
	uint8_t *mem;
	union ibv_gid gid;
};

static inline struct ibv_context *open_device(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n > 0);
	struct ibv_context *ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	ibv_free_device_list(list);
	return ctx;
}

/* Of queue pairs that are made from now on: how long an acknowledgement takes at most, 4.096 us * 2^patience. */
static uint8_t patience = 8;

static inline void to_state(struct pair *p, int end, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1 };
	int mask = IBV_QP_STATE;
	switch (state) {
	case IBV_QPS_INIT:
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_ATOMIC;
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		break;
	case IBV_QPS_RTR:
		attr.path_mtu = IBV_MTU_1024;
		attr.dest_qp_num = p->qp[!end]->qp_num;
		attr.rq_psn = 100 + !end;
		attr.max_dest_rd_atomic = 4;
		attr.min_rnr_timer = 1;
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.dgid = p->gid;
		attr.ah_attr.grh.hop_limit = 1;
		attr.ah_attr.port_num = 1;
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		break;
	case IBV_QPS_RTS:
		attr.timeout = patience;
		attr.retry_cnt = 4;
		attr.rnr_retry = 7;
		attr.sq_psn = 100 + end;
		attr.max_rd_atomic = 4;
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC;
		break;
	default:
		break;
	}
	CHECK(ibv_modify_qp(p->qp[end], &attr, mask) == 0);
}

static inline void open_pair_on(struct pair *p, struct ibv_context *ctx)
{
	memset(p, 0, sizeof *p);
	p->ctx = ctx;
	CHECK((p->pd = ibv_alloc_pd(ctx)));
	CHECK((p->channel = ibv_create_comp_channel(ctx)));
	p->mem = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p->mem != MAP_FAILED);
	CHECK((p->mr = ibv_reg_mr(p->pd, p->mem, BYTES, IBV_ACCESS_LOCAL_WRITE |
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)));
	CHECK(ibv_query_gid(ctx, 1, 0, &p->gid) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK((p->cq[i] = ibv_create_cq(ctx, 64, NULL, p->channel, 0)));
		struct ibv_qp_init_attr attr = {
			.send_cq = p->cq[i], .recv_cq = p->cq[i], .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2,
				 .max_recv_sge = 2, .max_inline_data = 64 },
		};
		CHECK((p->qp[i] = ibv_create_qp(p->pd, &attr)));
	}
	for (int i = 0; i < 2; i++) {
		to_state(p, i, IBV_QPS_INIT);
		to_state(p, i, IBV_QPS_RTR);
		to_state(p, i, IBV_QPS_RTS);
	}
}

static inline void open_pair(struct pair *p)
{
	open_pair_on(p, open_device());
}

static inline void close_pair(struct pair *p)
{
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(p->qp[i]) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_cq(p->cq[i]) == 0);
	CHECK(ibv_destroy_comp_channel(p->channel) == 0);
	CHECK(!p->mr || ibv_dereg_mr(p->mr) == 0);
	CHECK(ibv_dealloc_pd(p->pd) == 0);
	CHECK(ibv_close_device(p->ctx) == 0);
	munmap(p->mem, BYTES);
}

/* Posts one operation of 8 bytes between two places of the memory. */
static inline void post(struct pair *p, int end, enum ibv_wr_opcode op, uint64_t from, uint32_t lkey,
		 uint64_t to, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = from, .length = 8, .lkey = lkey };
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = op,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 5;
	} else {
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(ibv_post_send(p->qp[end], &wr, &bad) == 0);
}

static inline void write_8(struct pair *p, int end, uint64_t from, uint64_t to)
{
	post(p, end, IBV_WR_RDMA_WRITE, from, p->mr->lkey, to, p->mr->rkey);
}

/* The next completion of an end; -1 when none comes in time. */
static inline int completion(struct pair *p, int end, double seconds)
{
	struct ibv_wc wc;
	for (double until = now() + seconds; now() < until; usleep(50)) {
		int n = ibv_poll_cq(p->cq[end], 1, &wc);
		CHECK(n >= 0);
		if (n == 1)
			return wc.status;
	}
	return -1;
}

static inline int async_event(struct pair *p, double seconds, struct ibv_async_event *event)
{
	struct pollfd fd = { .fd = p->ctx->async_fd, .events = POLLIN };
	if (poll(&fd, 1, seconds * 1000) != 1)
		return -1;
	CHECK(ibv_get_async_event(p->ctx, event) == 0);
	ibv_ack_async_event(event);
	return event->event_type;
}

struct test_case {
	const char *name;
	void (*run)(void);
};

/* Runs the case that the program's argument names. */
static inline int run_case(const struct test_case *cases, size_t n, int argc, char **argv)
{
	for (size_t i = 0; argc == 2 && i < n; i++) {
		if (strcmp(argv[1], cases[i].name) == 0) {
			cases[i].run();
			return 0;
		}
	}
	fprintf(stderr, "no such case\n");
	return 2;
}

#endif
