/* Programs that keep to the rules, and programs that rely on what they do not give. Run on software devices with and
 * without "--adversary" by tests/external/adversary.rs: "adversary CASE". A case whose name ends with "wrong" breaks one
 * rule; it ends with 1 where it notices that itself.
 */
#include "preloaded.h"

enum { ROUNDS = 200, MESSAGE = 4096 };

/* A pair whose second end has memory that WRITEs may reach in any order. */
static struct ibv_mr *open_relaxed(struct pair *p, volatile uint8_t **to)
{
	patience = 14;
	open_pair(p);
	*to = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(*to != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(p->pd, (void *)*to, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				       IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr);
	return mr;
}

static void close_relaxed(struct pair *p, struct ibv_mr *mr)
{
	CHECK(ibv_dereg_mr(mr) == 0);
	close_pair(p);
}

static void message(struct pair *p, int end, enum ibv_wr_opcode op, uint32_t bytes, volatile void *to, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)p->mem, .length = bytes, .lkey = p->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)to;
	wr.wr.rdma.rkey = rkey;
	CHECK(ibv_post_send(p->qp[end], &wr, &bad) == 0);
}

static void receive(struct pair *p, int end)
{
	struct ibv_recv_wr recv = { .num_sge = 0 }, *bad;
	CHECK(ibv_post_recv(p->qp[end], &recv, &bad) == 0);
}

static int all_are(volatile uint8_t *bytes, uint8_t value)
{
	for (int i = 0; i < MESSAGE; i++)
		if (bytes[i] != value)
			return 0;
	return 1;
}

/* Waits for a byte, and lets the device get on meanwhile. */
static void until_is(struct pair *p, volatile uint8_t *byte, uint8_t value)
{
	struct ibv_wc wc;
	for (double end = now() + 20; *byte != value;) {
		CHECK(now() < end);
		if (ibv_poll_cq(p->cq[0], 1, &wc) == 1)
			CHECK(wc.status == IBV_WC_SUCCESS);
	}
}

static void payload(int wrong)
{
	struct pair p;
	volatile uint8_t *to;
	struct ibv_mr *mr = open_relaxed(&p, &to);
	for (int i = 1; i <= ROUNDS; i++) {
		memset(p.mem, i, MESSAGE);
		message(&p, 0, IBV_WR_RDMA_WRITE, MESSAGE, to, mr->rkey);
		if (wrong)
			memset(p.mem, i + 1, MESSAGE);
		CHECK(completion(&p, 0, 20) == IBV_WC_SUCCESS);
	}
	close_relaxed(&p, mr);
}

static void writes(int wrong)
{
	struct pair p;
	volatile uint8_t *to;
	struct ibv_mr *mr = open_relaxed(&p, &to);
	for (int i = 1; i <= ROUNDS; i++) {
		memset(p.mem, i, MESSAGE);
		message(&p, 0, IBV_WR_RDMA_WRITE, MESSAGE, to, mr->rkey);
		if (wrong) {
			/* That the last byte is there says nothing of the others. */
			until_is(&p, to + MESSAGE - 1, i);
		} else {
			receive(&p, 1);
			message(&p, 0, IBV_WR_SEND, 0, NULL, 0);
			CHECK(completion(&p, 1, 20) == IBV_WC_SUCCESS && all_are(to, i));
		}
		memset((void *)to, 0xff, MESSAGE);
		for (int left = wrong ? 0 : 2; left > 0; left--)
			CHECK(completion(&p, 0, 20) == IBV_WC_SUCCESS);
		if (wrong)
			completion(&p, 0, 0.01);
	}
	close_relaxed(&p, mr);
}

struct wqe {
	struct mlx5_wqe_ctrl_seg ctrl;
	struct mlx5_wqe_raddr_seg raddr;
	struct mlx5_wqe_data_seg data;
	uint8_t rest[16];
} __attribute__((aligned(64)));

/* A queue pair whose ring the program writes itself, and the byte at the other end that each WQE writes. */
struct ring {
	struct pair p;
	struct mlx5dv_qp dv;
	struct ibv_mr *mr;
	volatile uint8_t *to;
};

static void open_ring(struct ring *r)
{
	r->mr = open_relaxed(&r->p, &r->to);
	r->dv = (struct mlx5dv_qp){ 0 };
	struct mlx5dv_obj obj = { .qp = { .in = r->p.qp[0], .out = &r->dv } };
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) == 0);
}

/* Each WQE has a byte of its own to send: nobody says when it is complete. */
static struct wqe write_byte(struct ring *r, int i)
{
	struct wqe wqe = { 0 };
	mlx5dv_set_ctrl_seg(&wqe.ctrl, i, MLX5_OPCODE_RDMA_WRITE, 0, r->p.qp[0]->qp_num, 0, 3, 0, 0);
	wqe.raddr.raddr = htobe64((uintptr_t)r->to);
	wqe.raddr.rkey = htobe32(r->mr->rkey);
	mlx5dv_set_data_seg(&wqe.data, 1, r->p.mr->lkey, (uintptr_t)r->p.mem + i);
	r->p.mem[i] = i + 1;
	return wqe;
}

static void place(struct ring *r, const struct wqe *wqe, int i)
{
	memcpy((uint8_t *)r->dv.sq.buf + (i % r->dv.sq.wqe_cnt) * r->dv.sq.stride, wqe, sizeof *wqe);
	/* For the device: the WQE before the record that counts it. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

static void count(struct ring *r, int i)
{
	r->dv.dbrec[MLX5_SND_DBR] = htobe32(i + 1);
	/* For the device: the record before the doorbell that has it read. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void ring(struct ring *r, const struct wqe *wqe)
{
	*(volatile uint64_t *)r->dv.bf.reg = *(const uint64_t *)wqe;
}

/* The device gets on, and finds what there is. */
static void let_it(struct ring *r)
{
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(r->p.cq[1], 1, &wc) == 0);
}

