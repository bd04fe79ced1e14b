/* Cases of devx.c: what a queue pair that is connected is told in addition, and objects of the general kind, in its
 * terms.
 */
/* RTS2RTS_QP with a mask of optional parameters from bit 32 on; the answer's status. */
static unsigned rts2rts(struct qp *qp, uint64_t mask, uint16_t port, size_t bytes)
{
	uint8_t in[0x170] = { 0 }, out[16] = { 0 };
	set(in, 0, 0, 16, 0x505);
	set(in, 9, 0, 24, qp->number);
	set(in, 0x108, 0, 64, mask);
	set(in + 0x18 + 0x18, 0x22, 0, 16, port);
	int refused = mlx5dv_devx_obj_modify(qp->obj, in, bytes, out, sizeof(out));
	MUST(!refused == !out[0], "RTS2RTS_QP: %d, status %#x", refused, out[0]);
	return out[0];
}

/* The UDP source port of a queue pair's packets. */
static void ports(struct qp *qp, struct area *from, struct ibv_mr *src, struct area *to, struct ibv_mr *dst)
{
	uint8_t in[16] = { 0 }, out[0x110] = { 0 };
	MUST(rts2rts(qp, 1 << 2, 55555, 0x170) == 0, "a source port");
	MUST(rts2rts(qp, 1 << 2, 0, 0x170) == 3, "source port 0");
	MUST(rts2rts(qp, 1 << 3, 55556, 0x170) == 2, "copies, which are for INIT");
	MUST(rts2rts(qp, 1 << 0, 0, 0x170) == 3 && rts2rts(qp, 1 << 0, 0, 0x110) == 0x50, "a stream of RC");
	MUST(rts2rts(qp, UINT64_MAX, 55556, 0x170) == 2, "all that there may ever be");
	MUST(rts2rts(qp, 1 << 2, 55556, 0x100) == 0, "a mailbox without the mask asks for nothing");
	set(in, 0, 0, 16, 0x50b);
	set(in, 9, 0, 24, qp->number);
	MUST(!mlx5dv_devx_obj_query(qp->obj, in, sizeof(in), out, sizeof(out)), "QUERY_QP");
	MUST(get(out + 0x18 + 0x18, 0x22, 0, 16) == 55555, "udp_sport");
	fill(from->at, 5000, 55);
	memset(to->at, 0, 5000);
	post_write(qp, from->at, src->lkey, to->at, dst->rkey, 5000);
	ring(qp);
	MUST(wait_for(qp, 1) == 0 && !memcmp(from->at, to->at, 5000), "a WRITE from there");
	puts("ports");
}

/* Objects of the general kind: what is asked for, and what is answered. */
static struct mlx5dv_devx_obj *general(unsigned type, unsigned log, uint32_t qpn, unsigned sgid, size_t bytes,
	uint8_t *out)
{
	uint8_t in[0x50] = { 0 };
	set(in, 0, 0, 16, 0xa00);
	set(in, 6, 0, 16, type);
	set(in, 0xc, 3, 5, log);
	if (type == 0x3a) {
		set(in, 0x1c, 0, 32, qpn);
		set(in + 0x20, 0x1c, 4, 8, sgid);
		memcpy(in + 0x40, gid.raw, 16);
	}
	memset(out, 0, 16);
	return mlx5dv_devx_obj_create(ctx, in, bytes, out, 16);
}

