/* What programs on DEVX share: a device with its protection domain, mailboxes, umems, CQs and queue pairs made by
 * commands, WQEs and doorbells written by hand. */
#ifndef BELLPUSH_DEVX_H
#define BELLPUSH_DEVX_H

#include <endian.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "devx: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, " (errno %d, %s)\n", errno, strerror(errno));
	exit(1);
}

#define MUST(what, ...) do { if (!(what)) die(__VA_ARGS__); } while (0)

/* A field of `bits` bits, the first of which is `bit` bits behind the top of byte `byte`. */
static inline void set(uint8_t *box, unsigned byte, unsigned bit, unsigned bits, uint64_t value)
{
	for (unsigned i = 0; i < bits; i++) {
		unsigned at = byte * 8 + bit + i;
		uint8_t mask = 0x80 >> (at & 7);
		if (value >> (bits - 1 - i) & 1)
			box[at / 8] |= mask;
		else
			box[at / 8] &= ~mask;
	}
}

static inline uint64_t get(const uint8_t *box, unsigned byte, unsigned bit, unsigned bits)
{
	uint64_t value = 0;
	for (unsigned i = 0; i < bits; i++) {
		unsigned at = byte * 8 + bit + i;
		value = value << 1 | (box[at / 8] >> (7 - (at & 7)) & 1);
	}
	return value;
}

enum { DEPTH_LOG = 6, DEPTH = 1 << DEPTH_LOG, DATA = 1 << 16 };

