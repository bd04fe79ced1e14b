/* Dynamic connections through libmlx5's extended posting: initiators that mlx5dv_create_qp makes, targets likewise, all
 * on one device. Prints one line for each thing shown; exits 1 at the first that fails. */
#include "preloaded.h"

enum { KEY = 0x5ca1ab1e, TARGETS = 3, LENGTH = 3000 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static union ibv_gid gid;
static uint8_t *mem;
static struct ibv_mr *mr;
static struct ibv_ah *ah;

struct target {
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
};

struct initiator {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
	struct mlx5dv_qp_ex *dv;
};

static void move(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	CHECK(ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE) == 0);
}

static struct target make_target(void)
{
	struct target t = { .cq = ibv_create_cq(ctx, 64, NULL, NULL, 0) };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };
	CHECK(t.cq && (t.srq = ibv_create_srq(pd, &srq)));
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = t.cq, .recv_cq = t.cq, .srq = t.srq, .pd = pd,
		.qp_type = IBV_QPT_DRIVER, .comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = KEY },
	};
	CHECK((t.qp = mlx5dv_create_qp(ctx, &attr, &dv)));
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	move(t.qp, init, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	/* No GID: a target has no peer. */
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 1 };
	rtr.ah_attr.is_global = 1;
	rtr.ah_attr.port_num = 1;
	rtr.ah_attr.grh.hop_limit = 8;
	move(t.qp, rtr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER);
	CHECK(t.qp->qp_num);
	return t;
}

/* With an SRQ, from which it takes nothing, and with streams, if 2^errored of them may be in error. */
static struct initiator make_initiator(struct ibv_srq *srq, int errored)
{
	struct initiator i = { .cq = ibv_create_cq(ctx, 64, NULL, NULL, 0) };
	CHECK(i.cq);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = i.cq, .recv_cq = i.cq, .srq = srq, .pd = pd, .qp_type = IBV_QPT_DRIVER,
		.cap = { .max_send_wr = 32, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
				  IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	};
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCI },
	};
	if (errored >= 0) {
		dv.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
		dv.dc_init_attr.dci_streams.log_num_concurent = 3;
		dv.dc_init_attr.dci_streams.log_num_errored = errored;
	}
	CHECK((i.qp = mlx5dv_create_qp(ctx, &attr, &dv)));
	i.ex = ibv_qp_to_qp_ex(i.qp);
	i.dv = mlx5dv_qp_ex_from_ibv_qp_ex(i.ex);
	move(i.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 },
	     IBV_QP_PKEY_INDEX | IBV_QP_PORT);
	/* An address without a GID, as UCX gives. */
	move(i.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
					 .ah_attr = { .is_global = 1, .port_num = 1 } }, IBV_QP_PATH_MTU | IBV_QP_AV);
	move(i.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 2, .rnr_retry = 7,
					 .max_rd_atomic = 4 },
	     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return i;
}

static int poll_for(struct ibv_cq *cq, struct ibv_wc *wc)
{
	for (double until = now() + 20; now() < until; usleep(50)) {
		int n = ibv_poll_cq(cq, 1, wc);
		CHECK(n >= 0);
		if (n)
			return wc->status;
	}
	return -1;
}

/* Posts one operation for a target, with a key; what becomes of it. */
static int ask(struct initiator *i, struct target *t, uint64_t key, int op, uint64_t at, uint32_t rkey, uint32_t bytes)
{
	struct ibv_wc wc;
	ibv_wr_start(i->ex);
	i->ex->wr_id = 1;
	i->ex->wr_flags = IBV_SEND_SIGNALED;
	switch (op) {
	case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(i->ex, htobe32(77)); break;
	case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(i->ex, rkey, at); break;
	case IBV_WR_RDMA_READ: ibv_wr_rdma_read(i->ex, rkey, at); break;
	default: ibv_wr_atomic_fetch_add(i->ex, rkey, at, 5); break;
	}
	mlx5dv_wr_set_dc_addr(i->dv, ah, t->qp->qp_num, key);
	ibv_wr_set_sge(i->ex, mr->lkey, (uintptr_t)mem, bytes);
	CHECK(ibv_wr_complete(i->ex) == 0);
	return poll_for(i->cq, &wc);
}