static void numbers(struct qp *qp)
{
	enum { QPNS = 0x2c, MAPPING = 0x3a, LOG = 6 };
	uint8_t out[16];
	struct mlx5dv_devx_obj *some[2] = { general(QPNS, LOG, 0, 0, 0x20, out) };
	uint32_t first = get(out, 8, 0, 32);
	MUST(some[0] && first && first < 1 << 24 && !(first & 63), "reserved numbers from %#x", first);
	some[1] = general(QPNS, LOG + 1, 0, 0, 0x20, out);
	uint32_t more = get(out, 8, 0, 32);
	MUST(some[1] && more >= first + 64 && !(more & 127), "reserved numbers from %#x", more);
	MUST(qp->number < first || qp->number >= first + 64, "a queue pair has a reserved number");
	MUST(!general(QPNS, LOG - 1, 0, 0, 0x20, out) && out[0] == 3, "fewer than are set aside at a time");
	MUST(!general(QPNS, 31, 0, 0, 0x20, out) && out[0] == 3, "all numbers");
	MUST(!general(QPNS, LOG, 0, 0, 0x10, out) && out[0] == 0x50, "a mailbox that ends early");
	MUST(!general(0x20, LOG, 0, 0, 0x20, out) && out[0] == 2, "an object of another type");
	/* As many as there may be, and then no more; what goes makes room. */
	struct mlx5dv_devx_obj *all[17] = { 0 };
	int have = 0;
	while (have < 17 && (all[have] = general(QPNS, 16, 0, 0, 0x20, out)))
		have++;
	MUST(have == 15 && out[0] == 0xf, "%d times 65536 numbers, then %#x", have, out[0]);
	for (int i = 0; i < have; i++)
		MUST(!mlx5dv_devx_obj_destroy(all[i]), "numbers that are given back");
	/* By libmlx5, twice as many as it is given at a time. */
	uint32_t qpns[128];
	for (int i = 0; i < 128; i++)
		MUST(!mlx5dv_reserved_qpn_alloc(ctx, &qpns[i]) && (!i || qpns[i] != qpns[i - 1]), "number %d", i);
	for (int i = 0; i < 128; i++)
		MUST(!mlx5dv_reserved_qpn_dealloc(ctx, qpns[i]), "number %d", i);
	MUST(mlx5dv_reserved_qpn_dealloc(ctx, first) == EINVAL, "a number that libmlx5 has not");
	MUST(!mlx5dv_devx_obj_destroy(some[0]) && !mlx5dv_devx_obj_destroy(some[1]), "numbers");
	puts("numbers");

	struct mlx5dv_devx_obj *mapping = general(MAPPING, 0, qp->number, 0, 0x50, out);
	MUST(mapping && !mlx5dv_devx_obj_destroy(mapping), "an address of a queue pair's kind");
	MUST(!general(MAPPING, 0, first, 0, 0x50, out) && out[0] == 5, "of a queue pair that there is not");
	MUST(!general(MAPPING, 0, 0xff000000 | qp->number, 0, 0x50, out) && out[0] == 5, "of 32 bits");
	MUST(!general(MAPPING, 0, qp->number, 1, 0x50, out) && out[0] == 3, "from an address that is not its own");
	MUST(!general(MAPPING, 0, qp->number, 0, 0x48, out) && out[0] == 0x50, "a mailbox that ends early");
	puts("mapping");
}

struct element {
	struct mlx5dv_devx_obj *obj;
	uint32_t id;
};

/* CREATE_GENERAL_OBJECT of an element of a schedule, or MODIFY_GENERAL_OBJECT of one; the answer's status. */
static unsigned element(struct element *of, unsigned type, uint32_t parent, uint64_t fields, uint32_t mbps,
	size_t bytes)
{
	uint8_t in[0x90] = { 0 }, out[16] = { 0 };
	set(in, 0, 0, 16, of->obj ? 0xa01 : 0xa00);
	set(in, 6, 0, 16, 0x26);
	set(in, 8, 0, 32, of->id);
	set(in + 0x10, 0, 0, 64, fields);
	set(in + 0x10, 8, 0, 8, 3);
	set(in + 0x30, 0, 0, 8, type);
	set(in + 0x30, 8, 0, 32, parent);
	set(in + 0x30, 0x18, 0, 32, mbps);
	if (of->obj) {
		mlx5dv_devx_obj_modify(of->obj, in, bytes, out, sizeof(out));
	} else {
		of->obj = mlx5dv_devx_obj_create(ctx, in, bytes, out, sizeof(out));
		of->id = get(out, 8, 0, 32);
	}
	return out[0];
}

