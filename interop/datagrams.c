/* Datagrams of UD and who takes them. Run on software devices by tests/external/datagrams.rs: "datagrams CASE". */
#include "preloaded.h"

enum { QKEY = 0x11111111, GRH = 40, CLASS = 0x68, HOPS = 3 };

/* Receives of 8 bytes, each into a line of the memory's second half. */
static void receives(struct pair *p, int first, int n)
{
	for (int i = first; i < first + n; i++) {
		struct ibv_sge sge = { .addr = (uintptr_t)p->mem + BYTES / 2 + 64 * i, .length = GRH + 8,
				       .lkey = p->mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_recv(p->qp[1], &wr, &bad) == 0);
	}
}

/* Datagrams of one number each; all complete at home, whatever becomes of them. */
static void datagrams(struct pair *p, struct ibv_ah *ah, uint64_t first, int n)
{
	for (int i = 0; i < n; i++) {
		uint64_t number = first + i;
		struct ibv_sge sge = { .addr = (uintptr_t)&number, .length = 8 };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
			.wr.ud = { .ah = ah, .remote_qpn = p->qp[1]->qp_num, .remote_qkey = QKEY } }, *bad;
		CHECK(ibv_post_send(p->qp[0], &wr, &bad) == 0);
		CHECK(completion(p, 0, 5) == IBV_WC_SUCCESS);
	}
}

/* The next datagram is that number, and in the receive of that one. */
static void comes(struct pair *p, uint64_t number, uint64_t receive)
{
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	uint64_t is;
	for (double until = now() + 5; ibv_poll_cq(p->cq[1], 1, &wc) == 0;)
		CHECK(now() < until);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == GRH + 8);
	CHECK(wc.wr_id == receive && wc.src_qp == p->qp[0]->qp_num && wc.wc_flags & IBV_WC_GRH);
	const uint8_t *header = (uint8_t *)p->mem + BYTES / 2 + 64 * receive;
	memcpy(&is, header + GRH, 8);
	CHECK(is == number);
	/* That of IPv4, in the last 20 bytes: its version, type of service and time to live. */
	CHECK(header[20] == 0x45 && header[21] == CLASS && header[28] == HOPS);
}

static long out_of_buffer(void)
{
	long n = -1;
	FILE *file = fopen("/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer", "r");
	CHECK(file && fscanf(file, "%ld", &n) == 1);
	fclose(file);
	return n;
}

static void open_datagrams(struct pair *p)
{
	open_pair(p);
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_destroy_qp(p->qp[i]) == 0);
		struct ibv_qp_init_attr init = {
			.send_cq = p->cq[i], .recv_cq = p->cq[i], .qp_type = IBV_QPT_UD,
			.cap = { .max_send_wr = 16, .max_recv_wr = i ? 1 : 16, .max_send_sge = 1,
				 .max_recv_sge = 1, .max_inline_data = 64 },
		};
		CHECK((p->qp[i] = ibv_create_qp(p->pd, &init)));
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
		CHECK(ibv_modify_qp(p->qp[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    IBV_QP_QKEY) == 0);
		attr.qp_state = IBV_QPS_RTR;
		CHECK(ibv_modify_qp(p->qp[i], &attr, IBV_QP_STATE) == 0);
		attr.qp_state = IBV_QPS_RTS;
		CHECK(ibv_modify_qp(p->qp[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	}
}

/* A queue of one receive, as of perftest's -r 1: of a burst the first datagram is taken. The others are dropped and
 * counted, and what is sent once there is a receive again comes. */
static void one_receive(void)
{
	enum { BURST = 50, ROUNDS = 20 };
	struct pair p;
	struct ibv_wc wc;
	open_datagrams(&p);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = {
		.dgid = p.gid, .hop_limit = HOPS, .traffic_class = CLASS } };
	struct ibv_ah *ah = ibv_create_ah(p.pd, &to);
	CHECK(ah);
	long before = out_of_buffer();
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t first = 1000 * round;
		receives(&p, round, 1);
		datagrams(&p, ah, first, BURST);
		comes(&p, first, round);
		long wanted = before + (round + 1) * (BURST - 1);
		for (double until = now() + 5; out_of_buffer() != wanted; usleep(100))
			CHECK(now() < until);
		CHECK(ibv_poll_cq(p.cq[1], 1, &wc) == 0);
	}
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(p.qp[1], &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
	CHECK(ibv_destroy_ah(ah) == 0);
	close_pair(&p);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = { { "one_receive", one_receive } };
	return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
