/* The host's side of NCCL's GIN by GDAKI, and the work requests of its kernels, without a GPU: what NCCL 2.30's
 * gin_host_gdaki.cc and its doca-gpunetio ask of the device, in their order and with their fields, with memory of the
 * host in the place of a GPU's; then WQEs, doorbells and looks at CQEs as gin_gdaki.h has them. Prints one line for
 * each thing shown; exits 1 at the first that fails. Arguments: how many puts; then `open`, for doorbells that the
 * object cannot catch, as a GPU's, or a driver of a GPU (interop/copies.c) whose memory is all that is registered. */
#include "devx.h"

#include <dlfcn.h>
#include <malloc.h>
#include <netinet/in.h>
#include <signal.h>

enum { UIDX = 0 };

static void query(uint16_t kind, uint8_t *out)
{
	uint8_t in[16] = { 0 };
	set(in, 0, 0, 16, 0x100);
	set(in, 6, 0, 16, kind << 1 | 1);
	memset(out, 0, 0x1010);
	MUST(!mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, 0x1010), "QUERY_HCA_CAP %#x: %#x", kind, out[0]);
}

/* doca_verbs_device_attr::query_caps: general, RoCE, general 2. */
static void caps(void)
{
	static uint8_t out[0x1010];
	const uint8_t *cap = out + 16;
	query(0, out);
	MUST(get(cap, 0x36, 6, 2) == 1, "port_type"); /* Ethernet */
	MUST(get(cap, 0x47, 7, 1) == 1, "rc");
	MUST(get(cap, 4, 0, 1) == 1, "hca_cap_2");
	MUST(get(cap, 0x52, 0, 16) >= 64 && get(cap, 0x11, 0, 8) >= 7, "sizes of a send queue");
	query(4, out);
	MUST(get(cap, 0x1e, 0, 16) == 1, "roce_address_table_size %u", (unsigned)get(cap, 0x1e, 0, 16));
	unsigned least = get(cap, 0x1a, 0, 16), most = get(cap, 0x18, 0, 16);
	MUST(least == 0xc000 && most == 0xffff, "source ports from %#x to %#x", least, most);
	MUST(get(cap, 0x16, 0, 16) == 4791, "r_roce_dest_udp_port");
	MUST(get(cap, 0x13, 0, 8) == 1 << 2, "RoCE's versions"); /* v2 alone */
	query(0x20, out);
	MUST(get(cap, 0x5c, 1, 1) == 0, "send_dbr_mode_no_dbr_ext");
	puts("caps");
}

/* query_roce_version of each move to RTR. */
static void address(void)
{
	uint8_t in[16] = { 0 }, out[48] = { 0 };
	set(in, 0, 0, 16, 0x760);
	MUST(!mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)), "QUERY_ROCE_ADDRESS: %#x", out[0]);
	MUST(!memcmp(out + 16, gid.raw, 16), "another GID");
	MUST(out[16 + 0x1b] == 2, "roce_version %u", out[16 + 0x1b]);
	int mapped = IN6_IS_ADDR_V4MAPPED((struct in6_addr *)gid.raw);
	MUST((out[16 + 0x1a] & 0xf) == !mapped, "roce_l3_type %u", out[16 + 0x1a]);
	set(in, 8, 0, 16, 1);
	MUST(mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)), "a second address");
	MUST(errno == EREMOTEIO && out[0] == 3, "a second address: status %#x", out[0]);
	set(in, 8, 0, 16, 0);
	set(in, 0xb, 4, 4, 2);
	MUST(mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)) && out[0] == 3, "an address of port 2");
	/* The path's MAC comes from an address handle. */
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 255 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	MUST(ah, "address handle");
	struct mlx5dv_ah dv = { 0 };
	struct mlx5dv_obj obj = { .ah = { .in = ah, .out = &dv } };
	MUST(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_AH) && dv.av, "address vector");
	MUST(!ibv_destroy_ah(ah), "destroying an address handle");
	puts("address");
}

