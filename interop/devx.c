/* DEVX through libmlx5, as GPU-initiated libraries use it: umems, UARs, CQs (one of them collapsed
 * and never reported free), queue pairs that commands of the device connect, a key over a umem, and
 * WQEs and doorbells written by hand. Prints one line for each thing shown; exits 1 at the first
 * that fails. */
#include "devx.h"

static void caps(void)
{
	uint8_t in[16] = { 0 }, out[0x1010] = { 0 };
	set(in, 0, 0, 16, 0x100);
	set(in, 6, 0, 16, 0 << 1 | 1);
	MUST(!mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)), "QUERY_HCA_CAP");
	const uint8_t *cap = out + 16;
	MUST(get(cap, 0x3f, 4, 4) == 1, "cqe_version %u", (unsigned)get(cap, 0x3f, 4, 4));
	MUST(get(cap, 0x4d, 3, 5) == 9, "log_bf_reg_size");
	MUST(get(cap, 0x43, 2, 1) == 1, "dct");
	set(in, 6, 0, 16, 3 << 1 | 1);
	memset(out, 0, sizeof(out));
	MUST(!mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)), "QUERY_HCA_CAP");
	MUST(get(out + 16, 0x12, 0, 16) == 15, "atomics %#x", (unsigned)get(out + 16, 0x12, 0, 16));
	set(in, 6, 0, 16, 9 << 1 | 1);
	memset(out, 0, sizeof(out));
	int refused = mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out));
	MUST(refused && out[0] == 3, "unknown capabilities: %d, status %#x", refused, out[0]);
	/* QUERY_LAG: the one port is bonded with no other. */
	uint8_t query[16] = { 0 }, lag[16];
	set(query, 0, 0, 16, 0x842);
	memset(lag, 0xff, sizeof(lag));
	MUST(!mlx5dv_devx_general_cmd(ctx, query, sizeof(query), lag, sizeof(lag)), "QUERY_LAG");
	MUST(get(lag + 8, 0, 21, 3) == 0 && get(lag + 8, 0, 29, 3) == 0, "LAG %#x %#x", lag[10], lag[11]);
	puts("caps");
}

static void refusals(struct cq *cq, struct qp *qp)
{
	uint8_t in[0x110] = { 0 }, out[16] = { 0 };
	/* No such command. */
	set(in, 0, 0, 16, 0x777);
	MUST(!mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out)), "command 0x777");
	MUST(out[0] == 2 && errno == EREMOTEIO, "command 0x777: status %#x", out[0]);
	/* A CQ in a umem that is too short, in one that is not there, in one that may not be written. */
	struct area small = area(4096, IBV_ACCESS_LOCAL_WRITE);
	struct area fixed = area(4096, 0);
	struct { uint32_t umem; uint64_t offset; } cqs[] = {
		{ small.umem->umem_id, 64 },
		{ small.umem->umem_id, UINT64_MAX - 7 },
		{ 0xabcdef, 0 },
		{ pdn, 0 },
		{ fixed.umem->umem_id, 0 },
	};
	for (unsigned i = 0; i < sizeof(cqs) / sizeof(cqs[0]); i++) {
		memset(in, 0, sizeof(in));
		memset(out, 0, sizeof(out));
		set(in, 0, 0, 16, 0x400);
		set(in, 0x50, 0, 64, cqs[i].offset);
		set(in, 0x58, 0, 32, cqs[i].umem);
		set(in + 0x10, 4, 0, 32, cq->dbr.umem->umem_id);
		set(in + 0x10, 0xc, 3, 5, DEPTH_LOG);
		set(in + 0x10, 0xd, 0, 24, cq->uar->page_id);
		MUST(!mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out)) && out[0],
		     "CQ %u was created", i);
	}
	/* A mailbox that ends early, and one of nothing. */
	MUST(!mlx5dv_devx_obj_create(ctx, in, 0x20, out, sizeof(out)) && out[0] == 0x50, "short CQ");
	MUST(!mlx5dv_devx_obj_create(ctx, in, 4, out, sizeof(out)), "mailbox of 4 bytes");
	/* A DC target; a move from another state; another's number; a busy CQ and a busy umem. */
	struct qp dct = make_qp(cq, 9, 6);
	MUST(!dct.obj, "a DC target was created as a queue pair");
	MUST(move(qp, 0x503, 1, out) && out[0] == 3, "INIT2RTR_QP in RTS: status %#x", out[0]);
	uint32_t number = qp->number++;
	MUST(move(qp, 0x507, 1, out) && out[0] == 5, "2ERR_QP of another number: %#x", out[0]);
	qp->number = number;
	MUST(mlx5dv_devx_obj_destroy(cq->obj) == EBUSY, "a CQ in use was destroyed");
	MUST(mlx5dv_devx_umem_dereg(cq->ring.umem) == EBUSY, "a umem in use went");
	/* Memory that is not there; a umem with rights that make no sense. */
	MUST(!mlx5dv_devx_umem_reg(ctx, (void *)0x1000, 4096, IBV_ACCESS_LOCAL_WRITE), "umem of nothing");
	MUST(errno == EFAULT, "umem of nothing");
	MUST(!mlx5dv_devx_umem_reg(ctx, small.at, 4096, IBV_ACCESS_REMOTE_WRITE), "umem without rights");
	MUST(!mlx5dv_devx_umem_dereg(small.umem), "umem of nobody");
	MUST(!mlx5dv_devx_umem_dereg(fixed.umem), "umem that is read");
	free(small.at);
	free(fixed.at);
	puts("refusals");
}

