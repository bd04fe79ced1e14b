/* A program of libibverbs and libmlx5 that uses what the device says it can do, where rdma-core's own
 * programs do not. It is run on software devices by tests/external/shim.rs: "capabilities CASE" ends with 0
 * when everything was as the case says, and else with one line that names what was not.
 */
#include "preloaded.h"

#include <rdma/rdma_user_ioctl.h>
#include <rdma/rdma_user_ioctl_cmds.h>

/* Memory of a region on demand need not be there when it is registered, only when it is used. */
static void paging(void)
{
	struct pair p;
	open_pair(&p);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	uint64_t at = (uintptr_t)p.mem;
	uint8_t *later = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(later != MAP_FAILED);
	NONE(ibv_reg_mr(p.pd, later, PAGE, all), EFAULT);
	struct ibv_mr *mr = ibv_reg_mr(p.pd, later, 2 * PAGE, all | IBV_ACCESS_ON_DEMAND);
	CHECK(mr);
	/* A prefetch says what is not there; one that nobody waits for does not. */
	struct ibv_sge list = { .addr = (uintptr_t)later, .length = PAGE, .lkey = mr->lkey };
	enum ibv_advise_mr_advice write = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	REFUSED(ibv_advise_mr(p.pd, write, IBV_ADVISE_MR_FLAG_FLUSH, &list, 1), EFAULT);
	CHECK(ibv_advise_mr(p.pd, write, 0, &list, 1) == 0);
	CHECK(mprotect(later, PAGE, PROT_READ | PROT_WRITE) == 0);
	CHECK(ibv_advise_mr(p.pd, write, IBV_ADVISE_MR_FLAG_FLUSH, &list, 1) == 0);
	unsigned char there = 0;
	CHECK(mincore(later, PAGE, &there) == 0 && (there & 1));
	/* Nor is another region's key, or what lies outside, prefetched. */
	list.lkey = p.mr->lkey;
	REFUSED(ibv_advise_mr(p.pd, write, IBV_ADVISE_MR_FLAG_FLUSH, &list, 1), ENOENT);
	list.lkey = mr->lkey;
	list.length = 3 * PAGE;
	REFUSED(ibv_advise_mr(p.pd, write, IBV_ADVISE_MR_FLAG_FLUSH, &list, 1), EFAULT);
	memcpy(p.mem, "on demand", 10);
	post(&p, 0, IBV_WR_RDMA_WRITE, at, p.mr->lkey, (uintptr_t)later, mr->rkey);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS && memcmp(later, "on deman", 8) == 0);
	/* The whole address space, of which a page is used that no one registered. */
	struct ibv_mr *whole = ibv_reg_mr(p.pd, NULL, SIZE_MAX, all | IBV_ACCESS_ON_DEMAND);
	CHECK(whole);
	uint8_t *any = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(any != MAP_FAILED);
	post(&p, 0, IBV_WR_RDMA_WRITE, at, whole->lkey, (uintptr_t)any, whole->rkey);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS && memcmp(any, "on deman", 8) == 0);
	/* Memory that is not there when it is used ends the queue pair, and nothing else. */
	munmap(any, PAGE);
	post(&p, 0, IBV_WR_RDMA_WRITE, at, p.mr->lkey, (uintptr_t)any, whole->rkey);
	CHECK(completion(&p, 0, 5) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(whole) == 0 && ibv_dereg_mr(mr) == 0);
	munmap(later, 2 * PAGE);
	close_pair(&p);
}

/* Timestamps rise, lie between the program's own, and are told as time of day. */
static void timestamps(void)
{
	struct ibv_context *ctx = open_device();
	struct ibv_device_attr_ex can;
	CHECK(ibv_query_device_ex(ctx, NULL, &can) == 0);
	CHECK(can.completion_timestamp_mask == UINT64_MAX && can.hca_core_clock == 1000000);
	struct mlx5dv_clock_info clock;
	CHECK(mlx5dv_get_clock_info(ctx, &clock) == 0);
	struct timespec day, since_boot;
	clock_gettime(CLOCK_REALTIME, &day);
	clock_gettime(CLOCK_MONOTONIC, &since_boot);
	uint64_t cycles = since_boot.tv_sec * 1000000000ull + since_boot.tv_nsec;
	int64_t off = mlx5dv_ts_to_ns(&clock, cycles) - (day.tv_sec * 1000000000ull + day.tv_nsec);
	CHECK(off > -1000000000 && off < 1000000000);
	struct pair p;
	open_pair_on(&p, ctx);
	struct ibv_cq_init_attr_ex attr = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &attr);
	CHECK(cq);
	struct ibv_qp *plain = p.qp[0];
	struct ibv_qp_init_attr init = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK((p.qp[0] = ibv_create_qp(p.pd, &init)));
	to_state(&p, 1, IBV_QPS_RESET);
	for (int i = 0; i < 2; i++) {
		to_state(&p, i, IBV_QPS_INIT);
		to_state(&p, i, IBV_QPS_RTR);
		to_state(&p, i, IBV_QPS_RTS);
	}
	uint64_t at = (uintptr_t)p.mem, last = cycles;
	for (int i = 0; i < 20; i++) {
		write_8(&p, 0, at, at + PAGE);
		struct ibv_poll_cq_attr none = { 0 };
		double until = now() + 5;
		while (ibv_start_poll(cq, &none) == ENOENT)
			CHECK(now() < until);
		uint64_t stamp = ibv_wc_read_completion_ts(cq);
		CHECK(cq->status == IBV_WC_SUCCESS && stamp > last && stamp <= (uint64_t)(now() * 1e9) + 1000);
		ibv_end_poll(cq);
		/* The running clock is the one that stamped it. */
		struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
		CHECK(ibv_query_rt_values_ex(ctx, &values) == 0 && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
		last = values.raw_clock.tv_nsec;
		CHECK(values.raw_clock.tv_sec == 0 && last >= stamp && last <= (uint64_t)(now() * 1e9) + 1000);
	}
	struct ibv_values_ex unknown = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK << 1 };
	REFUSED(ibv_query_rt_values_ex(ctx, &unknown), EINVAL);
	CHECK(ibv_destroy_qp(p.qp[0]) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	p.qp[0] = plain;
	close_pair(&p);
}