/* create_cq: a ring whose entries nobody reports free (oi), each of its own (cc 0). */
static struct cq open_cq(struct mlx5dv_devx_uar *uar)
{
	struct cq cq = { 0 };
	uint8_t in[0x110] = { 0 }, out[16] = { 0 };
	cq.ring = area(DEPTH * 64, IBV_ACCESS_LOCAL_WRITE);
	cq.dbr = area(4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < DEPTH; i++)
		cq.ring.at[i * 64 + 63] = 0xf1;
	cq.uar = uar ? uar : mlx5dv_devx_alloc_uar(ctx, MLX5DV_UAR_ALLOC_TYPE_NC);
	MUST(cq.uar, "UAR of a CQ");
	set(in, 0, 0, 16, 0x400);
	set(in, 0x58, 0, 32, cq.ring.umem->umem_id);
	set(in, 0x5c, 0, 1, 1);
	uint8_t *cqc = in + 0x10;
	set(cqc, 4, 0, 32, cq.dbr.umem->umem_id);
	set(cqc, 1, 6, 1, 1); /* oi */
	set(cqc, 0xc, 3, 5, DEPTH_LOG);
	set(cqc, 0xd, 0, 24, cq.uar->page_id);
	set(cqc, 0x17, 0, 8, eqn);
	cq.obj = mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
	MUST(cq.obj, "CREATE_CQ: status %#x", out[0]);
	cq.number = get(out, 9, 0, 24);
	return cq;
}

/* create_qp, and the query of export_qp, which takes an MTU of 0 for an error. */
static struct qp open_qp(struct cq *cq, struct mlx5dv_devx_uar *uar, int dbr_mode, int master)
{
	struct qp qp = { .cq = cq, .uar = uar, .reg = uar->reg_addr };
	uint8_t in[0x110] = { 0 }, out[0x110] = { 0 };
	qp.wq = area(DEPTH * 64, IBV_ACCESS_LOCAL_WRITE);
	qp.dbr = area(4096, IBV_ACCESS_LOCAL_WRITE);
	set(in, 0, 0, 16, 0x500);
	set(in, 0x108, 0, 32, qp.wq.umem->umem_id);
	set(in, 0x10c, 0, 1, 1);
	uint8_t *qpc = in + 0x18;
	set(qpc, 5, 0, 24, pdn);
	set(qpc, 0xd, 0, 24, uar->page_id);
	set(qpc, 0x7d, 0, 24, cq->number);
	set(qpc, 0xa, 1, 4, DEPTH_LOG);
	set(qpc, 0xac, 5, 3, 3); /* no receive queue */
	set(qpc, 0x10, 0, 2, dbr_mode);
	set(qpc, 0x93, 7, 1, master); /* cd_master */
	set(qpc, 0xe4, 0, 32, qp.dbr.umem->umem_id);
	qp.obj = mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
	if (!qp.obj) {
		MUST(out[0] == 3, "CREATE_QP: status %#x", out[0]);
		return qp;
	}
	qp.number = get(out, 9, 0, 24);
	memset(in, 0, sizeof(in));
	set(in, 0, 0, 16, 0x50b);
	set(in, 9, 0, 24, qp.number);
	MUST(!mlx5dv_devx_obj_query(qp.obj, in, 16, out, sizeof(out)), "QUERY_QP");
	struct ibv_port_attr port;
	MUST(!ibv_query_port(ctx, 1, &port), "ibv_query_port");
	unsigned mtu = get(out + 0x18, 8, 0, 3), most = port.active_mtu;
	MUST(get(out + 0x18, 0, 0, 4) == 0 && mtu >= 1 && mtu <= most, "a new queue pair's state, or its mtu %u", mtu);
	return qp;
}

/* A queue pair for messages, and its companion, which counts those that are complete: one doorbell register for both
 * (doca_gpu_verbs_create_qp_group_hl). */
struct group {
	struct cq cq[2];
	struct qp qp[2], peer[2];
};