static void keys(struct qp *a, struct area *from, struct area *to, int lossy)
{
	uint8_t in[0x110] = { 0 }, out[16] = { 0 };
	uint32_t key[2];
	struct mlx5dv_devx_obj *obj[2];
	struct area *areas[2] = { from, to };
	for (int i = 0; i < 2; i++) {
		memset(in, 0, sizeof(in));
		set(in, 0, 0, 16, 0x200);
		set(in, 0xc, 1, 1, 1);
		set(in, 0x64, 0, 32, areas[i]->umem->umem_id);
		uint8_t *mkc = in + 0x10;
		set(mkc, 2, 6, 2, 1); /* MTT */
		set(mkc, 2, 2, 4, i ? 15 : 1); /* rw rr lw lr */
		set(mkc, 4, 0, 24, 0xffffff);
		set(mkc, 7, 0, 8, 0x5a + i);
		set(mkc, 0xd, 0, 24, pdn);
		set(mkc, 0x10, 0, 64, (uintptr_t)areas[i]->at);
		set(mkc, 0x18, 0, 64, areas[i]->bytes);
		obj[i] = mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
		MUST(obj[i], "CREATE_MKEY: status %#x", out[0]);
		key[i] = get(out, 9, 0, 24) << 8 | (0x5a + i);
	}
	fill(from->at, DATA, 77);
	memset(to->at, 0, DATA);
	post_write(a, from->at, key[0], to->at, key[1], DATA);
	ring(a);
	MUST(wait_for(a, 1) == 0, "WRITE with keys of umems");
	MUST(!memcmp(from->at, to->at, DATA), "bytes of a WRITE with keys of umems");
	MUST(!mlx5dv_devx_obj_destroy(obj[1]), "DESTROY_MKEY");
	/* The key is gone: remote access error. A responder that said so is in ERR and says nothing more: if the link
	 * lost its NAK, the requester's retries run out (InfiniBand vol. 1, 9.9.3). */
	post_write(a, from->at, key[0], to->at, key[1], 64);
	ring(a);
	MUST(wait_for(a, 1) == 13, "WRITE with a key that is gone");
	MUST(a->syndrome == 0x13 || (lossy && a->syndrome == 0x15), "key that is gone: syndrome %#x", a->syndrome);
	MUST(!mlx5dv_devx_obj_destroy(obj[0]), "DESTROY_MKEY");
	puts("mkeys");
}