/* Domains of one file are one; a domain that is used stays. */
static void domains(void)
{
	struct ibv_context *ctx = open_device(), *other = open_device();
	int fd = memfd_create("domain", 0);
	CHECK(fd >= 0);
	struct ibv_xrcd_init_attr init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd };
	NONE(ibv_open_xrcd(ctx, &init), EAGAIN);
	init.oflags = O_CREAT;
	struct ibv_xrcd *first = ibv_open_xrcd(ctx, &init);
	CHECK(first);
	init.oflags = O_CREAT | O_EXCL;
	NONE(ibv_open_xrcd(other, &init), EINVAL);
	init.oflags = 0;
	struct ibv_xrcd *second = ibv_open_xrcd(other, &init);
	CHECK(second);
	struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = second };
	struct ibv_qp *qp = ibv_create_qp_ex(other, &attr);
	CHECK(qp);
	REFUSED(ibv_close_xrcd(second), EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_close_xrcd(second) == 0 && ibv_close_xrcd(first) == 0);
	init.oflags = O_CREAT | O_EXCL;
	first = ibv_open_xrcd(ctx, &init);
	CHECK(first && ibv_close_xrcd(first) == 0);
	close(fd);
	CHECK(ibv_close_device(other) == 0 && ibv_close_device(ctx) == 0);
}

/* A free key stands for two parts of the memory once a work request says so, and for nothing more. */
static void keys(void)
{
	struct pair p;
	open_pair(&p);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = p.cq[0], .recv_cq = p.cq[0], .qp_type = IBV_QPT_RC, .pd = p.pd,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = 256 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS |
			     MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
		.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
		.send_ops_flags = MLX5DV_QP_EX_WITH_MR_LIST,
	};
	CHECK(ibv_destroy_qp(p.qp[0]) == 0);
	CHECK((p.qp[0] = mlx5dv_create_qp(p.ctx, &init, &dv)));
	to_state(&p, 1, IBV_QPS_RESET);
	for (int i = 0; i < 2; i++) {
		to_state(&p, i, IBV_QPS_INIT);
		to_state(&p, i, IBV_QPS_RTR);
		to_state(&p, i, IBV_QPS_RTS);
	}
	struct mlx5dv_mkey_init_attr make = { .pd = p.pd, .max_entries = 2,
		.create_flags = MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT };
	struct mlx5dv_mkey *key = mlx5dv_create_mkey(&make);
	CHECK(key);
	uint64_t at = (uintptr_t)p.mem;
	struct ibv_sge parts[2] = { { at + 100, 4, p.mr->lkey }, { at + 300, 4, p.mr->lkey } };
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(p.qp[0]);
	struct mlx5dv_qp_ex *mqp = mlx5dv_qp_ex_from_ibv_qp_ex(qpx);
	ibv_wr_start(qpx);
	qpx->wr_id = 1;
	qpx->wr_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
	mlx5dv_wr_mr_list(mqp, key, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, 2, parts);
	CHECK(ibv_wr_complete(qpx) == 0);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	memcpy(p.mem, "leftright", 9);
	/* Addresses of such a key begin at 0. */
	post(&p, 1, IBV_WR_RDMA_WRITE, at, p.mr->lkey, 0, key->rkey);
	CHECK(completion(&p, 1, 5) == IBV_WC_SUCCESS);
	CHECK(memcmp(p.mem + 100, "left", 4) == 0 && memcmp(p.mem + 300, "righ", 4) == 0);
	post(&p, 1, IBV_WR_RDMA_WRITE, at, p.mr->lkey, 1, key->rkey);
	CHECK(completion(&p, 1, 5) == IBV_WC_REM_ACCESS_ERR);
	CHECK(p.mem[104] == 0 && p.mem[304] == 0);
	CHECK(mlx5dv_destroy_mkey(key) == 0);
	close_pair(&p);
}