static void open_group(struct group *g)
{
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(ctx, MLX5DV_UAR_ALLOC_TYPE_NC);
	MUST(uar, "UAR");
	for (int i = 0; i < 2; i++) {
		g->cq[i] = open_cq(uar);
		g->qp[i] = open_qp(&g->cq[i], uar, 0, i);
		MUST(g->qp[i].obj, "CREATE_QP");
		struct cq *far = malloc(sizeof(*far));
		*far = open_cq(NULL);
		struct mlx5dv_devx_uar *its = mlx5dv_devx_alloc_uar(ctx, MLX5DV_UAR_ALLOC_TYPE_NC);
		g->peer[i] = open_qp(far, its, 0, 0);
		connect_to(&g->qp[i], g->peer[i].number);
		connect_to(&g->peer[i], g->qp[i].number);
	}
}

/* ---- What kernels do ---- */

static uint32_t *wqe(struct qp *qp, uint8_t opcode, unsigned ds)
{
	/* wait_until_slot_available: a place is free when the CQE of the last lap's WQE is there. */
	uint32_t *at = (uint32_t *)(qp->wq.at + (qp->index & (DEPTH - 1)) * 64);
	at[0] = htobe32((qp->index & 0xffff) << 8 | opcode);
	at[1] = htobe32(qp->number << 8 | ds);
	at[2] = htobe32(8); /* CE */
	qp->index++;
	return at;
}

static void put64(uint32_t *at, uint64_t value)
{
	value = htobe64(value);
	memcpy(at, &value, 8);
}

static void data(uint32_t *seg, uint64_t addr, uint32_t key, uint32_t bytes)
{
	seg[0] = htobe32(bytes);
	seg[1] = htobe32(key);
	put64(seg + 2, addr);
}

static void remote(uint32_t *seg, uint64_t addr, uint32_t key)
{
	put64(seg, addr);
	seg[2] = htobe32(key);
}

static void moves(struct qp *qp, uint8_t opcode, uint64_t to, uint32_t rkey, uint64_t from, uint32_t lkey, uint32_t n)
{
	uint32_t *at = wqe(qp, opcode, 3);
	remote(at + 4, to, rkey);
	data(at + 8, from, lkey, n);
}

static void add(struct qp *qp, uint64_t to, uint32_t rkey, uint64_t back, uint32_t lkey, uint64_t value)
{
	uint32_t *at = wqe(qp, 0x12, 4);
	remote(at + 4, to, rkey);
	put64(at + 8, value);
	put64(at + 10, 0);
	data(at + 12, back, lkey, 8);
}

static void wait(struct qp *qp, uint32_t cqn, uint32_t index)
{
	uint32_t *at = wqe(qp, 0x0f, 2);
	at[6] = htobe32(index);
	at[7] = htobe32(cqn);
}

static void dump(struct qp *qp, uint64_t from, uint32_t lkey)
{
	data(wqe(qp, 0x23, 2) + 4, from, lkey, 1);
}

static void store_record(struct qp *qp)
{
	__atomic_store_n((uint32_t *)qp->dbr.at + 1, htobe32(qp->index & 0xffff), __ATOMIC_RELAXED);
}

static void store_doorbell(struct qp *qp)
{
	uint64_t bell = (uint64_t)((qp->index & 0xffff) << 8) << 32 | (uint64_t)(qp->number << 8);
	__atomic_store_n(qp->reg, htobe64(bell), __ATOMIC_RELEASE);
}

/* A GPU's stores come to the host's memory by a few to some hundred nanoseconds apart. */
static void on_the_way(void)
{
	static uint32_t some = 1;
	some = some * 1664525 + 1013904223;
	for (volatile uint32_t i = 0; i < some >> (24 + (some >> 8) % 8); i++)
		;
}

/* submit_db_multi_qps: early doorbells first, then each one's record and its doorbell once more. */
static void submit(struct qp **qps, int n)
{
	for (int i = 0; i < n; i++) {
		store_doorbell(qps[i]);
		on_the_way();
	}
	for (int i = 0; i < n; i++) {
		store_record(qps[i]);
		on_the_way();
		store_doorbell(qps[i]);
		on_the_way();
	}
}