/* RTS2RTS_QP with groups of queues for requests and responses; the answer's status. */
static unsigned groups(struct qp *qp, int extension, uint32_t asks, uint32_t answers)
{
	uint8_t in[0x170] = { 0 }, out[16] = { 0 };
	set(in, 0, 0, 16, 0x505);
	set(in, 8, 0, 1, extension);
	set(in, 9, 0, 24, qp->number);
	set(in, 0x108, 0, 64, 1 << 1);
	set(in, 0x114, 0, 32, asks);
	set(in, 0x118, 0, 32, answers);
	mlx5dv_devx_obj_modify(qp->obj, in, sizeof(in), out, sizeof(out));
	return out[0];
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* A queue pair that goes by a group of queues below a node with a rate. */
static void schedule(struct qp *qp, struct area *from, struct ibv_mr *src, struct area *to, struct ibv_mr *dst)
{
	enum { TSAR = 0, GROUP = 4, SHARE = 1, MAX = 2 };
	struct element root = { 0 }, node = { 0 }, group = { 0 }, none = { 0 };
	MUST(element(&root, TSAR, 0, 0, 0, 0x90) == 0 && root.obj && root.id, "a root");
	MUST(element(&node, TSAR, root.id, MAX, 16, 0x90) == 0 && node.obj, "a node");
	MUST(element(&group, GROUP, node.id, 0, 0, 0x90) == 0 && group.obj, "a group");
	MUST(element(&none, GROUP, 0, 0, 0, 0x90) == 3 && !none.obj, "a group without a node");
	MUST(element(&none, GROUP, group.id, 0, 0, 0x90) == 5 && !none.obj, "a group below a group");
	MUST(element(&none, TSAR, 0xfffffff, 0, 0, 0x90) == 5 && !none.obj, "a node below none");
	MUST(element(&none, 1, root.id, 0, 0, 0x90) == 2 && !none.obj, "an element of another type");
	MUST(element(&none, TSAR, 0, 1 << 2, 0, 0x90) == 2 && !none.obj, "another attribute");
	MUST(element(&none, TSAR, 0, 0, 0, 0x88) == 0x50 && !none.obj, "a mailbox that ends early");
	MUST(element(&group, TSAR, 0, 0, 0, 0x90) == 3, "a group that is to be a node");
	MUST(groups(qp, 1, node.id, 0) == 5, "a node as a group");
	MUST(groups(qp, 1, 0, 0xabcdef) == 5, "a group that there is not");
	MUST(groups(qp, 0, group.id, 0) == 3, "without the extension");
	MUST(groups(qp, 1, group.id, group.id) == 0, "a group");
	/* 50,000 bytes at 16 Mbit/s: 25 ms. */
	double start = seconds();
	fill(from->at, 50000, 99);
	memset(to->at, 0, 50000);
	post_write(qp, from->at, src->lkey, to->at, dst->rkey, 50000);
	ring(qp);
	MUST(wait_for(qp, 1) == 0 && !memcmp(from->at, to->at, 50000), "a WRITE at its rate");
	MUST(seconds() - start > 0.022, "a WRITE at its rate took %.4f s", seconds() - start);
	MUST(mlx5dv_devx_obj_destroy(group.obj) == EBUSY && mlx5dv_devx_obj_destroy(node.obj) == EBUSY, "what is in use");
	MUST(element(&node, TSAR, 0, MAX, 0, 0x90) == 0, "without a rate");
	MUST(groups(qp, 1, 0, 0) == 0, "no group");
	MUST(!mlx5dv_devx_obj_destroy(group.obj) && !mlx5dv_devx_obj_destroy(node.obj) && !mlx5dv_devx_obj_destroy(root.obj),
	     "elements of nobody");
	puts("schedule");
}

/* CREATE_MKEY of KSM mode over parts of regions, of which the last of these is repeated; the key, or the status. */
enum { MANY_PARTS = 2000 };

struct parts {
	unsigned n, actual, log;
	uint64_t start, bytes;
	uint32_t index;
	struct { uint32_t key; uint64_t at; } part[4];
};

static struct mlx5dv_devx_obj *ksm(const struct parts *of, int atomic, size_t bytes, uint32_t *key, uint8_t *status)
{
	static uint8_t in[0x110 + 16 * MANY_PARTS];
	uint8_t out[16] = { 0 }, *mkc = in + 0x10;
	memset(in, 0, sizeof(in));
	set(in, 0, 0, 16, 0x200);
	set(in, 9, 0, 24, of->index);
	set(in, 0x60, 0, 32, of->actual);
	set(mkc, 2, 1, 1, atomic);
	set(mkc, 2, 2, 4, 15); /* rw rr lw lr */
	set(mkc, 2, 6, 2, 3);
	set(mkc, 4, 0, 24, 0xffffff);
	set(mkc, 7, 0, 8, 0x77);
	set(mkc, 0xd, 0, 24, pdn);
	set(mkc, 0x10, 0, 64, of->start);
	set(mkc, 0x18, 0, 64, of->bytes);
	set(mkc, 0x34, 0, 32, of->n);
	set(mkc, 0x3b, 3, 5, of->log);
	for (unsigned i = 0; i < MANY_PARTS; i++) {
		set(in + 0x110 + 16 * i, 4, 0, 32, of->part[i < 3 ? i : 3].key);
		set(in + 0x110 + 16 * i, 8, 0, 64, of->part[i < 3 ? i : 3].at);
	}
	struct mlx5dv_devx_obj *obj = mlx5dv_devx_obj_create(ctx, in, bytes, out, sizeof(out));
	*key = get(out, 9, 0, 24) << 8 | 0x77;
	*status = out[0];
	return obj;
}

/* A key over two parts of a region in another order, from address 0 on, the last of them shorter than the others. */
static void parts(struct qp *qp, struct area *from, struct ibv_mr *src, struct area *to, struct ibv_mr *dst)
{
	enum { PAGE = 4096, ALL = 0x110 + 64 };
	uint64_t at = (uintptr_t)to->at;
	struct parts two = { 2, 2, 12, 0, PAGE + 100, 0, { { dst->lkey, at + 2 * PAGE }, { dst->lkey, at } } };
	uint32_t key, other;
	uint8_t status;
	struct mlx5dv_devx_obj *obj = ksm(&two, 0, ALL, &key, &status);
	MUST(obj, "CREATE_MKEY over parts: status %#x", status);
	fill(from->at, PAGE + 100, 88);
	memset(to->at, 0, 3 * PAGE);
	post_write(qp, from->at, src->lkey, (uint8_t *)0, key, PAGE + 100);
	ring(qp);
	MUST(wait_for(qp, 1) == 0, "a WRITE to parts");
	MUST(!memcmp(to->at + 2 * PAGE, from->at, PAGE) && !memcmp(to->at, from->at + PAGE, 100), "where it lies");
	MUST(!to->at[100] && !to->at[PAGE], "what is not the key's");
	/* A part of one region that is longer than it: only what is the key's is reached, as UCX has it. */
	struct parts long_one = { 1, 1, 31, at + 8, 16, 0, { { dst->lkey, at } } };
	struct mlx5dv_devx_obj *atomic = ksm(&long_one, 1, ALL, &other, &status);
	MUST(atomic, "CREATE_MKEY over a part of 2 GiB: status %#x", status);
	post_write(qp, from->at + 32, src->lkey, (uint8_t *)at + 8, other, 16);
	ring(qp);
	MUST(wait_for(qp, 1) == 0 && !memcmp(to->at, from->at + 32, 16), "a WRITE with an offset");
	/* As many as UCX makes of a region that it registers by several threads: the mailbox is longer than a page. */
	struct parts many = { MANY_PARTS, MANY_PARTS, 12, 0, (uint64_t)MANY_PARTS * PAGE, 0, { { dst->lkey, at } } };
	many.part[3].key = dst->lkey, many.part[3].at = at + PAGE;
	uint32_t of_many;
	struct mlx5dv_devx_obj *pages = ksm(&many, 0, 0x110 + 16 * MANY_PARTS, &of_many, &status);
	MUST(pages, "CREATE_MKEY over 2000 parts: status %#x", status);
	post_write(qp, from->at + 64, src->lkey, (uint8_t *)((MANY_PARTS - 1) * (uint64_t)PAGE + 8), of_many, 32);
	ring(qp);
	MUST(wait_for(qp, 1) == 0 && !memcmp(to->at + PAGE + 8, from->at + 64, 32), "a WRITE to the last of 2000");
	MUST(!mlx5dv_devx_obj_destroy(pages), "DESTROY_MKEY of 2000 parts");
	/* What is refused. */
	struct parts bad = two;
	bad.actual = 3;
	MUST(!ksm(&bad, 0, ALL, &other, &status) && status == 3, "more entries than its size: %#x", status);
	bad = two, bad.actual = bad.n = 0;
	MUST(!ksm(&bad, 0, ALL, &other, &status) && status == 3, "no entries");
	bad = two, bad.actual = bad.n = 5;
	MUST(!ksm(&bad, 0, ALL, &other, &status) && status == 0x50, "a mailbox that ends early: %#x", status);
	bad = two, bad.bytes = 2 * PAGE + 1;
	MUST(!ksm(&bad, 0, ALL, &other, &status) && status == 3, "longer than its entries");
	bad = two, bad.bytes = 0;
	MUST(!ksm(&bad, 0, ALL, &other, &status) && status == 3, "nothing");
	bad = two, bad.log = 3;
	MUST(!ksm(&bad, 0, ALL, &other, &status) && status == 3, "parts of 8 bytes");
	bad = two, bad.start = UINT64_MAX - 100;
	MUST(!ksm(&bad, 0, ALL, &other, &status) && status == 3, "behind the last address");
	bad = two, bad.index = 9;
	MUST(!ksm(&bad, 0, ALL, &other, &status) && status == 3, "an index of the program's choice");
	MUST(!mlx5dv_devx_obj_destroy(atomic) && !mlx5dv_devx_obj_destroy(obj), "DESTROY_MKEY");
	puts("parts");
}