/* The CQ's events, taken; how many. */
static int cq_events(struct pair *p, int milliseconds)
{
	struct pollfd fd = { .fd = p->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;
	int n = 0;
	while (poll(&fd, 1, n ? 0 : milliseconds) == 1) {
		CHECK(ibv_get_cq_event(p->channel, &cq, &context) == 0);
		ibv_ack_cq_events(cq, 1);
		n++;
	}
	return n;
}

/* A moderated CQ has one event for several completions, and does not wait for them for ever. */
static void moderation(void)
{
	struct pair p;
	open_pair(&p);
	uint64_t at = (uintptr_t)p.mem;
	struct ibv_device_attr_ex can;
	CHECK(ibv_query_device_ex(p.ctx, NULL, &can) == 0);
	CHECK(can.cq_mod_caps.max_cq_count == 0xffff && can.cq_mod_caps.max_cq_period == 0xfff);
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = { .cq_count = 4, .cq_period = 0x1000 } };
	REFUSED(ibv_modify_cq(p.cq[0], &attr), EINVAL);
	attr.moderate.cq_period = 4000;
	CHECK(ibv_modify_cq(p.cq[0], &attr) == 0);
	CHECK(ibv_req_notify_cq(p.cq[0], 0) == 0);
	for (int i = 0; i < 4; i++)
		write_8(&p, 0, at, at + PAGE);
	CHECK(cq_events(&p, 5000) == 1);
	for (int i = 0; i < 4; i++)
		CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	/* One alone is told of after the period, and not before. */
	CHECK(ibv_req_notify_cq(p.cq[0], 0) == 0);
	double start = now();
	write_8(&p, 0, at, at + PAGE);
	CHECK(cq_events(&p, 5000) == 1 && now() - start > 4e-3);
	CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	close_pair(&p);
}

static uint64_t counter(const char *name)
{
	char path[200];
	unsigned long long value;
	snprintf(path, sizeof path, "/sys/class/infiniband/mlx5_0/ports/1/%s", name);
	FILE *file = fopen(path, "r");
	CHECK(file && fscanf(file, "%llu", &value) == 1);
	fclose(file);
	return value;
}

/* The port's counters count what this process has sent, and nothing that is not there has a file. */
static void counters(void)
{
	struct pair p;
	open_pair(&p);
	uint64_t at = (uintptr_t)p.mem, packets = counter("counters/port_xmit_packets");
	for (int i = 0; i < 8; i++) {
		write_8(&p, 0, at, at + PAGE);
		CHECK(completion(&p, 0, 5) == IBV_WC_SUCCESS);
	}
	CHECK(counter("counters/port_xmit_packets") - packets >= 16);
	CHECK(counter("counters/port_rcv_packets") == counter("counters/port_xmit_packets"));
	CHECK(counter("counters/port_xmit_data") >= 8 * 9);
	CHECK(counter("hw_counters/out_of_sequence") == 0);
	CHECK(!fopen("/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "r"));
	close_pair(&p);
}

/* What is not there, each refused as the kernel refuses it. */
static void refused(void)
{
	uint8_t in[16] = { 0x07, 0x54 }, out[16] = { 0 };
	struct pair p;
	open_pair(&p);
	struct ibv_counters_init_attr counters_attr = { 0 };
	NONE(ibv_create_counters(p.ctx, &counters_attr), EPROTONOSUPPORT);
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = p.pd, .cq = p.cq[0] };
	NONE(ibv_create_wq(p.ctx, &wq), EOPNOTSUPP);
	struct ibv_qp_init_attr raw = { .send_cq = p.cq[0], .recv_cq = p.cq[0], .qp_type = IBV_QPT_RAW_PACKET,
					.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1 } };
	NONE(ibv_create_qp(p.pd, &raw), EOPNOTSUPP);
	REFUSED(ibv_attach_mcast(p.qp[0], &p.gid, 0), EOPNOTSUPP);
	NONE(mlx5dv_alloc_var(p.ctx, 0), EPROTONOSUPPORT);
	REFUSED(mlx5dv_devx_general_cmd(p.ctx, in, sizeof in, out, sizeof out), EREMOTEIO);
	NONE(mlx5dv_devx_create_cmd_comp(p.ctx), EPROTONOSUPPORT);
	/* Of a library that is newer than the device. */
	struct ib_uverbs_ioctl_hdr unknown = { .length = sizeof unknown, .object_id = 99, .method_id = 3 };
	REFUSED(ioctl(p.ctx->cmd_fd, RDMA_VERBS_IOCTL, &unknown), EPROTONOSUPPORT);
	close_pair(&p);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "paging", paging }, { "timestamps", timestamps }, { "domains", domains },
		{ "keys", keys }, { "moderation", moderation }, { "counters", counters },
		{ "refused", refused },
	};
	return run_case(cases, sizeof cases / sizeof cases[0], argc, argv);
}
