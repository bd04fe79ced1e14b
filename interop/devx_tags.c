/* Pools that match tags (CREATE_XRQ), through libmlx5: entries by list operations, eager messages, a rendezvous, what
 * is unexpected, and what is refused. Prints one line for each thing shown; exits 1 at the first that fails. */
#include "devx.h"

enum { WQES = 4, STRIDE = 32, WQ = 0x90, UIDX = 0x123 };
/* `op_own` 7:4 of a CQE: a receive, one without a packet. What one of tag matching tells (`app_op`). */
enum { SEND = 2, NO_PACKET = 6 };
enum { CONSUMED = 1, EXPECTED, UNEXPECTED, NO_TAG, APPEND, REMOVE, NOOP, CONSUMED_MSG = 0xa };
enum { RENDEZVOUS = 1, FIN = 2, EAGER = 3 };

static struct area wqes, dbr;

/* A command of a pool of `type`, whose list has 2^`log` places. */
static void command(uint8_t *in, int type, int log, uint32_t cqn)
{
	memset(in, 0, 0x150);
	set(in, 0, 0, 16, 0x717);
	set(in + 0x10, 2, 4, 4, 1); /* tag matching */
	set(in + 0x10, 3, 4, 4, 1); /* rendezvous */
	set(in + 0x10, 5, 0, 24, UIDX);
	set(in + 0x10, 9, 0, 24, cqn);
	set(in + 0x30, 0, 0, 4, log);
	set(in + WQ, 0, 0, 4, type);
	set(in + WQ, 9, 0, 24, pdn);
	set(in + WQ, 0x21, 4, 4, 5);
	set(in + WQ, 0x23, 3, 5, 2);
	set(in + WQ, 0x28, 0, 32, dbr.umem->umem_id);
	set(in + WQ, 0x2c, 0, 32, wqes.umem->umem_id);
}

static struct mlx5dv_devx_obj *create(const uint8_t *in, size_t bytes, uint32_t *number)
{
	uint8_t out[16] = { 0 };
	struct mlx5dv_devx_obj *obj = mlx5dv_devx_obj_create(ctx, in, bytes, out, sizeof(out));
	*number = get(out, 9, 0, 24);
	return obj;
}

static void refusals(uint32_t cqn)
{
	static const struct { const char *what; unsigned byte, bit, bits; uint64_t value; } cases[] = {
		{ "no topology", 0x12, 4, 4, 0 },
		{ "no offload", 0x13, 4, 4, 0 },
		{ "dynamic connections", 0x1f, 7, 1, 1 },
		{ "a list of one place", 0x30, 0, 4, 0 },
		{ "a list of 256 places", 0x30, 0, 4, 8 },
		{ "a list of 2^15 places", 0x30, 0, 4, 15 },
		{ "no such CQ", 0x19, 0, 24, 0xabcdef },
		{ "no such protection domain", WQ + 9, 0, 24, 0xabcdef },
		{ "strides", WQ, 0, 4, 3 },
		{ "a ring beyond its umem", WQ + 0x23, 3, 5, 15 },
		{ "2^31 WQEs", WQ + 0x23, 3, 5, 31 },
		{ "WQEs of 16 bytes", WQ + 0x21, 4, 4, 4 },
		{ "WQEs of 32 KiB", WQ + 0x21, 4, 4, 15 },
		{ "no such umem", WQ + 0x2c, 0, 32, 0xabcdef },
		{ "a ring that wraps", WQ + 0x30, 0, 64, UINT64_MAX - 7 },
		{ "a record beyond its umem", WQ + 0x10, 0, 64, 64 },
	};
	uint8_t in[0x150];
	uint32_t number;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		command(in, 0, 3, cqn);
		set(in, cases[i].byte, cases[i].bit, cases[i].bits, cases[i].value);
		MUST(!create(in, sizeof(in), &number), "created: %s", cases[i].what);
	}
	command(in, 0, 3, cqn);
	MUST(!create(in, sizeof(in) - 4, &number), "a mailbox that ends early");
	puts("refusals");
}