/* Extended atomics, as NVSHMEM words them: 4 and 8 bytes, masks, what comes back. */
static void atomics(struct qp *qp)
{
	struct area back = area(4096, IBV_ACCESS_LOCAL_WRITE), to = area(4096, IBV_ACCESS_LOCAL_WRITE);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *b = ibv_reg_mr(pd, back.at, 4096, all), *t = ibv_reg_mr(pd, to.at, 4096, all);
	MUST(b && t, "MRs of atomics");
	static const struct {
		int bytes, swap;
		uint64_t operand, compare, change, compare_mask, before, after;
	} cases[] = {
		{ 4, 0, 5, 0, 0, 0, 100, 105 },
		{ 4, 0, 0xffffffff, 0, 0, 0, 1, 0 },
		{ 4, 0, 0x01010101, 0, 0x80808080, 0, 0xff00ff7f, 0x00010080 },
		{ 4, 1, 42, 7, ~0u, ~0u, 7, 42 },
		{ 4, 1, 42, 8, ~0u, ~0u, 7, 7 },
		{ 4, 1, 0xaaaa, 0, 0xff00, 0, 0x1234, 0xaa34 },
		{ 8, 0, 7, 0, 0, 0, 0xffffffffull, 0x100000006ull },
		{ 8, 0, 0xf0f0, 0, ~0ull, 0, 0xff00, 0x0ff0 },
		{ 8, 1, 0x1122334455667788ull, 0, ~0ull, 0, 9, 0x1122334455667788ull },
		{ 8, 1, 1, 0x500, 0xff, 0xf00, 0x5ee, 0x501 },
		{ 8, 1, 1, 0x600, 0xff, 0xf00, 0x5ee, 0x5ee },
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int bytes = cases[i].bytes, swap = cases[i].swap;
		/* The upper half of a word for 4 bytes, so that the lower must stay as it is. */
		uint8_t *at = to.at + 64 + (bytes == 4 ? 4 : 0);
		memset(to.at + 56, 0x77, 24);
		memcpy(at, &cases[i].before, bytes);
		memset(back.at, 0, 16);
		int blocks = bytes == 8 && swap ? 2 : 1, ds = blocks + 3;
		uint8_t wqe[128] = { 0 };
		set(wqe, 0, 0, 8, bytes == 4 ? 8 : 9);
		set(wqe, 1, 0, 16, qp->index & 0xffff);
		set(wqe, 3, 0, 8, swap ? 0x14 : 0x15);
		set(wqe, 4, 0, 24, qp->number);
		set(wqe, 7, 0, 8, ds);
		set(wqe, 11, 0, 8, 8);
		set(wqe, 16, 0, 64, (uintptr_t)at);
		set(wqe, 24, 0, 32, t->rkey);
		int width = bytes * 8;
		set(wqe, 32, 0, width, cases[i].operand);
		set(wqe, 32 + bytes, 0, width, swap ? cases[i].compare : cases[i].change);
		if (swap) {
			set(wqe, 32 + 2 * bytes, 0, width, cases[i].change);
			set(wqe, 32 + 3 * bytes, 0, width, cases[i].compare_mask);
		}
		uint8_t *data = wqe + (ds - 1) * 16;
		set(data, 0, 0, 32, bytes);
		set(data, 4, 0, 32, b->lkey);
		set(data, 8, 0, 64, (uintptr_t)back.at);
		for (int block = 0; block < blocks; block++)
			memcpy(qp->wq.at + ((qp->index + block) & (DEPTH - 1)) * 64, wqe + block * 64, 64);
		qp->index += blocks;
		uint32_t last = qp->index;
		qp->index -= blocks - 1; /* a CQE names a WQE's first block */
		uint32_t first = qp->index;
		qp->index = last;
		ring(qp);
		qp->index = first;
		MUST(wait_for(qp, 1) == 0, "extended atomic %u", i);
		qp->index = last;
		uint64_t after = 0, old = 0;
		memcpy(&after, at, bytes);
		memcpy(&old, back.at, bytes);
		if (bytes == 4)
			old = be32toh((uint32_t)old);
		MUST(after == cases[i].after, "extended atomic %u made %#lx", i, (unsigned long)after);
		MUST(old == cases[i].before, "extended atomic %u returned %#lx", i, (unsigned long)old);
		int low = bytes == 4 ? 12 : 8, high = 8;
		for (int n = 0; n < low; n++)
			MUST(at[n - low] == 0x77, "extended atomic %u touched what lies before", i);
		for (int n = 0; n < high; n++)
			MUST(at[bytes + n] == 0x77, "extended atomic %u touched what lies behind", i);
	}
	MUST(!ibv_dereg_mr(b) && !ibv_dereg_mr(t), "MRs of atomics");
	puts("atomics");
}

/* A put with a signal as NVSHMEM words it, in one doorbell: an RDMA WRITE, an atomic with masks that
 * sets 8 bytes, in two basic blocks, and a NOP, whose completion alone is asked for. */