/* WRITEs of streams in one go, of which some name a key that the target does not have; what becomes of each. */
static void streams(struct target *t, uint8_t *there)
{
	enum { N = 6 };
	static const struct { int stream, stray, status; } wrs[N] = {
		{ 1, 0, IBV_WC_SUCCESS }, { 5, 1, IBV_WC_REM_ACCESS_ERR }, { 1, 0, IBV_WC_SUCCESS },
		{ 5, 0, IBV_WC_WR_FLUSH_ERR }, { 300, 0, IBV_WC_SUCCESS }, { 5, 0, IBV_WC_WR_FLUSH_ERR },
	};
	struct mlx5dv_context caps = { .comp_mask = MLX5DV_CONTEXT_MASK_DCI_STREAMS };
	CHECK(mlx5dv_query_device(ctx, &caps) == 0 && (caps.comp_mask & MLX5DV_CONTEXT_MASK_DCI_STREAMS));
	CHECK(caps.dci_streams_caps.max_log_num_concurent >= 3 && caps.dci_streams_caps.max_log_num_errored >= 1);
	struct initiator i = make_initiator(NULL, 1);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;
	for (int round = 0; round < 3; round++) {
		memset(there, 0, N);
		memset(mem, 1, N);
		ibv_wr_start(i.ex);
		for (int n = 0; n < N; n++) {
			i.ex->wr_id = n;
			i.ex->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(i.ex, mr->rkey + wrs[n].stray, (uintptr_t)there + n);
			mlx5dv_wr_set_dc_addr_stream(i.dv, ah, t->qp->qp_num, KEY, wrs[n].stream);
			ibv_wr_set_sge(i.ex, mr->lkey, (uintptr_t)mem + n, 1);
		}
		CHECK(ibv_wr_complete(i.ex) == 0);
		for (int n = 0; n < N; n++) {
			CHECK(poll_for(i.cq, &wc) == wrs[n].status && wc.wr_id == (uint64_t)n);
			CHECK(there[n] == (wrs[n].status == IBV_WC_SUCCESS));
		}
		CHECK(ibv_query_qp(i.qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
		REFUSED(mlx5dv_dci_stream_id_reset(i.qp, 1), EINVAL);
		CHECK(mlx5dv_dci_stream_id_reset(i.qp, 5) == 0);
		REFUSED(mlx5dv_dci_stream_id_reset(i.qp, 5), EINVAL);
	}
	/* The second that is in error is one too many; and one that has none has nothing to reset. */
	CHECK(ask(&i, t, KEY, IBV_WR_RDMA_WRITE, (uintptr_t)there, mr->rkey + 1, 8) == IBV_WC_REM_ACCESS_ERR);
	ibv_wr_start(i.ex);
	i.ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(i.ex, mr->rkey + 1, (uintptr_t)there);
	mlx5dv_wr_set_dc_addr_stream(i.dv, ah, t->qp->qp_num, KEY, 2);
	ibv_wr_set_sge(i.ex, mr->lkey, (uintptr_t)mem, 1);
	CHECK(ibv_wr_complete(i.ex) == 0 && poll_for(i.cq, &wc) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_query_qp(i.qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
	CHECK(ibv_destroy_qp(i.qp) == 0 && ibv_destroy_cq(i.cq) == 0);
	puts("streams");
}

int main(void)
{
	struct ibv_wc wc;
	ctx = open_device();
	mem = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mem != MAP_FAILED && (pd = ibv_alloc_pd(ctx)) && ibv_query_gid(ctx, 1, 0, &gid) == 0);
	CHECK((mr = ibv_reg_mr(pd, mem, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)));
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 8 } };
	CHECK((ah = ibv_create_ah(pd, &to)));
	struct target targets[TARGETS];
	for (int t = 0; t < TARGETS; t++)
		targets[t] = make_target();
	struct initiator i = make_initiator(targets[0].srq, -1), other = make_initiator(NULL, -1);
	uint8_t *there = mem + 8 * PAGE;
	for (int round = 0; round < 30; round++) {
		struct target *t = &targets[round % TARGETS];
		struct ibv_sge sge = { .addr = (uintptr_t)there, .length = LENGTH, .lkey = mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = round, .sg_list = &sge, .num_sge = 1 }, *bad;
		memset(mem, round + 1, LENGTH);
		CHECK(ibv_post_srq_recv(t->srq, &wr, &bad) == 0);
		CHECK(ask(&i, t, KEY, IBV_WR_SEND_WITH_IMM, 0, 0, LENGTH) == IBV_WC_SUCCESS);
		CHECK(poll_for(t->cq, &wc) == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)round);
		CHECK(wc.byte_len == LENGTH && wc.imm_data == htobe32(77) && (wc.wc_flags & IBV_WC_WITH_IMM));
		CHECK(wc.qp_num == t->qp->qp_num && memcmp(mem, there, LENGTH) == 0);
		memset(mem, 0x80 | round, LENGTH);
		CHECK(ask(&i, t, KEY, IBV_WR_RDMA_WRITE, (uintptr_t)there, mr->rkey, LENGTH) == IBV_WC_SUCCESS);
		CHECK(memcmp(mem, there, LENGTH) == 0);
		memset(mem, 0, LENGTH);
		CHECK(ask(&i, t, KEY, IBV_WR_RDMA_READ, (uintptr_t)there, mr->rkey, LENGTH) == IBV_WC_SUCCESS);
		CHECK(memcmp(mem, there, LENGTH) == 0);
		uint64_t word = 40;
		memcpy(there, &word, 8);
		CHECK(ask(&i, t, KEY, IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)there, mr->rkey, 8) == IBV_WC_SUCCESS);
		CHECK(*(uint64_t *)mem == 40 && *(uint64_t *)there == 45);
	}
	puts("operations");
	streams(&targets[0], there);
	/* What one initiator may not ends it alone. */
	CHECK(ask(&i, &targets[0], KEY, IBV_WR_RDMA_WRITE, (uintptr_t)there, mr->rkey + 1, 8) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ask(&other, &targets[0], KEY, IBV_WR_RDMA_WRITE, (uintptr_t)there, mr->rkey, 8) == IBV_WC_SUCCESS);
	CHECK(ask(&other, &targets[1], KEY + 1, IBV_WR_RDMA_WRITE, (uintptr_t)there, mr->rkey, 8) ==
	      IBV_WC_RETRY_EXC_ERR);
	puts("refusals");
	REFUSED(ibv_destroy_srq(targets[0].srq), EBUSY);
	CHECK(ibv_destroy_qp(i.qp) == 0 && ibv_destroy_qp(other.qp) == 0);
	for (int t = 0; t < TARGETS; t++)
		CHECK(ibv_destroy_qp(targets[t].qp) == 0 && ibv_destroy_srq(targets[t].srq) == 0 &&
		      ibv_destroy_cq(targets[t].cq) == 0);
	CHECK(ibv_destroy_cq(i.cq) == 0 && ibv_destroy_cq(other.cq) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(ctx) == 0);
	puts("end");
	return 0;
}