/* The next CQE, which must be of the pool, of this opcode, and tell this. */
static const uint8_t *next(struct cq *cq, int opcode, int told)
{
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	const uint8_t *cqe = cq->ring.at + (cq->taken & (DEPTH - 1)) * 64;
	for (;;) {
		uint8_t own = __atomic_load_n(cqe + 63, __ATOMIC_ACQUIRE);
		if (own >> 4 != 0xf && (own & 1) == (cq->taken >> DEPTH_LOG & 1))
			break;
		clock_gettime(CLOCK_MONOTONIC, &now);
		MUST(now.tv_sec - start.tv_sec < 10, "no CQE that tells %d within 10 s", told);
	}
	MUST(cqe[63] >> 4 == opcode, "CQE of opcode %d, not %d", cqe[63] >> 4, opcode);
	MUST(cqe[40] == 1 && cqe[41] == told, "a CQE tells %d, not %d", cqe[41], told);
	MUST(get(cqe, 33, 0, 24) == UIDX, "a CQE of user index %#x", (unsigned)get(cqe, 33, 0, 24));
	cq->taken++;
	__atomic_store_n((uint32_t *)cq->dbr.at, htobe32(cq->taken & 0xffffff), __ATOMIC_RELEASE);
	return cqe;
}

static void operate(struct qp *qp, int op, uint16_t place, uint64_t tag, uint16_t handled, void *at, uint32_t n,
	uint32_t lkey)
{
	uint8_t *wqe = qp->wq.at + (qp->index & (DEPTH - 1)) * 64;
	memset(wqe, 0, 64);
	set(wqe, 1, 0, 16, qp->index & 0xffff);
	set(wqe, 3, 0, 8, 0x28);
	set(wqe, 4, 0, 24, qp->number);
	set(wqe, 7, 0, 8, 4);
	set(wqe, 16, 0, 4, op);
	set(wqe, 17, 0, 2, 3); /* a CQE; the count counts */
	set(wqe, 18, 0, 16, place);
	set(wqe, 22, 0, 16, handled);
	set(wqe, 32, 0, 64, tag);
	set(wqe, 40, 0, 64, UINT64_MAX);
	set(wqe, 48, 0, 32, n);
	set(wqe, 52, 0, 32, lkey);
	set(wqe, 56, 0, 64, (uintptr_t)at);
	qp->index++;
	ring(qp);
}

static void header(uint8_t *at, int kind, uint64_t tag)
{
	memset(at, 0, 16);
	at[0] = kind;
	set(at, 8, 0, 64, tag);
}

static void send_message(struct qp *qp, void *from, uint32_t n, uint32_t lkey)
{
	post_write(qp, from, lkey, NULL, 0, n);
	/* A SEND has no remote address: its data come at once. */
	uint8_t *wqe = qp->wq.at + (qp->index - 1) % DEPTH * 64;
	wqe[3] = 0x0a;
	wqe[7] = 2;
	memcpy(wqe + 16, wqe + 32, 16);
	ring(qp);
	MUST(wait_for(qp, 7) == 0, "SEND");
}