static void put_signal(struct qp *qp, struct area *from, struct ibv_mr *src, struct area *to, struct ibv_mr *dst)
{
	struct area back = area(4096, IBV_ACCESS_LOCAL_WRITE);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *b = ibv_reg_mr(pd, back.at, 4096, all);
	struct area word = area(4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *w = ibv_reg_mr(pd, word.at, 4096, all);
	MUST(b && w, "MRs of signals");
	for (uint32_t i = 0; i < 3 * DEPTH; i++) {
		uint32_t bytes = i % 4 == 3 ? DATA : 8 + i * 997 % (DATA - 8);
		fill(from->at, bytes, i);
		memset(to->at, 0, bytes);
		post_write(qp, from->at, src->lkey, to->at, dst->rkey, bytes);
		((uint32_t *)(qp->wq.at + ((qp->index - 1) & (DEPTH - 1)) * 64))[2] = 0;
		uint8_t wqe[128] = { 0 };
		set(wqe, 0, 0, 8, 9);
		set(wqe, 1, 0, 16, qp->index & 0xffff);
		set(wqe, 3, 0, 8, 0x14);
		set(wqe, 4, 0, 24, qp->number);
		set(wqe, 7, 0, 8, 5);
		set(wqe, 16, 0, 64, (uintptr_t)word.at);
		set(wqe, 24, 0, 32, w->rkey);
		set(wqe, 32, 0, 64, i + 1);
		set(wqe, 48, 0, 64, ~0ull);
		set(wqe, 64, 0, 32, 8);
		set(wqe, 68, 0, 32, b->lkey);
		set(wqe, 72, 0, 64, (uintptr_t)back.at);
		for (int block = 0; block < 2; block++, qp->index++)
			memcpy(qp->wq.at + (qp->index & (DEPTH - 1)) * 64, wqe + block * 64, 64);
		uint32_t *nop = (uint32_t *)(qp->wq.at + (qp->index & (DEPTH - 1)) * 64);
		nop[0] = htobe32((qp->index & 0xffff) << 8);
		nop[1] = htobe32(qp->number << 8 | 2);
		nop[2] = htobe32(8);
		nop[3] = 0;
		qp->index++;
		ring(qp);
		MUST(wait_for(qp, 1) == 0, "put with signal %u", i);
		MUST(!memcmp(from->at, to->at, bytes), "bytes of put with signal %u", i);
		uint64_t signal, before;
		memcpy(&signal, word.at, 8);
		memcpy(&before, back.at, 8);
		MUST(signal == i + 1 && before == i, "signal %u: %lu, was %lu", i, (unsigned long)signal, (unsigned long)before);
	}
	MUST(!ibv_dereg_mr(b) && !ibv_dereg_mr(w), "MRs of signals");
	puts("signals");
}

static void state_is(struct qp *qp, unsigned wanted, uint32_t peer)
{
	uint8_t in[16] = { 0 }, out[0x110] = { 0 };
	set(in, 0, 0, 16, 0x50b);
	set(in, 9, 0, 24, qp->number);
	MUST(!mlx5dv_devx_obj_query(qp->obj, in, sizeof(in), out, sizeof(out)), "QUERY_QP: %#x", out[0]);
	const uint8_t *qpc = out + 0x18;
	MUST(get(qpc, 0, 0, 4) == wanted, "state %u, not %u", (unsigned)get(qpc, 0, 0, 4), wanted);
	MUST(get(qpc, 0x15, 0, 24) == peer, "remote_qpn %#x", (unsigned)get(qpc, 0x15, 0, 24));
	if (peer)
		MUST(get(qpc, 8, 0, 3) == 3 && !memcmp(qpc + 0x28, gid.raw, 16), "path of QUERY_QP");
}

/* A target of dynamic connections, by verbs: it has a number from RTR on. */
static void target(void)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 16384, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16384, NULL, NULL, 0);
	struct ibv_parent_domain_init_attr domain = { .pd = pd };
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &domain);
	MUST(srq && cq && parent, "objects of a DC target");
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = 0x5623ceaf },
	};
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_DRIVER, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = parent,
		.srq = srq, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 1024, .max_recv_wr = 1024, .max_send_sge = 1,
			 .max_recv_sge = 1, .max_inline_data = 256 },
	};
	struct ibv_qp *dct = mlx5dv_create_qp(ctx, &attr, &dv);
	MUST(dct, "DC target");
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12 };
	to.ah_attr.is_global = 1;
	to.ah_attr.port_num = 1;
	to.ah_attr.grh.dgid = gid;
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER;
	MUST(ibv_modify_qp(dct, &to, rtr), "a DC target went from RESET to RTR");
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int first = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	MUST(!ibv_modify_qp(dct, &init, first), "DC target to INIT");
	MUST(!ibv_modify_qp(dct, &to, rtr), "DC target to RTR");
	MUST(dct->qp_num, "a DC target without a number");
	MUST(!ibv_destroy_qp(dct), "DC target");
	MUST(!ibv_destroy_cq(cq) && !ibv_destroy_srq(srq) && !ibv_dealloc_pd(parent), "its objects");
	puts("target");
}