static void until_written(struct ring *r, int i, double seconds)
{
	for (double end = now() + seconds; *r->to != (uint8_t)(i + 1); let_it(r))
		CHECK(now() < end);
	/* It is complete soon: nothing is behind it, and nobody reuses its place before. */
	usleep(i % 8 ? 0 : 2000);
}

static void close_ring(struct ring *r)
{
	usleep(20000);
	close_relaxed(&r->p, r->mr);
}

static void record(int wrong)
{
	struct ring r;
	open_ring(&r);
	for (int i = 0; i < ROUNDS; i++) {
		struct wqe wqe = write_byte(&r, i);
		if (wrong) {
			count(&r, i);
			let_it(&r);
		}
		place(&r, &wqe, i);
		count(&r, i);
		ring(&r, &wqe);
		until_written(&r, i, 20);
	}
	close_ring(&r);
}

/* What a card does with a doorbell: it reads the record, and starts what that counts. */
static void doorbell(int unrung, int early)
{
	struct ring r;
	open_ring(&r);
	for (int i = 0; i < ROUNDS; i++) {
		struct wqe wqe = write_byte(&r, i);
		place(&r, &wqe, i);
		if (early) {
			ring(&r, &wqe);
			let_it(&r);
		}
		count(&r, i);
		if (!early && !(unrung && i == ROUNDS / 2))
			ring(&r, &wqe);
		until_written(&r, i, 3);
	}
	close_ring(&r);
}

/* The record of a queue pair that starts over may be as it was, and count as many again. */
static void reset_right(void)
{
	struct ring r;
	open_ring(&r);
	for (int life = 1; life <= 3; life++) {
		for (int i = 0; i < 2; i++) {
			struct wqe wqe = write_byte(&r, i);
			r.p.mem[i] = 10 * life + i;
			place(&r, &wqe, i);
			if (i == 0)
				continue;
			count(&r, i);
			ring(&r, &wqe);
		}
		for (double end = now() + 3; *r.to != 10 * life + 1; let_it(&r))
			CHECK(now() < end);
		for (int end = 0; end < 2; end++)
			to_state(&r.p, end, IBV_QPS_RESET);
		/* libmlx5 has cleared it; whoever drives the queue by itself need not. */
		r.dv.dbrec[MLX5_SND_DBR] = htobe32(2);
		static const enum ibv_qp_state up[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
		for (int i = 0; i < 3; i++)
			for (int end = 0; end < 2; end++)
				to_state(&r.p, end, up[i]);
	}
	close_ring(&r);
}

/* That a send is complete does not say that its receive is. */
static void cqe(int wrong)
{
	struct pair p;
	volatile uint8_t *to;
	struct ibv_mr *mr = open_relaxed(&p, &to);
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_wc wc;
		receive(&p, 1);
		message(&p, 0, IBV_WR_SEND, 0, NULL, 0);
		CHECK(completion(&p, 0, 20) == IBV_WC_SUCCESS);
		if (wrong)
			CHECK(ibv_poll_cq(p.cq[1], 1, &wc) == 1);
		else
			CHECK(completion(&p, 1, 20) == IBV_WC_SUCCESS);
	}
	close_relaxed(&p, mr);
}

/* What is posted first on one queue pair does not come before what is posted then on another. */
static void packets(int wrong)
{
	struct pair p;
	volatile uint8_t *to;
	struct ibv_mr *mr = open_relaxed(&p, &to);
	for (int i = 1; i <= ROUNDS; i++) {
		memset(p.mem, i, MESSAGE);
		message(&p, 0, IBV_WR_RDMA_WRITE, MESSAGE, to, mr->rkey);
		if (!wrong)
			CHECK(completion(&p, 0, 20) == IBV_WC_SUCCESS);
		message(&p, 1, IBV_WR_RDMA_WRITE, 1, to + 2 * MESSAGE, mr->rkey);
		until_is(&p, to + 2 * MESSAGE, i);
		CHECK(all_are(to, i));
		CHECK(completion(&p, 1, 20) == IBV_WC_SUCCESS);
		if (wrong)
			completion(&p, 0, 0.02);
	}
	close_relaxed(&p, mr);
}

static void payload_right(void) { payload(0); }
static void payload_wrong(void) { payload(1); }
static void writes_right(void) { writes(0); }
static void writes_wrong(void) { writes(1); }
static void record_right(void) { record(0); }
static void record_wrong(void) { record(1); }
static void doorbell_right(void) { doorbell(0, 0); }
static void doorbell_unrung_wrong(void) { doorbell(1, 0); }
static void doorbell_early_wrong(void) { doorbell(0, 1); }
static void cqe_right(void) { cqe(0); }
static void cqe_wrong(void) { cqe(1); }
static void packets_right(void) { packets(0); }
static void packets_wrong(void) { packets(1); }

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "payload-right", payload_right }, { "payload-wrong", payload_wrong },
		{ "writes-right", writes_right }, { "writes-wrong", writes_wrong },
		{ "record-right", record_right }, { "record-wrong", record_wrong },
		{ "doorbell-right", doorbell_right }, { "doorbell-unrung-wrong", doorbell_unrung_wrong },
		{ "doorbell-early-wrong", doorbell_early_wrong },
		{ "reset-right", reset_right }, { "cqe-right", cqe_right }, { "cqe-wrong", cqe_wrong },
		{ "packets-right", packets_right }, { "packets-wrong", packets_wrong },
	};
	return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