static void pool(int type)
{
	struct cq cq = make_cq(0), sent = make_cq(0);
	uint8_t in[0x150];
	uint32_t number;
	memset(dbr.at, 0, 64);
	for (int i = 0; i < WQES; i++)
		set(wqes.at + i * STRIDE, 2, 0, 16, (i + 1) % WQES);
	command(in, type, 2, cq.number);
	struct mlx5dv_devx_obj *xrq = create(in, sizeof(in), &number);
	MUST(xrq, "CREATE_XRQ of type %d", type);
	struct qp list = make_receiver(&sent, number), a = make_receiver(&sent, number);
	struct qp b = make_receiver(&sent, number);
	MUST(list.obj && a.obj && b.obj, "queue pairs on a pool that matches tags");
	connect_to(&list, list.number);
	connect_to(&a, b.number);
	connect_to(&b, a.number);
	MUST(mlx5dv_devx_obj_destroy(xrq) == EBUSY, "a pool in use was destroyed");
	MUST(mlx5dv_devx_obj_destroy(cq.obj) == EBUSY, "the CQ of a pool was destroyed");

	struct area from = area(DATA, 0), to = area(DATA, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *src = ibv_reg_mr(pd, from.at, DATA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_mr *dst = ibv_reg_mr(pd, to.at, DATA, IBV_ACCESS_LOCAL_WRITE);
	MUST(src && dst, "MRs");
	for (int i = 0; i < 2; i++) {
		uint8_t *seg = wqes.at + i * STRIDE + 16;
		set(seg, 0, 0, 32, 64);
		set(seg, 4, 0, 32, dst->lkey);
		set(seg, 8, 0, 64, (uintptr_t)to.at + i * 64);
	}
	__atomic_store_n((uint32_t *)dbr.at, htobe32(2), __ATOMIC_RELEASE);

	/* An entry, which is taken off; an entry for a message; one for a rendezvous; no fourth in four places. */
	const uint8_t *cqe;
	uint16_t places[] = { 1, 2, 3 };
	for (int i = 0; i < 3; i++) {
		operate(&list, 1, places[i], 5 + i, 0, to.at + 4096 * (i + 1), i == 2 ? 16384 : 100, dst->lkey);
		cqe = next(&cq, NO_PACKET, APPEND);
		MUST(get(cqe, 0, 0, 1) == 1 && get(cqe, 4, 0, 16) == 0, "entry %d", i);
	}
	operate(&list, 2, 0, 0, 0, NULL, 0, 0);
	MUST(get(next(&cq, NO_PACKET, REMOVE), 0, 0, 1) == 1, "an entry is not taken off");
	operate(&list, 2, 0, 0, 0, NULL, 0, 0);
	MUST(get(next(&cq, NO_PACKET, REMOVE), 0, 0, 1) == 0, "an entry is taken off twice");

	header(from.at, EAGER, 6);
	fill(from.at + 16, 100, 1);
	send_message(&a, from.at, 116, src->lkey);
	cqe = next(&cq, SEND, CONSUMED_MSG);
	MUST(get(cqe, 42, 0, 16) == 1 && get(cqe, 44, 0, 32) == 100, "place or bytes of a message");
	MUST(!memcmp(cqe, from.at, 16), "its header");
	MUST(!memcmp(to.at + 8192, from.at + 16, 100) && !to.at[8192 + 100], "its payload");

	/* For the entry that was taken off. */
	header(from.at, EAGER, 5);
	send_message(&a, from.at, 40, src->lkey);
	cqe = next(&cq, SEND, UNEXPECTED);
	MUST(get(cqe, 60, 0, 16) == 0 && get(cqe, 44, 0, 32) == 40, "WQE or bytes of an unexpected message");
	MUST(!memcmp(to.at, from.at, 40), "bytes of an unexpected message");
	operate(&list, 0, 0, 0, 1, NULL, 0, 0);
	MUST(get(next(&cq, NO_PACKET, NOOP), 4, 0, 16) == 1, "unexpected messages");

	fill(from.at + 4096, 16384, 2);
	header(from.at, RENDEZVOUS, 7);
	set(from.at, 16, 0, 64, (uintptr_t)from.at + 4096);
	set(from.at, 24, 0, 32, src->rkey);
	set(from.at, 28, 0, 32, 16384);
	send_message(&a, from.at, 32, src->lkey);
	MUST(get(next(&cq, NO_PACKET, CONSUMED), 42, 0, 16) == 2, "place of a rendezvous");
	cqe = next(&cq, SEND, EXPECTED);
	MUST(get(cqe, 42, 0, 16) == 2 && get(cqe, 44, 0, 32) == 16384, "place or bytes of a rendezvous");
	MUST(!memcmp(to.at + 3 * 4096, from.at + 4096, 16384), "payload of a rendezvous");
	/* Its end, to the sender. */
	cqe = next(&cq, SEND, NO_TAG);
	MUST(get(cqe, 60, 0, 16) == 1 && get(cqe, 44, 0, 32) == 16, "WQE or bytes of the end of a rendezvous");
	header(from.at, FIN, 7);
	MUST(!memcmp(to.at + 64, from.at, 16), "the end of a rendezvous");

	MUST(!mlx5dv_devx_obj_destroy(list.obj) && !mlx5dv_devx_obj_destroy(a.obj), "DESTROY_QP");
	MUST(!mlx5dv_devx_obj_destroy(b.obj) && !mlx5dv_devx_obj_destroy(xrq), "DESTROY_XRQ");
	MUST(!mlx5dv_devx_obj_destroy(cq.obj) && !mlx5dv_devx_obj_destroy(sent.obj), "DESTROY_CQ");
	MUST(!ibv_dereg_mr(src) && !ibv_dereg_mr(dst), "MRs");
	printf("tags %d\n", type);
}

int main(void)
{
	open_device();
	wqes = area(WQES * STRIDE, 0);
	dbr = area(64, 0);
	struct cq cq = make_cq(0);
	refusals(cq.number);
	MUST(!mlx5dv_devx_obj_destroy(cq.obj), "DESTROY_CQ");
	for (int type = 0; type < 2; type++)
		pool(type);
	MUST(!mlx5dv_devx_umem_dereg(wqes.umem) && !mlx5dv_devx_umem_dereg(dbr.umem), "umems");
	MUST(!ibv_close_device(ctx), "close");
	puts("end");
	return 0;
}