/* Queue pairs on the four registers of one page, as libmlx5's dedicated registers without a cache
 * are dealt out; and without records, which NVSHMEM's thread that rings for the GPU does not keep. */
static void registers(struct area *from, struct ibv_mr *src, struct area *to, struct ibv_mr *dst)
{
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(ctx, MLX5DV_UAR_ALLOC_TYPE_NC);
	MUST(uar, "UAR without a cache");
	struct cq cq[4];
	struct qp qp[4];
	for (int i = 0; i < 4; i++) {
		cq[i] = make_cq(1);
		qp[i] = make_qp_on(uar, &cq[i], 10 + i, 0);
		MUST(qp[i].obj, "queue pair %d on a shared page", i);
		qp[i].reg = (uint64_t *)((uint8_t *)uar->base_addr + 0x800 + 0x100 * i);
		qp[i].silent = 1;
	}
	for (int i = 0; i < 4; i++)
		connect_to(&qp[i], qp[i ^ 1].number);
	for (uint32_t round = 0; round < 2 * DEPTH; round++) {
		fill(from->at, 4096, round);
		memset(to->at, 0, 4096);
		for (int i = 0; i < 4; i++)
			post_write(&qp[i], from->at + i * 1024, src->lkey, to->at + i * 1024, dst->rkey, 1024);
		for (int i = 0; i < 4; i++)
			ring(&qp[i]);
		for (int i = 0; i < 4; i++)
			MUST(wait_for(&qp[i], 10 + i) == 0, "register %d, round %u", i, round);
		MUST(!memcmp(from->at, to->at, 4096), "bytes of round %u", round);
	}
	for (int i = 0; i < 4; i++)
		MUST(!mlx5dv_devx_obj_destroy(qp[i].obj) && !mlx5dv_devx_obj_destroy(cq[i].obj), "queue pair %d", i);
	puts("registers");
}

/* A WRITE that only the doorbell record tells of: the NIC is not told to look. */
static void stand_still(struct qp *qp, struct area *from, struct ibv_mr *src, struct area *to, struct ibv_mr *dst)
{
	post_write(qp, from->at, src->lkey, to->at, dst->rkey, 64);
	__atomic_store_n((uint32_t *)qp->dbr.at + 1, htobe32(qp->index & 0xffff), __ATOMIC_RELEASE);
	raise(SIGUSR2);
	sleep(5);
	ring(qp);
	MUST(wait_for(qp, 1) == 0, "WRITE that was rung late");
	puts("rung");
}

#include "devx_objects.h"

/* A queue pair that was reset starts at its ring's first block, whatever its doorbell record says from before: what is
 * not rung is not posted. UCX goes on with an initiator of DC in this way. */
static void begun_again(struct qp *a, struct qp *b, struct area *from, struct ibv_mr *src, struct area *to,
	struct ibv_mr *dst)
{
	uint8_t out[16] = { 0 };
	/* From the second round on the record is one that the ring could have. */
	for (uint32_t round = 0; round < 3; round++) {
		MUST(!round || !move(a, 0x50a, 0, out), "2RST_QP");
		MUST(!move(b, 0x50a, 0, out), "2RST_QP");
		memset(a->wq.at, 0, DEPTH * 64);
		a->index = 0;
		connect_to(a, b->number);
		connect_to(b, a->number);
		usleep(20000);
		state_is(a, 3, b->number);
		for (uint32_t i = 0; i < 3; i++) {
			fill(from->at, 64, 8 * round + i);
			post_write(a, from->at, src->lkey, to->at, dst->rkey, 64);
			ring(a);
			MUST(wait_for(a, 1) == 0, "a WRITE after 2RST_QP, round %u", round);
			MUST(!memcmp(from->at, to->at, 64), "bytes of it");
		}
	}
	puts("again");
}

