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