static int look(struct qp *qp, uint32_t index)
{
	uint8_t own = __atomic_load_n(qp->cq->ring.at + (index & (DEPTH - 1)) * 64 + 63, __ATOMIC_ACQUIRE);
	if (own >> 4 == 0xf || (own & 1) != (index >> DEPTH_LOG & 1))
		return -1;
	return own >> 4;
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* poll_cq_at: the CQE of the WQE at an index, of a CQ with one for each; its opcode. */
static int poll_at(struct qp *qp, uint32_t index)
{
	for (double start = seconds();;) {
		int code = look(qp, index);
		if (code >= 0) {
			uint8_t *cqe = qp->cq->ring.at + (index & (DEPTH - 1)) * 64;
			uint16_t counter = cqe[60] << 8 | cqe[61];
			MUST(counter == (uint16_t)index, "CQE %u is of WQE %u", index, counter);
			qp->syndrome = cqe[55];
			return code;
		}
		MUST(seconds() - start < 20, "no CQE %u within 20 s", index);
	}
}

/* ---- What is shown ---- */

struct memory {
	uint8_t *at;
	struct ibv_mr *mr;
};

/* gdakiRegMr: from address 0 on, whatever it is. */
static struct memory memory(size_t bytes)
{
	struct memory m;
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	MUST(!posix_memalign((void **)&m.at, 1 << 16, bytes), "memory");
	memset(m.at, 0, bytes);
	m.mr = ibv_reg_mr_iova2(pd, m.at, bytes, 0, all | IBV_ACCESS_RELAXED_ORDERING);
	MUST(m.mr, "region");
	return m;
}

static uint64_t word(struct memory *m, unsigned at)
{
	return __atomic_load_n((uint64_t *)m->at + at, __ATOMIC_ACQUIRE);
}

enum { BYTES = 1 << 16 };

static struct memory src, dst, signals, counters, sink;

/* put_signal_counter: WRITE and signal; the companion waits for the signal's CQE and counts. */
static void puts_with_signals(struct group *g, uint32_t rounds)
{
	struct qp *both[] = { &g->qp[0], &g->qp[1] };
	for (uint32_t i = 1; i <= rounds; i++) {
		uint32_t bytes = 1 + i * 997 % 2048, at = i * 64 % (BYTES / 2) & ~7u;
		fill(src.at + at, bytes, i);
		moves(both[0], 8, at, dst.mr->rkey, at, src.mr->lkey, bytes);
		add(both[0], 8, signals.mr->rkey, 0, sink.mr->lkey, 3);
		wait(both[1], g->cq[0].number, both[0]->index - 1);
		add(both[1], 16, counters.mr->rkey, 0, sink.mr->lkey, 1);
		submit(both, 2);
		/* The kernel waits for its counter; the peer's, for its signal. */
		for (double start = seconds(); word(&counters, 2) < i;)
			MUST(seconds() - start < 20, "counter %u of %u", (unsigned)word(&counters, 2), i);
		MUST(look(both[0], both[0]->index - 1) == 0, "counted %u before its CQE", i);
		MUST(word(&signals, 1) == 3ull * i, "signal %u", (unsigned)word(&signals, 1));
		MUST(!memcmp(src.at + at, dst.at + at, bytes), "bytes of put %u", i);
		MUST(poll_at(both[1], both[1]->index - 1) == 0, "the counter's CQE");
	}
	puts("puts");
}

/* A WAIT for what is not posted yet holds back all behind it. */
static void early_wait(struct group *g)
{
	struct qp *main = &g->qp[0], *companion = &g->qp[1];
	uint64_t before = word(&counters, 2);
	wait(companion, g->cq[0].number, main->index);
	add(companion, 16, counters.mr->rkey, 0, sink.mr->lkey, 1);
	submit(&companion, 1);
	usleep(50000);
	MUST(word(&counters, 2) == before, "counted what was not there");
	MUST(look(companion, companion->index - 2) < 0, "a WAIT is done before its entry");
	moves(main, 8, 0, dst.mr->rkey, 0, src.mr->lkey, 8);
	submit(&main, 1);
	MUST(poll_at(companion, companion->index - 1) == 0 && word(&counters, 2) == before + 1, "a WAIT that is due");
	MUST(poll_at(main, main->index - 1) == 0, "the put that was waited for");
	puts("waits");
}

/* get, and flush's mcst: what a READ has brought is there when the DUMP behind it is complete. */
static void gets(struct group *g)
{
	struct qp *qp = &g->qp[0];
	for (uint32_t i = 0; i < 2 * DEPTH; i++) {
		uint32_t bytes = 1 + i * 331 % BYTES;
		fill(dst.at, bytes, i);
		memset(src.at, 0, bytes);
		moves(qp, 0x10, 0, dst.mr->rkey, 0, src.mr->lkey, bytes);
		dump(qp, 0, sink.mr->lkey);
		submit(&qp, 1);
		MUST(poll_at(qp, qp->index - 1) == 0, "DUMP %u", i);
		MUST(look(qp, qp->index - 2) == 0, "a DUMP before its READ");
		MUST(!memcmp(src.at, dst.at, bytes), "bytes of get %u", i);
	}
	puts("gets");
}

/* doca_gpu_verbs_query_last_error. */
static unsigned state_of(struct qp *qp)
{
	uint8_t in[16] = { 0 }, out[0x110] = { 0 };
	set(in, 0, 0, 16, 0x50b);
	set(in, 9, 0, 24, qp->number);
	MUST(!mlx5dv_devx_obj_query(qp->obj, in, sizeof(in), out, sizeof(out)), "QUERY_QP");
	return get(out + 0x18, 0, 0, 4);
}

static void errors(struct group *g)
{
	struct qp *main = &g->qp[0], *companion = &g->qp[1];
	MUST(state_of(main) == 3 && state_of(companion) == 3, "states");
	dump(main, BYTES, src.mr->lkey);
	submit(&main, 1);
	MUST(poll_at(main, main->index - 1) == 13 && main->syndrome == 4, "a DUMP outside: %#x", main->syndrome);
	MUST(state_of(main) == 6, "state %u", state_of(main));
	wait(companion, 0xfffffe, 0);
	submit(&companion, 1);
	MUST(poll_at(companion, companion->index - 1) == 13 && companion->syndrome == 2, "a WAIT for no CQ: %#x",
	     companion->syndrome);
	/* One that waits is flushed, and what is behind it. */
	struct group other;
	open_group(&other);
	struct qp *waits = &other.qp[1];
	uint8_t out[16] = { 0 };
	wait(waits, other.cq[0].number, 0);
	add(waits, 16, counters.mr->rkey, 0, sink.mr->lkey, 1);
	submit(&waits, 1);
	usleep(5000);
	MUST(!move(waits, 0x507, 0, out), "2ERR_QP");
	MUST(poll_at(waits, 0) == 13 && waits->syndrome == 5, "a WAIT that is flushed: %#x", waits->syndrome);
	MUST(poll_at(waits, 1) == 13 && waits->syndrome == 5, "what is behind it: %#x", waits->syndrome);
	puts("errors");
}

int main(int argc, char **argv)
{
	unsigned long *copies = NULL;
	if (argc > 2 && !strcmp(argv[2], "open")) {
		sigset_t faults;
		sigemptyset(&faults);
		sigaddset(&faults, SIGSEGV);
		MUST(!sigprocmask(SIG_BLOCK, &faults, NULL), "mask");
	} else if (argc > 2) {
		void *driver = dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
		MUST(driver && (copies = dlsym(driver, "copies_made")), "driver %s", argv[2]);
		/* All of it in the heap, which is that driver's. */
		mallopt(M_MMAP_MAX, 0);
	}
	open_device();
	caps();
	address();
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(ctx, MLX5DV_UAR_ALLOC_TYPE_NC);
	struct cq cq = open_cq(NULL);
	MUST(uar && !open_qp(&cq, uar, 2, 0).obj, "doorbells without a record");
	struct group g;
	open_group(&g);
	puts("queues");
	src = memory(BYTES), dst = memory(BYTES), signals = memory(4096), counters = memory(4096), sink = memory(4096);
	/* Past the end of WQE indices, unless asked for fewer. */
	puts_with_signals(&g, argc > 1 ? atoi(argv[1]) : 33000);
	early_wait(&g);
	gets(&g);
	errors(&g);
	if (copies) {
		MUST(*copies > 1000, "%lu copies", *copies);
		puts("copies");
	}
	puts("end");
	return 0;
}