struct area {
	uint8_t *at;
	size_t bytes;
	struct mlx5dv_devx_umem *umem;
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static uint32_t pdn, eqn;
static union ibv_gid gid;

static inline struct area area(size_t bytes, int access)
{
	struct area a = { .bytes = bytes };
	MUST(!posix_memalign((void **)&a.at, 1 << 16, bytes), "memory");
	memset(a.at, 0, bytes);
	a.umem = mlx5dv_devx_umem_reg(ctx, a.at, bytes, access);
	MUST(a.umem, "umem of %zu bytes", bytes);
	return a;
}

struct cq {
	struct area ring, dbr;
	struct mlx5dv_devx_obj *obj;
	struct mlx5dv_devx_uar *uar;
	uint32_t number, taken;
	int collapsed;
};

/* That umems are valid (`cq_umem_valid` and so on) is for the kernel to say. */
static inline struct cq make_cq(int collapsed)
{
	struct cq cq = { .collapsed = collapsed };
	uint8_t in[0x110] = { 0 }, out[16] = { 0 };
	cq.ring = area(DEPTH * 64, IBV_ACCESS_LOCAL_WRITE);
	cq.dbr = area(64, IBV_ACCESS_LOCAL_WRITE);
	memset(cq.ring.at, 0xff, cq.ring.bytes);
	cq.uar = mlx5dv_devx_alloc_uar(ctx, MLX5DV_UAR_ALLOC_TYPE_NC);
	MUST(cq.uar, "UAR of a CQ");
	set(in, 0, 0, 16, 0x400);
	set(in, 0x58, 0, 32, cq.ring.umem->umem_id);
	uint8_t *cqc = in + 0x10;
	set(cqc, 4, 0, 32, cq.dbr.umem->umem_id);
	set(cqc, 1, 3, 1, collapsed); /* cc */
	set(cqc, 1, 6, 1, collapsed); /* oi */
	set(cqc, 0xc, 3, 5, DEPTH_LOG);
	set(cqc, 0xd, 0, 24, cq.uar->page_id);
	set(cqc, 0x17, 0, 8, eqn);
	cq.obj = mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
	MUST(cq.obj, "CREATE_CQ: status %#x", out[0]);
	cq.number = get(out, 9, 0, 24);
	return cq;
}

struct qp {
	struct area wq, dbr;
	struct mlx5dv_devx_obj *obj;
	struct mlx5dv_devx_uar *uar;
	struct cq *cq;
	uint64_t *reg;
	uint32_t number, posted, index;
	int silent; /* keeps no doorbell record */
	uint8_t syndrome; /* of the CQE that was waited for, if it is an error */
};

static inline struct qp make_qp_from(struct mlx5dv_devx_uar *uar, struct cq *cq, uint32_t uidx, int service,
	uint32_t pool)
{
	struct qp qp = { .cq = cq, .uar = uar, .reg = uar->reg_addr };
	uint8_t in[0x110] = { 0 }, out[16] = { 0 };
	qp.wq = area(DEPTH * 64, 0);
	qp.dbr = area(64, 0);
	set(in, 0, 0, 16, 0x500);
	set(in, 0x108, 0, 32, qp.wq.umem->umem_id);
	uint8_t *qpc = in + 0x18;
	set(qpc, 1, 0, 8, service);
	set(qpc, 2, 3, 2, 3);
	set(qpc, 5, 0, 24, pdn);
	set(qpc, 0xd, 0, 24, qp.uar->page_id);
	set(qpc, 0xac, 5, 3, pool ? 1 : 3); /* of a pool, or no receive queue */
	set(qpc, 0xad, 0, 24, pool);
	set(qpc, 0x9d, 0, 24, cq->number);
	set(qpc, 0x7d, 0, 24, cq->number);
	set(qpc, 0xa, 1, 4, DEPTH_LOG);
	set(qpc, 0xe4, 0, 32, qp.dbr.umem->umem_id);
	set(qpc, 0x11, 0, 24, uidx);
	qp.obj = mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
	if (!qp.obj)
		return qp;
	qp.number = get(out, 9, 0, 24);
	return qp;
}

static inline struct qp make_qp_on(struct mlx5dv_devx_uar *uar, struct cq *cq, uint32_t uidx, int service)
{
	return make_qp_from(uar, cq, uidx, service, 0);
}

static inline struct qp make_qp(struct cq *cq, uint32_t uidx, int service)
{
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(ctx, MLX5DV_UAR_ALLOC_TYPE_BF);
	MUST(uar, "UAR of a queue pair");
	return make_qp_on(uar, cq, uidx, service);
}

/* A queue pair whose receives come from a pool. */
static inline struct qp make_receiver(struct cq *cq, uint32_t pool)
{
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(ctx, MLX5DV_UAR_ALLOC_TYPE_BF);
	MUST(uar, "UAR of a queue pair");
	return make_qp_from(uar, cq, 7, 0, pool);
}

static inline int move(struct qp *qp, uint16_t opcode, uint32_t peer, uint8_t *out)
{
	uint8_t in[0x110] = { 0 };
	uint8_t *qpc = in + 0x18, *ads = qpc + 0x18;
	set(in, 0, 0, 16, opcode);
	set(in, 9, 0, 24, qp->number);
	set(qpc, 0x92, 0, 3, 7); /* rre, rwe, rae */
	set(ads, 0x25, 0, 8, 1);
	set(qpc, 8, 0, 3, 3); /* 1024 */
	set(qpc, 8, 3, 5, 30);
	set(qpc, 0x15, 0, 24, peer);
	set(qpc, 0x94, 3, 5, 12);
	set(qpc, 0x91, 0, 3, 4);
	set(qpc, 0x71, 0, 3, 4);
	set(qpc, 0x71, 5, 3, 7);
	set(qpc, 0x72, 0, 3, 7);
	set(ads, 8, 0, 5, 14);
	set(ads, 0xb, 0, 8, 64);
	memcpy(ads + 0x10, gid.raw, 16);
	return mlx5dv_devx_obj_modify(qp->obj, in, sizeof(in), out, 16);
}

static inline void connect_to(struct qp *qp, uint32_t peer)
{
	uint8_t out[16] = { 0 };
	MUST(!move(qp, 0x502, 0, out), "RST2INIT_QP: status %#x", out[0]);
	MUST(!move(qp, 0x503, peer, out), "INIT2RTR_QP: status %#x", out[0]);
	MUST(!move(qp, 0x504, 0, out), "RTR2RTS_QP: status %#x", out[0]);
}

/* An RDMA WRITE of one data segment, in one basic block; its doorbell as libraries on GPUs ring:
 * the next index, and no ds. */
static inline void post_write(struct qp *qp, void *from, uint32_t lkey, void *to, uint32_t rkey, uint32_t n)
{
	uint32_t *wqe = (uint32_t *)(qp->wq.at + (qp->index & (DEPTH - 1)) * 64);
	memset(wqe, 0, 64);
	wqe[0] = htobe32((qp->index & 0xffff) << 8 | 0x08);
	wqe[1] = htobe32(qp->number << 8 | 3);
	wqe[2] = htobe32(8); /* CE: a completion */
	uint64_t raddr = htobe64((uintptr_t)to), laddr = htobe64((uintptr_t)from);
	memcpy(wqe + 4, &raddr, 8);
	wqe[6] = htobe32(rkey);
	wqe[8] = htobe32(n);
	wqe[9] = htobe32(lkey);
	memcpy(wqe + 10, &laddr, 8);
	qp->index++;
}

static inline void ring(struct qp *qp)
{
	uint64_t bell = (uint64_t)((qp->index & 0xffff) << 8) << 32 | (uint64_t)(qp->number << 8);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	if (!qp->silent)
		__atomic_store_n((uint32_t *)qp->dbr.at + 1, htobe32(qp->index & 0xffff), __ATOMIC_RELEASE);
	__atomic_store_n(qp->reg, htobe64(bell), __ATOMIC_RELEASE);
}

/* Waits for the CQE of the WQE before `index`; its opcode. A collapsed CQ's entry is written again and again: the
 * opcode is of the CQE whose counter was seen only if one load brings both. */
static inline int wait_for(struct qp *qp, uint32_t uidx)
{
	struct cq *cq = qp->cq;
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (;;) {
		uint32_t slot = cq->collapsed ? 0 : cq->taken & (DEPTH - 1);
		uint8_t *cqe = cq->ring.at + slot * 64;
		/* Acquire: what the CQE reports, and its other fields, are read behind its tail. */
		uint32_t tail = be32toh(__atomic_load_n((uint32_t *)(cqe + 60), __ATOMIC_ACQUIRE));
		uint8_t own = tail;
		uint16_t counter = tail >> 16;
		int fresh = cq->collapsed
			? own != 0xff && own >> 4 != 0xf && counter == (uint16_t)(qp->index - 1)
			: own >> 4 != 0xf && (own & 1) == (cq->taken >> DEPTH_LOG & 1);
		if (fresh) {
			uint32_t srqn_uidx = be32toh(*(uint32_t *)(cqe + 32)) & 0xffffff;
			MUST(srqn_uidx == uidx, "CQE of user index %u, not %u", srqn_uidx, uidx);
			MUST(counter == (uint16_t)(qp->index - 1), "CQE of WQE %u", counter);
			qp->syndrome = cqe[55];
			if (!cq->collapsed) {
				cq->taken++;
				*(uint32_t *)cq->dbr.at = htobe32(cq->taken & 0xffffff);
			}
			return own >> 4;
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
		MUST(now.tv_sec - start.tv_sec < 10, "no completion within 10 s");
	}
}

static inline void fill(uint8_t *at, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		at[i] = (uint8_t)((seed + i) * 2654435761u >> 24);
}

static inline void open_device(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	MUST(list && n > 0, "no device");
	ctx = ibv_open_device(list[0]);
	MUST(ctx, "open");
	pd = ibv_alloc_pd(ctx);
	MUST(pd, "PD");
	struct mlx5dv_pd dv = { 0 };
	struct mlx5dv_obj obj = { .pd = { .in = pd, .out = &dv } };
	MUST(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD), "PD's number");
	pdn = dv.pdn;
	MUST(!ibv_query_gid(ctx, 1, 0, &gid), "GID");
	MUST(!mlx5dv_devx_query_eqn(ctx, 0, &eqn), "EQN");
}

#endif