int main(int argc, char **argv)
{
	open_device();
	caps();

	struct cq plain = make_cq(0), collapsed = make_cq(1);
	struct qp a = make_qp(&collapsed, 1, 0), b = make_qp(&plain, 2, 0);
	MUST(a.obj && b.obj, "CREATE_QP");
	state_is(&a, 0, 0);
	connect_to(&a, b.number);
	connect_to(&b, a.number);
	state_is(&a, 3, b.number);
	puts("connected");

	struct area from = area(DATA, 0), to = area(DATA, IBV_ACCESS_LOCAL_WRITE);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *src = ibv_reg_mr(pd, from.at, DATA, all), *dst = ibv_reg_mr(pd, to.at, DATA, all);
	MUST(src && dst, "MRs");
	if (argc > 1 && !strcmp(argv[1], "late")) {
		stand_still(&a, &from, src, &to, dst);
		return 0;
	}
	/* More than the rings hold, one by one and in batches, both ways. */
	for (uint32_t i = 0; i < 5 * DEPTH; i++) {
		struct qp *qp = i & 1 ? &b : &a;
		uint32_t bytes = 1 + i * 997 % DATA;
		fill(from.at, bytes, i);
		memset(to.at, 0, bytes);
		post_write(qp, from.at, src->lkey, to.at, dst->rkey, bytes);
		ring(qp);
		MUST(wait_for(qp, i & 1 ? 2 : 1) == 0, "WRITE %u", i);
		MUST(!memcmp(from.at, to.at, bytes), "bytes of WRITE %u", i);
	}
	for (uint32_t round = 0; round < 8; round++) {
		fill(from.at, DATA, round);
		memset(to.at, 0, DATA);
		for (uint32_t i = 0; i < DEPTH / 2; i++) {
			uint32_t part = DATA / (DEPTH / 2);
			post_write(&a, from.at + i * part, src->lkey, to.at + i * part, dst->rkey, part);
		}
		ring(&a);
		MUST(wait_for(&a, 1) == 0, "batch %u", round);
		MUST(!memcmp(from.at, to.at, DATA), "bytes of batch %u", round);
	}
	puts("writes");
	ports(&a, &from, src, &to, dst);
	numbers(&a);
	schedule(&a, &from, src, &to, dst);
	parts(&a, &from, src, &to, dst);
	atomics(&a);
	put_signal(&a, &from, src, &to, dst);
	registers(&from, src, &to, dst);
	refusals(&plain, &a);

	/* An initiator of DC, whose WQEs must say whom they are for. */
	struct qp dci = make_qp(&plain, 3, 5);
	MUST(dci.obj, "CREATE_QP of a DC initiator");
	connect_to(&dci, 0);
	state_is(&dci, 3, 0);
	post_write(&dci, from.at, src->lkey, to.at, dst->rkey, 64);
	ring(&dci);
	MUST(wait_for(&dci, 3) == 13, "a WQE for no target");
	MUST(!mlx5dv_devx_obj_destroy(dci.obj), "DESTROY_QP");
	puts("initiator");

	target();
	keys(&a, &from, &to, argc > 1 && !strcmp(argv[1], "lossy"));
	state_is(&a, 6, b.number);
	uint8_t out[16] = { 0 };
	MUST(!move(&a, 0x50a, 0, out), "2RST_QP");
	state_is(&a, 0, 0);
	begun_again(&a, &b, &from, src, &to, dst);
	MUST(!mlx5dv_devx_obj_destroy(a.obj) && !mlx5dv_devx_obj_destroy(b.obj), "DESTROY_QP");
	MUST(!mlx5dv_devx_obj_destroy(plain.obj) && !mlx5dv_devx_obj_destroy(collapsed.obj), "DESTROY_CQ");
	MUST(!mlx5dv_devx_umem_dereg(plain.ring.umem), "umem of a CQ that is gone");
	MUST(!ibv_dereg_mr(src) && !ibv_dereg_mr(dst), "MRs");
	MUST(!ibv_close_device(ctx), "close");
	puts("end");
	return 0;
}
